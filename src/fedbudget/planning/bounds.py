"""The paper's bound on the loss, and the two planners that minimise it.

`paper` follows the paper: relax tau and K to real numbers, substitute the closed forms,
minimise over K alone, round. Two errors are corrected: the noise uses the root that is
private (erratum 1), and rounding never overspends (erratum 2). `bound` minimises the
bound's sound form (erratum 3) over whole numbers, and plans the learning rate too.
"""

from collections.abc import Callable
from math import ceil, floor, sqrt
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array, floats
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError, needed
from fedbudget.planning.settings import (
    MAX_STEPS,
    Choice,
    Setting,
    affordable_pairs,
    max_rounds,
    pairs_near,
)
from fedbudget.planning.weights import target_weights
from fedbudget.problem import Problem

# The largest tau of the paper's evaluation. A fixed learning rate must allow it.
_PAPER_TAU = 20


def noise_floor(
    problem: Problem,
    tau: float | Array,
    eta: float | Array,
    variance: tuple[float, ...],
) -> Array:
    """Return B, the loss floor caused by noise (paper: b-1), for any weights.

    `variance` is (sum p^2 V, sum p V), V = xi^2 + d sigma^2 of each device. With
    uniform weights that is the paper's (xi^2 + d mean sigma^2) / M and its M-fold.
    """
    averaged, local = variance
    L, lam = problem["smoothness"], problem["strong_convexity"]
    drift = floats(eta) ** 2 * L**2 * (floats(tau) - 1) * local
    return (floats(eta) * L * averaged + drift) / (2 * lam)


def paper_bound(problem: Problem, steps: float, eta: float, floor_: float) -> float:
    """Return the bound as printed (paper: conv_bound).

    Its 1/K is not sound: see docs/paper.md, erratum 3.
    """
    lam, alpha, B = problem["strong_convexity"], problem["initial_gap"], floor_
    return float((1 - eta * lam) ** steps * (alpha - B) / steps + B)


def sound_bound(problem: Problem, steps: Array, eta: Array, floor_: Array) -> Array:
    """Return the bound from unrolling the one-step recursion."""
    lam, alpha, B = problem["strong_convexity"], problem["initial_gap"], floor_
    return np.asarray((1 - eta * lam) ** steps * (alpha - B) + B)


def step_condition(problem: Problem, tau: float | Array, eta: float | Array) -> Array:
    """Return eta L + eta^2 L^2 tau (tau - 1), at most 1 (paper: con:learn_rate)."""
    x = floats(eta) * problem["smoothness"]
    return x + x**2 * floats(tau) * (floats(tau) - 1)


def largest_rate(problem: Problem, tau: float) -> float:
    """Return the largest learning rate that satisfies the step condition at tau."""
    spread = tau * (tau - 1)
    # The positive root of spread x^2 + x - 1, without dividing by a spread of zero.
    return 2 / (1 + sqrt(1 + 4 * spread)) / problem["smoothness"]


def choose_paper(setting: Setting) -> Choice:
    """Relax, minimise over K, round without overspending (paper: control-model-3)."""
    problem = setting.problem
    batch = setting.batches()[0]  # full batches, if affordable: erratum 9
    eta = setting.learning_rate or largest_rate(problem, _PAPER_TAU)
    _check_rate(problem, eta)
    weights = target_weights(problem, setting.weights, setting.target)
    variance = _variances(setting, weights, batch)

    def objective(steps: float, tau: float) -> float:
        floor_ = noise_floor(problem, tau, eta, variance(steps))
        return paper_bound(problem, steps, eta, float(floor_))

    relaxed = relaxed_tau(setting, batch)
    max_steps = _max_steps(setting, batch)
    real = _minimise(lambda steps: objective(steps, relaxed(steps)), max_steps)
    tau, rounds = min(
        _neighbours(setting, batch, real, relaxed(real), eta),
        key=lambda pair: objective(pair[0] * pair[1], pair[0]),
    )
    return Choice(
        tau=tau,
        rounds=rounds,
        learning_rate=eta,
        batch_size=batch,
        weights=weights,
        predicted_loss=objective(tau * rounds, tau),
        reasons=(
            f"relaxed optimum K = {real:.1f}, tau = {relaxed(real):.1f}, rounded to "
            f"the best affordable neighbour, K = {tau * rounds}, tau = {tau}",
            f"learning rate {eta:.3g}: {_origin(setting, f'tau <= {_PAPER_TAU}')}",
            "the predicted loss is the paper's bound as printed, which is not sound",
        ),
    )


