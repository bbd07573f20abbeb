"""Plans without planning: the points of a grid, and plans moved to another split."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget
from fedbudget.checks import Array
from fedbudget.data import Dataset
from fedbudget.paper.cases import DELTA, PRICES
from fedbudget.planning import Plan
from fedbudget.privacy import NoisyGradients, accountant_named
from fedbudget.problem import Problem


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
        return run_cost(self.tau, self.rounds)


@cache
def run_cost(tau: int, rounds: int) -> float:
    """Return the paper's cost of a run (its c1 and c2 are the same on all devices)."""
    return float(np.max(PRICES.run_cost(rounds=rounds, tau=tau, batch_size=1)))


def most_rounds(tau: int, cost: float) -> int:
    """Return how many rounds of tau steps the cost pays for."""
    return int(cost // run_cost(tau, 1))


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
            cost=np.full(devices, run_cost(1, 1)),
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
