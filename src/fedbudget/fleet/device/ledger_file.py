"""A device's ledger on disk: a charge is never lost.

An append-only SQLite file (WAL, synchronous=FULL). Each entry has the digest of the one
before it, which detects entries that were edited, removed or moved. A small file beside
the ledger (`hash_chain.Anchor`) records the last entry, which detects a truncated
ledger or an old copy. `Ledger`, which simulations use too, decides whether a charge
fits the budgets; this module stores charges and enforces the order:

    charge, on disk -> data are used -> the answer, on disk -> the answer is sent

A crash before the first arrow charges nothing and releases nothing. A crash between the
first and the last leaves a charge without an answer: that round stays charged, is never
computed again, and is refused when it is requested again. So the ledger may count a
round that was never sent; it never misses one that was.

No decision here reads a clock.

The last answer of each run is stored in the same file, to be sent again unchanged. The
state of drift correction (`drift.DriftState`) is stored beside it while it is needed.
Both are written in one transaction with the entry for the answered round, which has
their digests. Only the last ones of a run are stored.
"""

import hashlib
import json
import os
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
from fedbudget.fleet.wire.messages import LEDGER_DIGITS
from fedbudget.ledger import Charge, Ledger, mu_squared

PRIVACY, COST = "privacy-budget", "cost-budget"  # the budget a charge overdraws
_IDENTITY = b"fedbudget ledger identity 1\x00"


class StoredAnswer(NamedTuple):
    """The answer to a round, and the state of drift correction in that round."""

    round: int
    reply: bytes
    drift_state: bytes | None = None

    @property
    def digests(self) -> dict[str, str]:
        """The digests in the answer's ledger entry."""
        digests = {"digest": hashlib.sha256(self.reply).hexdigest()}
        if self.drift_state is not None:
            digests["course"] = hashlib.sha256(self.drift_state).hexdigest()
        return digests


def _put_answer(database: sqlite3.Connection, run: bytes, answer: StoredAnswer) -> None:
    """Replace the last answer of a run, inside the caller's transaction."""
    row = (run, answer.round, answer.reply)
    database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", row)
    database.execute("DELETE FROM courses WHERE run = ?", (run,))
    if answer.drift_state is not None:
        row = (run, answer.round, answer.drift_state)
        database.execute("INSERT INTO courses VALUES (?, ?, ?)", row)


def _answer_of(database: sqlite3.Connection, run: bytes, round: int) -> bytes | None:
    """Return the answer of a round, if it is the last of its run.

    Raises:
        LedgerError: It does not match its digest.
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
        raise LedgerError(
            f"the stored answer of round {round} does not match its digest"
        )
    return reply


def _last_answer(database: sqlite3.Connection, run: bytes) -> StoredAnswer | None:
    """Return the last answer of a run with its drift state.

    None if either is missing or damaged: drift correction then starts again from zero,
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
    answer, body = StoredAnswer(*row[:3]), json.loads(row[3])
    return answer if answer.digests.items() <= body.items() else None


@dataclass(frozen=True, kw_only=True)
class JoinedRun:
    """A run that the device has joined."""

    offer: bytes  # as signed
    key: str  # public key of the coordinator that signed it
    fingerprint: str  # of the rows that take part; they must not change


@dataclass
class _Memory:
    """The content of the file, in memory."""

    ledger: Ledger
    head: Entry | None = None
    identity: str = ""
    budget: dict[str, Any] | None = None
    data: tuple[int, str] | None = None  # last noted number of rows and fingerprint
    first_rows: int | None = None  # first noted number of rows
    runs: dict[bytes, JoinedRun] = field(default_factory=dict)
    overdrafts: dict[bytes, str] = field(default_factory=dict)  # run -> its budget
    last_round: dict[bytes, int] = field(default_factory=dict)


