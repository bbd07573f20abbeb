"""Part (d) through a device's guard: what a policy releases, and what it refuses.

The guard is the real one: signed offers and orders, its own ledger file, its charges on
disk. It gets the policy as it is, except for what names the owner's property: its rows
are canaries, its ledger is a new file in a temporary folder, and its coordinator and
its run are the audit's. The run spends the whole privacy budget, as closely as the
policy allows. Then one more round of it, and a round of another run, must be refused
without a charge.
"""

import logging
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedbudget.auditing.bounds import Trials
from fedbudget.auditing.canaries import Table
from fedbudget.auditing.mechanisms import DevicePath
from fedbudget.auditing.settings import Claim
from fedbudget.auditing.trials import Effort, Signal, collect
from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.policy import Policy
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.wire.messages import (
    ACCEPTED,
    ANSWERED,
    RUN_BYTES,
    Precision,
    Reply,
    RoundOrder,
    RunOffer,
    theta_from_bytes,
    theta_to_bytes,
)
from fedbudget.fleet.wire.signing import Signer
from fedbudget.privacy import NoisyGradients, accountant_named, rounded_up
from fedbudget.text import counted

_ROUNDS = 2  # of a run: more are slow, one would not compose
_STEPS = 16  # of a run, unless the policy's least noise needs more of them
_MOST_STEPS = 2000  # of a run: more take too long
_ROWS, _COLUMNS = 32, 4  # of the canaries' tables
_SLACK = 1e-9  # noise above the least: the ledger adds up in another order
_PRECISION: Precision = "float64"  # of the messages: float32 would only add rounding
_MEMORY = "/dev/shm"  # a file system in memory, on Linux
_OVERDRAWN = ("privacy-budget", "cost-budget")


@dataclass(frozen=True, kw_only=True)
class GuardTest:
    """What the guards of the trials spent, and what they refused."""

    runs: int
    spent: float  # epsilon, the largest of their ledgers
    budget: float
    refused: bool | None  # every round beyond the budget; None: it was not reached
    through: str = "guard"  # or the ledger alone, for sums

    @property
    def holds(self) -> bool:
        """Whether no guard went beyond its budget."""
        return self.refused is not False and self.spent <= self.budget

    def __str__(self) -> str:
        ends = {True: "refused", False: "ANSWERED", None: "not reached"}
        return (
            f"{counted(self.runs, 'run')} through a {self.through} spent at most "
            f"epsilon {rounded_up(self.spent)} of {self.budget:g}; rounds beyond: "
            f"{ends[self.refused]}"
        )


@dataclass(frozen=True, kw_only=True)
class GuardedRun:
    """The run that spends a policy's budget."""

    policy: Policy
    claim: Claim
    tau: int
    rounds: int
    exhausts: bool  # whether a further round must be refused

    @property
    def learning_rate(self) -> float:
        """A rate that the policy allows."""
        return min(1.0, self.policy.orders.most_learning_rate)

    @property
    def offered(self) -> int:
        """The rounds of the offer: one beyond the budget, if the policy allows it."""
        return min(self.rounds + 1, self.policy.orders.most_rounds)


