"""The paper's four cases, its budgets, and the scale of the evaluation.

Grid points become plans without a planner; plans can be moved to another split.
"""

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, one_of
from fedbudget.data import Dataset, load
from fedbudget.planning import Plan
from fedbudget.privacy import NoisyGradients, accountant_named, first_factor
from fedbudget.problem import Problem

PRICES = Prices(communication=100, computation=1)
DELTA = 1e-4

# DP-SGD and DP-PASGD of the paper's first figure.
SGD_TAU, PASGD_TAU, FIRST_EPSILON, FIRST_COST = 1, 10, 10.0, 1000.0
DP_SGD, DP_PASGD = f"DP-SGD (tau = {SGD_TAU})", f"DP-PASGD (tau = {PASGD_TAU})"
LONGEST_TAU = 20  # the largest tau of the paper's search


@dataclass(frozen=True, kw_only=True)
class Case:
    """A data set, its partition over the devices, and the loss."""

    name: str
    data: str
    split: str
    loss: str

    def load(self, *, repeat: int, vehicle: str | None = None) -> Dataset:
        """Return the rows; every repeat has another 80/10/10 split."""
        path = vehicle if self.data == "vehicle" else None
        return load(self.data, split=self.split, seed=repeat, path=path)

    def synthetic(self, vehicle: str | None = None) -> bool:
        """Return whether the rows are a stand-in for real ones."""
        return self.data == "vehicle" and vehicle is None

    def label(self, vehicle: str | None = None) -> str:
        """Return the name, marked if the rows are synthetic."""
        marked = f"{self.name} (SYNTHETIC stand-in)"
        return marked if self.synthetic(vehicle) else self.name


CASES = (
    Case(name="Adult-1", data="adult", split="by-education", loss="logistic"),
    Case(name="Adult-2", data="adult", split="iid", loss="logistic"),
    Case(name="Vehicle-1", data="vehicle", split="by-sensor", loss="hinge"),
    Case(name="Vehicle-2", data="vehicle", split="iid", loss="hinge"),
)


def case_named(name: str) -> Case:
    """Return the case of that name, in upper or lower case."""
    cases = {case.name.lower(): case for case in CASES}
    return cases[one_of("case", name.strip().lower(), tuple(cases))]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Budgets, grids and repeats of an evaluation."""

    name: str
    epsilons: tuple[float, ...] = (1, 2, 4, 10)  # privacy budgets of the grid
    costs: tuple[float, ...] = (500, 1000)  # cost budgets of the grid
    short_costs: tuple[float, ...] = (200,)  # pay for one round: not in the claims
    line_costs: tuple[float, ...] = tuple(range(200, 1001, 100))
    line_epsilons: tuple[float, ...] = tuple(range(1, 11))
    panel_costs: tuple[float, ...] = (200, 500, 800, 1000)
    repeats: int = 10  # of every plan, each with its own split and noise
    baseline_repeats: int = 5
    curve_repeats: int = 5  # of each tau's best grid point
    rate_repeats: int = 3  # of the paper's plans at every learning rate
    screens: int = 1  # runs of every grid point; the best ones are run again
    # Best grid points of a budget, and of each of its taus, that are run again before
    # one is selected: after one noisy run each, the best point is mostly a lucky one.
    finalists: int = 40
    final_repeats: int = 4
    tau_finalists: int = 3
    tau_repeats: int = 3
    taus: tuple[int, ...] = tuple(range(1, LONGEST_TAU + 1))  # with every K
    far_taus: tuple[int, ...] = (25, 50, 150, 400, 900)
    rates: tuple[float, ...] = (0.5, 1, 2, 4, 8, 16, 32, 64)
    full_taus: tuple[int, ...] = (1, 2, 3, 5, 10, 20, 50, 150, 400, 900)
    momenta: tuple[float, ...] = (0.0, 0.5, 0.8)
    powers: tuple[float, ...] = (0.0, 0.5, 1.0)  # weights as a power of a device's rows
    controls: tuple[bool, ...] = (False, True)  # drift correction, if heterogeneous
    cases: tuple[Case, ...] = field(default=CASES)

    @property
    def budgets(self) -> list[tuple[float, float]]:
        """Pairs of epsilon and cost of the grid search."""
        return [(epsilon, cost) for cost in self.costs for epsilon in self.epsilons]

    @property
    def short_budgets(self) -> list[tuple[float, float]]:
        """Pairs of epsilon and cost that pay for one round."""
        return [(e, cost) for cost in self.short_costs for e in self.epsilons]

    @property
    def line_budgets(self) -> list[tuple[float, float]]:
        """Pairs of epsilon and cost that the trade-off figures need."""
        by_cost = {(e, c) for e in self.epsilons for c in self.line_costs}
        by_epsilon = {(e, c) for e in self.line_epsilons for c in self.panel_costs}
        return sorted(
            by_cost | by_epsilon | set(self.budgets) | set(self.short_budgets)
        )


FULL = Scale(name="full")
QUICK = Scale(
    name="quick",
    epsilons=(1, 10),
    line_costs=(200, 500, 1000),
    line_epsilons=(1, 4, 10),
    panel_costs=(200, 1000),
    repeats=3,
    baseline_repeats=1,
    curve_repeats=3,
    rate_repeats=1,
    finalists=6,
    final_repeats=2,
    tau_finalists=1,
    taus=(1, 2, 4, 7, 10, 14, 20),
    far_taus=(50, 150),
    rates=(1, 4, 16),
    full_taus=(1, 5, 20, 50),
    momenta=(0.0, 0.8),
    powers=(0.5,),
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a grid: everything that a search varies."""

    epsilon: float
    tau: int
    rounds: int
    learning_rate: float
    momentum: float = 0.0
    power: float = 0.0  # weights as a power of a device's rows; 0 is uniform
    drift_correction: bool = False

    @property
    def steps(self) -> int:
        """K."""
        return self.tau * self.rounds

    @property
    def cost(self) -> float:
        """The cost of the point for every device (full batches, equal prices)."""
        return _run_cost(self.tau, self.rounds)


