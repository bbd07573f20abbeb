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

Rows that came later may have a budget of their own: see `periods`. Each run belongs to
one period, and so do its charges. Entries of releases without periods are of period 1.
"""

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from fedbudget.fleet.device.periods import FIRST, Period, RowRange
from fedbudget.fleet.device.policy import BudgetPolicy
from fedbudget.fleet.wire.messages import LEDGER_DIGITS, RunOffer
from fedbudget.ledger import Charge, Ledger, mu_squared
from fedbudget.text import counted

_log = logging.getLogger(__name__)
PRIVACY, COST = "privacy-budget", "cost-budget"  # the budget a charge overdraws
SHARE = "share"  # evaluations would overdraw their share of the privacy budget
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

    offer: bytes  # as signed; of an evaluation, its order
    key: str  # public key of the coordinator that signed it
    fingerprint: str  # of the rows that take part; they must not change
    rows: RowRange | None = None  # None, in old entries: the first ones of period 1

    @property
    def row_range(self) -> RowRange:
        """The rows that take part."""
        if self.rows is not None:
            return self.rows
        count = RunOffer.from_bytes(self.offer).num_samples
        return RowRange(period=FIRST.number, first_row=0, count=count)

    def to_body(self) -> dict[str, Any]:
        """Return the content of a ledger entry."""
        body: dict[str, Any] = {
            "offer": self.offer.hex(),
            "key": self.key,
            "fingerprint": self.fingerprint,
        }
        if self.rows is None:
            return body
        rows = {"first_row": self.rows.first_row, "rows": self.rows.count}
        return body | {"period": self.rows.period} | rows

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "JoinedRun":
        """Read a ledger entry, also one of a release without periods."""
        rows = None
        if "period" in body:
            rows = RowRange(
                period=int(body["period"]),
                first_row=int(body["first_row"]),
                count=int(body["rows"]),
            )
        return cls(
            offer=bytes.fromhex(body["offer"]),
            key=body["key"],
            fingerprint=body["fingerprint"],
            rows=rows,
        )


@dataclass
class _Memory:
    """The content of the file, in memory."""

    ledgers: dict[int, Ledger]  # by period
    periods: list[Period] = field(default_factory=lambda: [FIRST])
    head: Entry | None = None
    identity: str = ""
    budget: dict[str, Any] | None = None
    data: tuple[int, str] | None = None  # last noted number of rows and fingerprint
    first_rows: int | None = None  # first noted number of rows
    runs: dict[bytes, JoinedRun] = field(default_factory=dict)
    evaluations: dict[bytes, JoinedRun] = field(default_factory=dict)
    evaluated: list[tuple[int, Charge]] = field(default_factory=list)  # by period
    revoked: set[str] = field(default_factory=set)  # coordinators' keys
    ended: set[tuple[bytes, str]] = field(default_factory=set)  # run, coordinator's key
    overdrafts: dict[bytes, str] = field(default_factory=dict)  # run -> its budget
    last_round: dict[bytes, int] = field(default_factory=dict)

    def joined(self, run: bytes) -> JoinedRun:
        """Return a run or an evaluation.

        Raises:
            LedgerError: The device has not joined it.
        """
        joined = self.runs.get(run) or self.evaluations.get(run)
        if joined is None:
            raise LedgerError(f"run {run.hex()} is charged, but was never joined")
        return joined


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
        """The amounts spent on the rows of the newest period, and the budget."""
        with self._open():
            return self._ledger_of(self._memory.periods[-1].number)

    @property
    def periods(self) -> tuple[Period, ...]:
        """The periods of the data set, the oldest first."""
        with self._open():
            return tuple(self._memory.periods)

    @property
    def used_until(self) -> int:
        """The position after the last row that a run or an evaluation has used."""
        with self._open():
            return self._used_until()

    @property
    def revoked(self) -> frozenset[str]:
        """The keys of coordinators that were withdrawn for ever."""
        with self._open():
            return frozenset(self._memory.revoked)

    def revoke(self, key: str, message: bytes) -> None:
        """Record that a coordinator's key was withdrawn, and the message that says so.

        It is never trusted again, whatever the policy says.
        """
        body = {"key": key, "message": message.hex()}
        with self._open() as database:
            self._write(database, "revoke", body)

    def end(self, run: bytes, key: str, reason: str) -> None:
        """Record that a coordinator has ended a run: it is never charged again."""
        with self._open() as database:
            self._write(database, "end", {"key": key, "reason": reason}, run=run)

    def has_ended(self, run: bytes, key: str) -> bool:
        """Return whether this coordinator has ended this run of its own."""
        with self._open():
            return (run, key) in self._memory.ended

    @property
    def num_ended(self) -> int:
        """The number of runs that a coordinator has ended."""
        with self._open():
            return len(self._memory.ended)

    def renew(self, first_row: int, fingerprint: Callable[[int, int], str]) -> Period:
        """Start a new period, with a budget of its own, for the rows from here on.

        Args:
            first_row: The position of its first row.
            fingerprint: Returns the digest of rows of the current file, from a start
                and a count.

        Raises:
            LedgerError: A row that was used before is not before the first row, or has
                changed: it might count in both periods.
        """
        with self._open() as database:
            last = self._memory.periods[-1]
            most = self._used_until()
            if first_row < most or first_row <= last.first_row:
                raise LedgerError(
                    f"a period cannot start at row {first_row}: rows up to {most} were "
                    f"used, and period {last.number} starts at row {last.first_row}"
                )
            for joined in self._all_joined():
                rows = joined.row_range
                if fingerprint(rows.first_row, rows.count) != joined.fingerprint:
                    raise LedgerError(
                        f"period {last.number + 1} cannot start: rows {rows.first_row} "
                        f"to {rows.stop - 1} were used and have changed since, so that "
                        "one of them might count twice; restore them"
                    )
            body = {
                "number": last.number + 1,
                "first_row": first_row,
                "before": fingerprint(0, first_row),
            }
            self._write(database, "period", body)
            return self._memory.periods[-1]

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

    @property
    def charged(self) -> dict[bytes, RunOffer | None]:
        """The offers of the runs that were charged; none of an evaluation."""
        with self._open():
            runs = self._memory.runs
            return {
                run: RunOffer.from_bytes(runs[run].offer) if run in runs else None
                for run in self._memory.last_round
            }

    def last_round(self, run: bytes) -> int:
        """Return the last charged round of a run; 0 before the first."""
        with self._open():
            return self._memory.last_round.get(run, 0)

    def join(self, run: bytes, joined: JoinedRun) -> None:
        """Record a run and the fingerprint of its rows."""
        with self._open() as database:
            self._check_range(joined)
            self._check_unused(run, self._memory.evaluations)
            self._write(database, "run", joined.to_body(), run=run)

    def join_evaluation(self, run: bytes, joined: JoinedRun) -> None:
        """Record an evaluation and the fingerprint of its rows."""
        with self._open() as database:
            self._check_range(joined)
            self._check_unused(run, self._memory.runs)
            self._write(database, "evaluation", joined.to_body(), run=run)

    @property
    def num_evaluations(self) -> int:
        """The number of recorded evaluations."""
        with self._open():
            return len(self._memory.evaluations)

    def evaluation(self, run: bytes) -> JoinedRun | None:
        """Return a recorded evaluation; none if the device has not seen it."""
        with self._open():
            return self._memory.evaluations.get(run)

    def note_data(self, rows: int, fingerprint: str, *, continues: str) -> None:
        """Record the current size and fingerprint of the data set."""
        body = {"rows": rows, "fingerprint": fingerprint, "continues": continues}
        with self._open() as database:
            self._write(database, "data", body)

    def charge(
        self, run: bytes, round: int, charge: Charge, *, share: float | None = None
    ) -> str | None:
        """Charge a round and return none, or return the budget it would overdraw.

        When this returns none, the charge is on disk: only then may data be used.

        Args:
            run: A run or an evaluation that the device has joined.
            round: After the last charged one.
            charge: Of the round.
            share: The epsilon that all evaluations of a period may spend together.
        """
        with self._open() as database:
            if round <= self._memory.last_round.get(run, 0):
                raise LedgerError(f"round {round} must be after the last charged round")
            period = self._memory.joined(run).row_range.period
            if share is not None and not self._within_share(period, charge, share):
                return SHARE
            ledger = self._ledger_of(period)
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
        _log.info(
            "round %d of run %s is charged: %s, cost %g",
            round,
            run.hex()[:8],
            counted(charge.steps, "step"),
            body["cost"],
            extra={"facts": {"run": run.hex(), "round": round, "charge": body}},
        )
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
            memory = self._memory
            return sum(memory.joined(run).key == key for run in memory.overdrafts)

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
        self._memory = _Memory(ledgers={})
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
            memory.runs[entry.run] = JoinedRun.from_body(body)
        elif entry.kind == "evaluation":
            memory.evaluations[entry.run] = JoinedRun.from_body(body)
        elif entry.kind == "period":
            memory.periods.append(period_of(entry))
            memory.overdrafts.clear()  # they were of another budget
        elif entry.kind == "end":
            memory.ended.add((entry.run, body["key"]))
        elif entry.kind == "revoke":
            memory.revoked.add(body["key"])
        elif entry.kind == "charge":
            self._apply_charge(entry, counted=counted)

    def _apply_charge(self, entry: Entry, *, counted: bool) -> None:
        memory, charge = self._memory, charge_of(entry)
        memory.last_round[entry.run] = entry.round
        period = memory.joined(entry.run).row_range.period
        if entry.run in memory.evaluations:
            memory.evaluated.append((period, charge))
        if not counted:
            self._ledger_of(period).count(charge)

    def _ledger_of(self, period: int) -> Ledger:
        """Return what the rows of a period have spent."""
        ledgers, policy = self._memory.ledgers, self._policy
        if period not in ledgers:
            ledgers[period] = Ledger(
                policy.budget, num_devices=1, accountant=policy.accountant
            )
        return ledgers[period]

    def _within_share(self, period: int, charge: Charge, share: float) -> bool:
        """Return whether a period's evaluations stay within their share of epsilon."""
        part = Ledger(
            replace(self._policy, epsilon=share).budget,
            num_devices=1,
            accountant=self._policy.accountant,
        )
        for number, earlier in self._memory.evaluated:
            if number == period:
                part.count(earlier)
        return bool(part.charge(charge)[0])

    def _used_until(self) -> int:
        return max((joined.row_range.stop for joined in self._all_joined()), default=0)

    def _all_joined(self) -> list[JoinedRun]:
        return [*self._memory.runs.values(), *self._memory.evaluations.values()]

    def _check_unused(self, run: bytes, others: Mapping[bytes, JoinedRun]) -> None:
        """Refuse one identity for a run and an evaluation: whose period would pay?"""
        if run in others:
            raise LedgerError(f"{run.hex()} is both a run and an evaluation")

    def _check_range(self, joined: JoinedRun) -> None:
        """Refuse rows that are not all of the period that they are charged to."""
        rows, periods = joined.row_range, self._memory.periods
        if not 1 <= rows.period <= len(periods):
            raise LedgerError(f"period {rows.period} has not started")
        start = periods[rows.period - 1].first_row
        later = periods[rows.period : rows.period + 1]
        if rows.first_row < start or (later and rows.stop > later[0].first_row):
            raise LedgerError(
                f"rows {rows.first_row} to {rows.stop - 1} are not all of period "
                f"{rows.period}: a row counts in one period only"
            )

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
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> None:
        """Append an entry; when this returns, it and its anchor are on disk.

        `also` writes in the same transaction.
        """
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
        if also is not None:
            also(database)
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


def period_of(entry: Entry) -> Period:
    """Return the period that an entry starts."""
    body = entry.body
    return Period(
        number=int(body["number"]),
        first_row=int(body["first_row"]),
        before=str(body["before"]),
    )
