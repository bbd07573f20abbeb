"""Secure rounds: exact sums, dropouts and restarts in every phase, lost rounds."""

import itertools
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.coordinator import sum_devices
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.fleet.coordinator.sum_rounds import SENT, Phase
from fedbudget.fleet.device import sum_guard
from fedbudget.fleet.device.exact_uploads import exact_upload
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.secure import graph, introductions
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.wire import messages, topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import AttemptKeys, AttemptOrder, PeerList
from tests.cli.running import run as run_command
from tests.fleet.sums import Hostile, SumFleet

KINDS = [SENT[phase] for phase in Phase]
IN_ROUNDS = KINDS[1:]
ORDERS = ("attempt", "attempt-roster", "attempt-answers", "reveal")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates for six devices, made once."""
    fleet = SumFleet(tmp_path_factory.mktemp("keys"), 6, 4)
    fleet.close()
    return fleet.certs


@pytest.fixture
def fleet(tmp_path: Path, keys: Path) -> Iterator[SumFleet]:
    (tmp_path / "certs").symlink_to(keys)
    fleet = SumFleet(tmp_path, 6, 4)
    yield fleet
    fleet.close()


@pytest.fixture
def vectors(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The noisy vectors that devices computed, in order."""
    computed: list[Any] = []

    def noted(*arguments: Any, **settings: Any) -> Any:
        computed.append(exact_upload(*arguments, **settings))
        return computed[-1]

    monkeypatch.setattr(sum_guard, "exact_upload", noted)
    return computed


def moved(fleet: SumFleet, vectors: list[Any]) -> Any:
    """Return the move of the model by the sum of these vectors, bit by bit."""
    total = np.sum(vectors, axis=0) * fleet.coordinator._grid.step
    return (total / float(sum(fleet.plan().weights))).tolist()


def check_ledgers(fleet: SumFleet) -> None:
    """No round is charged, stored or revealed twice, and none before the other."""
    for name in fleet.names:
        rounds = {
            kind: [entry.round for entry in fleet.entries(name, kind)]
            for kind in ("charge", "answer", "reveal")
        }
        for numbers in rounds.values():
            assert len(set(numbers)) == len(numbers)
        assert set(rounds["reveal"]) <= set(rounds["answer"]) <= set(rounds["charge"])


def test_the_model_moves_by_exactly_the_sum_of_the_vectors(
    fleet: SumFleet, vectors: list[Any]
) -> None:
    run = fleet.train(rounds=1)
    assert len(vectors) == 6
    assert run.theta.tolist() == moved(fleet, vectors)
    assert run.rounds[0].answered == 6
    check_ledgers(fleet)


