"""The input and the output of a planner, and how a choice becomes a checked plan.

`Setting` is the input and `Choice` the output. `complete` calibrates the noise and
adds the costs. A pair of tau and rounds is a candidate only if every device can pay
for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.budget import MOST_COST, MOST_EPSILON, Budget, Prices
from fedbudget.checks import Array, floats, whole, within
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.planning.plans import Plan, schema_of
from fedbudget.privacy import (
    GDP,
    Accountant,
    LocalSteps,
    NoisyGradients,
    NoisyUploads,
    Releases,
    noise_for_budget,
    rounded_up,
)
from fedbudget.privacy.runs import weak_guarantees
from fedbudget.privacy.uploads import check_answers
from fedbudget.problem import Problem

# Bounds the search where a step or a round is free. Progress and noise depend on
# learning rate times steps: more steps than this gain nothing.
MAX_STEPS = 20_000
# Defaults of `plan`.
PLANNER, ACCOUNTANT = "joint", "gdp"
WEIGHTING, TARGET, SAMPLING = "auto", "uniform", "auto"

_ROUNDING = 1e-12
_DEMANDING = 2.0  # a device that needs this many times the median noise is named


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The input of a planner."""

    problem: Problem
    budget: Budget
    prices: Prices
    accountant: Accountant
    unit_multiplier: Array  # of one step without sampling: see `unit_multiplier`
    weights: str = WEIGHTING
    target: str = TARGET  # for planned weights
    sampled_excess: float = 1.0  # noise of sampled steps over its limit for many steps
    batch_size: NDArray[np.int64] | None = None  # None: to be planned
    learning_rate: float | None = None  # None: to be planned
    drift_correction: bool = True  # whether a planner may use drift correction
    cyclic: bool = False  # batches below full size are disjoint and taken in turn
    explain: bool = True  # whether to say what a public sample would save
    noise_schedule: bool = True  # whether noise may fall from round to round
    clip: float | None = None  # largest norm of a device's move, for sums; None: any

    @property
    def is_sum(self) -> bool:
        """Whether the server sees only sums, so that noise is added once per round."""
        return self.budget.trust == "sum"

    @property
    def per_device(self) -> bool:
        """Whether epsilon protects all samples of a device."""
        return self.budget.unit == "device"

    def sampling(self, batch_size: NDArray[np.int64]) -> str:
        """Return the sampling scheme of batches of this size."""
        if np.array_equal(batch_size, self.problem.num_samples):
            return "full"
        if self.is_sum:
            return "cyclic"
        if self.accountant.name == "pld":
            return "poisson"
        # With a single block, the other rows would never be used.
        several = bool(np.any(self.problem.num_samples >= 2 * batch_size))
        return "cyclic" if self.cyclic and several else "fixed"

    def blocks(self, batch_size: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return B: the number of disjoint batches taken in turn; 1 if not cyclic."""
        if self.sampling(batch_size) != "cyclic":
            return np.ones(1, dtype=np.int64)
        return self.problem.num_samples // batch_size

    def sampling_probability(self, batch_size: NDArray[np.int64]) -> Array:
        """Return q: below 1 only where batches are Poisson-sampled."""
        if self.sampling(batch_size) != "poisson":
            return np.ones(1)
        return np.asarray(batch_size / self.problem.num_samples)

    def unit_noise(self, batch_size: NDArray[np.int64]) -> Array:
        """Return each device's noise for one step; K steps need sqrt(K) times that.

        With B disjoint batches taken in turn, K is the number of laps, ceil(K / B).
        For sampled batches this is `sampled_excess` times the limit for many steps, in
        which a sampled batch needs the noise of a full one (Dong, Roth and Su 2022,
        Cor. 5.4). `complete` calibrates the exact noise of the plan.

        Replacing a whole device moves its mean as if it had one sample. For sums this
        is the noise in the sum of a round that moves by at most 2 G / X_m and has the
        device's weight 1.
        """
        if self.per_device:
            rows, factor = np.ones(1, dtype=np.int64), 1.0
        elif self.sampling(batch_size) == "poisson":
            rows, factor = self.problem.num_samples, self.sampled_excess
        else:
            rows, factor = batch_size, 1.0
        return self.unit_multiplier * (factor * self.problem["lipschitz"]) / rows

    def batches(self) -> list[NDArray[np.int64]]:
        """Return the affordable batch sizes to try, largest first.

        Batches below full size are tried only if samples have a price. Each is a
        quarter of the one before, or half of it if batches are cyclic.
        """
        if self.batch_size is not None:
            return [self.batch_size]
        sizes = self.problem.num_samples
        priced = bool(np.any(floats(self.prices.computation_per_sample) > 0))
        halvings = range(0, 11 if priced else 1, 1 if self.cyclic else 2)
        options = [np.maximum(1, sizes >> times) for times in halvings]
        affordable = [
            option
            for option in options
            if max_rounds(self.budget, self.prices, tau=1, batch_size=option) > 0
        ]
        if not affordable:
            _check_one_round(self.budget, self.prices, batch_size=options[-1])
        return affordable

    def with_larger_budget(
        self, *, epsilon: float = 0.0, cost: float = 0.0
    ) -> "Setting":
        """Return the setting with budgets larger by these shares.

        The cost grows by at least one round.
        """
        old, prices = self.budget, self.prices
        batch = self.problem.num_samples if self.batch_size is None else self.batch_size
        round_cost = prices.run_cost(rounds=1, tau=1, batch_size=batch)
        added = np.maximum(cost * floats(old.cost), round_cost) if cost > 0 else 0.0
        budget = replace(
            old,
            epsilon=np.minimum(floats(old.epsilon) * (1 + epsilon), MOST_EPSILON),
            cost=np.minimum(floats(old.cost) + added, MOST_COST),
        )
        multiplier = self.unit_multiplier
        if epsilon > 0:
            multiplier = unit_multiplier(self.problem, budget, self.accountant)
        return replace(self, budget=budget, unit_multiplier=multiplier)


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """The output of a planner; the rest of a plan follows from it."""

    tau: int
    rounds: int
    learning_rate: float
    momentum: float = 0.0
    drift_correction: bool = False
    batch_size: NDArray[np.int64]
    weights: Array
    predicted_loss: float
    predicted_range: tuple[float, float] | None = None  # None: the prediction itself
    reasons: tuple[str, ...] = ()
    last_round: NDArray[np.int64] | None = None  # per device; None: all rounds
    advice: str = ""  # set if federating is not predicted to pay
    noise_decay: float = 1.0  # the noise of a round over that of the round before
    clip: float | None = None  # largest norm of a device's move in a round, for sums
    server_rate: float = 1.0  # a factor of a round's averaged move, for sums


@dataclass(frozen=True, kw_only=True)
class DualPrices:
    """Predicted loss saved per additional unit of each budget."""

    epsilon_price: float
    cost_price: float
    binding: tuple[str, ...]
    reason: str


def rest_of(budget: Budget, problem: Problem) -> Budget:
    """Return the budget with the cost that measurements before the run have left.

    Raises:
        InfeasibleBudgetError: They have left none to a device.
    """
    if not problem.prior_cost.any():
        return budget
    _, _, cost = budget.per_device(problem.num_devices)
    rest = cost - problem.prior_cost
    if (rest <= 0).any():
        m = int(np.argmin(rest))
        raise InfeasibleBudgetError(
            f"the cost budget {cost[m]:g} of device {m} pays for measurements before "
            f"the run, {problem.prior_cost[m]:g}, and for no round: raise it, or "
            "measure less"
        )
    return replace(budget, cost=rest)


def complete(
    setting: Setting, choice: Choice, dual_prices: DualPrices, *, planner: str
) -> Plan:
    """Calibrate the noise, add up the costs, and check both against the budgets."""
    problem, prices = setting.problem, setting.prices
    epsilon, delta, cost = setting.budget.per_device(problem.num_devices)
    last = choice.rounds if choice.last_round is None else choice.last_round
    each = np.where(choice.weights > 0, np.minimum(last, choice.rounds), 0)
    releases, noise_std = _releases(setting, choice, each)
    spent = setting.accountant.epsilon(
        releases, delta=delta, prior_mu=problem.prior_mu, at_most=epsilon
    )
    run_cost = prices.run_cost(
        rounds=each, tau=choice.tau, batch_size=choice.batch_size
    )
    paid = np.broadcast_to(run_cost, (problem.num_devices,))
    # Both hold by construction, but a plan must never overspend.
    if (spent > epsilon).any() or (paid > cost).any():
        raise InfeasibleBudgetError(
            f"the plan tau={choice.tau}, rounds={choice.rounds} would overspend: "
            f"epsilon {rounded_up(spent.max())}, cost {float(paid.max()):g}; please "
            "report"
        )
    return Plan(
        tau=choice.tau,
        rounds=choice.rounds,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        drift_correction=choice.drift_correction,
        sampling=setting.sampling(choice.batch_size),
        num_samples=problem.num_samples,
        batch_size=choice.batch_size,
        noise_std=noise_std,
        weights=choice.weights,
        epsilon=spent,
        delta=delta,
        prior_mu=problem.prior_mu,
        prior_releases=tuple(sorted(problem.prior_releases)),
        cost=paid + problem.prior_cost,
        prior_cost=problem.prior_cost,
        loss=problem.model.name,
        num_classes=problem.model.num_outputs,
        l2=problem.model.l2,
        dim=problem.dim,
        lipschitz=problem["lipschitz"],
        schema=schema_of(problem),
        planner=planner,
        accountant=setting.accountant.name,
        predicted_loss=choice.predicted_loss,
        predicted_range=choice.predicted_range,
        epsilon_price=dual_prices.epsilon_price,
        cost_price=dual_prices.cost_price,
        binding=dual_prices.binding,
        reasons=(
            *choice.reasons,
            dual_prices.reason,
            *_idle_devices(each, choice.rounds),
            *_demanding(setting, choice, each),
            *_cautions(setting, choice),
            *filter(None, [choice.advice]),
        ),
        advice=choice.advice,
        last_round=choice.last_round,
        noise_decay=choice.noise_decay,
        trust=setting.budget.trust,
        unit=setting.budget.unit,
        least_answers=getattr(releases, "least_answers", 1),
        colluders=setting.budget.colluders,
        clip=choice.clip,
        server_rate=choice.server_rate,
    )


def _releases(
    setting: Setting, choice: Choice, each: NDArray[np.int64]
) -> tuple[Releases, Array]:
    """Return what is released, with calibrated noise, and each device's noise."""
    if setting.is_sum:
        uploads = shared_noise(setting, choice, each)
        return uploads, np.full(len(each), uploads.noise_std)
    problem, batch = setting.problem, choice.batch_size
    # The noise suits a device's own steps. For a device that is not selected, it is
    # the noise of a whole run.
    steps = choice.tau * np.where(each > 0, each, choice.rounds)
    blocks = np.ones(1) if setting.per_device else setting.blocks(batch)
    if setting.sampling(batch) == "poisson":
        epsilon, delta, _ = setting.budget.per_device(problem.num_devices)
        noise_std = setting.accountant.noise_std(
            lipschitz=problem["lipschitz"],
            batch_size=batch,
            epsilon=epsilon,
            delta=delta,
            steps=steps,
            sampling_probability=setting.sampling_probability(batch),
            prior_mu=problem.prior_mu,
        )
    else:
        noise_std = setting.unit_noise(batch) * np.sqrt(-(-steps // blocks))
    run = NoisyGradients(
        lipschitz=problem["lipschitz"],
        batch_size=1.0 if setting.per_device else batch,
        noise_std=noise_std,
        steps=choice.tau * each,
        sampling_probability=setting.sampling_probability(batch),
        blocks=blocks,
    )
    return run, noise_std


def noise_needed(
    setting: Setting, choice: Choice, each: NDArray[np.int64]
) -> tuple[LocalSteps, Array]:
    """Return the local steps, and the noise that each device needs in the sum."""
    problem, budget = setting.problem, setting.budget
    epsilon, delta, _ = budget.per_device(problem.num_devices)
    steps = LocalSteps(
        lipschitz=problem["lipschitz"],
        curvature=problem.model.curvature,
        l2=problem.model.l2,
        learning_rate=choice.learning_rate,
        tau=choice.tau,
        batch_size=choice.batch_size,
        blocks=setting.blocks(choice.batch_size),
        unit=budget.unit,
        clip=choice.clip,
    )
    need = noise_for_budget(
        steps,
        accountant=setting.accountant,
        weights=choice.weights,
        rounds=each,
        epsilon=epsilon,
        delta=delta,
        prior_mu=problem.prior_mu,
    )
    return steps, need


def shared_noise(
    setting: Setting, choice: Choice, each: NDArray[np.int64]
) -> NoisyUploads:
    """Return the uploads with shares that give the device that needs most its noise."""
    steps, need = noise_needed(setting, choice, each)
    if np.isinf(need).any():
        m = int(np.argmax(need))
        raise InfeasibleBudgetError(
            f"the privacy budget of device {m} was spent before the run: raise its "
            "epsilon, or set its weight to 0"
        )
    to_the_end = int((each == each.max()).sum())
    least, colluders = setting.budget.least_answers, setting.budget.colluders
    least = to_the_end if least is None else least
    check_answers(least, colluders, to_the_end)
    share = float(need.max()) / float(np.sqrt(least - colluders))
    return NoisyUploads(
        steps=steps,
        weights=choice.weights,
        rounds=each,
        # Raised: the rounded sum of the shares is not below what is needed.
        noise_std=share * (1 + _ROUNDING),
        least_answers=least,
        colluders=colluders,
    )


def _idle_devices(rounds_each: NDArray[np.int64], rounds: int) -> Iterator[str]:
    """Yield a line on devices that stop early, and one on those not selected."""
    idle, early = rounds_each == 0, (rounds_each > 0) & (rounds_each < rounds)
    if early.any():
        first, last = rounds_each[early].min(), rounds_each[early].max()
        one = early.sum() == 1
        yield (
            f"{int(early.sum())} of {len(early)} devices {'stops' if one else 'stop'} "
            f"before the last round, after round {first}"
            f"{f' to {last}' if last > first else ''} of {rounds}: "
            f"{'its budget pays' if one else 'their budgets pay'} for no more; the "
            "others continue"
        )
    if idle.any():
        numbers = ", ".join(map(str, np.flatnonzero(idle)[:5]))
        numbers += ", ..." if idle.sum() > 5 else ""
        yield f"{int(idle.sum())} of {len(idle)} devices " + (
            f"(number {numbers}) is not selected: its noise outweighs what it "
            "contributes; it spends nothing"
            if idle.sum() == 1
            else f"(numbers {numbers}) are not selected: their noise outweighs what "
            "they contribute; they spend nothing"
        )


def _demanding(
    setting: Setting, choice: Choice, each: NDArray[np.int64]
) -> Iterator[str]:
    """Name the device that needs most noise, if it needs far more than the others."""
    if not setting.is_sum:
        return
    _, need = noise_needed(setting, choice, each)
    m, median = int(np.argmax(need)), float(np.median(need[need > 0]))
    if need[m] > _DEMANDING * median:
        yield (
            f"device {m} needs {need[m] / median:.3g} times the noise of the median "
            "device, and all carry it: lower its weight (weights 'auto' do), or raise "
            "its epsilon"
        )


def _cautions(setting: Setting, choice: Choice) -> Iterator[str]:
    """Yield warnings about the search and about a weak privacy guarantee."""
    if choice.tau * choice.rounds > 0.9 * MAX_STEPS:
        yield f"the search stops at {MAX_STEPS} steps: more steps might be better"
    problem = setting.problem
    epsilon, delta, _ = setting.budget.per_device(problem.num_devices)
    yield from weak_guarantees(epsilon, delta, problem.num_samples)


def unit_multiplier(problem: Problem, budget: Budget, accountant: Accountant) -> Array:
    """Return each device's noise multiplier for one step without sampling.

    Raises:
        InfeasibleBudgetError: A device has no privacy left to spend.
    """
    plain = GDP if accountant.name == "pld" else accountant
    multiplier = plain.noise_multiplier(
        epsilon=budget.epsilon,
        delta=budget.delta_or_raise(),
        steps=1,
        prior_mu=problem.prior_mu,
    )
    finite = np.isfinite(np.atleast_1d(multiplier))
    if not finite.all():
        device = int(np.argmax(~finite))
        spent = float(problem.prior_mu[device])
        raise InfeasibleBudgetError(
            f"device {device} has no privacy left: measuring constants cost "
            f"mu={spent:g}, its whole epsilon: raise the budget or assume the constants"
            if spent > 0
            else f"the privacy budget of device {device} is too small for any noise: "
            "raise epsilon or delta"
        )
    return multiplier


def sampled_excess(
    setting: Setting, batch_size: NDArray[np.int64], steps: int
) -> float:
    """Return the noise of sampled steps over its limit, for the median device."""
    device = int(
        np.argsort(batch_size / setting.problem.num_samples)[len(batch_size) // 2]
    )
    epsilon, delta, _ = setting.budget.per_device(setting.problem.num_devices)
    q = float(setting.sampling_probability(batch_size)[device])
    prior = float(setting.problem.prior_mu[device])
    run = {
        "epsilon": epsilon[device],
        "delta": delta[device],
        "steps": steps,
        "prior_mu": prior,
    }
    exact = setting.accountant.noise_multiplier(sampling_probability=q, **run)
    return float(exact / (q * GDP.noise_multiplier(**run)))


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
            "devices: give one number, or one per device",
            argument="batch_size",
        )
    above = sizes > problem.num_samples
    if above.any() if len(sizes) > 1 else above.all():
        device = int(np.argmax(above))
        sizes = np.broadcast_to(sizes, above.shape)
        raise InvalidInputError(
            f"batch_size {sizes[device]:g} of device {device} is above its "
            f"{problem.num_samples[device]} samples: lower it",
            argument="batch_size",
        )
    return np.minimum(sizes, problem.num_samples).astype(np.int64)


def max_rounds(
    budget: Budget, prices: Prices, *, tau: int, batch_size: ArrayLike
) -> int:
    """Return how many rounds of tau steps every device can pay for.

    >>> budget = Budget(epsilon=4, cost=1000)
    >>> prices = Prices(communication=100, computation=1)
    >>> max_rounds(budget, prices, tau=10, batch_size=256)
    9
    """
    rounds = prices.max_rounds(budget.cost, tau=tau, batch_size=batch_size)
    return int(min(rounds, MAX_STEPS // tau))


def rounds_each(
    budget: Budget, prices: Prices, *, tau: int, batch_size: ArrayLike
) -> NDArray[np.int64]:
    """Return how many rounds of tau steps each device can pay for.

    One entry per device, or a single one if all are equal.

    >>> budget = Budget(epsilon=4, cost=[1000, 250, 90])
    >>> prices = Prices(communication=100, computation=1)
    >>> rounds_each(budget, prices, tau=10, batch_size=256).tolist()
    [9, 2, 0]
    """
    price = prices.run_cost(rounds=1, tau=tau, batch_size=batch_size)
    price, cost = np.broadcast_arrays(np.atleast_1d(price), floats(budget.cost))
    most = MAX_STEPS // tau
    with np.errstate(divide="ignore", over="ignore"):
        rounds = np.minimum(np.floor(cost / price), most)
    # The division may have rounded up to a whole number that does not fit.
    return np.asarray(rounds - (rounds * price > cost), dtype=np.int64)


def longest_tau(
    budget: Budget, prices: Prices, *, rounds: int, batch_size: ArrayLike
) -> int:
    """Return the largest tau for which every device can pay for these rounds.

    Zero if a device cannot pay for one step per round.

    >>> budget = Budget(epsilon=4, cost=1000)
    >>> prices = Prices(communication=100, computation=1)
    >>> longest_tau(budget, prices, rounds=9, batch_size=256)
    11
    """
    computation = floats(budget.cost) / rounds - floats(prices.communication)
    step = prices.step_cost(batch_size=batch_size)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(
            step > 0, computation / step, np.where(computation >= 0, np.inf, -1)
        )
    most = MAX_STEPS // rounds
    tau = int(np.clip(ratio.min(), 0, most))
    # The division may have rounded across a whole number, up or down.
    for candidate in range(min(tau + 1, most), max(tau - 2, 0), -1):
        if max_rounds(budget, prices, tau=candidate, batch_size=batch_size) >= rounds:
            return candidate
    return 0


def affordable_pairs(
    budget: Budget, prices: Prices, *, batch_size: ArrayLike
) -> list[tuple[int, int]]:
    """Return pairs (tau, rounds) to try, on the limit of the budget and below it.

    Raises:
        InfeasibleBudgetError: A device cannot pay for a single round of one step.
    """
    _check_one_round(budget, prices, batch_size=batch_size)
    most = max_rounds(budget, prices, tau=1, batch_size=batch_size)
    spaced = np.geomspace(1, most, num=1 + int(np.log(most) / np.log(1.6)))
    pairs = []
    for rounds in sorted({*range(1, min(most, 10) + 1), *map(int, spaced), most}):
        tau = longest_tau(budget, prices, rounds=rounds, batch_size=batch_size)
        while tau >= 1:
            pairs.append((tau, rounds))
            tau = min(tau - 1, int(0.6 * tau))
    return pairs


def pairs_near(
    budget: Budget, prices: Prices, *, tau: int, rounds: int, batch_size: ArrayLike
) -> list[tuple[int, int]]:
    """Return affordable pairs near a given one, with those on the budget's limit."""
    counts = {rounds + change for change in (-2, -1, 0, 1, 2)}
    counts |= {int(rounds * factor) for factor in (0.7, 0.8, 0.9, 1.1, 1.25, 1.4)}
    pairs = set()
    for count in sorted(counts):
        if count > 0:
            longest = longest_tau(budget, prices, rounds=count, batch_size=batch_size)
            taus = {longest, *np.rint(tau * np.linspace(0.7, 1.4, 9)).astype(int)}
            pairs |= {(int(near), count) for near in taus if 0 < near <= longest}
    return sorted(pairs)


def _check_one_round(budget: Budget, prices: Prices, *, batch_size: ArrayLike) -> None:
    """Raise unless every device can pay for one round of one step."""
    price = prices.run_cost(rounds=1, tau=1, batch_size=batch_size)
    price, cost = np.broadcast_arrays(price, floats(budget.cost))
    short = np.atleast_1d(price > cost)
    if short.any():
        device = int(np.argmax(short))
        owner = f" of device {device}" if short.size > 1 else ""
        remedy = f", or leave out the {int(short.sum())} device(s) that cannot pay"
        raise InfeasibleBudgetError(
            f"cost budget {cost.flat[device]:g}{owner} is below the price of one round "
            f"with one step, {price.flat[device]:g}: raise the budget or lower the "
            f"prices{remedy if 0 < short.sum() < short.size else ''}"
        )
