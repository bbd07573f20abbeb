"""The paper's four cases and budgets, and how much of the evaluation to run.

Points of a grid are plans without planning; plans can be moved to another split.
"""

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, one_of
from fedbudget.data import Dataset, load
from fedbudget.planning import Plan
from fedbudget.privacy import NoisyGradients, accountant_named
from fedbudget.problem import Problem

PRICES = Prices(communication=100, computation=1)
DELTA = 1e-4

# What DP-SGD and DP-PASGD stand for in the paper's first figure.
SGD_TAU, PASGD_TAU, FIRST_EPSILON, FIRST_COST = 1, 10, 10.0, 1000.0
DP_SGD, DP_PASGD = f"DP-SGD (tau = {SGD_TAU})", f"DP-PASGD (tau = {PASGD_TAU})"
LONGEST_TAU = 20  # of the paper's search


@dataclass(frozen=True, kw_only=True)
class Case:
    """A data set, how its rows are dealt out, and the loss."""

    name: str
    data: str
    split: str
    loss: str

    def load(self, *, repeat: int, vehicle: str | None = None) -> Dataset:
        """Return the rows; every repeat splits them 80/10/10 in its own way."""
        path = vehicle if self.data == "vehicle" else None
        return load(self.data, split=self.split, seed=repeat, path=path)

    def synthetic(self, vehicle: str | None = None) -> bool:
        """Say whether the rows are a stand-in for real ones."""
        return self.data == "vehicle" and vehicle is None

    def label(self, vehicle: str | None = None) -> str:
        """Return the name, marked where the rows are not real."""
        marked = f"{self.name} (SYNTHETIC stand-in)"
        return marked if self.synthetic(vehicle) else self.name


CASES = (
    Case(name="Adult-1", data="adult", split="by-education", loss="logistic"),
    Case(name="Adult-2", data="adult", split="iid", loss="logistic"),
    Case(name="Vehicle-1", data="vehicle", split="by-sensor", loss="hinge"),
    Case(name="Vehicle-2", data="vehicle", split="iid", loss="hinge"),
)


def case_named(name: str) -> Case:
    """Return the case of that name, however it is capitalised."""
    known = {case.name.lower(): case for case in CASES}
    return known[one_of("case", name.strip().lower(), tuple(known))]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much to run: budgets, grids and repeats."""

    name: str
    epsilons: tuple[float, ...] = (1, 2, 4, 10)  # privacy budgets of the grid
    costs: tuple[float, ...] = (500, 1000)  # cost budgets of the grid
    short_costs: tuple[float, ...] = (200,)  # that pay for one round: regret only
    line_costs: tuple[float, ...] = tuple(range(200, 1001, 100))
    line_epsilons: tuple[float, ...] = tuple(range(1, 11))
    panel_costs: tuple[float, ...] = (200, 500, 800, 1000)
    repeats: int = 10  # of what is planned: a split and a noise of its own each
    baseline_repeats: int = 5
    curve_repeats: int = 5  # of each tau's best grid point
    rate_repeats: int = 3  # of the paper's plans with every learning rate
    screens: int = 1  # of every grid point; the best of the full grid are run again
    # Grid points of a budget, and of each tau in it, that are run again before one is
    # picked: the best of one noisy run each is mostly the luckiest.
    finalists: int = 40
    final_repeats: int = 4
    tau_finalists: int = 3
    tau_repeats: int = 3
    taus: tuple[int, ...] = tuple(range(1, LONGEST_TAU + 1))  # every K of them
    far_taus: tuple[int, ...] = (25, 50, 150, 400, 900)
    rates: tuple[float, ...] = (0.5, 1, 2, 4, 8, 16, 32, 64)
    full_taus: tuple[int, ...] = (1, 2, 3, 5, 10, 20, 50, 150, 400, 900)
    momenta: tuple[float, ...] = (0.0, 0.5, 0.8)
    powers: tuple[float, ...] = (0.0, 0.5, 1.0)  # weights as a power of a device's rows
    controls: tuple[bool, ...] = (False, True)  # drift control, on unlike devices
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
    """One point of a grid: all that a search varies."""

    epsilon: float
    tau: int
    rounds: int
    learning_rate: float
    momentum: float = 0.0
    power: float = 0.0  # weights as a power of a device's rows; 0 is uniform
    drift_control: bool = False

    @property
    def steps(self) -> int:
        """K."""
        return self.tau * self.rounds

    @property
    def cost(self) -> float:
        """What the point costs every device (full batches, one price for all)."""
        return _run_cost(self.tau, self.rounds)


@cache
def _run_cost(tau: int, rounds: int) -> float:
    """Return the paper's cost of a run (its c1 and c2 are the same on all devices)."""
    return float(np.max(PRICES.run_cost(rounds=rounds, tau=tau, batch_size=1)))


def most_rounds(tau: int, cost: float) -> int:
    """Return how many rounds of tau steps the cost pays for."""
    return int(cost // _run_cost(tau, 1))


class Maker:
    """Make plans for one problem and one accountant, noise calibrated once per epsilon.

    The noise of K steps is sqrt(K) times that of one, so that every plan of an epsilon
    spends exactly what the one-step plan does.
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
            drift_control=point.drift_control,
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
    """Return weights that grow as a power of a device's rows."""
    weights = sizes.astype(np.float64) ** power
    return np.asarray(weights / weights.sum())


def moved(plan: Plan, data: Dataset) -> Plan:
    """Return the plan for another split of the same rows, equally private.

    Even shares may be a row longer or shorter on a device: the noise follows 1/X_m, so
    that the noise multiplier, and with it epsilon, stays what it was.
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
    """Return the beginning of a plan, with the noise of the whole."""
    last = plan.last_round
    return replace(
        plan,
        rounds=rounds,
        last_round=None if last is None else np.minimum(last, rounds),
        cost=plan.cost * rounds / plan.rounds,
    )