def guarded_run(policy: Policy) -> GuardedRun:
    """Return the run that spends a policy's privacy budget, as far as it allows.

    Raises:
        InvalidInputError: The cost budget does not pay for a round.
    """
    budget, limits, prices = policy.budget, policy.orders, policy.prices
    # The noise multiplier of one step that spends all of the budget.
    one_step = float(
        accountant_named(budget.accountant).noise_multiplier(
            epsilon=budget.epsilon, delta=budget.delta, steps=1
        )
    )
    least = math.ceil((limits.least_noise_multiplier / one_step) ** 2)
    wanted = min(max(least, _STEPS), _MOST_STEPS)
    longest = min(limits.most_rounds, max(_ROUNDS, -(-wanted // limits.most_tau)))
    taus = {n: _tau(policy, wanted, n) for n in range(1, longest + 1)}
    rounds = max(taus, key=lambda n: (taus[n] * n, n))
    tau = taus[rounds]
    if tau < 1:
        raise InvalidInputError(
            f"the cost budget {budget.cost:g} of the policy does not pay for one round "
            "of one step: raise it, or lower the prices"
        )
    steps, a_round = tau * rounds, prices.communication + prices.computation * tau
    multiplier = one_step * math.sqrt(steps) * (1 + _SLACK)
    return GuardedRun(
        policy=policy,
        claim=_claim(policy, max(multiplier, limits.least_noise_multiplier), steps),
        tau=tau,
        rounds=rounds,
        exhausts=steps >= least or (rounds + 1) * a_round > budget.cost,
    )


def _tau(policy: Policy, wanted: int, rounds: int) -> int:
    """Return the steps of each of these rounds: as many as wanted, or as are paid."""
    prices, left = policy.prices, policy.budget.cost
    left -= prices.communication * rounds
    steps = (
        left / prices.computation if prices.computation else (1e9 if left >= 0 else 0)
    )
    paid = math.floor(max(0.0, min(steps, 1e9)) / rounds)
    return min(-(-wanted // rounds), policy.orders.most_tau, paid)


def _claim(policy: Policy, multiplier: float, steps: int) -> Claim:
    """Return the claim of such a run: what the device's ledger says of it."""
    budget, data = policy.budget, policy.data
    claim = Claim(
        name=f"device {policy.device}",
        loss=data.loss,
        num_classes=data.classes if data.loss == "softmax" else 1,
        dim=_COLUMNS,
        num_samples=_ROWS,
        batch_size=_ROWS,
        noise_std=1.0,
        steps=steps,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )
    noise_std = multiplier * claim.model.lipschitz / _ROWS
    run = NoisyGradients(
        lipschitz=claim.model.lipschitz,
        batch_size=_ROWS,
        noise_std=noise_std,
        steps=steps,
    )
    accountant = accountant_named(budget.accountant)
    spent = float(accountant.epsilon(run, delta=budget.delta))
    return replace(claim, noise_std=noise_std, epsilon=min(spent, budget.epsilon))


def guard_trials(run: GuardedRun, effort: Effort) -> tuple[Trials, GuardTest]:
    """Carry out whole runs through guards: each with a new ledger."""
    pair = run.claim.canaries()
    signal = Signal.of(DevicePath(), run.claim, pair)
    spent: list[float] = []
    refused: list[bool] = []
    with _quiet_guard(), temporary_folder() as name:
        sites = [_Site.write(Path(name) / str(k), run, pair.tables[k]) for k in (0, 1)]

        def trial(side: int, count: int) -> Array:
            moved = []
            for _ in range(count):
                answer = sites[side].spend(pair.theta)
                spent.append(answer.spent)
                if answer.refused is not None:
                    refused.append(answer.refused)
                moved.append(answer.moved[signal.index])
            return signal.of_models(np.array(moved), run.claim, run.learning_rate)

        trials = collect(trial, effort, at_once=1)
    test = GuardTest(
        runs=len(spent),
        spent=max(spent),
        budget=run.policy.budget.epsilon,
        refused=all(refused) if refused else None,
    )
    return trials, test


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a new folder, in memory if there is such a file system.

    A ledger waits for the disk several times in a run; an audit's ledgers need not
    survive a power failure.
    """
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="fedbudget-audit-", dir=memory)


@contextmanager
def _quiet_guard() -> Iterator[None]:
    """Keep charges and refusals, which are expected, out of the log."""
    modules = (Guard.__module__, LedgerFile.__module__)
    loggers = [logging.getLogger(module) for module in modules]
    for logger in loggers:
        logger.addFilter(_is_unexpected)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_unexpected)


def _is_unexpected(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING


@dataclass(frozen=True, kw_only=True, eq=False)
class _Answer:
    moved: Array  # the models of the orders minus those of the answers, added up
    spent: float
    refused: bool | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Site:
    """A folder with a table of canaries, for one guard after the other."""

    folder: Path
    run: GuardedRun
    signer: Signer

    @classmethod
    def write(cls, folder: Path, run: GuardedRun, table: Table) -> "_Site":
        folder.mkdir()
        np.savez(folder / "rows.npz", x=table.x, y=table.y)
        return cls(folder=folder, run=run, signer=Signer.generate())

    @contextmanager
    def guard(self) -> Iterator[Guard]:
        """A guard under the owner's policy, with canaries and a new ledger."""
        policy, ledger = self.run.policy, self.folder / "ledger.sqlite"
        for path in self.folder.glob("ledger*"):
            path.unlink()
        data = replace(
            policy.data, file=self.folder / "rows.npz", schema=None, label=None
        )
        trusted = (self.signer.public_key,)
        orders = replace(policy.orders, trusted=trusted, runs=("*",))
        guard = Guard(replace(policy, data=data, orders=orders, ledger=ledger))
        try:
            yield guard
        finally:
            guard.close()

    def spend(self, theta: Array) -> _Answer:
        """Spend the budget with a run; then ask for more."""
        moved = np.zeros(len(theta))
        ledger = self.folder / "ledger.sqlite"
        with self.guard() as guard:
            first = os.urandom(RUN_BYTES)
            self._offer(guard, first)
            for number in range(1, self.run.rounds + 1):
                reply = self._order(guard, first, number, theta)
                if reply.code != ANSWERED or reply.theta is None:
                    raise InvalidInputError(
                        f"the guard of this policy answers {reply.code!r} to round "
                        f"{number} of {self.run.rounds}: {reply.reason}"
                    )
                moved += theta - theta_from_bytes(reply.theta, _PRECISION, len(theta))
            spent = read_statement(ledger)
            refused = self._refused(guard, first, theta) if self.run.exhausts else None
            after = read_statement(ledger)
        if refused is not None:
            refused &= (spent.epsilon, spent.cost) == (after.epsilon, after.cost)
        return _Answer(moved=moved, spent=after.epsilon, refused=refused)

    def _refused(self, guard: Guard, run: bytes, theta: Array) -> bool:
        """Ask for one more round, and for a round of another run."""
        other = os.urandom(RUN_BYTES)
        self._offer(guard, other)
        replies = [self._order(guard, other, 1, theta)]
        if self.run.offered > self.run.rounds:
            replies.append(self._order(guard, run, self.run.offered, theta))
        return all(reply.code in _OVERDRAWN for reply in replies)

    def _offer(self, guard: Guard, run: bytes) -> None:
        claim, policy = self.run.claim, self.run.policy
        offer = RunOffer(
            run=run,
            name="audit",
            device=policy.device,
            tau=self.run.tau,
            rounds=self.run.offered,
            learning_rate=self.run.learning_rate,
            sampling="full",
            num_samples=claim.batch_size,
            batch_size=claim.batch_size,
            noise_std=claim.noise_std,
            loss=claim.loss,
            num_classes=claim.num_classes,
            l2=0.0,
            dim=claim.dim,
            precision=_PRECISION,
        )
        (reply,) = guard.answer_offer(self.signer.sign(offer))
        if reply.code != ACCEPTED:
            raise InvalidInputError(
                f"the guard of this policy refuses the audit's offer: {reply.reason}"
            )

    def _order(self, guard: Guard, run: bytes, number: int, theta: Array) -> Reply:
        model = theta_to_bytes(theta, _PRECISION)
        order = RoundOrder(run=run, round=number, theta=model)
        (reply,) = guard.answer_order(self.signer.sign(order))
        return reply