def test_a_run_is_charged_as_planned(fleet: SumFleet) -> None:
    plan = fleet.plan()
    run = fleet.train()
    statement = read_statement(fleet.folder / "device-2" / "ledger.sqlite")
    # The device's delta is the plan's; its ledger counts every round.
    assert statement.epsilon == pytest.approx(float(plan.epsilon[2]), rel=1e-9)
    assert statement.epsilon <= fleet.epsilon
    assert run.rounds[-1].epsilon[2] == pytest.approx(statement.epsilon, rel=1e-9)
    assert statement.cost == 2 * (100 + 3)
    (entry, *_) = fleet.entries("device-2", "reveal")
    assert entry.body["answers"] == 6
    assert entry.body["self_masks"] == [n for n in fleet.names if n != "device-2"]
    assert entry.body["mask_keys"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_may_drop_out_in_every_phase(fleet: SumFleet, kind: str) -> None:
    fleet.loop.from_device = lambda name, sent, _: (name, sent) != ("device-1", kind)
    run = fleet.train()
    in_sum = kind in ("attempt-confirmation", "revealed-shares")
    assert [r.answered for r in run.rounds] == [5 + in_sum] * 2
    charged = kind in IN_ROUNDS[1:]  # from the upload on
    assert len(fleet.entries("device-1", "charge")) == 2 * charged
    check_ledgers(fleet)


@pytest.mark.parametrize("kinds", list(itertools.combinations(IN_ROUNDS, 2)))
def test_two_devices_may_drop_out_in_different_phases(
    fleet: SumFleet, kinds: tuple[str, str]
) -> None:
    lost = set(zip(("device-0", "device-4"), kinds, strict=True))
    fleet.loop.from_device = lambda name, sent, _: (name, sent) not in lost
    run = fleet.train(rounds=1)
    assert run.rounds[0].answered >= 4
    check_ledgers(fleet)


def test_too_few_uploads_are_tried_again_with_the_same_vectors(
    fleet: SumFleet, vectors: list[Any]
) -> None:
    lost = {"device-0", "device-1", "device-2"}

    def arrives(name: str, kind: str, _: bytes) -> bool:
        if kind == "attempt-upload" and name in lost:
            lost.remove(name)
            # Only the first of each is lost, and its repetitions in this attempt.
            blocked.add((name, fleet.coordinator._attempt))
        return kind != "attempt-upload" or (
            (name, fleet.coordinator._attempt) not in blocked
        )

    blocked: set[tuple[str, int]] = set()
    fleet.loop.from_device = arrives
    run = fleet.train(rounds=1)
    assert fleet.coordinator._attempt == 2
    assert len(vectors) == 6  # nothing was computed, or charged, again
    assert run.theta.tolist() == moved(fleet, vectors)
    assert {e.body["attempt"] for e in fleet.entries("device-0", "reveal")} == {2}
    check_ledgers(fleet)


def test_a_sum_that_is_lost_after_the_request_ends_without_a_step(
    fleet: SumFleet,
) -> None:
    """Devices refuse another attempt: the round is charged, and nothing is learned."""
    first = {"device-0", "device-1", "device-2"}
    fleet.loop.from_device = lambda name, kind, _: (
        not (
            kind == "revealed-shares"
            and name in first
            and fleet.coordinator.tally is not None
            and fleet.coordinator.tally.round == 1
        )
    )
    run = fleet.train()
    assert [r.answered for r in run.rounds] == [0, 6]
    assert len(fleet.entries("device-4", "charge")) == 2
    assert np.linalg.norm(run.theta) > 0
    check_ledgers(fleet)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [1, 4])
def test_a_coordinator_killed_in_any_phase_resumes(
    fleet: SumFleet, kind: str, place: int, vectors: list[Any]
) -> None:
    seen = 0

    def killed(name: str, sent: str, _: bytes) -> bool:
        nonlocal seen
        seen += sent == kind
        if sent == kind and seen == place:
            raise KeyboardInterrupt
        return True

    fleet.loop.from_device = killed
    with pytest.raises(KeyboardInterrupt):
        fleet.train()
    fleet.coordinate()
    run = fleet.train()
    assert [r.answered for r in run.rounds] == [6, 6]
    assert len(vectors) == 12
    check_ledgers(fleet)


@pytest.mark.parametrize("kind", ["offer", "peers", *ORDERS])
@pytest.mark.parametrize("after", [False, True])
def test_a_device_killed_in_any_phase_never_pays_or_reveals_twice(
    fleet: SumFleet, kind: str, after: bool
) -> None:
    killed: set[str] = set()
    fleet.coordinator.deadline = 10.0  # lost orders are repeated after a second

    def kill(name: str, sent: str, payload: bytes) -> bool:
        if name == "device-3" and sent == kind and not killed:
            killed.add(name)
            if after:  # its answer is lost with it
                fleet.loop.devices[name].handle("fedbudget/1/order/x", payload)
            fleet.restart(name)
            return False
        return True

    fleet.loop.to_device = kill
    run = fleet.train()
    assert killed == {"device-3"}
    assert run.rounds[-1].answered == 6
    assert run.rounds[0].answered >= 5
    check_ledgers(fleet)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_loses_all_messages_of_a_phase_delays_it_only(
    fleet: SumFleet, kind: str, vectors: list[Any]
) -> None:
    """A broker that is killed loses what is on its way, in both directions."""
    fleet.coordinator.deadline = 30.0  # lost orders are repeated after a second
    until: float | None = None

    def passes(_: str, sent: str, __: bytes) -> bool:
        nonlocal until
        if until is None and sent == kind:
            until = time.monotonic() + 0.5
        return until is None or time.monotonic() > until

    fleet.loop.from_device = fleet.loop.to_device = passes
    run = fleet.train()
    assert [r.answered for r in run.rounds] == [6, 6]
    assert len(vectors) == 12
    check_ledgers(fleet)


