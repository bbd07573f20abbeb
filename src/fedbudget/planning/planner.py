"""One function to plan with, and three planners behind it."""

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
    Setting,
    Worth,
    check_batch_size,
    complete,
    unit_multiplier,
)
from fedbudget.planning.weights import check_target
from fedbudget.privacy import accountant_named
from fedbudget.problem import Problem

PLANNERS: MappingProxyType[str, Callable[[Setting], Choice]] = MappingProxyType(
    {"joint": choose_joint, "bound": choose_bound, "paper": choose_paper}
)

SAMPLINGS = ("auto", "fixed", "cyclic")

# A budget binds if this much more of it ...
_MORE = 0.1
# ... would lower the predicted loss by at least this share of it ...
_WORTHWHILE = 0.01
# ... and of the loss before training: what is smaller than that, nobody notices.
_NOTICEABLE = 1e-4


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
    drift_control: bool = True,
    sampling: str = SAMPLING,
) -> Plan:
    """Return the best plan that both budgets of every device can pay for.

    Args:
        problem: Sizes, columns and loss; every constant with its source.
        budget: The most each device may lose in privacy and spend in resources.
        prices: What a round and a local step cost.
        planner: `joint` plans everything with the spectral model; `bound` searches
            whole numbers under the sound form of the paper's bound; `paper` relaxes
            and rounds as the paper does, with its root corrected and its overspending
            repaired.
        accountant: `gdp` (exact), `zcdp` (the paper's) or `pld` (Poisson sampling).
        weights: `auto` plans them (`paper` and `bound` take those of the target),
            `uniform` weighs every device alike, `size` every sample.
        target: What `auto` weights aim at, noise aside: that every device counts alike
            (`uniform`, as in the paper), or every sample (`size`). Other weights are
            their own target.
        batch_size: Samples per gradient; planned (as large as it pays) if left out.
        learning_rate: Planned if left out.
        drift_control: Whether `joint` may plan it: devices that keep no state between
            rounds cannot.
        sampling: How batches smaller than all rows are drawn: `fixed` (anew in every
            step, as the paper does), or `cyclic` (dealt once into disjoint ones, taken
            in turn: a pass over them costs the privacy of one step; fixed where no two
            fit). `auto` is cyclic where samples have a price and `joint` plans, fixed
            otherwise, and Poisson with `pld`.

    Raises:
        InvalidInputError: An argument is wrong.
        InfeasibleBudgetError: A budget does not pay for a single round.

    >>> problem = Problem(num_samples=[1628] * 16, dim=102, loss="logistic")
    >>> chosen = plan(problem, Budget(epsilon=4.0, delta=1e-4, cost=1000),
    ...               Prices(communication=100, computation=1))
    >>> bool(chosen.epsilon.max() <= 4.0 and chosen.cost.max() <= 1000)
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
    check_devices(budget, prices, problem.num_devices)
    _check_loss(problem.model)
    counts_for = accountant_named(accountant)
    setting = Setting(
        problem=problem,
        budget=budget,
        prices=prices,
        accountant=counts_for,
        unit_multiplier=unit_multiplier(problem, budget, counts_for),
        weights=weights,
        target=target,
        batch_size=check_batch_size(problem, batch_size),
        learning_rate=_checked_rate(learning_rate),
        drift_control=drift_control,
        cyclic=_is_cyclic(sampling, planner, accountant, prices),
    )
    chosen = PLANNERS[planner](setting)
    worth = _worth(setting, chosen, PLANNERS[planner])
    return complete(setting, chosen, worth, planner=planner)


def _check_loss(model: Loss) -> None:
    """Refuse a loss that devices, which make it from its name, would not train."""
    several = model.num_outputs if model.num_outputs > 1 else None
    made = loss_named(model.name, num_classes=several, l2=model.l2)
    if made != model:
        raise InvalidInputError(
            f"a plan names its loss, and {model.name!r} stands for {made}, not for "
            f"{model}: plan with the loss by name, and scale labels to it"
        )


def _is_cyclic(sampling: str, planner: str, accountant: str, prices: Prices) -> bool:
    one_of("sampling", sampling, SAMPLINGS)
    if sampling != "auto" and accountant == "pld":
        raise InvalidInputError(
            f"accountant pld is for Poisson-sampled batches, not for {sampling} ones: "
            "leave out sampling, or take gdp or zcdp",
            argument="accountant",
        )
    if sampling == "cyclic" and planner != "joint":
        raise InvalidInputError(
            f"planner {planner!r} knows no cyclic batches, whose noise does not grow "
            "with every step: take planner 'joint', or sampling 'fixed'",
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


def _worth(
    setting: Setting, chosen: Choice, planner: Callable[[Setting], Choice]
) -> Worth:
    """Plan again with a bit more of each budget, and see what that saves.

    The batch stays as chosen: what is asked is what the budget is worth to this plan.
    """
    setting = replace(setting, batch_size=chosen.batch_size)
    with_epsilon = setting.with_more(epsilon=_MORE)
    with_cost = setting.with_more(cost=_MORE)
    # A larger budget allows all that a smaller one does: what it saves is not negative.
    saved = {
        "privacy": max(
            0.0, chosen.predicted_loss - planner(with_epsilon).predicted_loss
        ),
        "cost": max(0.0, chosen.predicted_loss - planner(with_cost).predicted_loss),
    }
    shares = {name: value / chosen.predicted_loss for name, value in saved.items()}
    more_epsilon = np.mean(with_epsilon.budget.epsilon) - np.mean(
        setting.budget.epsilon
    )
    more_cost = np.mean(with_cost.budget.cost) - np.mean(setting.budget.cost)
    least = _NOTICEABLE * setting.problem["initial_gap"]
    binding = (name for name, share in shares.items() if share > _WORTHWHILE)
    return Worth(
        # A budget at its limit has no more: nothing is saved, and nothing is 0 / 0.
        epsilon_price=saved["privacy"] / (float(more_epsilon) or 1.0),
        cost_price=saved["cost"] / (float(more_cost) or 1.0),
        binding=tuple(name for name in binding if saved[name] > least),
        reason=(
            f"{more_epsilon:.3g} more epsilon would lower that loss by "
            f"{shares['privacy']:.1%}; {more_cost:.4g} more cost, by "
            f"{shares['cost']:.1%}"
        ),
    )
