"""Attack: a trusted coordinator lets the noise fall, to get a round with too little.

The noise of an offer is that of its first round. A guard that checked and charged this
noise alone would answer late rounds with much less, at the price of much more. Each
round must pay for its own noise, and the owner's limit holds in the last one.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.fleet.coordinator.devices import offers_of
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.wire.codec import encode
from fedbudget.fleet.wire.messages import RunOffer
from fedbudget.fleet.wire.signing import Signer
from fedbudget.ledger import Charge, Ledger
from tests.examples import honest
from tests.fleet.devices import DIM, NUM_ROWS, SIGNER, Site, new_site
from tests.fleet.examples import RUN, declaration, offer, order

DECAY, ROUNDS = 0.8, 6
BUDGET = fb.Budget(epsilon=4.0, delta=1e-4, cost=1e6)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = new_site(tmp_path, cost=1e6)
    yield site
    site.guard.close()


def by_hand(rounds: list[int]) -> float:
    """Return the epsilon of these rounds of an offer, by the library's ledger."""
    ledger = Ledger(BUDGET, num_devices=1)
    offered = offer(noise_decay=DECAY, rounds=ROUNDS)
    for number in rounds:
        noise = offered.noise_std * DECAY ** (number - 1)
        multiplier = noise * offered.batch_size  # the logistic loss has G = 1
        ledger.count(Charge(steps=offered.tau, noise_multiplier=multiplier, cost=100.0))
    return float(ledger.epsilon[0])


@pytest.mark.parametrize("rounds", [[1, 2, 3], [6], [2, 5, 6], [1, 6]])
def test_every_round_pays_for_its_own_noise(site: Site, rounds: list[int]) -> None:
    assert site.offer(noise_decay=DECAY, rounds=ROUNDS).code == "accepted"
    for number in rounds:
        assert site.order(round=number).code == "answered"
    assert site.spent[0] == pytest.approx(by_hand(rounds), rel=1e-12)
    # A round again, or one before it, is neither computed nor paid for.
    assert site.order(round=rounds[-1]).code == "answered"
    if rounds[0] > 1:
        assert site.order(round=1).code == "wrong-round"
    assert site.spent[0] == pytest.approx(by_hand(rounds), rel=1e-12)


def test_the_answer_has_the_noise_that_was_charged(site: Site) -> None:
    settings = {"tau": 1, "learning_rate": 1.0, "rounds": 40}
    noises = []
    for number in range(60):
        run = number.to_bytes(16, "big")
        code = site.offer(run=run, noise_std=200.0, noise_decay=0.95, **settings).code
        assert code == "accepted"
        answer = site.order(run=run, round=40)
        assert answer.code == "answered"
        noises.append(np.frombuffer(answer.theta) - np.linspace(-1, 1, DIM))
    expected = 200.0 * 0.95**39  # gradients are at most 1 long
    # 240 normals: the standard error of their spread is 4.6 %; six times that
    assert np.std(noises) == pytest.approx(expected, rel=0.28)


def test_a_schedule_that_ends_below_the_owners_limit_is_refused(site: Site) -> None:
    # The limit of 5 is a noise of 0.05: 0.2 * 0.8^6 = 0.0524, 0.2 * 0.8^7 = 0.0419.
    assert site.offer(noise_decay=DECAY, rounds=7).code == "accepted"
    other = bytes(16)
    refused = site.offer(run=other, noise_decay=DECAY, rounds=8)
    assert refused.code == "policy" and "in round 8 is below" in refused.reason
    assert site.guard.answer_order(SIGNER.sign(order(run=other))) == []
    assert site.spent == (0.0, 0.0)


def test_a_limit_that_the_owner_raised_holds_in_the_last_round(site: Site) -> None:
    assert site.offer(noise_decay=DECAY, rounds=7).code == "accepted"
    path = site.folder / "policy.toml"
    path.write_text(path.read_text().replace("multiplier = 5.0", "multiplier = 6.0"))
    site.restart()
    assert site.order(round=1).code == "policy"
    assert site.spent == (0.0, 0.0)


@pytest.mark.parametrize("decay", [float("nan"), 0.0, -0.5, 1.0, 1.5, float("inf")])
def test_an_invalid_decay_is_refused(site: Site, decay: float) -> None:
    (reply,) = signed_with(site.guard, SIGNER, decay)
    assert reply.code == "unsupported"
    assert site.guard.answer_order(SIGNER.sign(order())) == []
    assert site.spent == (0.0, 0.0)


@pytest.mark.parametrize("decay", [1e-300, 1e-9, 0.01])
def test_a_tiny_decay_is_refused(site: Site, decay: float) -> None:
    (reply,) = signed_with(site.guard, SIGNER, decay)
    assert reply.code == "policy"
    assert site.spent == (0.0, 0.0)


def signed_with(guard: Guard, signer: Signer, decay: float) -> Any:
    """Send an offer with any decay, past the checks of `RunOffer`."""
    valid = offer()
    plain = {name: getattr(valid, name) for name in RunOffer.checks}
    present = {name: value for name, value in plain.items() if value is not None}
    body = encode({"kind": "offer", "v": 1, **present, "noise_decay": decay})

    class Raw:
        def to_bytes(self) -> bytes:
            return body

    return guard.answer_offer(signer.sign(Raw()))  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_all_rounds_of_a_plan_cost_its_epsilon_and_stay_within_the_budget(
    tmp_path: Path, decay: float
) -> None:
    plan = fb.plan(
        fb.Problem(num_samples=[NUM_ROWS], dim=DIM),
        fb.Budget(epsilon=4.0, delta=1e-4, cost=1000),
        fb.Prices(communication=100, computation=1),
        drift_correction=False,
        noise_schedule=False,
    )
    plan = honest(replace(plan, noise_decay=decay))
    declared = declaration(device="sensor-1")
    (offered,) = offers_of(
        plan, [declared], run=RUN, name="alarms", precision="float64"
    )
    site = new_site(tmp_path)
    (accepted,) = site.guard.answer_offer(SIGNER.sign(offered))
    assert accepted.code == "accepted"
    for number in range(1, plan.rounds + 1):
        assert site.order(round=number).code == "answered"
    epsilon = site.spent[0]
    assert epsilon <= 4.0
    assert epsilon == pytest.approx(float(plan.epsilon[0]), rel=1e-6)
    site.guard.close()
