"""The guard: its answers, refusals and charges."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import DataError, LedgerError
from fedbudget.fleet.device import guard as guard_module
from fedbudget.fleet.device.exact_steps import noisy_steps
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.wire import messages
from fedbudget.fleet.wire.codec import encode
from fedbudget.fleet.wire.messages import Reply, theta_from_bytes
from fedbudget.fleet.wire.signing import Signer
from fedbudget.ledger import Charge, Ledger
from tests.fleet.devices import SIGNER, Site, new_site, rows
from tests.fleet.examples import RUN, notice, offer, order, theta

OTHER_RUN = bytes(16)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = new_site(tmp_path)
    yield site
    site.guard.close()


@pytest.fixture
def joined(site: Site) -> Site:
    assert site.offer().code == "accepted"
    return site


def noise_of(site: Site, answer: bytes) -> Any:
    return theta_from_bytes(answer, "float64", 4) - np.frombuffer(theta())


def test_a_round_is_answered_and_charged(joined: Site) -> None:
    reply = joined.order()
    assert reply.code == "answered"
    assert theta_from_bytes(reply.theta, "float64", 4).shape == (4,)
    by_hand = Ledger(joined.policy.budget.budget, num_devices=1)
    # noise 0.2 on a mean of 100 gradients of norm 1: a multiplier of 20.
    by_hand.count(Charge(steps=5, noise_multiplier=20.0, cost=105.0))
    assert joined.spent == (by_hand.epsilon[0], 105.0)


def test_the_answer_has_the_noise_of_the_offer(joined: Site) -> None:
    joined.offer(run=OTHER_RUN, tau=1, rounds=100, learning_rate=1.0, noise_std=20.0)
    moves = []
    for number in range(1, 10):
        answer = joined.order(run=OTHER_RUN, round=number)
        moves.append(noise_of(joined, answer.theta))
    # 36 draws, whose mean square is outside of this once in a million times.
    assert 0.25 < np.mean(np.square(moves)) / 20.0**2 < 2.6


def test_an_answered_round_is_sent_again_and_costs_nothing(joined: Site) -> None:
    first, spent = joined.order(), joined.spent
    assert joined.order().to_bytes() == first.to_bytes()
    # Another model makes no difference: nothing new is computed.
    assert joined.order(theta=bytes(32)).to_bytes() == first.to_bytes()
    joined.restart()
    assert joined.order().to_bytes() == first.to_bytes()
    assert joined.spent == spent


def test_rounds_may_be_skipped_but_not_repeated(joined: Site) -> None:
    assert joined.order(round=4).code == "answered"
    spent = joined.spent
    for number in (1, 2, 3, 9):
        assert joined.order(round=number).code == "wrong-round"
    assert joined.spent == spent
    assert joined.order(round=5).code == "answered"
    assert joined.order(round=4).code == "wrong-round"  # only the last one is stored


def test_a_charge_without_an_answer_stays_and_is_not_computed_again(
    joined: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(guard_module, "noisy_steps", crash)
        with pytest.raises(KeyboardInterrupt):
            joined.order()
    spent = joined.spent
    assert spent[1] == 105.0
    joined.restart()
    assert joined.order().code == "already-charged"
    assert joined.spent == spent
    assert joined.order(round=2).code == "answered"


def crash(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "epsilon, cost, code", [(4.0, 250.0, "cost-budget"), (2.0, 1e6, "privacy-budget")]
)
def test_a_refusal_of_an_overdraft_has_no_number(
    tmp_path: Path, epsilon: float, cost: float, code: str
) -> None:
    site = new_site(tmp_path, epsilon=epsilon, cost=cost)
    site.offer(rounds=60)
    codes = [site.order(round=number).code for number in range(1, 61)]
    answered = codes.count("answered")
    assert 1 < answered < 60
    assert codes == ["answered"] * answered + [code] * (60 - answered)
    spent = site.spent
    assert spent[0] <= epsilon and spent[1] <= cost
    refusal = site.order(round=60)
    assert not any(sign.isdigit() for sign in refusal.reason)
    site.restart()
    assert site.order(round=60).code == code
    assert site.spent == spent
    site.guard.close()


INVALID_OFFERS: dict[str, dict[str, Any]] = {
    "another device": {"device": "sensor-2"},
    "another run's name": {"name": "adverts"},
    "too little noise": {"noise_std": 0.04},
    "no noise": {"noise_std": 0.0},
    "noise that cannot be drawn": {"noise_std": 1e300},
    "too many steps": {"tau": 51},
    "too many rounds": {"rounds": 101},
    "too large steps": {"learning_rate": 21.0},
    "too large an L2 term": {"l2": 0.2},
    "more samples than there are": {"num_samples": 101, "batch_size": 101},
    "a batch above the samples": {"sampling": "fixed", "batch_size": 101},
    "a full batch that is not": {"batch_size": 50},
    "another loss": {"loss": "hinge"},
    "other classes": {"loss": "softmax", "num_classes": 3},
    "another width": {"dim": 5},
}


@pytest.mark.parametrize("changes", INVALID_OFFERS.values(), ids=INVALID_OFFERS)
def test_an_offer_outside_the_policy_is_refused(
    site: Site, changes: dict[str, Any]
) -> None:
    reply = site.offer(**changes)
    assert (reply.code, reply.round) == ("policy", 0)
    assert site.guard.answer_order(SIGNER.sign(order())) == []
    assert site.spent == (0.0, 0.0)


def test_an_offer_may_be_repeated_but_not_changed(joined: Site) -> None:
    assert joined.offer().code == "accepted"
    assert joined.offer(rounds=9).code == "policy"
    joined.restart()
    assert joined.offer().code == "accepted"
    assert joined.order().code == "answered"


def test_an_order_before_its_offer_is_answered_with_the_offer(site: Site) -> None:
    assert site.guard.answer_order(SIGNER.sign(order())) == []
    replies = site.guard.answer_offer(SIGNER.sign(offer()))
    assert [reply.code for reply in replies] == ["accepted", "answered"]


def test_a_strangers_orders_get_no_answer(joined: Site) -> None:
    stranger = Signer.generate()
    assert joined.guard.answer_offer(stranger.sign(offer(run=OTHER_RUN))) == []
    assert joined.guard.answer_order(stranger.sign(order())) == []
    assert joined.spent == (0.0, 0.0)


def test_a_run_that_the_owner_removes_from_the_policy_ends(joined: Site) -> None:
    assert joined.order(round=1).code == "answered"
    path, spent = joined.folder / "policy.toml", joined.spent
    path.write_text(path.read_text().replace("alarms*", "other*"))
    joined.restart()
    assert joined.order(round=2).code == "policy"
    assert joined.spent == spent


def test_each_coordinator_commands_its_own_runs_only(tmp_path: Path) -> None:
    site, other = new_site(tmp_path), Signer.generate()
    path = tmp_path / "policy.toml"
    keys = f'"{SIGNER.public_key}", "{other.public_key}"'
    path.write_text(path.read_text().replace(f'"{SIGNER.public_key}"', keys))
    site.restart()
    site.offer()
    (reply,) = site.guard.answer_order(other.sign(order()))
    assert reply.code == "untrusted"
    assert site.spent == (0.0, 0.0)
    site.guard.close()


BAD_MODELS = {
    "short": theta(3),
    "long": theta(5),
    "in float32": theta(4, "<f4"),
    "not a number": np.array([0.0, np.nan, 0, 0]).tobytes(),
    "infinite": np.array([0.0, -np.inf, 0, 0]).tobytes(),
    "gigantic": np.full(4, 1e31).tobytes(),
}


@pytest.mark.parametrize("model", BAD_MODELS.values(), ids=BAD_MODELS)
def test_an_invalid_model_is_refused(joined: Site, model: bytes) -> None:
    assert joined.order(theta=model).code == "bad-model"
    assert joined.spent == (0.0, 0.0)


def test_a_model_that_grows_beyond_bounds_is_paid_and_refused(site: Site) -> None:
    path = site.folder / "policy.toml"
    path.write_text(path.read_text().replace("most_l2 = 0.1", "most_l2 = 10"))
    site.restart()
    site.offer(l2=10.0, learning_rate=20.0, tau=50)  # each step multiplies by -199
    reply = site.order()
    assert reply.code == "bad-model" and "grew" in reply.reason
    assert site.spent[1] == 150.0
    assert site.order().code == "already-charged"


def test_truncated_and_damaged_orders_are_ignored(joined: Site) -> None:
    good = SIGNER.sign(order())
    for cut in range(0, len(good), 7):
        assert joined.guard.answer_order(good[:cut]) == []
    body = order().to_bytes()
    for invalid in (b"", b"\x00", encode([body, bytes(64)]), encode({"v": 1}), body):
        assert joined.guard.answer_order(invalid) == []
    assert joined.spent == (0.0, 0.0)


def test_another_version_gets_an_answer_that_names_both_sides(
    joined: Site, monkeypatch: Any
) -> None:
    monkeypatch.setattr(messages, "VERSION", 7)
    later_order, later_offer = SIGNER.sign(order(round=3)), SIGNER.sign(offer())
    monkeypatch.undo()
    (reply,) = joined.guard.answer_order(later_order)
    assert (reply.code, reply.run, reply.round) == ("unsupported", RUN, 3)
    assert reply.reason is not None
    assert f"release {fb.__version__}, wire {messages.WIRE}" in reply.reason
    assert "version 7 is not supported, only 1" in reply.reason
    (reply,) = joined.guard.answer_offer(later_offer)
    assert (reply.code, reply.round) == ("unsupported", 0)
    # Strangers learn nothing.
    assert joined.guard.answer_order(Signer.generate().sign(order())) == []
    assert joined.spent == (0.0, 0.0)


def test_an_order_for_other_devices_is_not_charged(site: Site) -> None:
    assert site.offer(index=9).code == "accepted"
    others = SIGNER.sign(order(selected=b"\xff\x01"))
    assert site.guard.answer_order(others) == []
    assert site.spent == (0.0, 0.0)
    assert site.order(selected=b"\x00\x02").code == "answered"
    assert site.spent[1] == 105.0


def test_replies_tell_which_round_was_charged_before(joined: Site) -> None:
    assert [joined.order(round=number).previous for number in (1, 2, 5)] == [0, 1, 2]
    assert joined.order(round=5).previous == 2  # as stored
    assert joined.offer().previous == 5


def test_a_notice_is_logged_if_a_trusted_coordinator_sent_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    for signer, device in (
        (SIGNER, "sensor-2"),
        (Signer.generate(), "sensor-1"),
        (SIGNER, "sensor-1"),
    ):
        signed = signer.sign(notice(device=device, reason=f"for {device}"))
        assert site.guard.take_notice(signed) == []
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert errors == ["the coordinator leaves this device out: for sensor-1"]


def test_an_offer_is_not_an_order(joined: Site) -> None:
    assert joined.guard.answer_order(SIGNER.sign(offer())) == []
    assert joined.guard.answer_offer(SIGNER.sign(order())) == []


def test_a_stricter_policy_holds_for_runs_that_go_on(joined: Site) -> None:
    assert joined.order().code == "answered"
    path = joined.folder / "policy.toml"
    path.write_text(path.read_text().replace("most_tau = 50", "most_tau = 4"))
    joined.restart()
    assert joined.order(round=2).code == "policy"


def test_a_lower_budget_holds_at_once(joined: Site) -> None:
    joined.order()
    path = joined.folder / "policy.toml"
    path.write_text(path.read_text().replace("cost = 1000.0", "cost = 150"))
    joined.restart()
    assert joined.spent[1] == 105.0
    assert joined.order(round=2).code == "cost-budget"


def grow(site: Site, count: int) -> None:
    x, y = rows(count)
    np.savez(site.folder / "rows.npz", x=x, y=y)


def test_new_rows_wait_for_the_next_run(
    joined: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []  # rows of each round

    def record(theta: Any, rows: Any, **options: Any) -> Any:
        used.append(len(rows))
        return noisy_steps(theta, rows, **options)

    monkeypatch.setattr("fedbudget.fleet.device.guard.noisy_steps", record)
    joined.order()
    grow(joined, 130)
    assert joined.guard.refresh()
    joined.declare(130)
    assert joined.guard.declaration.num_samples == 130
    assert joined.order(round=2).code == "answered"
    changes = {"run": OTHER_RUN, "num_samples": 130, "batch_size": 130}
    assert joined.offer(**changes).code == "accepted"
    assert joined.order(run=OTHER_RUN).code == "answered"
    assert used == [100, 100, 130]
    # One data set, one budget, however it grew.
    assert joined.spent[1] == 3 * 105


def test_a_damaged_data_file_is_reported_without_a_charge(joined: Site) -> None:
    (joined.folder / "rows.npz").write_bytes(b"half a file")
    with pytest.raises(DataError, match=r"rows\.npz"):
        joined.guard.refresh()
    assert joined.order().code == "answered"  # from the rows that were read before
    assert joined.spent[1] == 105.0


def test_a_run_whose_rows_have_changed_ends(joined: Site) -> None:
    joined.order()
    x, y = rows()
    np.savez(joined.folder / "rows.npz", x=x, y=1 - y)
    joined.restart()
    spent = joined.spent
    assert joined.order(round=2).code == "data-changed"
    assert joined.spent == spent  # neither charged nor forgotten
    assert joined.offer(run=OTHER_RUN).code == "accepted"


def test_batches_without_replacement_are_charged_as_if_all_took_part(
    joined: Site,
) -> None:
    changes = {"sampling": "fixed", "batch_size": 25, "noise_std": 0.8}
    assert joined.offer(run=OTHER_RUN, **changes).code == "accepted"
    assert joined.order(run=OTHER_RUN).code == "answered"
    by_hand = Ledger(joined.policy.budget.budget, num_devices=1)
    by_hand.count(Charge(steps=5, noise_multiplier=20.0, cost=105.0))
    assert joined.spent == (by_hand.epsilon[0], 105.0)


def test_the_declaration_is_what_the_policy_makes_public(site: Site) -> None:
    declared = site.guard.declaration
    assert (declared.num_samples, declared.dim, declared.num_classes) == (100, 4, 1)
    assert (declared.epsilon, declared.cost) == (4.0, 1000.0)
    site.offer(), site.order()
    assert site.guard.declaration == declared  # nothing about the remaining budget


def test_clocks_do_not_matter(joined: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    codes = []
    for number, now in enumerate((0.0, 4e9, -1e9, 1.0), 1):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        codes.append(joined.order(round=number).code)
        joined.restart()
    assert codes == ["answered"] * 4
    assert joined.spent[1] == 4 * 105


def test_a_reply_has_no_field_for_the_remaining_budget(joined: Site) -> None:
    fields = {"device", "run", "round", "code", "theta", "reason", "previous"}
    assert set(Reply.checks) == fields


def test_two_guards_do_not_share_a_ledger(site: Site) -> None:
    from fedbudget.errors import LedgerError
    from fedbudget.fleet.device.guard import Guard

    with pytest.raises(LedgerError, match="in use by another process"):
        Guard(site.policy)


def test_the_ledger_of_another_data_set_is_refused(site: Site) -> None:
    from fedbudget.errors import LedgerError
    from fedbudget.fleet.device.guard import Guard

    site.guard.close()
    path = site.folder / "policy.toml"
    path.write_text(path.read_text().replace('lineage = "roof"', 'lineage = "cellar"'))
    with pytest.raises(LedgerError, match="of the data set 'roof', not 'cellar'"):
        Guard(read_policy(path))


def test_rows_that_the_ledger_could_not_note_are_not_used(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = rows(105)
    np.savez(site.folder / "rows.npz", x=x, y=y)

    def full(*_: object, **__: object) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "note_data", full)
        with pytest.raises(LedgerError):
            site.guard.refresh()
    assert site.guard.refresh()
    assert read_statement(site.policy.ledger).rows == 105
