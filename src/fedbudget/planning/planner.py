"""`plan`: check the arguments, run one of three planners, complete its choice."""

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.budget import Budget, Prices, check_devices
from fedbudget.checks import floats, number, one_of
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Loss, loss_named
from fedbudget.planning.bounds import choose_bound, choose_paper
from fedbudget.planning.joint import choose_joint
from fedbudget.planning.plans import Plan
from fedbudget.planning.settings import (
    ACCOUNTANT,
    PLANNER,
    SAMPLING,
    TARGET,
    WEIGHTING,
    Choice,
    DualPrices,
    Setting,
    check_batch_size,
    complete,
    rest_of,
    unit_multiplier,
)
from fedbudget.planning.weights import check_target
from fedbudget.privacy import accountant_named
from fedbudget.privacy.uploads import check_answers, check_learning_rate
from fedbudget.problem import Problem

PLANNERS: MappingProxyType[str, Callable[[Setting], Choice]] = MappingProxyType(
    {"joint": choose_joint, "bound": choose_bound, "paper": choose_paper}
)

SAMPLINGS = ("auto", "fixed", "cyclic")

# A budget is binding if this relative increase of it ...
_INCREASE = 0.1
# ... lowers the predicted loss by at least this share of it ...
_MIN_SAVED = 0.01
# ... and by at least this share of the loss before training.
_MIN_SAVED_INITIAL = 1e-4


def plan(
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    planner: str = PLANNER,
    accountant: str = ACCOUNTANT,
    weights: str = WEIGHTING,
    target: str = TARGET,
    batch_size: ArrayLike | None = None,
    learning_rate: float | None = None,
    drift_correction: bool = True,
    sampling: str = SAMPLING,
    noise_schedule: bool = True,
    clip: float | None = None,
) -> Plan:
    """Return the best plan within both budgets of every device.

    Args:
        problem: Sizes, columns and loss; every constant with its source.
        budget: The limits of each device's privacy loss and cost.
        prices: The cost of a round and of a local step.
        planner: `joint` plans everything with the spectral model; `bound` searches
            whole numbers under the sound form of the paper's bound; `paper` relaxes
            and rounds as the paper does, with its root and its overspending
            corrected.
        accountant: `gdp` (exact), `zcdp` (the paper's) or `pld` (Poisson sampling).
        weights: `auto` plans them (`paper` and `bound` use those of the target),
            `uniform` gives every device the same weight, `size` every sample.
        target: The objective of `auto` weights: the same weight for every device
            (`uniform`, as in the paper), or for every sample (`size`). Other weights
            are their own target.
        batch_size: Samples per gradient; planned if left out.
        learning_rate: Planned if left out.
        drift_correction: Whether `joint` may use drift correction. It needs devices
            that keep a state between rounds.
        sampling: How batches below full size are drawn. `fixed`: drawn again in every
            step, as in the paper. `cyclic`: rows are partitioned once into disjoint
            batches, taken in turn, and a pass over them costs the privacy of one step;
            fixed if there is only one batch. `auto`: cyclic if samples have a price
            and the planner is `joint`, Poisson with `pld`, fixed otherwise.
        noise_schedule: Whether `joint` may let the noise fall from round to round,
            which costs as much privacy as constant noise.
        clip: Largest norm of a device's move in one round, with trust "sum"; a longer
            one is scaled down to it.

    The budget's `trust` and `unit` are those of the plan. With trust "sum" devices take
    local steps without noise, and share the noise of each round's sum: the price of a
    round is `prices.secure_round`, the learning rate at most 2 over the loss's
    smoothness, and there is no drift correction.

    Raises:
        InvalidInputError: An argument is invalid.
        InfeasibleBudgetError: A budget does not pay for a single round.

    >>> problem = Problem(num_samples=[1628] * 16, dim=102, loss="logistic")
    >>> best = plan(problem, Budget(epsilon=4.0, delta=1e-4, cost=1000),
    ...             Prices(communication=100, computation=1))
    >>> bool(best.epsilon.max() <= 4.0 and best.cost.max() <= 1000)
    True
    """
    one_of("planner", planner, tuple(PLANNERS))
    check_target(weights, target)
    for name, value, kind in (
        ("problem", problem, Problem),
        ("budget", budget, Budget),
        ("prices", prices, Prices),
    ):
        if not isinstance(value, kind):
            raise InvalidInputError(f"{name} must be a {kind.__name__}, got {value!r}")
    budget = budget.for_rows(problem.num_samples)
    check_devices(budget, prices, problem.num_devices)
    budget = rest_of(budget, problem)
    prices = prices.for_trust(budget.trust)
    _check_loss(problem.model)
    _check_trust(problem, budget, planner, accountant, learning_rate, clip)
    privacy_accountant = accountant_named(accountant)
    setting = Setting(
        problem=problem,
        budget=budget,
        prices=prices,
        accountant=privacy_accountant,
        unit_multiplier=unit_multiplier(problem, budget, privacy_accountant),
        weights=weights,
        target=target,
        batch_size=check_batch_size(problem, batch_size),
        learning_rate=_checked_rate(learning_rate),
        drift_correction=drift_correction and budget.trust == "uploads",
        cyclic=_is_cyclic(sampling, planner, accountant, prices),
        noise_schedule=noise_schedule,
        clip=clip,
    )
    choice = PLANNERS[planner](setting)
    dual_prices = _dual_prices(setting, choice, PLANNERS[planner])
    return complete(setting, choice, dual_prices, planner=planner)