def test_a_peers_certificate_that_expires_during_a_run_ends_nothing(
    fleet: SumFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of peers was accepted, and is in the ledger's chain: see `peers`."""

    def expired(*_: Any, **__: Any) -> None:
        raise InvalidInputError("it has expired")

    restarted: set[str] = set()

    def restart(name: str, kind: str, _: bytes) -> bool:
        if kind == "attempt" and name not in restarted:
            restarted.add(name)
            monkeypatch.setattr(introductions, "certified_key", expired)
            fleet.restart(name)
        return True

    fleet.loop.to_device = restart
    run = fleet.train()
    assert restarted == set(fleet.names)
    assert [r.answered for r in run.rounds] == [6, 6]


def test_a_stored_list_of_peers_that_was_changed_is_not_used(
    fleet: SumFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.train(rounds=1)
    path = fleet.folder / "device-1" / "ledger.sqlite"
    fleet.devices["device-1"].close()
    with closing(sqlite3.connect(path)) as database:
        (stored,) = database.execute(
            "SELECT data FROM sums WHERE part = 'peers'"
        ).fetchone()
        order = PeerList.from_bytes(stored)
        fewer = PeerList.of(order.run, order.read()[:5])
        database.execute(
            "UPDATE sums SET data = ? WHERE part = 'peers'", (fewer.to_bytes(),)
        )
        database.commit()
    fleet.devices["device-1"] = fleet.device("device-1")
    again = AttemptOrder(run=order.run, round=1, attempt=2, theta=np.zeros(4).tobytes())
    signed = fleet.coordinator._signer.sign(again)
    (outgoing,) = fleet.devices["device-1"].handle(
        topics.order_again("device-1"), signed
    )
    reply = Reply.from_bytes(decode(outgoing.payload)[0])
    assert reply.code == "device-trouble"
    assert "list of peers does not match its digest" in caplog.text


def test_the_device_as_the_unit(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "certs").symlink_to(keys)
    fleet = SumFleet(tmp_path, 6, 4, unit="device", epsilon=50.0)
    run = fleet.train()
    plan = fleet.plan()
    assert "one device" in str(plan.privacy)
    statement = read_statement(tmp_path / "device-0" / "ledger.sqlite")
    assert statement.epsilon == pytest.approx(float(plan.epsilon[0]), rel=1e-9)
    assert run.rounds[-1].answered == 6
    fleet.close()


def test_devices_that_want_larger_sums_refuse_and_are_not_charged(
    tmp_path: Path, keys: Path
) -> None:
    (tmp_path / "certs").symlink_to(keys)
    fleet = SumFleet(tmp_path, 6, 4, policy_least=5)
    with pytest.raises(TrainingError, match="least_answers 4 is below the limit 5"):
        fleet.train()
    assert all(fleet.entries(name, "charge") == [] for name in fleet.names)
    fleet.close()


def test_too_few_devices_stop_the_run_before_any_charge(fleet: SumFleet) -> None:
    fleet.loop.from_device = lambda name, kind, _: (
        not (kind == "attempt-keys" and name in ("device-0", "device-1", "device-2"))
    )
    with pytest.raises(TrainingError, match="3 devices sent keys, of at least 4"):
        fleet.train()
    assert all(fleet.entries(name, "charge") == [] for name in fleet.names)
    fleet.loop.from_device = lambda *_: True
    fleet.coordinate()
    assert fleet.train().rounds[-1].answered == 6


def test_the_ledger_shows_sums(
    fleet: SumFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.train()
    path = str(fleet.folder / "device-1" / "ledger.sqlite")
    words = run_command(capsys, "ledger", "show", path).words
    assert "Secure sums" in words and "2 rounds" in words
    (run,) = read_statement(path).runs
    assert run.sums is not None
    assert (run.sums.least_answers, run.sums.colluders) == (4, 0)
    assert run.sums.revealed == [1, 2]
    # Alone, only one share of the four is noise.
    assert run.sums.mu_alone == pytest.approx(2 * run.mu)
    peers = fleet.entries("device-1", "peers")
    assert [entry.body["digest"] for entry in peers] == [run.sums.peers]
    assert "intact" in run_command(capsys, "ledger", "verify", path).words


def test_the_status_has_the_phase(fleet: SumFleet) -> None:
    phases = []

    def noted(*_: Any) -> bool:
        phases.append(fleet.coordinator.status()["phase"])
        return True

    fleet.loop.from_device = noted
    fleet.train(rounds=1)
    assert [str(phase) for phase in Phase][1:] == [
        phase for phase in dict.fromkeys(phases) if phase not in (None, "introductions")
    ]
    assert fleet.coordinator.status()["phase"] is None


def test_plans_of_another_trust_and_too_many_devices_are_refused(
    fleet: SumFleet,
) -> None:
    declarations = fleet.declarations()
    assert fleet.checkpoints is not None
    open_fleet = FleetDevices(
        fleet.loop,
        declarations,
        signer=fleet.coordinator._signer,
        checkpoints=fleet.checkpoints,
    )
    plan = fleet.plan()
    with pytest.raises(InvalidInputError, match="use SumDevices"):
        open_fleet.begin(plan)


@pytest.fixture
def circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SumFleet]:
    """Devices that share masks with few neighbours, as above 100 devices."""
    few = graph.Neighbourhood(degree=8, threshold=5, least_nearby=1)
    monkeypatch.setattr(graph, "neighbourhood", lambda *_, **__: few)
    fleet = SumFleet(tmp_path, 24, 15)
    yield fleet
    fleet.close()


def test_a_circle_of_neighbours_sums_exactly_with_dropouts_in_every_phase(
    circle: SumFleet, vectors: list[Any]
) -> None:
    names = circle.names
    kinds = dict(zip((names[17], names[2], names[9]), IN_ROUNDS[:3], strict=True))
    lost = set(kinds.items())
    circle.loop.from_device = lambda name, sent, _: (name, sent) not in lost
    run = circle.train(rounds=1)
    (round_one,) = run.rounds
    assert round_one.answered == 22  # without one key and one upload
    peers = PeerList.from_bytes(
        decode(circle.checkpoints.sum_messages(0, 0)["peers"][""])[0]  # type: ignore[union-attr]
    ).read()
    assert [peer.device for peer in peers] == sorted(names)
    shares = circle.entries(names[0], "reveal")[0].body
    assert len(shares["self_masks"]) + len(shares["mask_keys"]) < 22
    check_ledgers(circle)
    in_sum = [v for name, v in zip(names_of(circle), vectors, strict=True)
              if name != names[2]]  # fmt: skip
    weight = sum(w for n, w in zip(names, circle.plan().weights, strict=True)
                 if n not in (names[2], names[17]))  # fmt: skip
    total = np.sum(in_sum, axis=0) * circle.coordinator._grid.step
    assert run.theta.tolist() == (total / float(weight)).tolist()


def names_of(fleet: SumFleet) -> list[str]:
    """Return the devices that were charged, in the order of their uploads."""
    return [name for name in fleet.names if fleet.entries(name, "charge")]


def test_missing_neighbours_are_waited_for_and_tried_again(circle: SumFleet) -> None:
    """Enough answers, but those that are missing are next to each other."""
    coordinator = circle.coordinator
    gone: set[str] = set()

    def arrives(name: str, kind: str, _: bytes) -> bool:
        if kind == "attempt-keys" and not gone:
            guard: Any = circle.loop.devices[name]._guard
            (run,) = guard._runs.values()
            gone.update(circle.names[m] for m in run.peers.neighbours[5])
        first = coordinator._attempt == 1
        return not (first and kind == "attempt-upload" and name in gone)

    circle.loop.from_device = arrives
    run = circle.train(rounds=1)
    assert coordinator._attempt == 2
    assert run.rounds[0].answered == 24
    check_ledgers(circle)


def test_a_secure_round_has_a_price_of_its_own(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "certs").symlink_to(keys)
    fleet = SumFleet(tmp_path, 6, 4)
    for name, path in fleet.paths.items():
        text = path.read_text()
        assert "computation = " in text
        path.write_text(text.replace("[prices]", "[prices]\nsecure_round = 130"))
        fleet.restart(name)
    fleet.coordinate()
    assert {d.round_price("sum") for d in fleet.declarations()} == {130.0}
    run = fleet.train()
    assert run.rounds[-1].cost.tolist() == [2 * (130 + 3)] * 6
    statement = read_statement(tmp_path / "device-0" / "ledger.sqlite")
    assert statement.cost == 2 * (130 + 3)
    fleet.close()


def test_a_device_whose_owner_allows_no_sums_is_left_out_uncharged(
    fleet: SumFleet, caplog: pytest.LogCaptureFixture
) -> None:
    path = fleet.paths["device-5"]
    path.write_text(path.read_text().split("[sums]")[0])
    fleet.restart("device-5")
    run = fleet.train()
    assert [r.answered for r in run.rounds] == [5, 5]
    assert all("no [sums] in policy" in r.refused[5] for r in run.rounds)
    assert run.rounds[-1].epsilon[5] == 0
    assert "cannot be read" not in caplog.text
    assert fleet.entries("device-5", "charge") == []


def test_without_any_owner_who_allows_sums_the_run_ends_with_the_reason(
    fleet: SumFleet,
) -> None:
    for name, path in fleet.paths.items():
        path.write_text(path.read_text().split("[sums]")[0])
        fleet.restart(name)
    with pytest.raises(TrainingError, match=r"0 devices sent.*no \[sums\] in policy"):
        fleet.train()
    assert all(fleet.entries(name, "charge") == [] for name in fleet.names)


def test_an_order_of_another_release_is_refused_and_names_both_sides(
    fleet: SumFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = Hostile(fleet)
    hostile.meet()
    orders = [hostile.attempt(), hostile.answers(range(6)), hostile.peer_list()]
    monkeypatch.setattr(messages, "VERSION", 7)
    later = [hostile.signer.sign(order) for order in orders]
    other = hostile.signer.sign(replace(orders[0], run=bytes(16)))
    monkeypatch.undo()
    for signed in later:
        (reply,) = hostile.deliver("device-1", topics.order_again("device-1"), signed)
        assert (reply.code, reply.run) == ("unsupported", hostile.run_id)
        assert f"wire {messages.WIRE}: version 7 is not supported" in reply.reason
    # Of a run that this device has not joined, it says nothing.
    assert hostile.deliver("device-1", topics.order_again("device-1"), other) == []
    assert fleet.entries("device-1", "charge") == []


def test_the_list_of_peers_is_sent_once(
    fleet: SumFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is most of what a device receives; a device that missed it gets it again."""
    fleet.coordinator.deadline = 30.0
    monkeypatch.setattr(sum_devices, "_REPEAT", (0.05, 16.0))
    sent: Counter[str] = Counter()

    def arrives(name: str, kind: str, _: bytes) -> bool:
        sent[name] += kind == "peers"
        return not (kind == "peers" and name == "device-2" and sent[name] == 1)

    fleet.loop.to_device = arrives
    run = fleet.train(rounds=4)
    assert [r.answered for r in run.rounds] == [6] * 4
    assert sent == {name: 1 + (name == "device-2") for name in fleet.names}


def test_a_slow_device_gets_the_order_twice_before_the_list_of_peers(
    fleet: SumFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the list, which is a hundred times as long as the order."""
    fleet.coordinator.deadline = 30.0
    monkeypatch.setattr(sum_devices, "_REPEAT", (0.05, 16.0))
    sent: list[str] = []

    def arrives(name: str, kind: str, _: bytes) -> bool:
        if name == "device-2":
            sent.append(kind)
        return not (kind == "attempt" and name == "device-2" and len(sent) < 7)

    fleet.loop.to_device = arrives
    run = fleet.train(rounds=1)
    assert run.rounds[0].answered == 6
    assert sent[:8] == ["offer", "peers", *["attempt"] * 3, "peers", "attempt", sent[7]]


def test_a_device_that_comes_online_gets_the_list_of_peers_at_once(
    fleet: SumFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = fleet.coordinator
    coordinator.deadline = 30.0
    monkeypatch.setattr(sum_devices, "_REPEAT", (0.05, 16.0))
    sent: list[str] = []

    def arrives(name: str, kind: str, _: bytes) -> bool:
        if name != "device-2":
            return True
        sent.append(kind)
        if kind == "peers" and len(sent) == 2:  # lost, with its connection
            coordinator.roster.online[name] = False
        return coordinator.roster.online.get(name) is not False

    def receive(seconds: float | None = None) -> Message | None:
        if "attempt" in sent:  # which waited at the broker
            coordinator.roster.online["device-2"] = True
        return usual(seconds)

    usual, fleet.loop.receive = fleet.loop.receive, receive  # type: ignore[method-assign]
    fleet.loop.to_device = arrives
    run = fleet.train(rounds=1)
    assert run.rounds[0].answered == 6
    assert sent[:5] == ["offer", "peers", "attempt", "peers", "attempt"]


def test_shares_for_all_devices_are_read_once(
    fleet: SumFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,000 devices, reading all of them for each took a minute."""
    fleet_keys: Counter[str] = Counter()
    usual = AttemptKeys.from_bytes

    def counted(data: bytes) -> AttemptKeys:
        keys = usual(data)
        fleet_keys[keys.device] += 1
        return keys

    monkeypatch.setattr(AttemptKeys, "from_bytes", staticmethod(counted))
    fleet.train(rounds=1)
    # To check them, for the roster, and for the shares.
    assert fleet_keys == dict.fromkeys(fleet.names, 3)


def test_a_device_that_was_away_gets_the_list_of_peers_in_the_next_round(
    fleet: SumFleet,
) -> None:
    """It is not waited for, so that no order is repeated to it."""
    away = {"peers", "attempt"}

    def arrives(name: str, kind: str, _: bytes) -> bool:
        first = fleet.coordinator.tally is None or fleet.coordinator.tally.round < 2
        return not (first and name == "device-2" and kind in away)

    fleet.loop.to_device = arrives
    run = fleet.train(rounds=3)
    assert [r.answered for r in run.rounds] == [5, 6, 6]


def test_no_repeated_order_waits_for_an_offline_device(fleet: SumFleet) -> None:
    """It would pay for it after this coordinator's death; the retained one is gone."""
    usual, fleet.coordinator.deadline = fleet.coordinator.deadline, 600.0
    fleet.coordinator.roster.online["device-1"] = False
    sent: Counter[tuple[str, str]] = Counter()

    def arrives(name: str, kind: str, _: bytes) -> bool:
        sent[name, kind] += kind == "attempt-roster"
        if sent["device-2", "attempt-roster"] > 1:  # orders are repeated: enough seen
            fleet.coordinator.deadline = usual
        return kind != "attempt-roster" or name not in ("device-1", "device-2")

    fleet.loop.to_device = arrives
    run = fleet.train(rounds=1)
    assert [r.answered for r in run.rounds] == [4]
    assert sent["device-1", "attempt-roster"] == 1  # to all, retained
    assert sent["device-2", "attempt-roster"] > 1