def choose_bound(setting: Setting) -> Choice:
    """Search whole numbers for the lowest sound bound (paper: control-model-2)."""
    problem = setting.problem
    batch = setting.batches()[0]  # full batches, if affordable: erratum 9
    weights = target_weights(problem, setting.weights, setting.target)
    variance = _variances(setting, weights, batch)
    if setting.learning_rate is not None:
        _check_rate(problem, setting.learning_rate)
    budget, prices, fixed = setting.budget, setting.prices, setting.learning_rate

    def lowest(pairs: list[tuple[int, int]]) -> tuple[float, int, int, float]:
        best = (np.inf, 0, 0, 0.0)
        for tau, rounds in pairs:
            limit = largest_rate(problem, tau)
            rates = limit * np.geomspace(1e-3, 1, 40)
            if fixed is not None:
                rates = np.array([fixed])
            if rates[-1] <= limit:
                steps = np.array(float(tau * rounds))
                floors = noise_floor(problem, tau, rates, variance(float(steps)))
                bounds = sound_bound(problem, steps, rates, floors)
                index = int(np.argmin(bounds))
                rate = float(rates[index])
                best = min(best, (float(bounds[index]), tau, rounds, rate))
        return best

    best = lowest(affordable_pairs(budget, prices, batch_size=batch))
    while True:  # local descent: the grid is coarse if there are many rounds
        near = lowest(
            pairs_near(budget, prices, tau=best[1], rounds=best[2], batch_size=batch)
        )
        if near[0] >= best[0] * (1 - 1e-9):
            break
        best = near
    loss, tau, rounds, eta = best
    return Choice(
        tau=tau,
        rounds=rounds,
        learning_rate=eta,
        batch_size=batch,
        weights=weights,
        predicted_loss=loss,
        reasons=(
            f"tau = {tau}, rounds = {rounds}: the lowest bound found among whole "
            "numbers within the cost budget",
            f"learning rate {eta:.3g}: {_origin(setting, f'tau = {tau}')}",
            "the predicted loss is an upper bound for i.i.d. devices with strong "
            f"convexity {problem.constants['strong_convexity']}",
        ),
    )


def _origin(setting: Setting, condition: str) -> str:
    if setting.learning_rate is not None:
        return "set by the user"
    return f"within the step condition for {condition}"


def _check_rate(problem: Problem, eta: float) -> None:
    limit = largest_rate(problem, 1)
    if eta > limit:
        raise InvalidInputError(
            f"learning_rate {eta:g} violates the step condition of this planner even "
            f"at tau = 1: use at most {limit:g}, or planner='joint'",
            argument="learning_rate",
        )


def _variances(
    setting: Setting, weights: Array, batch: NDArray[np.int64]
) -> Callable[[float], tuple[float, float]]:
    """Return (sum p^2 V, sum p V) as a function of K; V = xi^2 + d sigma^2."""
    problem = setting.problem
    xi_sq = problem["gradient_variance"] * (1 / batch - 1 / problem.num_samples)
    noise = problem.num_params * setting.unit_noise(batch) ** 2
    p = weights
    sampling = float(p @ (p * xi_sq)), float(p @ xi_sq)
    per_step = float(p @ (p * noise)), float(p @ noise)
    return lambda steps: (
        sampling[0] + steps * per_step[0],
        sampling[1] + steps * per_step[1],
    )


def relaxed_tau(setting: Setting, batch: NDArray[np.int64]) -> Callable[[float], float]:
    """Return tau as a function of K (paper: opt_tau), for the smallest budget."""
    c1 = floats(setting.prices.communication)
    c2 = setting.prices.step_cost(batch_size=batch)
    cost = floats(setting.budget.cost)
    return lambda steps: max(1.0, float(np.max(c1 * steps / (cost - c2 * steps))))


def _max_steps(setting: Setting, batch: NDArray[np.int64]) -> float:
    """Return the K whose steps, without uploads, spend the smallest budget."""
    c2 = setting.prices.step_cost(batch_size=batch)
    with np.errstate(divide="ignore"):
        limit = float(np.min(floats(setting.budget.cost) / c2))
    return min(limit, float(MAX_STEPS))


def _minimise(function: Callable[[float], float], max_steps: float) -> float:
    """Minimise over 1 <= K < max_steps: a scan, then scipy near its best point."""
    optimize = _scipy_optimize()
    scan = np.geomspace(1, max(1.0, max_steps * (1 - 1e-6)), 60)
    index = int(np.argmin([function(steps) for steps in scan]))
    low, high = scan[max(index - 1, 0)], scan[min(index + 1, len(scan) - 1)]
    if not low < high:
        return float(low)
    return float(
        optimize.minimize_scalar(function, (low, high), (low, high), method="bounded").x
    )


def _scipy_optimize() -> ModuleType:
    with needed("planner 'paper'", "scipy"):
        from scipy import optimize
    return optimize


def _neighbours(
    setting: Setting, batch: NDArray[np.int64], steps: float, tau: float, eta: float
) -> list[tuple[int, int]]:
    """Return the affordable whole-number pairs around the relaxed optimum."""
    rounds = {max(1, floor(steps / tau)), ceil(steps / tau)}
    taus = {1, floor(tau), ceil(tau), ceil(tau) + 1}
    for count in rounds:  # a whole number of rounds needs another tau for the same K
        taus |= {floor(steps / count), ceil(steps / count)}
    pairs = set()
    for candidate in taus - {0}:
        if step_condition(setting.problem, candidate, eta) > 1 + 1e-12:
            continue
        most = max_rounds(
            setting.budget, setting.prices, tau=candidate, batch_size=batch
        )
        pairs |= {
            (candidate, count) for count in {*rounds, 1, most} if 0 < count <= most
        }
    if not pairs:
        raise InfeasibleBudgetError(
            f"no affordable whole numbers near K = {steps:g}, tau = {tau:g}: raise the "
            "cost budget or use planner='bound'"
        )
    return sorted(pairs)
