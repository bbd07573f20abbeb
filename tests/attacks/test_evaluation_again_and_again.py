"""Attack: a coordinator asks for an evaluation again and again.

Averaged, many noisy counts of the same rows would tell the exact count, and with it
single rows. Asked again with the same order, a device must send the same bytes; each
new order must be charged, and all together must stay within their share of epsilon.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

from fedbudget.errors import LedgerError
from fedbudget.fleet.coordinator.evaluation import noise_for, with_reserve
from fedbudget.fleet.device.evaluation import exact_counts, unit_of, with_noise
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.wire.evaluation import MEASURES, EvaluationOrder, sensitivity
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.signing import Signer
from fedbudget.privacy import epsilon_from_mu, mu_from_epsilon
from tests.fleet.devices import DIM, NUM_ROWS, SIGNER, Site, new_site, rows
from tests.fleet.examples import RUN, declaration, theta

SHARE, HELD_OUT = 0.5, 30
POLICY = f"""
[evaluation]
epsilon = {SHARE}
num_samples = {HELD_OUT}
"""


def evaluation(**changes: Any) -> EvaluationOrder:
    fields: dict[str, Any] = {
        "evaluation": bytes(16),
        "run": RUN,
        "measure": "correct",
        "noise_std": 20.0,
        "loss": "logistic",
        "num_classes": 1,
        "dim": DIM,
        "precision": "float64",
        "theta": theta(DIM),
    }
    return EvaluationOrder(**(fields | changes))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = new_site(tmp_path, cost=1e6)
    site.guard.close()
    (tmp_path / "ledger.sqlite").unlink()
    (tmp_path / "ledger.sqlite.head").unlink()
    path = tmp_path / "policy.toml"
    path.write_text(path.read_text() + POLICY)
    site.restart()
    yield site
    site.guard.close()


def ask(site: Site, signer: Signer = SIGNER, **changes: Any) -> Reply:
    (reply,) = site.guard.answer_order(signer.sign(evaluation(**changes)))
    return reply


def test_the_same_order_gets_the_same_bytes(site: Site) -> None:
    first = ask(site)
    assert first.code == "answered" and first.theta is not None
    spent = site.spent
    assert spent[0] > 0 and spent[1] == 101.0
    for _ in range(20):
        assert ask(site).to_bytes() == first.to_bytes()
    site.restart()
    assert ask(site).to_bytes() == first.to_bytes()
    assert site.spent == spent


def test_new_orders_are_charged_and_end_with_their_share(site: Site) -> None:
    codes = []
    for number in range(60):
        codes.append(ask(site, evaluation=number.to_bytes(16, "big")).code)
    answered = codes.count("answered")
    assert 0 < answered < 60 and set(codes) == {"answered", "policy"}
    spent = site.spent[0]
    assert spent <= SHARE
    # One more would have exceeded the share, though the budget is eight times that.
    mu = np.sqrt(answered + 1) / 20.0
    assert float(epsilon_from_mu(mu, 1e-4)) > SHARE
    # Refusals for the share tell nothing of the budget, and block nobody.
    assert read_statement(site.policy.ledger).overdrafts == {}
    assert site.offer(num_samples=70, batch_size=70).code == "accepted"


def test_one_identity_has_one_order(site: Site) -> None:
    assert ask(site).code == "answered"
    for changes in (
        {"theta": theta(DIM)[::-1]},
        {"noise_std": 19.0},
        {"run": bytes(16)},
    ):
        again = ask(site, **changes)
        assert (again.code, again.theta) == (
            "policy",
            None,
        ) or again.code == "bad-model"


def test_only_what_the_owner_allows(site: Site, tmp_path: Path) -> None:
    for changes in (
        {"dim": DIM - 1, "theta": theta(DIM - 1)},
        {"loss": "hinge"},
        {"measure": "squared-error"},
    ):
        assert ask(site, **changes).code == "policy"
    assert ask(site, theta=np.full(DIM, 1e31).tobytes()).code == "bad-model"
    assert site.spent == (0.0, 0.0)
    other = new_site(tmp_path / "other")  # without [evaluation]
    (reply,) = other.guard.answer_order(SIGNER.sign(evaluation()))
    assert (reply.code, reply.reason) == ("policy", "the owner allows no evaluation")
    other.guard.close()
    stranger = Signer.generate().sign(evaluation())
    assert site.guard.answer_order(stranger) == []


def test_no_run_trains_on_held_out_rows(site: Site) -> None:
    assert site.guard.declaration.num_samples == NUM_ROWS - HELD_OUT
    assert site.guard.declaration.evaluation_samples == HELD_OUT
    assert site.offer(num_samples=71, batch_size=71).code == "policy"
    assert site.offer(num_samples=70, batch_size=70).code == "accepted"
    x, y = rows()
    # Training rows change, answers of an evaluation do not: the noise is tiny here.
    for flip in (0, 69):
        changed = x.copy()
        changed[flip] = -x[flip]
        part = ExactRows.rounded(changed[70:], y[70:])
        order = evaluation()
        weights = np.frombuffer(order.theta)
        assert exact_counts(order, weights, part) == exact_counts(
            order, weights, ExactRows.rounded(x[70:], y[70:])
        )


def test_nothing_is_sent_that_is_not_charged(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "charge", full)
        assert ask(site).code == "device-trouble"
    assert site.spent == (0.0, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "store_answer", full)
        assert ask(site).code == "device-trouble"
    assert ask(site).code == "already-charged"  # never computed a second time


@pytest.mark.parametrize("measure", MEASURES)
def test_three_witnesses_of_its_cost(measure: str) -> None:
    devices = [declaration(evaluation_epsilon=1.0, evaluation_samples=30)]
    noise = noise_for(devices, 0.2, measure)
    # By hand: the mechanism has mu = s / sigma.
    mu = sensitivity(measure) / noise
    assert float(epsilon_from_mu(mu, 1e-4)) == pytest.approx(0.2, rel=1e-6)
    assert float(epsilon_from_mu(mu, 1e-4)) <= 0.2
    # By its inverse.
    assert float(mu_from_epsilon(0.2, 1e-4)) == pytest.approx(mu, rel=1e-6)
    # By a library that we did not write.
    theirs = dp_accounting.get_epsilon_gaussian(noise / sensitivity(measure), 1e-4)
    assert theirs == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("measure", MEASURES)
def test_no_replaced_row_moves_the_numbers_further(measure: str) -> None:
    loss = "huber" if measure == "squared-error" else "softmax"
    classes = 1 if loss == "huber" else 3
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(300):
        x = rng.normal(size=(20, DIM))
        x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
        y = rng.uniform(-1, 1, 20) if loss == "huber" else rng.integers(3, size=20)
        other_x, other_y = x.copy(), y.copy()
        other_x[0] = -x[0]
        other_y[0] = -np.sign(y[0]) if loss == "huber" else (y[0] + 1) % 3
        weights = 100 * rng.normal(size=DIM * classes)
        order = evaluation(
            measure=measure,
            loss=loss,
            num_classes=classes,
            theta=weights.tobytes(),
        )
        counts = [
            np.array(exact_counts(order, weights, ExactRows.rounded(*pair)))
            for pair in ((x, y), (other_x, other_y))
        ]
        moved = float(np.linalg.norm(counts[0] - counts[1])) / unit_of(measure)
        worst = max(worst, moved)
    assert 0.5 < worst <= sensitivity(measure) + 1e-12


def test_the_noise_is_at_least_what_was_charged() -> None:
    """Exact normals on a fine grid: 20,000 of them have the right spread."""
    drawn = with_noise([7] * 20_000, 2.5, 1) - 7
    # Six standard errors: fails by chance about twice in a billion runs.
    assert abs(drawn.std() / 2.5 - 1) < 6 / np.sqrt(2 * 20_000)
    assert abs(drawn.mean()) < 6 * 2.5 / np.sqrt(20_000)


def test_a_plan_leaves_room_for_it() -> None:
    """Training and evaluation together spend what the device declares, not more."""
    for accountant in ("gdp", "zcdp"):
        one = declaration(
            accountant=accountant, evaluation_epsilon=1.0, evaluation_samples=30
        )
        left = with_reserve(one, 0.2)
        assert 3.7 < left.epsilon < 4.0
        if accountant == "gdp":
            parts = [float(mu_from_epsilon(e, 1e-4)) for e in (left.epsilon, 0.2)]
            both = float(epsilon_from_mu(float(np.hypot(parts[0], parts[1])), 1e-4))
            assert both <= 4.0 and both == pytest.approx(4.0, rel=1e-6)


def test_an_evaluation_has_no_identity_of_a_run(site: Site) -> None:
    """A run that was joined in another period would pay for it."""
    run = bytes([7]) * 16
    assert site.offer(run=run, num_samples=70, batch_size=70).code == "accepted"
    reply = ask(site, evaluation=run)
    assert reply.code != "answered" and reply.theta is None
    other = bytes([8]) * 16
    assert ask(site, evaluation=other).code == "answered"
    assert site.offer(run=other, num_samples=70, batch_size=70).code != "accepted"