class LedgerFile:
    """The ledger of one device, open for writing; one process at a time.

    Any method may raise a `LedgerError`: then nothing may be released. The file is read
    again before its next use, because memory may differ from it.
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
        """Release the ledger for other processes."""
        self._forget()
        self._anchor.close()

    @property
    def spent(self) -> Ledger:
        """The amounts spent, and the budget."""
        with self._open():
            return self._memory.ledger

    @property
    def identity(self) -> str:
        """The public identity of this ledger and its copies; it reveals no entry."""
        with self._open():
            return self._memory.identity

    @property
    def data(self) -> tuple[int, str] | None:
        """The last noted number of rows and their fingerprint."""
        with self._open():
            return self._memory.data

    @property
    def first_rows(self) -> int | None:
        """The first noted number of rows."""
        with self._open():
            return self._memory.first_rows

    def run(self, run: bytes) -> JoinedRun | None:
        """Return a joined run; none if the device has not joined it."""
        with self._open():
            return self._memory.runs.get(run)

    @property
    def num_runs(self) -> int:
        """The number of runs that the device has joined."""
        with self._open():
            return len(self._memory.runs)

    def last_round(self, run: bytes) -> int:
        """Return the last charged round of a run; 0 before the first."""
        with self._open():
            return self._memory.last_round.get(run, 0)

    def join(self, run: bytes, joined: JoinedRun) -> None:
        """Record a run and the fingerprint of its rows."""
        body = {
            "offer": joined.offer.hex(),
            "key": joined.key,
            "fingerprint": joined.fingerprint,
        }
        with self._open() as database:
            self._write(database, "run", body, run=run)

    def note_data(self, rows: int, fingerprint: str, *, continues: str) -> None:
        """Record the current size and fingerprint of the data set."""
        body = {"rows": rows, "fingerprint": fingerprint, "continues": continues}
        with self._open() as database:
            self._write(database, "data", body)

    def charge(self, run: bytes, round: int, charge: Charge) -> str | None:
        """Charge a round and return none, or return the budget it would overdraw.

        When this returns none, the charge is on disk: only then may data be used.
        """
        with self._open() as database:
            if round <= self._memory.last_round.get(run, 0):
                raise LedgerError(f"round {round} must be after the last charged round")
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
            # Memory is already charged; if this fails, the file is read again.
            self._write(database, "charge", body, run=run, round=round, counted=True)
        return None

    def note_overdraft(self, run: bytes, budget: str) -> None:
        """Record that a round of a run would overdraw a budget, before it is refused.

        When this returns, it is on disk. All rounds of a run cost the same, so the run
        is over until the owner clears it or changes the budget.
        """
        with self._open() as database:
            self._write(database, "overdraft", {"budget": budget}, run=run)

    def overdraft(self, run: bytes) -> str | None:
        """Return the budget that a run would overdraw, if it was recorded."""
        with self._open():
            return self._memory.overdrafts.get(run)

    def num_overdrafts(self, key: str) -> int:
        """Return how many runs of a coordinator would overdraw a budget."""
        with self._open():
            runs = self._memory.runs
            return sum(runs[run].key == key for run in self._memory.overdrafts)

    def clear_overdrafts(self) -> int:
        """Forget all overdrafts for their coordinators; return how many there were."""
        with self._open() as database:
            count = len(self._memory.overdrafts)
            self._write(database, "clear", {})
        return count

    def store_answer(self, run: bytes, answer: StoredAnswer) -> None:
        """Store the answer of a round on disk; it replaces the previous one."""
        body, round = answer.digests, answer.round
        with self._open() as database:
            self._write(database, "answer", body, run=run, round=round, answer=answer)

    def answer(self, run: bytes, round: int) -> bytes | None:
        """Return the stored answer of a round, unchanged."""
        with self._open() as database:
            return _answer_of(database, run, round)

    def last_answer(self, run: bytes) -> StoredAnswer | None:
        """Return the last answer with its drift state; none if either is missing."""
        with self._open() as database:
            return _last_answer(database, run)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield the database, read again after an error; errors raise LedgerError."""
        try:
            if self._database is None:
                self._read()
            assert self._database is not None
            yield self._database
        except (sqlite3.Error, OSError) as error:
            self._forget()
            raise LedgerError(
                f"ledger {str(self._path)!r} cannot be used ({error}): free space on "
                "its disk, or restore its folder"
            ) from None
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _read(self) -> None:
        """Read and verify the whole chain, and sum up its charges."""
        self._database = database = open_database(self._path)
        entries = check_chain(database)
        self._anchor.check(entries)
        if entries:  # a crash may have happened before the last one was anchored
            self._anchor.write(entries[-1])
        ledger = Ledger(
            self._policy.budget, num_devices=1, accountant=self._policy.accountant
        )
        self._memory = _Memory(ledger=ledger)
        for entry in entries:
            self._apply(entry)
        if not entries:
            nonce = os.urandom(16).hex()  # two ledgers never have one identity
            self._write(database, "open", {"lineage": self._lineage, "nonce": nonce})
        limits = {
            "epsilon": self._policy.epsilon,
            "delta": self._policy.delta,
            "cost": self._policy.cost,
            "accountant": self._policy.accountant,
        }
        recorded = self._memory.budget or {}
        if {name: recorded.get(name) for name in limits} != limits:
            self._write(database, "budget", limits)

    def _apply(self, entry: Entry, *, counted: bool = False) -> None:
        """Apply an entry that is on disk to memory."""
        memory, body = self._memory, entry.body
        memory.head = entry
        if entry.kind == "open":
            digest = hashlib.sha256(_IDENTITY + entry.digest).hexdigest()
            memory.identity = digest[:LEDGER_DIGITS]
        if entry.kind == "open" and body["lineage"] != self._lineage:
            raise LedgerError(
                f"ledger {str(self._path)!r} is of the data set {body['lineage']!r}, "
                f"not {self._lineage!r}: correct data.lineage, or use another ledger "
                "file if the two data sets have no sample in common"
            )
        if entry.kind == "budget":
            memory.budget = body
            memory.overdrafts.clear()  # they were of another budget
        elif entry.kind == "overdraft":
            memory.overdrafts[entry.run] = body["budget"]
        elif entry.kind == "clear":
            memory.overdrafts.clear()
        elif entry.kind == "data":
            memory.data = (body["rows"], body["fingerprint"])
            memory.first_rows = memory.first_rows or body["rows"]
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
        """Append an entry; when this returns, it and its anchor are on disk."""
        # The time is for the owner; the program never reads it.
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
        self._apply(head, counted=counted)


def charge_of(entry: Entry) -> Charge:
    """Return the charge of an entry."""
    body = entry.body
    return Charge(
        steps=int(body["steps"]),
        noise_multiplier=float(body["noise_multiplier"]),
        cost=float(body["cost"]),
    )
