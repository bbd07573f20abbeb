"""The coordinator's decisions: which replies are valid, how long it waits, restarts.

There is no broker here: orders go directly to scripted devices.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.fleet.coordinator import devices as coordinator
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.lifecycle import withdraw
from fedbudget.fleet.coordinator.rounds import max_distances
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import RoundOrder, RunOffer
from tests.fleet.scripted import (
    DECLARATIONS,
    NAMES,
    PLAN,
    ROUND_COST,
    SIGNER,
    THETA,
    Script,
    Scripted,
    Site,
    mean_of,
    moved,
    ordered,
    refusal,
    reply_to,
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat orders after a short time."""
    monkeypatch.setattr(coordinator, "_FIRST_REPEAT", 0.1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.stop()


def test_everybody_answers(site: Site) -> None:
    devices, connection = site.start()
    replies = devices.run_round(ordered())
    mean_of(replies, *NAMES)
    assert sorted(connection.offers) == [*NAMES]
    assert replies.cost.tolist() == [ROUND_COST] * 4
    expected = fb.privacy.GDP.epsilon_from_mu(
        2 * np.sqrt(PLAN.tau) / PLAN.noise_multiplier, PLAN.delta
    )
    assert replies.epsilon == pytest.approx(expected)


def bad_theta(value: float) -> Script:
    def script(order: RoundOrder) -> list[Any]:
        return [reply_to(order, "b", theta=np.full(4, value).tobytes())]

    return script


HOSTILE: dict[str, tuple[Script, str]] = {
    "NaN": (bad_theta(np.nan), "not finite"),
    "infinite": (bad_theta(np.inf), "not finite"),
    "huge": (bad_theta(1e9), "honest steps lead at most"),
    "too long": (lambda o: [reply_to(o, "b", theta=bytes(48))], "48 bytes, not the 32"),
    "foreign": (lambda o: [reply_to(o, "a")], "names 'a'"),
    "ahead": (lambda o: [reply_to(o, "b", round=o.round + 1)], "not ordered"),
    "offer": (lambda o: [reply_to(o, "b", round=0)], "is invalid for round 0"),
    "garbage": (lambda o: [b"\xff" * 100], "dropped"),
    "giant": (lambda o: [b"\x00" * 100_000], "above the limit"),
    "version": (
        lambda o: [reply_to(o, "b").to_bytes().replace(b"av\x01", b"av\x02")],
        "version 2",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_reply_is_dropped_by_name_and_harms_nothing(
    site: Site, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    script, words = HOSTILE[kind]
    devices, _ = site.start({"b": script}, deadline=0.3)
    replies = devices.run_round(ordered())
    mean_of(replies, "a", "c", "d")
    (line,) = {r.getMessage() for r in caplog.records if "dropped" in r.getMessage()}
    assert "device b" in line and words in line
    assert site.checkpoints is not None
    assert list(site.checkpoints.dropped()) == ["b"]
    # It was selected and has not refused: it may have been charged.
    assert replies.cost.tolist() == [ROUND_COST] * 4


def test_a_hostile_device_may_still_answer_honestly(site: Site) -> None:
    def script(order: RoundOrder) -> list[Any]:
        return [b"nonsense", reply_to(order, "b")]

    devices, _ = site.start({"b": script})
    mean_of(devices.run_round(ordered()), *NAMES)


def test_an_answer_counts_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def script(order: RoundOrder) -> list[Any]:
        other = reply_to(order, "b", theta=moved(order, 0.3))
        return [reply_to(order, "b"), reply_to(order, "b"), other]

    devices, _ = site.start({"b": script})
    mean_of(devices.run_round(ordered()), *NAMES)
    dropped = [r.getMessage() for r in caplog.records if "dropped" in r.getMessage()]
    assert len(dropped) == 1 and "answered this round before" in dropped[0]


def test_honest_noise_is_within_the_limit() -> None:
    # The largest of many honest distances is below the limit, not by a large factor.
    rng, plan, theta = np.random.default_rng(0), replace(PLAN, tau=5), np.zeros(4)
    noise = PLAN.noise_std[0] * np.sqrt(5) * rng.normal(size=(10_000, 4))
    step = plan.learning_rate * (5 * plan.lipschitz + np.linalg.norm(noise, axis=1))
    limit = max_distances(plan, theta)[0]
    assert 0.3 * limit < step.max() < limit


def test_a_refusal_costs_nothing_and_is_reported(site: Site) -> None:
    devices, _ = site.start({"c": lambda o: [refusal(o, "c", "cost-budget")]})
    replies = devices.run_round(ordered())
    mean_of(replies, "a", "b", "d")
    assert replies.refused == {2: "cost-budget: no"}
    assert replies.cost.tolist() == [ROUND_COST, ROUND_COST, 0, ROUND_COST]


@pytest.mark.parametrize("code", ["already-charged", "bad-model", "device-trouble"])
def test_a_refusal_that_may_have_been_charged_is_counted(site: Site, code: str) -> None:
    devices, _ = site.start({"c": lambda o: [refusal(o, "c", code)]}, deadline=0.3)
    replies = devices.run_round(ordered())
    assert replies.refused == {2: f"{code}: no"}
    assert replies.cost.tolist() == [ROUND_COST] * 4


def test_a_device_that_refuses_and_then_joins_may_have_been_charged(site: Site) -> None:
    def script(order: RoundOrder) -> list[Any]:
        no = reply_to(order, "c", round=0, code="policy", theta=None, reason="no")
        yes = reply_to(order, "c", round=0, code="accepted", theta=None)
        return [no, yes]

    devices, _ = site.start({"c": script}, deadline=0.3)
    replies = devices.run_round(ordered())
    assert replies.refused == {2: "joined-late: no answer"}
    assert replies.cost.tolist() == [ROUND_COST] * 4


def test_an_open_round_counts_as_paid_in_the_status(site: Site) -> None:
    costs: list[Any] = []

    def script(order: RoundOrder) -> list[Any]:
        costs.append({d["name"]: d["cost"] for d in devices.status()["devices"]})
        return [reply_to(order, "c")]

    devices, _ = site.start({"c": script})
    devices.run_round(ordered())
    assert costs[0] == dict.fromkeys(NAMES, ROUND_COST)


def test_a_device_that_refuses_the_run_is_not_waited_for(site: Site) -> None:
    def script(order: RoundOrder) -> list[Any]:
        no = reply_to(order, "c", round=0, code="policy", theta=None, reason="no")
        return [no] if order.round == 1 else []

    devices, _ = site.start({"c": script}, deadline=600)
    for number in (1, 2):
        replies = devices.run_round(ordered(number))
        mean_of(replies, "a", "b", "d")
        assert replies.refused == {2: "policy: no"}
    assert replies.cost.tolist() == [2 * ROUND_COST, 2 * ROUND_COST, 0, 2 * ROUND_COST]


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_a_silent_device_gets_offer_and_order_until_it_answers(
    site: Site, lost: int
) -> None:
    rounds: list[int] = []

    def script(order: RoundOrder) -> list[Any]:
        rounds.append(order.round)
        return [reply_to(order, "c")] if len(rounds) > lost else []

    # The deadline is never reached: a lost reply costs as long as a repeated order.
    devices, connection = site.start({"c": script}, deadline=6000)
    mean_of(devices.run_round(ordered()), *NAMES)
    assert connection.offers.count("c") == 1 + lost and rounds == [1] * (1 + lost)
    # The other devices, which have answered, are left alone.
    assert connection.repeats == ["c"] * lost


def test_orders_are_repeated_after_twice_the_time_each() -> None:
    moments = coordinator.Backoff(1.0, longest=3.0)
    due = [second for second in range(20) if moments.is_due(second)]
    assert due == [1, 3, 6, 9, 12, 15, 18]


def test_slow_devices_are_given_the_time_they_usually_need(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[float] = []

    class Noted(coordinator.Backoff):
        def __init__(self, first: float, longest: float = np.inf) -> None:
            super().__init__(first, longest)
            created.append(first)

    monkeypatch.setattr(coordinator, "Backoff", Noted)
    devices, connection = site.start(deadline=6000)

    def script(order: RoundOrder, name: str) -> list[Any]:
        return [reply_to(order, name)] if connection.repeats else []

    connection.scripts = {name: partial(script, name=name) for name in NAMES}
    devices.run_round(ordered(1))
    devices.run_round(ordered(2))
    first, second = created[0], created[3]  # each round has three
    assert first == 0.1 and second >= 2 * first


def test_a_coordinator_that_hears_nobody_connects_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "DEAF", 0.1)
    devices, connection = site.start(deadline=6000)

    def script(order: RoundOrder, name: str) -> list[Any]:
        return [reply_to(order, name)] if connection.reconnects else []

    connection.scripts = {name: partial(script, name=name) for name in NAMES}
    mean_of(devices.run_round(ordered()), *NAMES)
    assert connection.reconnects >= 1


def test_a_late_answer_is_dropped_and_counted_as_paid(site: Site) -> None:
    orders: list[RoundOrder] = []

    def script(order: RoundOrder) -> list[Any]:
        if order.round == 1:
            orders.append(order)
            return []
        return [reply_to(orders[0], "d"), reply_to(order, "d")]

    devices, _ = site.start({"d": script}, deadline=0.3)
    first = devices.run_round(ordered(1))
    mean_of(first, "a", "b", "c")
    second = devices.run_round(ordered(2))
    mean_of(second, *NAMES)
    rows = {row["name"]: row for row in devices.status()["devices"]}
    assert rows["d"]["late"] == 1 and rows["d"]["answered"] == 1
    assert second.cost.tolist() == [2 * ROUND_COST] * 4


def always_late(late: list[RoundOrder]) -> Script:
    """Return a device that answers an order when it gets the next one."""

    def script(order: RoundOrder) -> list[Any]:
        if not order.selects(3):
            return []
        if late and late[-1].round == order.round:
            return []  # a repeated order
        late.append(order)
        return [reply_to(late[-2], "d")] if len(late) > 1 else []

    return script


def test_a_device_that_is_always_late_is_not_asked_in_every_round(site: Site) -> None:
    late: list[RoundOrder] = []
    rounds = 12
    plan = replace(PLAN, rounds=rounds)
    devices, _ = site.start({"d": always_late(late)}, plan=plan, deadline=0.1)
    devices.roster.online["d"] = True
    for number in range(1, rounds + 1):
        replies = devices.run_round(ordered(number, plan=plan))
        mean_of(replies, "a", "b", "c")
    assert [order.round for order in late] == [1, 3, 6, 11]
    # It was charged for the rounds that asked it, and for no other.
    assert replies.cost.tolist() == [rounds * ROUND_COST] * 3 + [4 * ROUND_COST]
    # The same after a restart.
    again, connection = site.start(plan=plan)
    replies = again.run_round(ordered(rounds, plan=plan))
    assert replies.cost[3] == 4 * ROUND_COST and connection.orders == []


def test_a_quorum_ends_a_round_and_later_answers_count_as_paid(site: Site) -> None:
    late: list[RoundOrder] = []
    script = always_late(late)
    devices, _ = site.start({"d": script}, deadline=6000, quorum=0.75)
    for number in (1, 2, 3):
        replies = devices.run_round(ordered(number))
        mean_of(replies, "a", "b", "c")
    rows = {row["name"]: row for row in devices.status()["devices"]}
    assert rows["d"]["late"] == len(late) - 1 and rows["d"]["answered"] == 0
    assert replies.cost[3] == len(late) * ROUND_COST


def test_a_quorum_below_the_minimum_does_not_end_a_round(site: Site) -> None:
    devices, _ = site.start(
        {"d": lambda order: []}, deadline=0.2, quorum=0.5, minimum=4, patience=2
    )
    with pytest.raises(fb.TrainingError, match="round 1 has 3 answers"):
        devices.run_round(ordered())


def test_a_share_of_the_devices_is_asked_and_charged(site: Site) -> None:
    plan = replace(PLAN, rounds=8)

    def script(order: RoundOrder, name: str) -> list[Any]:
        return [reply_to(order, name)] if order.selects(NAMES.index(name)) else []

    scripts: dict[str, Script] = {n: partial(script, name=n) for n in NAMES}
    devices, _ = site.start(scripts, plan=plan, deadline=6000, participation=0.5)
    for number in range(1, 9):
        replies = devices.run_round(ordered(number, plan=plan))
        assert replies.answered.sum() == 2
    assert replies.cost.tolist() == [4 * ROUND_COST] * 4
    # By hand: no more than four charges, and no amplification.
    mu = 2 * np.sqrt(4 * plan.tau) / plan.noise_multiplier
    expected = fb.privacy.GDP.epsilon_from_mu(mu, plan.delta)
    assert replies.epsilon == pytest.approx(expected)


def test_devices_of_an_older_release_are_all_asked(site: Site) -> None:
    old = [replace(d, wire=None) for d in DECLARATIONS]
    devices, connection = site.start(declarations=old, participation=0.5)
    mean_of(devices.run_round(ordered()), *NAMES)
    order = RoundOrder.from_bytes(decode(connection.orders[0])[0])
    assert order.selected is None
    for topic, payload in connection.retained.items():
        if topics.content(topic) == "offer":
            assert RunOffer.from_bytes(decode(payload)[0]).index is None


def test_without_enough_answers_the_round_goes_on_and_then_ends_the_run(
    site: Site,
) -> None:
    silent: Script = lambda order: []  # noqa: E731
    scripts = {"c": silent, "d": silent}
    devices, _ = site.start(scripts, minimum=3, deadline=0.1, patience=3)
    with pytest.raises(fb.TrainingError, match="round 1 has 2 answers"):
        devices.run_round(ordered())
    # Started again with more devices, it resumes with the stored replies.
    again, connection = site.start({"d": silent}, minimum=3, deadline=0.1)
    mean_of(again.run_round(ordered()), "a", "b", "c")
    assert connection.orders[0] == decode_stored(site, 1)


def test_started_again_it_counts_every_reply_once(site: Site) -> None:
    silent: Script = lambda order: []  # noqa: E731
    devices, _ = site.start({"d": silent}, minimum=4, deadline=0.1, patience=1)
    with pytest.raises(fb.TrainingError, match="round 1 has 3 answers"):
        devices.run_round(ordered())
    again, _ = site.start()
    assert [d["answered"] for d in again.status()["devices"]] == [0, 0, 0, 0]
    again.run_round(ordered())
    assert [d["answered"] for d in again.status()["devices"]] == [1, 1, 1, 1]


def decode_stored(site: Site, round: int) -> bytes:
    assert site.checkpoints is not None
    payload = site.checkpoints.order(round)
    assert payload is not None
    return payload


def test_an_offline_device_is_waited_for_only_once(site: Site) -> None:
    devices, _ = site.start({"d": lambda order: []}, deadline=1.0)
    devices.roster.online["d"] = False
    started = time.monotonic()
    devices.run_round(ordered(1))
    assert time.monotonic() - started >= 1.0
    devices.deadline = 600.0
    for number in (2, 3):
        mean_of(devices.run_round(ordered(number)), "a", "b", "c")


def test_a_silent_device_that_seems_online_is_waited_for_twice(site: Site) -> None:
    # Its broker failed with it, and sent no last will.
    devices, _ = site.start({"d": lambda order: []}, deadline=0.3)
    devices.roster.online["d"] = True
    for number in (1, 2, 3):  # it is not asked in the second one
        devices.run_round(ordered(number))
    devices.deadline = 6000.0
    for number in range(4, 9):
        mean_of(devices.run_round(ordered(number)), "a", "b", "c")


def test_a_round_that_is_over_is_never_carried_out_again(site: Site) -> None:
    devices, _ = site.start()
    first = devices.run_round(ordered())
    again, connection = site.start()
    second = again.run_round(ordered())
    assert connection.orders == []
    assert second.theta.tolist() == first.theta.tolist()
    assert second.cost.tolist() == first.cost.tolist()


@pytest.mark.parametrize("method", ["add_order", "add_reply", "close_round"])
def test_killed_anywhere_it_goes_on_with_the_same_bytes(
    site: Site, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    real = getattr(Checkpoints, method)

    def dying(self: Checkpoints, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt  # as in a kill, no later line runs
        return real(self, *arguments)

    monkeypatch.setattr(Checkpoints, method, dying)
    devices, first = site.start()
    with pytest.raises(KeyboardInterrupt):
        devices.run_round(ordered())
    again, connection = site.start()
    mean_of(again.run_round(ordered()), *NAMES)
    assert len({*first.orders, *connection.orders}) == 1
    assert again.status()["run"] == devices.status()["run"]


def test_no_wall_clock_decides_anything(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter(np.cumsum([1e9, -2e9, 3e9] * 1000).tolist())
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    devices, _ = site.start({"d": lambda order: []}, deadline=0.2)
    mean_of(devices.run_round(ordered()), "a", "b", "c")


def test_another_plan_or_a_second_coordinator_is_refused(site: Site) -> None:
    devices, _ = site.start()
    with pytest.raises(fb.RecordError, match="another plan"):
        devices.begin(replace(PLAN, tau=PLAN.tau + 1))
    with pytest.raises(fb.RecordError, match="another coordinator is using it"):
        Checkpoints(site.path / "coordinator.sqlite")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"sampling": "poisson"}, "sampling poisson is not for real devices"),
        ({"sampling": "cyclic"}, "sampling cyclic is not for real devices"),
        ({"loss": "hinge"}, "the plan is for loss hinge, device a declares logistic"),
    ],
)
def test_a_plan_that_devices_cannot_carry_out_is_refused(
    site: Site, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(fb.InvalidInputError, match=words):
        site.start(plan=replace(PLAN, **changes))


def test_a_device_that_stops_early_as_planned_is_not_waited_for(site: Site) -> None:
    plan = replace(PLAN, rounds=2, last_round=np.array([2, 2, 2, 1]))
    stopped: Script = lambda o: [  # noqa: E731
        reply_to(o, "d") if o.round == 1 else refusal(o, "d", "wrong-round")
    ]
    devices, _ = site.start({"d": stopped}, plan=plan, deadline=600, minimum=4)
    mean_of(devices.run_round(ordered(1, plan=plan)), *NAMES)
    second = devices.run_round(ordered(2, plan=plan))
    mean_of(second, "a", "b", "c")
    assert second.refused == {} and second.cost[3] == ROUND_COST
    assert site.checkpoints is not None and site.checkpoints.dropped() == {}


def test_the_end_withdraws_offers_and_orders(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, _ = site.start()
    devices.run_round(ordered())
    again, connection = site.start()  # a kill prevented the end
    withdrawn: list[str] = []
    monkeypatch.setattr(connection, "withdraw", withdrawn.append)
    assert site.checkpoints is not None
    assert withdraw(connection, site.checkpoints, signer=SIGNER)
    run = bytes.fromhex(again.status()["run"])
    assert set(withdrawn) == {topics.order(run), *map(topics.offer, NAMES)}
    told = [topics.order(run), *map(topics.order_again, NAMES)]
    assert connection.ends == told
    withdraw(connection, site.checkpoints)  # stopped, and may resume
    assert connection.ends == told


def test_a_dead_coordinators_order_is_cleared_by_the_broker(site: Site) -> None:
    devices, connection = site.start()
    devices.run_round(ordered())
    run = bytes.fromhex(devices.status()["run"])
    assert connection.wills == [topics.order(run)]


def test_a_large_model_goes_out_and_comes_back_in_chunks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbudget.fleet.wire.framing import Joiner, split

    joiner = Joiner(max_bytes=10_000)

    class Chunked(Scripted):
        def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
            if topics.parse(topic)[0] == "order" and payload:
                joined = joiner.add("order", payload)
                if joined is not None:
                    super().publish(topic, joined)

        def send(self, name: str, reply: Any) -> None:
            for _, piece in split("reply", reply.to_bytes(), limit=140):
                super().send(name, piece)

    monkeypatch.setattr(coordinator, "split", lambda t, p: split(t, p, limit=140))
    site.connection = Chunked
    devices, connection = site.start()
    mean_of(devices.run_round(ordered()), *NAMES)
    assert len([t for t in connection.retained if "/order/" in t]) > 1


def test_the_loop_ends_when_all_refuse(site: Site) -> None:
    scripts: dict[str, Script] = {
        name: lambda o, n=name: [refusal(o, n, "privacy-budget")]  # type: ignore[misc]
        for name in NAMES
    }
    devices, _ = site.start(scripts)
    with pytest.raises(fb.TrainingError, match="no device answered round 1"):
        fb.train(PLAN, devices)
    assert [device["cost"] for device in devices.status()["devices"]] == [0.0] * 4


def test_no_repeated_order_waits_for_an_offline_device(site: Site) -> None:
    """It would pay for it after this coordinator's death; the retained one is gone."""
    silent: Script = lambda order: []  # noqa: E731

    def asked_again(order: RoundOrder) -> list[Any]:
        if connection.repeats.count("d") == 2:  # long enough, also for the other one
            devices.deadline = 0.1
        return []

    scripts: dict[str, Script] = {"c": silent, "d": asked_again}
    devices, connection = site.start(scripts, deadline=600.0)
    connection.inbox.put(
        Message(topic=topics.status("c"), payload=topics.OFFLINE, receiver="x")
    )
    mean_of(devices.run_round(ordered()), "a", "b")
    assert set(connection.repeats) == {"d"}


@pytest.mark.parametrize("round", [0, 1], ids=["of the run", "of a round"])
def test_owners_who_have_all_refused_may_accept_later(site: Site, round: int) -> None:
    scripts: dict[str, Script] = {
        name: lambda o, n=name: [replace(refusal(o, n, "policy"), round=round)]  # type: ignore[misc]
        for name in NAMES
    }
    folder = str(site.path / "run")
    devices, _ = site.start(scripts, minimum=2)
    with pytest.raises(fb.TrainingError, match="no device answered round 1: policy"):
        fb.train(PLAN, devices, record=folder)
    assert site.checkpoints is not None and site.checkpoints.rounds_closed() == 0
    # Nothing has changed: the devices refuse again.
    devices, _ = site.start(scripts, minimum=2)
    with pytest.raises(fb.TrainingError, match="no device answered round 1: policy"):
        fb.train(PLAN, devices, record=folder)
    devices, _ = site.start(minimum=2)
    run = fb.train(PLAN, devices, record=folder)
    assert [done.answered for done in run.rounds] == [4] * PLAN.rounds


def test_too_many_refusals_for_the_minimum_do_not_end_the_run_for_good(
    site: Site,
) -> None:
    no: Script = lambda o: [refusal(o, "d", "policy")]  # noqa: E731
    devices, _ = site.start({"d": no}, minimum=4)
    with pytest.raises(fb.TrainingError, match="round 1 has 3 answers"):
        devices.run_round(ordered())
    again, _ = site.start(minimum=4)
    mean_of(again.run_round(ordered()), *NAMES)


def test_an_offer_that_met_a_transient_failure_is_sent_again(site: Site) -> None:
    def script(order: RoundOrder) -> list[Any]:
        trouble = replace(refusal(order, "c", "device-trouble"), round=0)
        return [trouble] if connection.offers.count("c") < 3 else [reply_to(order, "c")]

    devices, connection = site.start({"c": script}, deadline=6000)
    mean_of(devices.run_round(ordered(1)), *NAMES)
    assert site.checkpoints is not None and site.checkpoints.replies(0) == {}
    devices.run_round(ordered(2))
    assert connection.offers.count("c") == 3  # no more once it has joined


def test_an_offer_is_sent_again_before_the_next_order(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "_FIRST_REPEAT", 600.0)
    offers: list[int] = []

    def script(order: RoundOrder) -> list[Any]:
        offers.append(connection.offers.count("c"))
        return [reply_to(order, "c")] if order.round == 2 else []

    devices, connection = site.start({"c": script}, deadline=0.05)
    mean_of(devices.run_round(ordered(1)), "a", "b", "d")
    mean_of(devices.run_round(ordered(2)), *NAMES)
    assert sorted(set(offers)) == [1, 2]


def test_a_run_goes_on_only_in_its_own_precision(site: Site) -> None:
    devices, _ = site.start()
    devices.run_round(ordered(1))
    sent: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Scripted, "publish", lambda s, topic, *_, **__: sent.append(topic)
        )
        with pytest.raises(fb.RecordError, match="models are float64, not float32"):
            site.start(precision="float32")
    assert sent == []
    again, _ = site.start()
    mean_of(again.run_round(ordered(2)), *NAMES)


def test_a_run_with_drift_correction_states_it_and_allows_for_it(site: Site) -> None:
    plan = replace(PLAN, drift_correction=True, momentum=0.25)
    # The norm over four numbers is twice this.
    move = 1.5 * max_distances(plan, THETA)[1] / 2
    script: Script = lambda o: [reply_to(o, "b", theta=moved(o, move))]  # noqa: E731
    devices, connection = site.start({"b": script}, plan=plan, deadline=0.3)
    for topic, payload in connection.retained.items():
        if topics.parse(topic)[0] == "offer":
            offer = RunOffer.from_bytes(decode(payload)[0])
            assert offer.drift_momentum == 0.25
    # The first round has no shift yet, and honest steps do not move so much.
    first = devices.run_round(ordered(1, plan=plan))
    mean_of(first, "a", "c", "d")
    assert devices.run_round(ordered(2, plan=plan)).answered.all()
    again, _ = site.start({"b": script}, plan=plan, deadline=0.3)
    assert again.run_round(ordered(3, plan=plan)).answered.all()


def test_a_run_without_drift_correction_does_not_mention_it(site: Site) -> None:
    _, connection = site.start()
    offers = [
        p for t, p in connection.retained.items() if topics.parse(t)[0] == "offer"
    ]
    assert len(offers) == 4
    assert all(b"drift" not in payload for payload in offers)
