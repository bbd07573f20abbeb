"""The coordinator's checkpoints: one SQLite file per run, written before any sending.

    run       the plan and the run's random identity
    devices   the declarations of the run's devices, in the plan's order
    offers    the signed bytes of each device's offer
    orders    the signed bytes of each round's order, stored before publication
    replies   one row per round and device: answered, late or refused
    rounds    the average of each closed round, which is never computed again, and one
              bit per device: whether it answered in time
    asked     one bit per device, for rounds that only some devices were asked for
    dropped   number of dropped messages per device, and the last reason
    sums      the messages of an open round of secure sums, and the run's peers

A coordinator that is killed at any moment and started again publishes the same bytes.
Devices then resend their stored answers and are not charged again. The closed rounds
are enough to replay a run.

When a round closes, the rows of its answers are deleted and their pages are used again:
the file grows by the refusals and late answers alone, and by one bit per device.
"""

import json
import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.errors import RecordError
from fedbudget.fleet.wire.messages import Declaration
from fedbudget.planning import Plan

# Files of earlier releases have these names: devices.place is the index of a device in
# the plan, devices.told is its declaration.
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
  round INTEGER PRIMARY KEY, theta BLOB NOT NULL, seconds REAL NOT NULL, answered BLOB
);
CREATE TABLE IF NOT EXISTS asked (round INTEGER PRIMARY KEY, devices BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS dropped (
  device TEXT PRIMARY KEY, times INTEGER NOT NULL, reason TEXT NOT NULL
);
"""

# Part of every version: older files get the table when they are opened.
_SUMS = """
CREATE TABLE IF NOT EXISTS sums (
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, kind TEXT NOT NULL,
  device TEXT NOT NULL, payload BLOB NOT NULL,
  PRIMARY KEY (round, attempt, kind, device)
)
"""

# The schema's version, in the file's header. Version 0 had no column for codes: its
# reasons begin with the code and a colon. Version 1 kept a row for every answer.
# A migration and its version are one transaction.
_VERSION = 2
_MIGRATIONS = {  # table and column that a file lacks, and how it gets it
    ("replies", "code"): """
ALTER TABLE replies ADD COLUMN code TEXT NOT NULL DEFAULT '';
UPDATE replies SET code = substr(reason, 1, instr(reason || ':', ':') - 1)
  WHERE outcome = 'refused';
""",
    ("rounds", "answered"): "ALTER TABLE rounds ADD COLUMN answered BLOB;",
}


def pack_bits(mask: NDArray[np.bool_]) -> bytes:
    """Return one bit per device, from the lowest bit of the first byte.

    >>> pack_bits(np.array([True, False, True])).hex()
    '05'
    """
    return np.packbits(mask, bitorder="little").tobytes()


def unpack_bits(bits: bytes, count: int) -> NDArray[np.bool_]:
    """Return what `pack_bits` packed; devices beyond its end are not set.

    >>> unpack_bits(bytes([5]), 3).tolist()
    [True, False, True]
    """
    values = np.frombuffer(bits.ljust(-(-count // 8), b"\0"), dtype=np.uint8)
    return np.unpackbits(values, count=count, bitorder="little").astype(bool)


class Outcome(StrEnum):
    """The outcome of a device's part in a round."""

    ANSWERED = "answered"
    LATE = "late"
    REFUSED = "refused"


# The device refused the run and joined later: the outcome of this round is unknown.
JOINED_LATE = "joined-late"
# A device that refuses with one of these codes may have been charged: its answer was
# lost, its model diverged, its disk was full after the charge, or it is ahead of the
# coordinator.
MAY_BE_CHARGED = (
    "already-charged",
    "bad-model",
    "device-trouble",
    "wrong-round",
    JOINED_LATE,
)


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as it was started."""

    run: bytes
    name: str
    plan: dict[str, Any]
    declarations: tuple[Declaration, ...]

    @staticmethod
    def plain(plan: Plan) -> dict[str, Any]:
        """Return a plan as JSON restores it."""
        values: dict[str, Any] = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
        return values


@dataclass(frozen=True, kw_only=True)
class StoredReply:
    """One device's part in one round."""

    round: int
    device: str
    outcome: Outcome
    code: str = ""  # of a refusal: one of REFUSALS, or JOINED_LATE
    reason: str = ""  # of a refusal, for people; no decision depends on it
    theta: bytes | None = None


class Checkpoints:
    """The file of one run, locked by one coordinator."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._names: tuple[str, ...] | None = None
        with self._record_errors():
            # Answers of devices are for the coordinator alone until they are averaged.
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=1.0
            )
            try:
                self._open()
            except BaseException:
                self._database.close()
                raise

    def _open(self) -> None:
        """Lock the file for this coordinator, and migrate its schema."""
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        # A second coordinator of the same run would publish different orders.
        self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise RecordError(
                f"checkpoint {self.path} has schema version {version}, and this "
                f"release reads up to {_VERSION}: use the release that wrote it"
            )
        if version == _VERSION:
            self._database.execute(_SUMS)
            return
        changes = "".join(
            change
            for (table, column), change in _MIGRATIONS.items()
            if (columns := self._columns(table)) and column not in columns
        )
        self._database.executescript(
            f"BEGIN IMMEDIATE; {changes} {_TABLES} {_SUMS}; "
            f"PRAGMA user_version = {_VERSION}; COMMIT"
        )

    def _columns(self, table: str) -> set[str]:
        """Return the columns of a table; none if it does not exist."""
        rows = self._database.execute(f"PRAGMA table_info({table})").fetchall()
        return {row[1] for row in rows}

    def close(self) -> None:
        """Close the file and release its lock."""
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write several things in one transaction."""
        with self._record_errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def run(self) -> StoredRun | None:
        """Return the stored run, if any."""
        row = self._fetch_one("SELECT run, name, plan FROM run")
        if row is None:
            return None
        rows = self._fetch_all("SELECT told FROM devices ORDER BY place")
        stored = StoredRun(
            run=row[0],
            name=row[1],
            plan=json.loads(row[2]),
            declarations=tuple(Declaration.from_bytes(payload) for (payload,) in rows),
        )
        self._names = tuple(d.device for d in stored.declarations)
        return stored

    @property
    def _devices(self) -> tuple[str, ...]:
        """The names of the run's devices, in the plan's order."""
        if self._names is None:
            self.run()
        return self._names or ()

    def begin(self, run: StoredRun, offers: Sequence[tuple[str, bytes]]) -> None:
        """Store a new run with its offers."""
        plan = json.dumps(run.plan, allow_nan=False)
        self._names = tuple(d.device for d in run.declarations)
        with self.transaction():
            self._execute(
                "INSERT INTO run VALUES (1, ?, ?, ?)", (run.run, run.name, plan)
            )
            for index, declaration in enumerate(run.declarations):
                row = (index, declaration.to_bytes())
                self._execute("INSERT INTO devices VALUES (?, ?)", row)
            for device, payload in offers:
                self._execute("INSERT INTO offers VALUES (?, ?)", (device, payload))

    def offers(self) -> list[tuple[str, bytes]]:
        """Return each device's offer."""
        return self._fetch_all("SELECT device, payload FROM offers ORDER BY device")

    def order(self, round: int) -> bytes | None:
        """Return the bytes of a round's order, if it is stored."""
        row = self._fetch_one("SELECT payload FROM orders WHERE round = ?", (round,))
        return None if row is None else bytes(row[0])

    def add_order(self, round: int, payload: bytes, asked: bytes | None = None) -> None:
        """Store an order, before it is published, and whom it asks; None: all."""
        with self.transaction():
            self._execute("INSERT INTO orders VALUES (?, ?)", (round, payload))
            if asked is not None:
                self._execute("INSERT INTO asked VALUES (?, ?)", (round, asked))

    def asked(self, rounds: int) -> list[tuple[int, bytes]]:
        """Return whom orders of the first rounds asked, if they did not ask all."""
        statement = "SELECT round, devices FROM asked WHERE round <= ?"
        return self._fetch_all(statement, (rounds,))

    def last_order(self) -> bytes | None:
        """Return the bytes of the last stored order."""
        row = self._fetch_one("SELECT payload FROM orders ORDER BY round DESC LIMIT 1")
        return None if row is None else bytes(row[0])

    def replies(self, round: int) -> dict[str, StoredReply]:
        """Return the replies to a round, by device."""
        rows = self._fetch_all(
            "SELECT device, outcome, code, reason, theta FROM replies WHERE round = ?",
            (round,),
        )
        answered = self._answered("WHERE round = ?", (round,))
        return {
            self._devices[index]: StoredReply(
                round=round, device=self._devices[index], outcome=Outcome.ANSWERED
            )
            for index in np.flatnonzero(answered)
        } | {
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

    def outcome_of(self, round: int, device: str) -> Outcome | None:
        """Return the outcome of one device's part in a round, if there is one."""
        row = self._fetch_one(
            "SELECT outcome FROM replies WHERE round = ? AND device = ?",
            (round, device),
        )
        if row is not None:
            return Outcome(row[0])
        answered = self._answered("WHERE round = ?", (round,))
        if answered.any() and answered[self._devices.index(device)]:
            return Outcome.ANSWERED
        return None

    def _answered(self, which: str, values: tuple[Any, ...] = ()) -> NDArray[np.int64]:
        """Return how many of these closed rounds each device answered; shape (M,)."""
        rows = self._fetch_all(f"SELECT answered FROM rounds {which}", values)
        packed = [bits for (bits,) in rows if bits is not None]
        counts = np.zeros(len(self._devices) if packed else 0, dtype=np.int64)
        for bits in packed:
            counts += unpack_bits(zlib.decompress(bits), len(counts))
        return counts

    def add_reply(self, reply: StoredReply) -> None:
        """Store a reply. An answer replaces a refusal; nothing replaces an answer."""
        self._execute(
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
        """Delete refusals of the run and of open rounds: devices are asked again."""
        self._execute(
            "DELETE FROM replies WHERE outcome = ? AND round NOT IN "
            "(SELECT round FROM rounds)",
            (Outcome.REFUSED,),
        )

    def rounds_with(self, outcome: Outcome) -> dict[str, int]:
        """Return the number of closed rounds with this outcome, by device."""
        rounds = Counter(
            dict(
                self._fetch_all(
                    "SELECT device, count(*) FROM replies WHERE outcome = ? AND round "
                    "IN (SELECT round FROM rounds) GROUP BY device",
                    (outcome,),
                )
            )
        )
        if outcome == Outcome.ANSWERED:
            counts = self._answered("").tolist()
            rounds.update(dict(zip(self._devices, counts, strict=bool(counts))))
        return dict(+rounds)

    def last_answers(self) -> dict[str, int]:
        """Return the last round that each device answered, in time or late."""
        statement = "SELECT round, answered FROM rounds WHERE answered NOTNULL"
        last: dict[str, int] = {}
        for round, bits in self._fetch_all(f"{statement} ORDER BY round"):
            answered = unpack_bits(zlib.decompress(bits), len(self._devices))
            last |= {self._devices[i]: round for i in np.flatnonzero(answered)}
        rows = self._fetch_all(
            "SELECT device, max(round) FROM replies WHERE outcome != ? AND round > 0 "
            "GROUP BY device",
            (Outcome.REFUSED,),
        )
        for device, round in rows:
            last[device] = max(last.get(device, 0), round)
        return last

    def rounds_refused(
        self, rounds: int, *, except_for: Sequence[str]
    ) -> dict[str, int]:
        """Count each device's refusals in the first rounds, but for these codes."""
        marks = ", ".join("?" * len(except_for))
        return dict(
            self._fetch_all(
                "SELECT device, count(*) FROM replies WHERE outcome = ? AND round "
                f"BETWEEN 1 AND ? AND code NOT IN ({marks}) GROUP BY device",
                (Outcome.REFUSED, rounds, *except_for),
            )
        )

    def close_round(self, round: int, theta: Array, seconds: float) -> None:
        """Store a round's average and delete the answers that it was computed from."""
        with self.transaction():
            average = np.asarray(theta, dtype="<f8").tobytes()
            which = "round = ? AND outcome = ?"
            values = (round, Outcome.ANSWERED)
            rows = self._fetch_all(f"SELECT device FROM replies WHERE {which}", values)
            answered = {device for (device,) in rows}
            bits = None
            if answered <= set(self._devices):  # else they stay, without their models
                mask = np.array([name in answered for name in self._devices], bool)
                bits = zlib.compress(pack_bits(mask))
                self._execute(f"DELETE FROM replies WHERE {which}", values)
            self._execute("UPDATE replies SET theta = NULL WHERE round = ?", (round,))
            self._execute("DELETE FROM sums WHERE round = ?", (round,))
            self._execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?)",
                (round, average, seconds, bits),
            )

    def closed_round(self, round: int) -> Array | None:
        """Return the average of a round, if it is closed."""
        row = self._fetch_one("SELECT theta FROM rounds WHERE round = ?", (round,))
        return None if row is None else np.frombuffer(row[0], dtype="<f8").copy()

    def rounds_closed(self) -> int:
        """Return the number of closed rounds."""
        return int(self._fetch_all("SELECT count(*) FROM rounds")[0][0])

    def round_seconds(self) -> list[float]:
        """Return the duration of each closed round."""
        return [
            row[0]
            for row in self._fetch_all("SELECT seconds FROM rounds ORDER BY round")
        ]

    def add_sum_message(
        self, round: int, attempt: int, kind: str, device: str, payload: bytes
    ) -> None:
        """Store a message of a secure sum; of the coordinator, if device is empty.

        Round 0 has those of the run itself: introductions, and the list of peers.
        """
        self._execute(
            "INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?, ?)",
            (round, attempt, kind, device, payload),
        )

    def sum_messages(self, round: int, attempt: int) -> dict[str, dict[str, bytes]]:
        """Return the messages of an attempt, by kind and device."""
        rows = self._fetch_all(
            "SELECT kind, device, payload FROM sums WHERE round = ? AND attempt = ?",
            (round, attempt),
        )
        messages: dict[str, dict[str, bytes]] = {}
        for kind, device, payload in rows:
            messages.setdefault(kind, {})[device] = payload
        return messages

    def sum_senders(self, round: int, kind: str) -> set[str]:
        """Return the devices that sent such a message in any attempt at a round."""
        rows = self._fetch_all(
            "SELECT DISTINCT device FROM sums WHERE round = ? AND kind = ?",
            (round, kind),
        )
        return {device for (device,) in rows}

    def last_sum_attempt(self, round: int) -> int:
        """Return the last attempt at an open round; 0 before the first."""
        row = self._fetch_one("SELECT max(attempt) FROM sums WHERE round = ?", (round,))
        return int(row[0] or 0)

    def add_dropped(self, device: str, reason: str) -> None:
        """Count a dropped message."""
        self._execute(
            "INSERT INTO dropped VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET "
            "times = times + 1, reason = excluded.reason",
            (device, reason),
        )

    def dropped(self) -> dict[str, tuple[int, str]]:
        """Return the number of dropped messages and the last reason, by device."""
        rows = self._fetch_all(
            "SELECT device, times, reason FROM dropped ORDER BY device"
        )
        return {device: (times, reason) for device, times, reason in rows}

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        with self._record_errors():
            self._database.execute(statement, values)

    def _fetch_all(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._record_errors():
            return self._database.execute(statement, values).fetchall()

    def _fetch_one(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        rows = self._fetch_all(statement, values)
        return rows[0] if rows else None

    @contextmanager
    def _record_errors(self) -> Iterator[None]:
        """Raise errors of SQLite and of the disk as a RecordError, on one line."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            remedy = "free disk space, or choose another folder"
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                remedy = "another coordinator is using it; stop that coordinator first"
            raise RecordError(
                f"checkpoint {self.path} cannot be used ({error}): {remedy}"
            ) from error
