"""From what a planner chose to a plan: noise calibrated, costs added, all checked."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, floats, whole, within
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.planning.plans import Plan
from fedbudget.privacy import GDP, Accountant, NoisyGradients
from fedbudget.problem import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """Everything a planner is asked with."""

    problem: Problem
    budget: Budget
    prices: Prices
    accountant: Accountant
    weights: str = "auto"
    batch_size: NDArray[np.int64] | None = None  # given by the user, or planned
    learning_rate: float | None = None  # given by the user, or planned

    def sampling(self, batch_size: NDArray[np.int64]) -> str:
        """Name the way in which batches of this size are drawn."""
        if np.array_equal(batch_size, self.problem.num_samples):
            return "full"
        return "poisson" if self.accountant.name == "pld" else "fixed"

    def sampling_probability(self, batch_size: NDArray[np.int64]) -> Array:
        """Return q: below 1 only where batches are Poisson-sampled."""
        if self.sampling(batch_size) != "poisson":
            return np.ones(1)
        return np.asarray(batch_size / self.problem.num_samples)

    @cached_property
    def unit_multiplier(self) -> Array:
        """Noise multiplier of each device for a run of one step without sampling."""
        plain = GDP if self.accountant.name == "pld" else self.accountant
        return plain.noise_multiplier(
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            steps=1,
            prior_mu=self.problem.prior_mu,
        )

    def unit_noise(self, batch_size: NDArray[np.int64]) -> Array:
        """Return each device's noise for one step; K steps take sqrt(K) times that.

        For sampled batches this is the limit for many steps, where sampling a share of
        the rows needs the noise of all of them (Dong, Roth and Su 2022, Cor. 5.4): good
        enough to compare candidates, and calibrated for good in `complete`.
        """
        poisson = self.sampling(batch_size) == "poisson"
        rows = self.problem.num_samples if poisson else batch_size
        return self.unit_multiplier * self.problem["lipschitz"] / rows

    def with_more(self, *, epsilon: float = 0.0, cost: float = 0.0) -> "Setting":
        """Return the setting with these shares more of the budgets.

        Of cost, at least one more round. The noise is scaled as for the median device,
        so that a large fleet is not calibrated again.
        """
        old, prices = self.budget, self.prices
        one = prices.run_cost(rounds=1, tau=1, batch_size=self.problem.num_samples)
        added = np.maximum(cost * floats(old.cost), one) if cost > 0 else 0.0
        budget = Budget(
            epsilon=floats(old.epsilon) * (1 + epsilon),
            delta=old.delta,
            cost=floats(old.cost) + added,
        )
        more = replace(self, budget=budget)
        medians = np.median(floats(old.epsilon)) * np.array([1.0, 1 + epsilon])
        noise = GDP.noise_multiplier(
            epsilon=medians, delta=np.median(floats(old.delta)), steps=1
        )
        vars(more)["unit_multiplier"] = self.unit_multiplier * (noise[1] / noise[0])
        return more


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What a planner decided; everything else of a plan follows."""

    tau: int
    rounds: int
    learning_rate: float
    momentum: float = 0.0
    batch_size: NDArray[np.int64]
    weights: Array
    predicted_loss: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What more of each budget would buy: predicted loss saved per unit."""

    epsilon_price: float
    cost_price: float
    binding: tuple[str, ...]
    reason: str


def complete(setting: Setting, choice: Choice, worth: Worth, *, planner: str) -> Plan:
    """Calibrate the noise, add up the costs, and check both against the budgets."""
    problem, prices = setting.problem, setting.prices
    epsilon, delta, cost = setting.budget.per_device(problem.num_devices)
    steps = choice.tau * choice.rounds
    sampling = setting.sampling(choice.batch_size)
    if sampling == "poisson":
        noise_std = setting.accountant.noise_std(
            lipschitz=problem["lipschitz"],
            batch_size=choice.batch_size,
            epsilon=epsilon,
            delta=delta,
            steps=steps,
            sampling_probability=setting.sampling_probability(choice.batch_size),
            prior_mu=problem.prior_mu,
        )
    else:
        noise_std = setting.unit_noise(choice.batch_size) * np.sqrt(steps)
    run = NoisyGradients(
        lipschitz=problem["lipschitz"],
        batch_size=choice.batch_size,
        noise_std=noise_std,
        steps=steps,
        sampling_probability=setting.sampling_probability(choice.batch_size),
    )
    spent = setting.accountant.epsilon(
        run, delta=delta, prior_mu=problem.prior_mu, at_most=epsilon
    )
    run_cost = prices.run_cost(
        rounds=choice.rounds, tau=choice.tau, batch_size=choice.batch_size
    )
    paid = np.broadcast_to(run_cost, (problem.num_devices,))
    # Both hold by construction; a plan that overspends must never leave this function.
    if (spent > epsilon).any() or (paid > cost).any():
        raise InfeasibleBudgetError(
            f"the plan tau={choice.tau}, rounds={choice.rounds} would overspend: "
            f"epsilon {float(spent.max()):g}, cost {float(paid.max()):g}; please report"
        )
    return Plan(
        tau=choice.tau,
        rounds=choice.rounds,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        sampling=sampling,
        batch_size=choice.batch_size,
        noise_std=noise_std,
        weights=choice.weights,
        epsilon=spent,
        delta=delta,
        cost=paid,
        loss=problem.model.name,
        num_classes=problem.model.num_outputs,
        l2=problem.model.l2,
        dim=problem.dim,
        lipschitz=problem["lipschitz"],
        planner=planner,
        accountant=setting.accountant.name,
        predicted_loss=choice.predicted_loss,
        epsilon_price=worth.epsilon_price,
        cost_price=worth.cost_price,
        binding=worth.binding,
        reasons=(*choice.reasons, worth.reason),
    )


def check_batch_size(problem: Problem, batch_size: object) -> NDArray[np.int64] | None:
    """Return one batch size per device, at most its samples, or None."""
    if batch_size is None:
        return None
    sizes = np.atleast_1d(floats(within("batch_size", batch_size, least=1)))  # type: ignore[arg-type]
    for size in np.unique(sizes):
        whole("batch_size", float(size))
    if len(sizes) not in (1, problem.num_devices):
        raise InvalidInputError(
            f"batch_size has {len(sizes)} values but there are {problem.num_devices} "
            "devices: give one number, or one per device"
        )
    if len(sizes) > 1 and (sizes > problem.num_samples).any():
        device = int(np.argmax(sizes > problem.num_samples))
        raise InvalidInputError(
            f"batch_size {sizes[device]:g} of device {device} is above its "
            f"{problem.num_samples[device]} samples: lower it"
        )
    return np.minimum(sizes, problem.num_samples).astype(np.int64)


def check_budget_left(setting: Setting) -> None:
    """Raise where measuring constants has already spent a device's privacy."""
    left = np.isfinite(np.atleast_1d(setting.unit_multiplier))
    if not left.all():
        device = int(np.argmax(~left))
        raise InfeasibleBudgetError(
            f"device {device} has no privacy left: measuring constants cost it "
            f"mu={setting.problem.prior_mu[device]:g}, its whole epsilon: raise the "
            "budget or assume the constants"
        )