@cache
def _run_cost(tau: int, rounds: int) -> float:
    """Return the paper's cost of a run (c1 and c2 are the same on all devices)."""
    return float(np.max(PRICES.run_cost(rounds=rounds, tau=tau, batch_size=1)))


def max_rounds(tau: int, cost: float) -> int:
    """Return the number of rounds of tau steps that the cost pays for."""
    return int(cost // _run_cost(tau, 1))


class Maker:
    """Make plans for one problem and one accountant, noise calibrated once per epsilon.

    The noise of K steps is sqrt(K) times that of one step, so every plan of an epsilon
    spends the same as the one-step plan.
    """

    def __init__(self, problem: Problem, accountant: str) -> None:
        self.problem, self.accountant = problem, accountant_named(accountant)
        self._templates: dict[float, Plan] = {}

    def plan(self, point: Point) -> Plan:
        """Return the point as a plan."""
        template = self._template(point.epsilon)
        return replace(
            template,
            tau=point.tau,
            rounds=point.rounds,
            learning_rate=point.learning_rate,
            momentum=point.momentum,
            drift_correction=point.drift_correction,
            noise_std=template.noise_std * np.sqrt(point.steps),
            weights=power_weights(template.num_samples, point.power),
            cost=np.full(template.num_devices, point.cost),
        )

    def _template(self, epsilon: float) -> Plan:
        if epsilon not in self._templates:
            self._templates[epsilon] = self._one_step(epsilon)
        return self._templates[epsilon]

    def _one_step(self, epsilon: float) -> Plan:
        problem, devices = self.problem, self.problem.num_devices
        limit, delta, _ = Budget(epsilon=epsilon, delta=DELTA, cost=1).per_device(
            devices
        )
        noise_std = self.accountant.noise_std(
            lipschitz=problem["lipschitz"],
            batch_size=problem.num_samples,
            epsilon=limit,
            delta=delta,
            steps=1,
        )
        run = NoisyGradients(
            lipschitz=problem["lipschitz"],
            batch_size=problem.num_samples,
            noise_std=noise_std,
            steps=1,
        )
        return Plan(
            tau=1,
            rounds=1,
            learning_rate=1.0,
            momentum=0.0,
            sampling="full",
            num_samples=problem.num_samples,
            batch_size=problem.num_samples,
            noise_std=noise_std,
            weights=np.full(devices, 1 / devices),
            epsilon=self.accountant.epsilon(run, delta=delta),
            delta=delta,
            prior_mu=np.zeros(devices),
            cost=np.full(devices, _run_cost(1, 1)),
            loss=problem.model.name,
            num_classes=problem.model.num_outputs,
            l2=problem.model.l2,
            dim=problem.dim,
            lipschitz=problem["lipschitz"],
            planner="grid",
            accountant=self.accountant.name,
            predicted_loss=0.0,
            epsilon_price=0.0,
            cost_price=0.0,
            binding=(),
            reasons=("a point of a grid search",),
        )


def power_weights(sizes: NDArray[np.int64], power: float) -> Array:
    """Return weights proportional to a power of the devices' rows."""
    weights = sizes.astype(np.float64) ** power
    return np.asarray(weights / weights.sum())


def move_to_split(plan: Plan, data: Dataset) -> Plan:
    """Return the plan for another split of the same rows, equally private.

    In another split a device may have one row more or fewer. The noise is scaled by
    1/X_m, so the noise multiplier and epsilon do not change.
    """
    sizes = data.num_samples
    if np.array_equal(plan.num_samples, sizes):
        return plan
    return replace(
        plan,
        num_samples=sizes,
        batch_size=sizes,
        noise_std=plan.noise_std * plan.batch_size / sizes,
    )


def first_rounds(plan: Plan, rounds: int) -> Plan:
    """Return the first rounds of a plan, with the noise of the whole plan."""
    last = plan.last_round
    constant = first_factor(plan.noise_decay, rounds)
    return replace(
        plan,
        rounds=rounds,
        noise_std=plan.noise_std_of(1) / constant,
        last_round=None if last is None else np.minimum(last, rounds),
        cost=plan.cost * rounds / plan.rounds,
    )
