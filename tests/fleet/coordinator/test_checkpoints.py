"""The coordinator's file: codes decide on charges; files of other releases."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.fleet.coordinator.checkpoints import (
    JOINED_LATE,
    MAY_BE_CHARGED,
    Checkpoints,
    Outcome,
    StoredReply,
    StoredRun,
)
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.wire.messages import REFUSALS
from fedbudget.privacy import GDP
from tests.fleet import examples

NAMES = ("a", "b", "c", "d")
PLAN = fb.plan(
    fb.Problem(num_samples=[100] * 4, dim=4),
    fb.Budget(epsilon=4, cost=1000),
    fb.Prices(communication=100, computation=1),
    weights="uniform",
)
ROUND_COST = 100.0 + PLAN.tau

# As 0.1.0 wrote it before codes had a column of their own.
OLD_SCHEMA = """
CREATE TABLE run (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  run BLOB NOT NULL, name TEXT NOT NULL, plan TEXT NOT NULL
);
CREATE TABLE devices (place INTEGER PRIMARY KEY, told BLOB NOT NULL);
CREATE TABLE offers (device TEXT PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE orders (round INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE replies (
  round INTEGER NOT NULL, device TEXT NOT NULL, outcome TEXT NOT NULL,
  reason TEXT NOT NULL, theta BLOB, PRIMARY KEY (round, device)
);
CREATE TABLE rounds (
  round INTEGER PRIMARY KEY, theta BLOB NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE dropped (
  device TEXT PRIMARY KEY, times INTEGER NOT NULL, reason TEXT NOT NULL
);
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordinator.sqlite"


@pytest.fixture
def checkpoints(path: Path) -> Iterator[Checkpoints]:
    with closing(Checkpoints(path)) as checkpoints:
        yield checkpoints


def refused(device: str, code: str, reason: str, *, round: int = 1) -> StoredReply:
    return StoredReply(
        round=round, device=device, outcome=Outcome.REFUSED, code=code, reason=reason
    )


def costs(checkpoints: Checkpoints) -> dict[str, float]:
    """Return the cost of each device in the status."""
    declarations = [examples.declaration(device=name) for name in NAMES]
    summary = Tally(PLAN, declarations, checkpoints).summary({})
    return {row["name"]: row["cost"] for row in summary["devices"]}


def close_rounds(checkpoints: Checkpoints, rounds: int = 1) -> None:
    for round in range(1, rounds + 1):
        checkpoints.close_round(round, np.zeros(4), 1.0)


@pytest.mark.parametrize("code", [*REFUSALS, JOINED_LATE])
def test_the_code_and_not_the_reason_decides_who_was_charged(
    checkpoints: Checkpoints, code: str
) -> None:
    # Reasons that begin with another code, or that contain one.
    for device, reason in zip(
        NAMES, (*MAY_BE_CHARGED[:2], "policy: no", f"it said {code}"), strict=True
    ):
        checkpoints.add_reply(refused(device, code, reason))
    close_rounds(checkpoints)
    expected = ROUND_COST if code in MAY_BE_CHARGED else 0.0
    assert costs(checkpoints) == dict.fromkeys(NAMES, expected)


def test_a_reason_that_begins_like_a_code_is_not_that_code(
    checkpoints: Checkpoints,
) -> None:
    checkpoints.add_reply(refused("a", "policy", "wrong-rounding of its prices"))
    checkpoints.add_reply(refused("b", "wrong-round", "policy: over"))
    close_rounds(checkpoints)
    assert costs(checkpoints) == {
        "a": 0.0,
        "b": ROUND_COST,
        "c": ROUND_COST,
        "d": ROUND_COST,
    }


def test_a_reply_comes_back_as_it_was_stored(checkpoints: Checkpoints) -> None:
    answer = StoredReply(round=1, device="a", outcome=Outcome.ANSWERED, theta=b"1234")
    refusal = refused("b", "policy", "policy: no")
    for reply in (answer, refusal):
        checkpoints.add_reply(reply)
    assert checkpoints.replies(1) == {"a": answer, "b": refusal}


def test_another_code_replaces_a_refusal_and_nothing_replaces_an_answer(
    checkpoints: Checkpoints,
) -> None:
    late = refused("a", JOINED_LATE, f"{JOINED_LATE}: no answer")
    for reply in (refused("a", "policy", "policy: no"), late):
        checkpoints.add_reply(reply)
    assert checkpoints.replies(1)["a"] == late
    answer = StoredReply(round=1, device="a", outcome=Outcome.ANSWERED, theta=b"1234")
    for reply in (answer, late):
        checkpoints.add_reply(reply)
    assert checkpoints.replies(1)["a"] == answer


OLD_REPLIES = (
    (1, "a", "answered", ""),
    (1, "b", "refused", "policy: wrong-round is what it calls this"),
    (1, "c", "refused", "already-charged"),  # a refusal without a reason
    (1, "d", "refused", "joined-late: no answer"),
    (2, "a", "late", ""),
    (2, "b", "refused", "cost-budget: it has 3: too little"),
    (2, "c", "refused", "device-trouble: disk: full"),
    (2, "d", "refused", "untrusted: no"),
)


def write_old_file(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(OLD_SCHEMA)
        for row in OLD_REPLIES:
            database.execute("INSERT INTO replies VALUES (?, ?, ?, ?, NULL)", row)
        for round in (1, 2):
            values: tuple[Any, ...] = (round, bytes(32), 1.0)
            database.execute("INSERT INTO rounds VALUES (?, ?, ?)", values)


def test_a_file_of_the_old_schema_is_read_correctly(path: Path) -> None:
    write_old_file(path)
    for _ in range(2):  # the second time, it is of the new schema
        with closing(Checkpoints(path)) as opened:
            first, second = opened.replies(1), opened.replies(2)
            # b refused both rounds for free, and d the second one.
            assert costs(opened) == {
                "a": 2 * ROUND_COST,
                "b": 0.0,
                "c": 2 * ROUND_COST,
                "d": ROUND_COST,
            }
        assert {name: first[name].code for name in NAMES} == {
            "a": "",
            "b": "policy",
            "c": "already-charged",
            "d": JOINED_LATE,
        }
        assert {name: second[name].code for name in NAMES} == {
            "a": "",
            "b": "cost-budget",
            "c": "device-trouble",
            "d": "untrusted",
        }
        rows = [(r.round, r.device, r.outcome, r.reason) for r in first.values()]
        assert rows == [row for row in OLD_REPLIES if row[0] == 1]


def test_an_old_file_whose_tables_were_not_all_made_is_completed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(OLD_SCHEMA.partition("CREATE TABLE replies")[0])
    with closing(Checkpoints(path)) as opened:
        opened.add_reply(refused("a", "policy", "policy: no"))
        assert opened.dropped() == {} and opened.replies(1)["a"].code == "policy"


def test_a_file_of_a_newer_release_is_refused_and_left_alone(path: Path) -> None:
    Checkpoints(path).close()
    with closing(sqlite3.connect(path)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        database.execute(f"PRAGMA user_version = {version + 1}")
    newer = f"schema version {version + 1}, and this release reads up to {version}"
    with pytest.raises(fb.RecordError, match=newer):
        Checkpoints(path)
    with closing(sqlite3.connect(path)) as database:  # it is not locked
        assert database.execute("PRAGMA user_version").fetchone() == (version + 1,)


def test_with_falling_noise_the_paid_rounds_are_taken_to_be_the_last(
    checkpoints: Checkpoints,
) -> None:
    plan = replace(PLAN, noise_decay=0.7)
    rounds = plan.rounds
    checkpoints.add_reply(refused("a", "policy", "no", round=1))
    checkpoints.add_reply(refused("b", "policy", "no", round=rounds))
    close_rounds(checkpoints, rounds)
    declarations = [examples.declaration(device=name) for name in NAMES]
    tally = Tally(plan, declarations, checkpoints)
    spent = [row["epsilon"] for row in tally.summary({})["devices"]]
    # By hand: the charges of all rounds but the first, and of all rounds.
    squares = 4 * plan.tau / (plan.noise_multiplier[0] * plan.noise_factors) ** 2
    delta = float(min(plan.delta[0], declarations[0].delta))
    without, everything = (
        float(GDP.epsilon_from_mu(np.sqrt(part.sum()), delta))
        for part in (squares[1:], squares)
    )
    assert spent[0] == pytest.approx(without, rel=1e-9)
    assert spent[1] == pytest.approx(without, rel=1e-9)  # too high: it refused the last
    assert spent[2] == pytest.approx(everything, rel=1e-9)
    assert without < everything


def test_a_closed_round_leaves_no_answers_behind(path: Path) -> None:
    names = [f"device-{number:04d}" for number in range(500)]
    run = StoredRun(
        run=bytes(16),
        name="many",
        plan={},
        declarations=tuple(examples.declaration(device=name) for name in names),
    )
    sizes = []
    with closing(Checkpoints(path)) as opened:
        opened.begin(run, [])
    for number in range(1, 9):
        with closing(Checkpoints(path)) as opened:
            with opened.transaction():
                for name in names[number:]:
                    opened.add_reply(answered(name, number, bytes(400)))
                opened.add_reply(refused(names[0], "policy", "no", round=number))
            opened.close_round(number, np.zeros(4), 1.0)
        sizes.append(path.stat().st_size)
    # A round has 200 kB of models.
    assert sizes[-1] - sizes[1] < 20_000
    with closing(Checkpoints(path)) as opened:
        assert set(opened.replies(3)) == {names[0], *names[3:]}
        assert opened.outcome_of(3, names[3]) == Outcome.ANSWERED
        assert opened.outcome_of(3, names[2]) is None
        assert opened.outcome_of(3, names[0]) == Outcome.REFUSED
        counts = opened.rounds_with(Outcome.ANSWERED)
        assert [counts.get(name) for name in names[:4]] == [None, 1, 2, 3]
        assert opened.last_answers()[names[5]] == 5


def answered(device: str, round: int, theta: bytes | None) -> StoredReply:
    return StoredReply(
        round=round, device=device, outcome=Outcome.ANSWERED, theta=theta
    )


def test_a_file_that_kept_every_answer_is_read_and_continued(path: Path) -> None:
    declarations = tuple(examples.declaration(device=name) for name in NAMES)
    run = StoredRun(run=bytes(16), name="old", plan={}, declarations=declarations)
    with closing(Checkpoints(path)) as opened:
        opened.begin(run, [])
        for name in "abc":
            opened.add_reply(answered(name, 1, None))
    with closing(sqlite3.connect(path)) as database, database:  # as version 1 had it
        database.execute("DROP TABLE asked")
        database.execute("ALTER TABLE rounds DROP COLUMN answered")
        database.execute("INSERT INTO rounds VALUES (1, ?, 1.0)", (bytes(32),))
        database.execute("PRAGMA user_version = 1")
    with closing(Checkpoints(path)) as opened:
        opened.add_reply(answered("a", 2, bytes(8)))
        opened.close_round(2, np.zeros(4), 1.0)
        assert list(opened.replies(1)) == ["a", "b", "c"]
        assert opened.rounds_with(Outcome.ANSWERED) == {"a": 2, "b": 1, "c": 1}
        assert opened.last_answers() == {"a": 2, "b": 1, "c": 1}
        assert opened.outcome_of(1, "b") == Outcome.ANSWERED
        assert opened.outcome_of(1, "d") is None
