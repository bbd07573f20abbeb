"""Attack: mix the secure sum of an evaluation with a training run, or with another one.

A device adds only a share of the noise: it counts on that of its peers. A server that
lets some of them add a training round, an evaluation with less noise, or one of another
model under the same identity would see the victim's counts nearly bare. The order is in
the digest that all signatures, masks and shares are bound to, an identity has one
purpose, and no number leaves the device but under masks.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbudget.fleet.device.evaluation import Evaluator
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.evaluation import EvaluationOrder, EvaluationSum, sum_purpose
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import (
    AttemptKeys,
    AttemptUpload,
    Introduction,
    RevealedShares,
)
from tests.fleet.sums import DIM, Hostile, SumFleet

TERMS = EvaluationSum(
    least_answers=4, colluders=0, row_steps=1 << 10, scale_bits=14, ring_bits=32
)
EVALUATION, TRAINING = bytes([7]) * 16, bytes([8]) * 16
VICTIM = "device-0"


def order(terms: EvaluationSum | None = TERMS, **changes: Any) -> EvaluationOrder:
    fields: dict[str, Any] = {
        "evaluation": EVALUATION,
        "run": TRAINING,
        "measure": "correct",
        "noise_std": TERMS.noise_std if terms is None else terms.noise_std,
        "loss": "logistic",
        "num_classes": 1,
        "dim": DIM,
        "precision": "float64",
        "theta": np.zeros(DIM).tobytes(),
        "sum_terms": None if terms is None else terms.to_bytes(),
    }
    return EvaluationOrder(**(fields | changes))


class Evaluating(Hostile):
    """A coordinator that orders an evaluation in a sum, of each device another one."""

    def __init__(
        self, fleet: SumFleet, order_for: Callable[[str], EvaluationOrder | None]
    ) -> None:
        super().__init__(fleet, run=TRAINING)
        self.trained = dict(self.introductions)
        self.run_id, self.introductions = EVALUATION, {}
        self.refused: dict[str, Reply] = {}
        self.terms = sum_purpose(order().to_bytes())
        for name in fleet.names:
            message = order_for(name)
            reply = None if message is None else self.order(name, message)
            if isinstance(reply, Introduction):
                self.introductions[name] = reply
            elif isinstance(reply, Reply):
                self.refused[name] = reply


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, sum_certs: Path
) -> Iterator[SumFleet]:
    (tmp_path / "certs").symlink_to(sum_certs)
    processes = getattr(request, "param", False)
    fleet = SumFleet(tmp_path, 6, 4, processes=processes, held_out=20)
    yield fleet
    fleet.close()


def assert_untouched(server: Hostile) -> None:
    """Nobody was charged, and nothing was uploaded."""
    assert not any(isinstance(item, AttemptUpload) for item in server.sent)
    for name in server.fleet.names:
        assert not server.fleet.entries(name, "charge")
    assert not any(isinstance(i, Reply) and i.theta is not None for i in server.sent)


@pytest.mark.parametrize(
    "changes",
    [
        {"theta": np.ones(DIM).tobytes()},  # they would add other counts
        {"measure": "per-class"},
        {"terms": replace(TERMS, row_steps=1 << 14)},  # with a sixteenth of the noise
        {"terms": replace(TERMS, least_answers=5)},
    ],
)
def test_peers_with_another_order_do_not_fit(
    fleet: SumFleet, changes: dict[str, Any]
) -> None:
    server = Evaluating(
        fleet, lambda name: order() if name == VICTIM else order(**changes)
    )
    assert set(server.introductions) == set(fleet.names)
    server.meet()
    roster = server.roster(
        {
            name: server.order(
                name,
                server.attempt(
                    theta=np.frombuffer(
                        changes["theta"]
                        if name != VICTIM and "theta" in changes
                        else order().theta
                    )
                ),
            )
            for name in fleet.names
        }
    )
    for name in fleet.names:
        reply = server.order(name, roster)
        assert isinstance(reply, Reply) and reply.code == "policy"
    assert_untouched(server)


@pytest.mark.parametrize("fleet", [True], indirect=True)
def test_peers_that_train_under_its_identity_do_not_fit(fleet: SumFleet) -> None:
    """On processes of `fedbudget device`."""
    server = Evaluating(fleet, lambda name: order() if name == VICTIM else None)
    others = Hostile(fleet, run=EVALUATION)  # refused by the victim alone
    assert set(others.introductions) == set(fleet.names) - {VICTIM}
    server.introductions |= others.introductions
    server.meet()
    keys = server.keys(fleet.names)
    assert all(isinstance(key, AttemptKeys) for key in keys.values())
    for name in fleet.names:
        reply = server.order(name, server.roster(keys))
        assert isinstance(reply, Reply) and reply.code == "policy"
    assert_untouched(server)


def test_keys_of_a_training_run_do_not_fit(fleet: SumFleet) -> None:
    training = Hostile(fleet, run=bytes([9]) * 16)
    training.meet()
    foreign = training.keys(fleet.names)
    server = Evaluating(fleet, lambda _: order())
    # Introductions of a training run are no introductions here.
    listed = [*list(server.introductions.values())[:5], server.trained["device-5"]]
    for item in (listed, [replace(i, run=EVALUATION) for i in listed]):
        reply = server.order(VICTIM, server.peer_list(item))
        assert isinstance(reply, Reply) and reply.refused
    server.meet()
    keys = server.keys(fleet.names)
    mixed = {n: keys[n] if n == VICTIM else foreign[n] for n in fleet.names}
    reply = server.order(VICTIM, server.roster(mixed))
    assert isinstance(reply, Reply) and reply.code == "policy"
    assert_untouched(server)


def test_one_identity_has_one_purpose(fleet: SumFleet) -> None:
    server = Evaluating(fleet, lambda _: order())
    # An open answer to the same identity would be seen next to the sum.
    reply = server.order(VICTIM, order(None))
    assert isinstance(reply, Reply) and (reply.code, reply.theta) == ("policy", None)
    assert not Hostile(fleet, run=EVALUATION).introductions
    reply = server.order(VICTIM, order(evaluation=TRAINING))
    assert isinstance(reply, Reply) and reply.refused
    # And an open evaluation never becomes a sum.
    opened = bytes([5]) * 16
    answer = server.order(VICTIM, order(None, evaluation=opened))
    assert answer.theta is not None
    reply = server.order(VICTIM, order(evaluation=opened))
    assert isinstance(reply, Reply) and reply.code == "policy"


@pytest.mark.parametrize(
    "terms",
    [
        replace(TERMS, least_answers=3),
        replace(TERMS, colluders=4),
        replace(TERMS, colluders=9),
        replace(TERMS, scale_bits=3),
        replace(TERMS, scale_bits=31, row_steps=1 << 20),
    ],
)
def test_terms_outside_the_policy_are_refused(
    fleet: SumFleet, terms: EvaluationSum
) -> None:
    noise = max(1e-3, terms.noise_std)
    server = Evaluating(fleet, lambda _: order(terms, noise_std=noise))
    assert {reply.code for reply in server.refused.values()} == {"policy"}
    assert not server.introductions
    assert_untouched(server)


def test_noise_that_is_not_there_is_refused(fleet: SumFleet) -> None:
    server = Evaluating(fleet, lambda _: order(noise_std=2 * TERMS.noise_std))
    assert len(server.refused) == 6 and not server.introductions


def test_one_model_one_round_one_sum(fleet: SumFleet) -> None:
    server = Evaluating(fleet, lambda _: order())
    server.meet()
    other = server.order(VICTIM, server.attempt(theta=np.ones(DIM)))
    assert isinstance(other, Reply) and other.code == "bad-model"
    keys, uploads = server.up_to_uploads()
    assert all(isinstance(item, AttemptUpload) for item in uploads.values())
    signatures = server.confirmed(range(6))
    few = server.order(VICTIM, server.answers(range(3)))
    assert isinstance(few, Reply) and few.refused
    for name in fleet.names:
        shares = server.order(name, server.reveal(name, keys, signatures))
        assert isinstance(shares, RevealedShares)
    for round, attempt in ((1, 2), (2, 1)):
        again = server.order(VICTIM, server.attempt(round, attempt))
        assert isinstance(again, Reply) and again.code == "wrong-round"
    assert len(fleet.entries(VICTIM, "charge")) == 1
    assert len(fleet.entries(VICTIM, "reveal")) == 1
    # Asked again, the device introduces itself as before, and says nothing else.
    fleet.restart(VICTIM)
    assert server.order(VICTIM, order()) == server.introductions[VICTIM]


def test_rows_are_used_after_the_charge_only(
    fleet: SumFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Evaluating(fleet, lambda _: order())
    server.meet()
    roster = server.roster(server.keys(fleet.names))
    refusal = Reply(device=VICTIM, run=EVALUATION, round=1, code="policy", reason="no")
    monkeypatch.setattr(Evaluator, "charge", lambda *_: refusal)
    monkeypatch.setattr(
        "fedbudget.fleet.device.sum_guard.sum_vector", lambda *_: pytest.fail("used")
    )
    reply = server.order(VICTIM, roster)
    assert isinstance(reply, Reply) and reply.code == "policy"
    assert_untouched(server)


def test_a_device_without_sums_refuses(fleet: SumFleet) -> None:
    path = fleet.paths[VICTIM]
    path.write_text(path.read_text().split("\n[sums]")[0] + fleet._evaluation())
    fleet.restart(VICTIM)
    topic = topics.order_again(VICTIM)
    signer = Hostile(fleet, run=TRAINING).signer
    (out,) = fleet.devices[VICTIM].handle(topic, signer.sign(order()))
    assert b"no part in sums" in out.payload
