"""The coordinator's memory: one SQLite file per run, written before anything is sent.

    run       the plan and the run's random identity
    devices   what the devices of the run had declared, in the plan's order
    offers    the signed bytes that each device was sent
    orders    the signed bytes of each round, stored before they are published
    replies   what came in for each round: answered, late or refused, once per device
    rounds    the average of each round that is over: it is never computed again
    dropped   how many messages of a device were thrown away, and why the last one

A coordinator that is killed at any moment and started again publishes the same bytes,
so that devices resend what they have answered and pay nothing. From the closed rounds
alone, a run can be replayed to where it was.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import RecordError
from fedbudget.fleet.wire.messages import Declaration
from fedbudget.planning import Plan

_TABLES = """
CREATE TABLE IF NOT EXISTS run (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  run BLOB NOT NULL, name TEXT NOT NULL, plan TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS devices (place INTEGER PRIMARY KEY, told BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS offers (device TEXT PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS orders (round INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS replies (
  round INTEGER NOT NULL, device TEXT NOT NULL, outcome TEXT NOT NULL,
  reason TEXT NOT NULL, theta BLOB, code TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (round, device)
);
CREATE TABLE IF NOT EXISTS rounds (
  round INTEGER PRIMARY KEY, theta BLOB NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS dropped (
  device TEXT PRIMARY KEY, times INTEGER NOT NULL, reason TEXT NOT NULL
);
"""

# The schema's version, in the file's header: 0 had no codes, but texts that begin with
# one and a colon. Each step is written together with its version, or not at all.
_VERSION = 1
_ADD_CODES = """
ALTER TABLE replies ADD COLUMN code TEXT NOT NULL DEFAULT '';
UPDATE replies SET code = substr(reason, 1, instr(reason || ':', ':') - 1)
  WHERE outcome = 'refused';
"""


class Outcome(StrEnum):
    """What came of a device's part in a round."""

    ANSWERED = "answered"
    LATE = "late"
    REFUSED = "refused"


# It had refused the run, and then joined: what came of this round is not known.
JOINED_LATE = "joined-late"
# A device of which this is known may have been charged: its answer was lost, its model
# grew beyond all bounds, its disk was full after the charge, or it is further than us.
MAY_BE_CHARGED = (
    "already-charged",
    "bad-model",
    "device-trouble",
    "wrong-round",
    JOINED_LATE,
)


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """What a run was begun with."""

    run: bytes
    name: str
    plan: dict[str, Any]
    declared: tuple[Declaration, ...]

    @staticmethod
    def plain(plan: Plan) -> dict[str, Any]:
        """Return a plan as JSON would bring it back."""
        plain: dict[str, Any] = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
        return plain


@dataclass(frozen=True, kw_only=True)
class StoredReply:
    """One device's part in one round."""

    round: int
    device: str
    outcome: Outcome
    code: str = ""  # of a refusal: one of REFUSALS, or JOINED_LATE
    reason: str = ""  # of a refusal, for people; no decision rests on it
    theta: bytes | None = None


class Checkpoints:
    """One run's file, open for one coordinator."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._telling():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=1.0
            )
            try:
                self._open()
            except BaseException:
                self._database.close()
                raise

    def _open(self) -> None:
        """Take the file for this coordinator alone, and bring its schema up to date."""
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        # A second coordinator of the same run would publish orders of its own.
        self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise RecordError(
                f"checkpoint {self.path} has schema version {version}, and this "
                f"release reads up to {_VERSION}: go on with the release that wrote it"
            )
        if version == _VERSION:
            return
        replies = "SELECT 1 FROM sqlite_master WHERE name = 'replies'"
        older = self._database.execute(replies).fetchone() is not None
        self._database.executescript(
            f"BEGIN IMMEDIATE; {_ADD_CODES if older else ''} {_TABLES} "
            f"PRAGMA user_version = {_VERSION}; COMMIT"
        )

    def close(self) -> None:
        """Let another coordinator take over."""
        self._database.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write several things at once, or none of them."""
        with self._telling():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def run(self) -> StoredRun | None:
        """Return the run that was begun, if any."""
        row = self._one("SELECT run, name, plan FROM run")
        if row is None:
            return None
        told = self._all("SELECT told FROM devices ORDER BY place")
        return StoredRun(
            run=row[0],
            name=row[1],
            plan=json.loads(row[2]),
            declared=tuple(Declaration.from_bytes(row[0]) for row in told),
        )

    def begin(self, begun: StoredRun, offers: Sequence[tuple[str, bytes]]) -> None:
        """Store a new run with its offers."""
        plan = json.dumps(begun.plan, allow_nan=False)
        with self.together():
            self._do(
                "INSERT INTO run VALUES (1, ?, ?, ?)", (begun.run, begun.name, plan)
            )
            for place, told in enumerate(begun.declared):
                self._do("INSERT INTO devices VALUES (?, ?)", (place, told.to_bytes()))
            for device, payload in offers:
                self._do("INSERT INTO offers VALUES (?, ?)", (device, payload))

    def offers(self) -> list[tuple[str, bytes]]:
        """Return each device's offer."""
        return self._all("SELECT device, payload FROM offers ORDER BY device")

    def order(self, round: int) -> bytes | None:
        """Return the bytes of a round's order, if it was ever written."""
        row = self._one("SELECT payload FROM orders WHERE round = ?", (round,))
        return None if row is None else bytes(row[0])

    def add_order(self, round: int, payload: bytes) -> None:
        """Store an order, before it is published."""
        self._do("INSERT INTO orders VALUES (?, ?)", (round, payload))

    def last_order(self) -> bytes | None:
        """Return the bytes of the last order that was written."""
        row = self._one("SELECT payload FROM orders ORDER BY round DESC LIMIT 1")
        return None if row is None else bytes(row[0])

    def replies(self, round: int) -> dict[str, StoredReply]:
        """Return what has come in for a round, by device."""
        rows = self._all(
            "SELECT device, outcome, code, reason, theta FROM replies WHERE round = ?",
            (round,),
        )
        return {
            device: StoredReply(
                round=round,
                device=device,
                outcome=Outcome(outcome),
                code=code,
                reason=reason,
                theta=theta,
            )
            for device, outcome, code, reason, theta in rows
        }

    def add_reply(self, reply: StoredReply) -> None:
        """Store a reply; an answer replaces a refusal, nothing replaces an answer."""
        self._do(
            "INSERT INTO replies (round, device, outcome, code, reason, theta) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "outcome = excluded.outcome, code = excluded.code, "
            "reason = excluded.reason, theta = excluded.theta "
            "WHERE replies.outcome = 'refused'",
            (
                reply.round,
                reply.device,
                reply.outcome,
                reply.code,
                reply.reason,
                reply.theta,
            ),
        )

    def forget_refusals(self) -> None:
        """Forget who refused the run, or a round that is not over: it is asked anew."""
        self._do(
            "DELETE FROM replies WHERE outcome = ? AND round NOT IN "
            "(SELECT round FROM rounds)",
            (Outcome.REFUSED,),
        )

    def rounds_with(self, outcome: Outcome) -> dict[str, int]:
        """Return in how many rounds that are over each device had this outcome."""
        return dict(
            self._all(
                "SELECT device, count(*) FROM replies WHERE outcome = ? AND round IN "
                "(SELECT round FROM rounds) GROUP BY device",
                (outcome,),
            )
        )

    def rounds_refused(
        self, rounds: int, *, except_for: Sequence[str]
    ) -> dict[str, int]:
        """Return how many of the first rounds each device refused by another code."""
        marks = ", ".join("?" * len(except_for))
        return dict(
            self._all(
                "SELECT device, count(*) FROM replies WHERE outcome = ? AND round "
                f"BETWEEN 1 AND ? AND code NOT IN ({marks}) GROUP BY device",
                (Outcome.REFUSED, rounds, *except_for),
            )
        )

    def close_round(self, round: int, theta: Array, seconds: float) -> None:
        """Store a round's average; the single answers are no longer needed."""
        with self.together():
            plain = np.asarray(theta, dtype="<f8").tobytes()
            self._do("INSERT INTO rounds VALUES (?, ?, ?)", (round, plain, seconds))
            self._do("UPDATE replies SET theta = NULL WHERE round = ?", (round,))

    def closed_round(self, round: int) -> Array | None:
        """Return the average of a round that is over."""
        row = self._one("SELECT theta FROM rounds WHERE round = ?", (round,))
        return None if row is None else np.frombuffer(row[0], dtype="<f8").copy()

    def rounds_closed(self) -> int:
        """Return how many rounds are over."""
        return int(self._all("SELECT count(*) FROM rounds")[0][0])

    def round_seconds(self) -> list[float]:
        """Return how long each round took."""
        return [
            row[0] for row in self._all("SELECT seconds FROM rounds ORDER BY round")
        ]

    def add_dropped(self, device: str, reason: str) -> None:
        """Count a message that was thrown away."""
        self._do(
            "INSERT INTO dropped VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET "
            "times = times + 1, reason = excluded.reason",
            (device, reason),
        )

    def dropped(self) -> dict[str, tuple[int, str]]:
        """Return how many messages of each device were thrown away, and why."""
        rows = self._all("SELECT device, times, reason FROM dropped ORDER BY device")
        return {device: (times, reason) for device, times, reason in rows}

    def _do(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        with self._telling():
            self._database.execute(statement, values)

    def _all(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._telling():
            return self._database.execute(statement, values).fetchall()

    def _one(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        found = self._all(statement, values)
        return found[0] if found else None

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn what goes wrong with the file into one line."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            remedy = "make room, or choose another folder"
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                remedy = "another coordinator is using it; stop that one first"
            raise RecordError(
                f"checkpoint {self.path} cannot be used ({error}): {remedy}"
            ) from error
