"""A device's accounts on disk: what was charged stays charged, whatever happens.

An append-only SQLite file (WAL, synchronous=FULL). Each entry has the digest of the one
before it, so an entry that was edited, removed or moved is found; a small file beside
the ledger (`hash_chain.Anchor`) remembers the last entry, so that a shorter ledger is
found too: one that was cut, or an old copy. What a charge would overdraw is decided by
the same `Ledger` that simulations use; here are only its memory and its order:

    charge, on disk -> data are touched -> the answer, on disk -> the answer is sent

A crash before the first arrow charges nothing and releases nothing. A crash between the
first and the last leaves a charge without an answer: that round stays charged, is never
computed again, and is refused when it is asked for again. So accounts may count a round
that nobody saw; they never miss one that somebody saw.

No decision here reads a clock.

The last answer of each run is kept in the same file, to be sent again, byte for byte.
Beside it, while drift correction needs it, is the course of its round (`drift.Course`).
Both are written with the entry that says that the round was answered, and are what
their digests in that entry say; only the last ones of a run are kept.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedbudget.checks import floats
from fedbudget.errors import LedgerError
from fedbudget.fleet.device.hash_chain import (
    Anchor,
    Entry,
    append,
    check_chain,
    open_database,
)
from fedbudget.fleet.device.policy import BudgetPolicy
from fedbudget.ledger import Charge, Ledger, mu_squared


class StoredAnswer(NamedTuple):
    """The answer to a round, and what drift control keeps of the round."""

    round: int
    reply: bytes
    course: bytes | None = None

    @property
    def digests(self) -> dict[str, str]:
        """What the answer's entry in the ledger says of the bytes."""
        found = {"digest": hashlib.sha256(self.reply).hexdigest()}
        if self.course is not None:
            found["course"] = hashlib.sha256(self.course).hexdigest()
        return found


def _put_answer(database: sqlite3.Connection, run: bytes, answer: StoredAnswer) -> None:
    """Replace the last answer of a run, inside the caller's transaction."""
    row = (run, answer.round, answer.reply)
    database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", row)
    database.execute("DELETE FROM courses WHERE run = ?", (run,))
    if answer.course is not None:
        row = (run, answer.round, answer.course)
        database.execute("INSERT INTO courses VALUES (?, ?, ?)", row)


def _answer_of(database: sqlite3.Connection, run: bytes, round: int) -> bytes | None:
    """Return the answer of a round, if it is the last of its run.

    Raises:
        LedgerError: It is not what it was.
    """
    row = database.execute(
        "SELECT reply, body FROM answers JOIN entries USING (run, round) "
        "WHERE kind = 'answer' AND run = ? AND round = ?",
        (run, round),
    ).fetchone()
    if row is None:
        return None
    reply, body = bytes(row[0]), json.loads(row[1])
    if StoredAnswer(round, reply).digests["digest"] != body["digest"]:
        raise LedgerError(f"the stored answer of round {round} is not what it was")
    return reply


def _last_answer(database: sqlite3.Connection, run: bytes) -> StoredAnswer | None:
    """Return the last answer of a run with its course.

    None if either is missing, or is not what it was: drift control then begins anew,
    which is no reason to refuse a round.
    """
    row = database.execute(
        "SELECT round, reply, course, body FROM answers JOIN courses "
        "USING (run, round) JOIN entries USING (run, round) "
        "WHERE kind = 'answer' AND run = ?",
        (run,),
    ).fetchone()
    if row is None:
        return None
    found, body = StoredAnswer(*row[:3]), json.loads(row[3])
    return found if found.digests.items() <= body.items() else None


PRIVACY, COST = "privacy-budget", "cost-budget"  # which of the two a charge overdraws


@dataclass(frozen=True, kw_only=True)
class JoinedRun:
    """A run that the device has joined."""

    offer: bytes  # as it was signed
    key: str  # of the coordinator that signed it
    fingerprint: str  # of the rows that take part: they are frozen


@dataclass
class _Memory:
    """What the file says, in memory."""

    ledger: Ledger
    head: Entry | None = None
    budget: dict[str, Any] | None = None
    data: tuple[int, str] | None = None  # rows and fingerprint that were noted last
    runs: dict[bytes, JoinedRun] = field(default_factory=dict)
    last_round: dict[bytes, int] = field(default_factory=dict)


