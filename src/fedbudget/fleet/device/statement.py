"""A ledger's statement for its owner: verified, then summed up."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.budget import Budget
from fedbudget.errors import LedgerError
from fedbudget.fleet.device.evaluation import recorded_terms
from fedbudget.fleet.device.hash_chain import (
    Entry,
    anchor_path,
    check_anchor,
    check_chain,
    open_to_read,
)
from fedbudget.fleet.device.ledger_file import (
    JoinedRun,
    LedgerFile,
    charge_of,
    period_of,
)
from fedbudget.fleet.device.periods import FIRST
from fedbudget.fleet.device.policy import BudgetPolicy
from fedbudget.fleet.device.sum_terms import terms_of
from fedbudget.fleet.wire.messages import RunOffer
from fedbudget.ledger import Ledger


@dataclass(kw_only=True)
class RunStatement:
    """The charges of one run."""

    run: str  # its identity, in hex
    name: str
    rounds: int  # of the offer
    charged: int = 0  # rounds
    answered: int = 0  # rounds whose answer was sent
    steps: int = 0
    mu: float = 0.0
    cost: float = 0.0
    sums: "SumStatement | None" = None  # of a run whose server sees only sums


@dataclass(kw_only=True)
class SumStatement:
    """A run of secure sums: what its mu assumes, and what was revealed."""

    least_answers: int
    colluders: int
    unit: str
    mu_alone: float = 0.0  # if everybody else colludes with the server
    peers: str = ""  # digest of their list
    revealed: list[int] = field(default_factory=list)  # rounds, each once


@dataclass(kw_only=True)
class PeriodStatement:
    """The charges for the rows of one period."""

    number: int
    first_row: int
    epsilon: float = 0.0  # spent, as in `Statement`
    mu: float = 0.0
    cost: float = 0.0
    evaluations: int = 0  # charged


@dataclass(kw_only=True)
class Statement:
    """The summary of a ledger.

    What is spent is that of the period which has spent the most: a bound for every row.
    """

    lineage: str
    epsilon: float  # spent, at the budget's delta, by the budget's accountant
    epsilon_budget: float
    delta: float
    accountant: str
    mu: float  # spent, as Gaussian DP
    rho: float  # spent, as zCDP
    cost: float  # spent
    cost_budget: float
    rows: int | None  # of the data set, at its last read
    data_changes: list[str]  # first, grown, changed
    overdrafts: dict[str, int]  # runs that would overdraw, by the coordinator's key
    entries: int
    head: str  # digest of the last entry
    runs: list[RunStatement] = field(default_factory=list)
    periods: list[PeriodStatement] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)  # coordinators' keys

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dict."""
        return asdict(self)


def read_statement(path: str | Path) -> Statement:
    """Verify a ledger and return its summary; read-only.

    Raises:
        LedgerError: It does not exist, or was tampered with.
    """
    entries = verified(Path(path))
    bodies = {entry.kind: entry.body for entry in entries}  # the last of each kind
    if "open" not in bodies or "budget" not in bodies:
        raise LedgerError(f"ledger {str(path)!r} is empty: no device has used it yet")
    limits = bodies["budget"]
    periods = _periods(entries, limits)
    mu = max(period.mu for period in periods)
    data = [entry.body for entry in entries if entry.kind == "data"]
    return Statement(
        lineage=bodies["open"]["lineage"],
        epsilon=max(period.epsilon for period in periods),
        epsilon_budget=limits["epsilon"],
        delta=limits["delta"],
        accountant=limits["accountant"],
        mu=mu,
        rho=mu**2 / 2,
        cost=max(period.cost for period in periods),
        cost_budget=limits["cost"],
        rows=data[-1]["rows"] if data else None,
        data_changes=[body["continues"] for body in data],
        overdrafts=_overdrafts(entries),
        entries=len(entries),
        head=entries[-1].digest.hex(),
        runs=_runs(entries),
        periods=periods,
        revoked=[entry.body["key"] for entry in entries if entry.kind == "revoke"],
    )


