"""The paper's bound on the loss, and the two planners that minimise it.

`paper` does what the paper does: relax tau and K to real numbers, substitute the closed
forms, minimise over K alone, round. Two things are mended: the noise uses the root that
is private (erratum 1), and rounding never overspends (erratum 2). `bound` minimises the
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

# The largest tau of the paper's evaluation: a fixed learning rate must allow it.
_PAPER_TAU = 20


def noise_floor(
    problem: Problem,
    tau: float | Array,
    eta: float | Array,
    variance: tuple[float, ...],
) -> Array:
    """Return B, the loss that noise leaves behind (paper: b-1), for any weights.

    `variance` is (sum p^2 V, sum p V), V = xi^2 + d sigma^2 of each device. With
    uniform weights that is the paper's (xi^2 + d mean sigma^2) / M and its M-fold.
    """
    averaged, local = variance
    L, lam = problem["smoothness"], problem["strong_convexity"]
    own = floats(eta) ** 2 * L**2 * (floats(tau) - 1) * local
    return (floats(eta) * L * averaged + own) / (2 * lam)


def paper_bound(problem: Problem, steps: float, eta: float, floor_: float) -> float:
    """Return the bound as printed (paper: conv_bound).

    Its 1/K is not sound: see docs/paper.md, erratum 3.
    """
    lam, alpha, B = problem["strong_convexity"], problem["initial_gap"], floor_
    return float((1 - eta * lam) ** steps * (alpha - B) / steps + B)


def sound_bound(problem: Problem, steps: Array, eta: Array, floor_: Array) -> Array:
    """Return the bound that unrolling the one-step recursion gives."""
    lam, alpha, B = problem["strong_convexity"], problem["initial_gap"], floor_
    return np.asarray((1 - eta * lam) ** steps * (alpha - B) + B)


def step_condition(problem: Problem, tau: float | Array, eta: float | Array) -> Array:
    """Return eta L + eta^2 L^2 tau (tau - 1), at most 1 (paper: con:learn_rate)."""
    x = floats(eta) * problem["smoothness"]
    return x + x**2 * floats(tau) * (floats(tau) - 1)


def largest_rate(problem: Problem, tau: float) -> float:
    """Return the largest learning rate that keeps the step condition at tau."""
    spread = tau * (tau - 1)
    # The positive root of spread x^2 + x - 1, without dividing by a spread of zero.
    return 2 / (1 + sqrt(1 + 4 * spread)) / problem["smoothness"]


def choose_paper(setting: Setting) -> Choice:
    """Relax, minimise over K, round without overspending (paper: control-model-3)."""
    problem = setting.problem
    batch = setting.batches()[0]  # full ones, if they can be paid for: erratum 9
    eta = setting.learning_rate or largest_rate(problem, _PAPER_TAU)
    _check_rate(problem, eta)
    weights = target_weights(problem, setting.weights, setting.target)
    variance = _variances(setting, weights, batch)

    def objective(steps: float, tau: float) -> float:
        floor_ = noise_floor(problem, tau, eta, variance(steps))
        return paper_bound(problem, steps, eta, float(floor_))

    relaxed = relaxed_tau(setting, batch)
    longest = _most_steps(setting, batch)
    real = _minimise(lambda steps: objective(steps, relaxed(steps)), longest)
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
            f"its best affordable neighbour, K = {tau * rounds}, tau = {tau}",
            f"learning rate {eta:.3g}: {_origin(setting, f'tau <= {_PAPER_TAU}')}",
            "predicted loss is the paper's bound as printed, which is not sound",
        ),
    )


def choose_bound(setting: Setting) -> Choice:
    """Search whole numbers for the lowest sound bound (paper: control-model-2)."""
    problem = setting.problem
    batch = setting.batches()[0]  # full ones, if they can be paid for: erratum 9
    weights = target_weights(problem, setting.weights, setting.target)
    variance = _variances(setting, weights, batch)
    if setting.learning_rate is not None:
        _check_rate(problem, setting.learning_rate)
    budget, prices, given = setting.budget, setting.prices, setting.learning_rate

    def lowest(pairs: list[tuple[int, int]]) -> tuple[float, int, int, float]:
        best = (np.inf, 0, 0, 0.0)
        for tau, rounds in pairs:
            limit = largest_rate(problem, tau)
            rates = limit * np.geomspace(1e-3, 1, 40)
            if given is not None:
                rates = np.array([given])
            if rates[-1] <= limit:
                steps = np.array(float(tau * rounds))
                floors = noise_floor(problem, tau, rates, variance(float(steps)))
                bounds = sound_bound(problem, steps, rates, floors)
                at = int(np.argmin(bounds))
                best = min(best, (float(bounds[at]), tau, rounds, float(rates[at])))
        return best

    best = lowest(affordable_pairs(budget, prices, batch_size=batch))
    while True:  # walk downhill: the grid is coarse where there are many rounds
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
            f"tau = {tau}, rounds = {rounds} have the lowest bound found among whole "
            "numbers that the cost budget pays for",
            f"learning rate {eta:.3g}: {_origin(setting, f'tau = {tau}')}",
            "predicted loss is an upper bound for i.i.d. devices whose loss is as "
            f"strongly convex as {problem.constants['strong_convexity']}",
        ),
    )


def _origin(setting: Setting, where: str) -> str:
    if setting.learning_rate is not None:
        return "given"
    return f"within the step condition for {where}"


def _check_rate(problem: Problem, eta: float) -> None:
    limit = largest_rate(problem, 1)
    if eta > limit:
        raise InvalidInputError(
            f"learning_rate {eta:g} breaks the step condition of this planner even at "
            f"tau = 1: take at most {limit:g}, or planner='joint'",
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
    still = float(p @ (p * xi_sq)), float(p @ xi_sq)
    per_step = float(p @ (p * noise)), float(p @ noise)
    return lambda steps: (
        still[0] + steps * per_step[0],
        still[1] + steps * per_step[1],
    )


def relaxed_tau(setting: Setting, batch: NDArray[np.int64]) -> Callable[[float], float]:
    """Return tau as a function of K (paper: opt_tau), for the poorest device."""
    c1 = floats(setting.prices.communication)
    c2 = setting.prices.step_cost(batch_size=batch)
    cost = floats(setting.budget.cost)
    return lambda steps: max(1.0, float(np.max(c1 * steps / (cost - c2 * steps))))


def _most_steps(setting: Setting, batch: NDArray[np.int64]) -> float:
    """Return the K at which steps alone would use up the poorest device's budget."""
    c2 = setting.prices.step_cost(batch_size=batch)
    with np.errstate(divide="ignore"):
        limit = float(np.min(floats(setting.budget.cost) / c2))
    return min(limit, float(MAX_STEPS))


def _minimise(function: Callable[[float], float], longest: float) -> float:
    """Return the minimiser over 1 <= K < longest: a scan, then scipy near its best."""
    optimize = _scipy_optimize()
    scan = np.geomspace(1, max(1.0, longest * (1 - 1e-6)), 60)
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
    """Return the whole-number pairs around the relaxed optimum that are affordable."""
    rounds = {max(1, floor(steps / tau)), ceil(steps / tau)}
    taus = {1, floor(tau), ceil(tau), ceil(tau) + 1}
    for count in rounds:  # with a whole number of rounds, K takes another tau
        taus |= {floor(steps / count), ceil(steps / count)}
    pairs = set()
    for whole_tau in taus - {0}:
        if step_condition(setting.problem, whole_tau, eta) > 1 + 1e-12:
            continue
        most = max_rounds(
            setting.budget, setting.prices, tau=whole_tau, batch_size=batch
        )
        pairs |= {
            (whole_tau, count) for count in {*rounds, 1, most} if 0 < count <= most
        }
    if not pairs:
        raise InfeasibleBudgetError(
            f"no affordable whole numbers near K = {steps:g}, tau = {tau:g}: raise the "
            "cost budget or use planner='bound'"
        )
    return sorted(pairs)