class Accounts:
    """The ledger of one device, open for writing; one process at a time.

    Any method may raise a `LedgerError`: then nothing may be released. The file is read
    again before its next use, for memory may differ from it.
    """

    def __init__(self, path: Path, policy: BudgetPolicy, *, lineage: str) -> None:
        self._path, self._policy, self._lineage = path, policy, lineage
        self._anchor = Anchor(path)
        self._database: sqlite3.Connection | None = None
        self._memory: _Memory
        try:
            with self._open():
                pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process use the ledger."""
        self._forget()
        self._anchor.close()

    @property
    def spent(self) -> Ledger:
        """What was spent, and of which budget."""
        with self._open():
            return self._memory.ledger

    @property
    def data(self) -> tuple[int, str] | None:
        """The number of rows and their fingerprint, as they were noted last."""
        with self._open():
            return self._memory.data

    def run(self, run: bytes) -> JoinedRun | None:
        """Return a run that the device has joined."""
        with self._open():
            return self._memory.runs.get(run)

    @property
    def num_runs(self) -> int:
        """How many runs the device has ever joined."""
        with self._open():
            return len(self._memory.runs)

    def last_round(self, run: bytes) -> int:
        """Return the last round of a run that was charged; 0 before the first."""
        with self._open():
            return self._memory.last_round.get(run, 0)

    def join(self, run: bytes, joined: JoinedRun) -> None:
        """Remember a run and the rows that it is about."""
        body = {
            "offer": joined.offer.hex(),
            "key": joined.key,
            "fingerprint": joined.fingerprint,
        }
        with self._open() as database:
            self._write(database, "run", body, run=run)

    def note_data(self, rows: int, fingerprint: str, *, continues: str) -> None:
        """Write down what the data set looks like now."""
        body = {"rows": rows, "fingerprint": fingerprint, "continues": continues}
        with self._open() as database:
            self._write(database, "data", body)

    def charge(self, run: bytes, round: int, charge: Charge) -> str | None:
        """Charge a round, on disk, and return none; or return what it would overdraw.

        When this returns none, the charge is on disk: only then may data be touched.
        """
        with self._open() as database:
            if round <= self._memory.last_round.get(run, 0):
                raise LedgerError(f"round {round} is not after the last that was paid")
            ledger = self._memory.ledger
            if not ledger.charge(charge)[0]:
                return PRIVACY if ledger.affords_cost(charge)[0] else COST
            spent = mu_squared(charge.steps, charge.noise_multiplier).item()
            body = {
                "steps": charge.steps,
                "noise_multiplier": floats(charge.noise_multiplier).item(),
                "cost": floats(charge.cost).item(),
                "mu_squared": spent,  # Gaussian DP
                "rho": spent / 2,  # zCDP
            }
            # Memory is charged already; if this fails, it is read again from the file.
            self._write(database, "charge", body, run=run, round=round, counted=True)
        return None

    def store_answer(self, run: bytes, answer: StoredAnswer) -> None:
        """Keep the answer of a round, on disk; that of the round before may go."""
        body, round = answer.digests, answer.round
        with self._open() as database:
            self._write(database, "answer", body, run=run, round=round, answer=answer)

    def answer(self, run: bytes, round: int) -> bytes | None:
        """Return the stored answer of a round, byte for byte."""
        with self._open() as database:
            return _answer_of(database, run, round)

    def last_answer(self, run: bytes) -> StoredAnswer | None:
        """Return the last answer with its course; none if either is gone or damaged."""
        with self._open() as database:
            return _last_answer(database, run)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Give the file, read anew after trouble; turn trouble into a LedgerError."""
        try:
            if self._database is None:
                self._read()
            assert self._database is not None
            yield self._database
        except (sqlite3.Error, OSError) as error:
            self._forget()
            raise LedgerError(
                f"ledger {str(self._path)!r} cannot be used ({error}): free space on "
                "its disk, or bring its folder back"
            ) from None
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _read(self) -> None:
        """Read the whole chain, check it, and count what it holds."""
        self._database = database = open_database(self._path)
        entries = check_chain(database)
        self._anchor.check(entries)
        if entries:  # a crash may have come between the last of them and its anchor
            self._anchor.write(entries[-1])
        ledger = Ledger(
            self._policy.budget, num_devices=1, accountant=self._policy.accountant
        )
        self._memory = _Memory(ledger=ledger)
        for entry in entries:
            self._take(entry)
        if not entries:
            self._write(database, "open", {"lineage": self._lineage})
        wanted = {
            "epsilon": self._policy.epsilon,
            "delta": self._policy.delta,
            "cost": self._policy.cost,
            "accountant": self._policy.accountant,
        }
        known = self._memory.budget or {}
        if {name: known.get(name) for name in wanted} != wanted:
            self._write(database, "budget", wanted)

    def _take(self, entry: Entry, *, counted: bool = False) -> None:
        """Take over an entry that is on disk."""
        memory, body = self._memory, entry.body
        memory.head = entry
        if entry.kind == "open" and body["lineage"] != self._lineage:
            raise LedgerError(
                f"ledger {str(self._path)!r} is of the data set {body['lineage']!r}, "
                f"not {self._lineage!r}: correct data.lineage, or take another ledger "
                "file if no sample of the one is in the other"
            )
        if entry.kind == "budget":
            memory.budget = body
        elif entry.kind == "data":
            memory.data = (body["rows"], body["fingerprint"])
        elif entry.kind == "run":
            memory.runs[entry.run] = JoinedRun(
                offer=bytes.fromhex(body["offer"]),
                key=body["key"],
                fingerprint=body["fingerprint"],
            )
        elif entry.kind == "charge":
            memory.last_round[entry.run] = entry.round
            if not counted:
                memory.ledger.count(charge_of(entry))

    def _write(
        self,
        database: sqlite3.Connection,
        kind: str,
        body: Mapping[str, Any],
        *,
        run: bytes = b"",
        round: int = 0,
        counted: bool = False,
        answer: StoredAnswer | None = None,
    ) -> None:
        """Add an entry; when this returns, the entry and its anchor are on disk."""
        # The time is for the owner to read; nothing else ever reads it.
        dated = {**body, "at": int(time.time())}
        database.execute("BEGIN IMMEDIATE")
        head = append(
            database,
            self._memory.head,
            kind=kind,
            run=run,
            round=round,
            body=dated,
        )
        if answer is not None:
            _put_answer(database, run, answer)
        database.execute("COMMIT")
        self._anchor.write(head)
        self._take(head, counted=counted)


def charge_of(entry: Entry) -> Charge:
    """Return the charge that an entry holds."""
    body = entry.body
    return Charge(
        steps=int(body["steps"]),
        noise_multiplier=float(body["noise_multiplier"]),
        cost=float(body["cost"]),
    )