def _periods(entries: list[Entry], limits: Mapping[str, Any]) -> list[PeriodStatement]:
    """Sum up the charges of each period."""
    budget = Budget(
        epsilon=limits["epsilon"], delta=limits["delta"], cost=limits["cost"]
    )
    starts = [FIRST, *(period_of(e) for e in entries if e.kind == "period")]
    ledgers = {
        period.number: Ledger(budget, num_devices=1, accountant=limits["accountant"])
        for period in starts
    }
    statements = {
        p.number: PeriodStatement(number=p.number, first_row=p.first_row)
        for p in starts
    }
    evaluations = {entry.run for entry in entries if entry.kind == "evaluation"}
    period_by_run = {
        entry.run: JoinedRun.from_body(entry.body).row_range.period
        for entry in entries
        if entry.kind in ("run", "evaluation")
    }
    for entry in entries:
        if entry.kind == "charge":
            number = period_by_run[entry.run]
            ledgers[number].count(charge_of(entry))
            period = statements[number]
            period.mu = float(np.hypot(period.mu, np.sqrt(entry.body["mu_squared"])))
            period.evaluations += entry.run in evaluations
    for number, ledger in ledgers.items():
        statements[number].epsilon = float(ledger.epsilon[0])
        statements[number].cost = float(ledger.cost[0])
    return list(statements.values())


def verified(path: Path) -> list[Entry]:
    """Return the entries of a ledger, verified."""
    # The anchor first: if a guard writes meanwhile, the chain has more entries than the
    # anchor, which is valid. In the other order, the anchor could be the newer one.
    try:
        anchor = anchor_path(path).read_bytes()
    except FileNotFoundError:
        anchor = b""
    except OSError as error:
        raise LedgerError(f"{error.filename!r} cannot be read: {error}") from None
    database = open_to_read(path)
    try:
        entries = check_chain(database)
    finally:
        database.close()
    check_anchor(anchor, entries)
    return entries


def _overdrafts(entries: list[Entry]) -> dict[str, int]:
    """Count each coordinator's overdrafts since they were last cleared."""
    keys, runs = {}, set()
    for entry in entries:
        if entry.kind in ("run", "evaluation"):
            keys[entry.run] = entry.body["key"]
        elif entry.kind == "overdraft":
            runs.add(entry.run)
        elif entry.kind in ("clear", "budget", "period"):
            runs.clear()
    return dict(Counter(keys[run] for run in runs))


def clear_overdrafts(path: str | Path) -> int:
    """Let blocked coordinators order again; return how many overdrafts were cleared.

    Raises:
        LedgerError: The ledger does not exist, was tampered with, or is in use.
    """
    statement = read_statement(path)
    limits = BudgetPolicy(
        epsilon=statement.epsilon_budget,
        delta=statement.delta,
        cost=statement.cost_budget,
        accountant=statement.accountant,
    )
    ledger = LedgerFile(Path(path), limits, lineage=statement.lineage)
    try:
        return ledger.clear_overdrafts()
    finally:
        ledger.close()


def _runs(entries: list[Entry]) -> list[RunStatement]:
    runs: dict[bytes, RunStatement] = {}
    for entry in entries:
        body = entry.body
        if entry.kind == "run":
            offer = RunOffer.from_bytes(bytes.fromhex(body["offer"]))
            runs[entry.run] = RunStatement(
                run=entry.run.hex(),
                name=offer.name,
                rounds=offer.rounds,
                sums=_sums(offer),
            )
        elif entry.kind in ("peers", "reveal"):
            _note_sum(runs[entry.run], entry)
        elif entry.kind == "evaluation":
            runs[entry.run] = RunStatement(
                run=entry.run.hex(),
                name="evaluation",
                rounds=1,
                sums=_evaluation_sums(bytes.fromhex(body["offer"])),
            )
        elif entry.kind == "charge":
            run = runs[entry.run]
            run.charged += 1
            run.steps += body["steps"]
            run.mu = float(np.hypot(run.mu, np.sqrt(body["mu_squared"])))
            run.cost += body["cost"]
            if run.sums is not None:
                terms = run.sums
                shares = float(np.sqrt(terms.least_answers - terms.colluders))
                terms.mu_alone = run.mu * shares
        elif entry.kind == "answer":
            runs[entry.run].answered += 1
    return list(runs.values())


def _sums(offer: RunOffer) -> SumStatement | None:
    if offer.sum_terms is None:
        return None
    terms = terms_of(offer)
    return SumStatement(
        least_answers=terms.least_answers, colluders=terms.colluders, unit=terms.unit
    )


def _evaluation_sums(offer: bytes) -> SumStatement | None:
    terms = recorded_terms(offer)
    if terms is None:
        return None
    return SumStatement(
        least_answers=terms.least_answers, colluders=terms.colluders, unit="sample"
    )


def _note_sum(run: RunStatement, entry: Entry) -> None:
    """Note the list of peers, or that shares were revealed."""
    if run.sums is None:
        raise LedgerError(f"entry {entry.number} is of a sum, but its run is not")
    if entry.kind == "peers":
        run.sums.peers = entry.body["digest"]
    else:
        run.sums.revealed.append(entry.round)