def _check_loss(model: Loss) -> None:
    """Refuse a loss that differs from the one that devices build from its name."""
    num_classes = model.num_outputs if model.num_outputs > 1 else None
    standard = loss_named(model.name, num_classes=num_classes, l2=model.l2)
    if standard != model:
        raise InvalidInputError(
            f"a plan names its loss, and {model.name!r} stands for {standard}, not for "
            f"{model}: plan with the loss by name, and scale labels to it"
        )


def _check_trust(
    problem: Problem,
    budget: Budget,
    planner: str,
    accountant: str,
    learning_rate: float | None,
    clip: float | None,
) -> None:
    """Refuse what the trust and the unit of the budget do not allow."""
    if clip is not None:
        number("clip", clip, above=0)
    if planner != "joint" and (budget.trust, budget.unit) != ("uploads", "sample"):
        raise InvalidInputError(
            f"planner {planner!r} plans noise per step for one sample, not trust "
            f"{budget.trust!r} and unit {budget.unit!r}: use planner 'joint'",
            argument="planner",
        )
    if budget.trust == "uploads":
        if clip is not None:
            raise InvalidInputError(
                f"clip {clip:g} is for trust 'sum': with noise per step, gradients are "
                "bounded by the loss; leave it out",
                argument="clip",
            )
        if budget.unit == "device" and accountant == "pld":
            raise InvalidInputError(
                "accountant pld is for Poisson-sampled batches, which do not protect a "
                "whole device: use gdp or zcdp",
                argument="accountant",
            )
        return
    least = budget.least_answers
    taking_part = problem.num_devices
    check_answers(
        taking_part if least is None else least, budget.colluders, taking_part
    )
    model = problem.model
    curvature = 0.0 if budget.unit == "device" else model.curvature
    smallest = 1e-300 if learning_rate is None else learning_rate
    check_learning_rate(smallest, curvature, model.l2)


def _is_cyclic(sampling: str, planner: str, accountant: str, prices: Prices) -> bool:
    one_of("sampling", sampling, SAMPLINGS)
    if sampling != "auto" and accountant == "pld":
        raise InvalidInputError(
            f"accountant pld is for Poisson-sampled batches, not for {sampling} ones: "
            "leave out sampling, or use gdp or zcdp",
            argument="accountant",
        )
    if sampling == "cyclic" and planner != "joint":
        raise InvalidInputError(
            f"planner {planner!r} does not support cyclic batches, whose noise does "
            "not grow with every step: use planner 'joint', or sampling 'fixed'",
            argument="planner",
        )
    if sampling == "auto":
        priced = bool(np.any(floats(prices.computation_per_sample) > 0))
        return priced and planner == "joint" and accountant != "pld"
    return sampling == "cyclic"


def _checked_rate(learning_rate: float | None) -> float | None:
    if learning_rate is None:
        return None
    return number("learning_rate", learning_rate, above=0)


def _dual_prices(
    setting: Setting, choice: Choice, planner: Callable[[Setting], Choice]
) -> DualPrices:
    """Plan again with a larger budget of each kind, and compare the predicted losses.

    The batch size is kept, so that the prices are those of this plan.
    """
    setting = replace(setting, batch_size=choice.batch_size, explain=False)
    with_epsilon = setting.with_larger_budget(epsilon=_INCREASE)
    with_cost = setting.with_larger_budget(cost=_INCREASE)
    loss = choice.predicted_loss
    # Every plan within a budget is also within a larger one: no saving is negative.
    saved = {
        "privacy": max(0.0, loss - planner(with_epsilon).predicted_loss),
        "cost": max(0.0, loss - planner(with_cost).predicted_loss),
    }
    shares = {name: value / loss for name, value in saved.items()}
    added_epsilon = np.mean(with_epsilon.budget.epsilon) - np.mean(
        setting.budget.epsilon
    )
    added_cost = np.mean(with_cost.budget.cost) - np.mean(setting.budget.cost)
    minimum = _MIN_SAVED_INITIAL * setting.problem["initial_gap"]
    binding = (name for name, share in shares.items() if share > _MIN_SAVED)
    return DualPrices(
        # A budget at its limit cannot grow: avoid 0 / 0.
        epsilon_price=saved["privacy"] / (float(added_epsilon) or 1.0),
        cost_price=saved["cost"] / (float(added_cost) or 1.0),
        binding=tuple(name for name in binding if saved[name] > minimum),
        reason=(
            f"{added_epsilon:.3g} more epsilon would lower the predicted loss by "
            f"{shares['privacy']:.1%}; {added_cost:.4g} more cost, by "
            f"{shares['cost']:.1%}"
        ),
    )
