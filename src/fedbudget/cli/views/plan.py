"""Plans and frontiers as text: readable at 80 columns, and without colour."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbudget.budget import Budget
from fedbudget.checks import Array, floats
from fedbudget.cli.output import one_line
from fedbudget.cli.sources import Source
from fedbudget.cli.views.layout import (
    new_page,
    new_table,
    show_heading,
    show_item,
    show_pairs,
    show_table,
    show_title,
)
from fedbudget.planning import Frontier, Plan, TrustComparison
from fedbudget.privacy import rounded_up
from fedbudget.text import counted, span

MAX_LISTED = 24  # above it, devices are summarised

# From the lowest predicted loss to the highest: a bar for every reader, and a colour.
_BARS = "▁▂▃▄▅▆▇█"
_EXCESS = "Predicted excess loss over the best linear model (lower is better)"
_NOT_PAID = "no value (-): this cost budget does not pay for one round"
_COLOURS = (
    "black on #fde725",
    "black on #a0da39",
    "black on #4ac16d",
    "black on #1fa187",
    "white on #277f8e",
    "white on #365c8d",
    "white on #46327e",
    "white on #440154",
)


def show_plan(source: Source, budget: Budget, plan: Plan) -> None:
    """Print a plan."""
    with new_page() as console:
        _plan_page(console, source, budget, plan)


def show_frontier(source: Source, frontier: Frontier) -> None:
    """Print predicted losses, schedules and savings over both budgets."""
    with new_page() as console:
        _frontier_page(console, source, frontier)


def show_trust(source: Source, comparison: TrustComparison) -> None:
    """Print what trust buys: losses of both kinds, and the epsilons of equal loss."""
    with new_page() as console:
        _trust_page(console, source, comparison)


def _plan_page(console: Console, source: Source, budget: Budget, plan: Plan) -> None:
    show_title(console, source)
    show_heading(
        console,
        f"Plan: {counted(plan.rounds, 'round')} of {counted(plan.tau, 'local step')}",
    )
    show_pairs(console, _plan_in_words(plan))
    show_heading(console, "Privacy and cost")
    show_pairs(console, _privacy_and_cost(budget, plan))
    limits = " and ".join(plan.binding) or "neither budget"
    show_heading(console, f"What limits the loss: {limits}")
    for reason in plan.reasons:
        show_item(console, reason)
    show_heading(console, "Constants used by the planner")
    show_table(console, _constants(source))
    if plan.num_devices <= MAX_LISTED:
        show_heading(console, "Devices")
        show_table(console, _devices(source, plan))
    else:
        show_heading(console, counted(plan.num_devices, "device"))
        show_table(console, _summary(source, plan))


def _frontier_page(console: Console, source: Source, frontier: Frontier) -> None:
    show_title(console, source)

    def schedule(row: int, column: int) -> Text:
        return Text(f"{frontier.tau[row, column]:g}x{frontier.rounds[row, column]:g}")

    def saving(name: str, prices: Array) -> Callable[[int, int], Text]:
        def cell(row: int, column: int) -> Text:
            plan = frontier.plans[row][column]
            binds = plan is not None and name in plan.binding
            text = f"{prices[row, column]:.2g}" + ("*" if binds else " ")
            return Text(text, style="bold" if binds else "")

        return cell

    epsilon, cost = frontier.epsilon_price, frontier.cost_price
    for heading, cell in (
        (_EXCESS, _losses(frontier, _levels(frontier.predicted_loss))),
        ("Local steps per round (tau) x rounds", schedule),
        (
            "Loss saved per unit of epsilon (*: privacy binds)",
            saving("privacy", epsilon),
        ),
        (
            "Loss saved per unit of cost, over at least one round (*: cost binds)",
            saving("cost", cost),
        ),
    ):
        show_heading(console, heading)
        for table in _grids(frontier, cell, width=console.width):
            show_table(console, table)
    show_promise(console, _plans_of(frontier))
    if np.isnan(frontier.predicted_loss).any():
        show_item(console, _NOT_PAID)


def _losses(
    frontier: Frontier, levels: NDArray[np.int64]
) -> Callable[[int, int], Text]:
    """Return the cells of predicted losses, with a bar and a colour for each level."""

    def cell(row: int, column: int) -> Text:
        level = levels[row, column]
        text = f"{frontier.predicted_loss[row, column]:.3g} {_BARS[level]}"
        return Text(text, style=_COLOURS[level])

    return cell


def _plans_of(frontier: Frontier) -> list[Plan]:
    return [plan for row in frontier.plans for plan in row if plan is not None]


def show_promise(console: Console, plans: Sequence[Plan]) -> None:
    """Say what the epsilons of several plans promise, at least."""
    weakest = min(plans, key=lambda plan: plan.least_answers)
    promise = replace(weakest.privacy, epsilon_alone=None)
    delta = max(float(plan.delta.max()) for plan in plans)
    show_item(
        console,
        f"every epsilon is for {promise.protected} ({promise.adjacency}) against "
        f"{promise.adversary}; delta {rounded_up(delta)}, accountant "
        f"{promise.accountant}",
    )
    alone = [plan.privacy.epsilon_alone for plan in plans]
    largest = max((value for value in alone if value is not None), default=None)
    if largest is not None:
        show_item(
            console,
            "alone, without the others' noise, a device's share gives an epsilon of up "
            f"to {rounded_up(largest)} in these plans",
        )


def _trust_page(console: Console, source: Source, comparison: TrustComparison) -> None:
    show_title(console, source)
    grids = (comparison.uploads, comparison.sums)
    losses = np.array([grid.predicted_loss for grid in grids])
    levels = _levels(losses)
    equal = comparison.equal_epsilon

    def same_loss(row: int, column: int) -> Text:
        value = equal[row, column]
        if np.isnan(value):
            return Text("-")
        return Text(f"{value:.3g}" if np.isfinite(value) else "none")

    for trust, grid, level in zip(("uploads", "sum"), grids, levels, strict=True):
        show_heading(console, f"Predicted excess loss with trust {trust}")
        for table in _grids(grid, _losses(grid, level), width=console.width):
            show_table(console, table)
    show_heading(console, "Epsilon at which a sum equals uploads in predicted loss")
    for table in _grids(comparison.uploads, same_loss, width=console.width):
        show_table(console, table)
    for grid in grids:
        show_promise(console, _plans_of(grid))
    if np.isnan(losses).any():
        show_item(console, _NOT_PAID)


def _plan_in_words(plan: Plan) -> Iterator[tuple[str, str]]:
    every = "every device" if plan.num_devices > 1 else "the device"
    batch = {
        "full": f"all training samples of {every}",
        "poisson": "on average, each sample drawn independently",
        "fixed": "drawn at random in every step",
        "cyclic": f"{span(plan.blocks)} disjoint batches, used in turn",
    }
    yield "tau", f"{counted(plan.tau, 'local step')} per round"
    yield "rounds", f"{counted(plan.rounds, 'upload')} by {every}"
    yield "steps", f"{counted(plan.steps, 'local step')} in total"
    yield "learning rate", f"{plan.learning_rate:.4g}"
    yield "momentum", f"{plan.momentum:.2g}, on the server"
    if plan.server_rate != 1:
        yield "server rate", f"{plan.server_rate:.3g}, of a round's averaged move"
    if plan.drift_correction:
        yield "drift", "corrected by each device's last deviation from the average"
    yield "batch size", f"{span(plan.batch_size)}: {batch[plan.sampling]}"
    noise = "standard deviation per coordinate of the mean gradient"
    if plan.trust == "sum":
        noise = "standard deviation of each device's share, per coordinate of an upload"
    yield "noise", f"{span(plan.noise_std)}: {noise}"
    if plan.clip is not None:
        yield "clip", f"{plan.clip:.4g}: largest norm of a device's move in a round"
    if plan.noise_decay < 1:
        first, last = plan.noise_factors[[0, -1]]
        yield "noise falls", f"from {first:.2f} to {last:.2f} times that: equal cost"
    yield "weights", f"{span(plan.weights)}: weight in the average"
    excess = f"excess loss {plan.predicted_loss:.3g} over the best linear model"
    yield "predicted", f"{excess}, likely {plan.likely}"
    yield "planner", f"{plan.planner}, for the {plan.loss} loss"


def _privacy_and_cost(budget: Budget, plan: Plan) -> Iterator[tuple[str, str]]:
    yield "privacy", f"{plan.privacy}, for the whole run"
    yield "cost", f"{span(plan.cost)} of {span(budget.cost)} units per device"


def _constants(source: Source) -> Table:
    table = new_table("constant", "value", "source", "")
    table.columns[1].justify = "right"
    for name, constant in source.problem.constants.items():
        table.add_row(name, f"{constant.value:.4g}", constant.source, constant.note)
    return table


def _devices(source: Source, plan: Plan) -> Table:
    names = ("samples", "batch", "noise", "weight", "epsilon", "cost")
    table = new_table("device", *names, right=True)
    columns = _columns(source, plan)
    for index, name in enumerate(source.device_names):
        cells = _cells([column[index] for column in columns])
        table.add_row(Text(one_line(name), no_wrap=True, overflow="ellipsis"), *cells)
    return table


def _summary(source: Source, plan: Plan) -> Table:
    names = ("samples", "batch", "noise", "weight", "epsilon", "cost")
    table = new_table("", *names, right=True)
    for name, of in (
        ("minimum", np.min),
        ("median", np.median),
        ("maximum", np.max),
    ):
        table.add_row(name, *_cells([of(c) for c in _columns(source, plan)]))
    return table


def _cells(values: list[float]) -> Iterator[str]:
    """Show a line of the table; epsilon, the fifth of six, is rounded up."""
    for index, value in enumerate(values):
        yield rounded_up(value) if index == 4 else f"{value:.4g}"


def _columns(source: Source, plan: Plan) -> list[Array]:
    names = ("batch_size", "noise_std", "weights", "epsilon", "cost")
    own = [floats(getattr(plan, name)) for name in names]
    return [floats(source.problem.num_samples), *own]


def _levels(losses: Array) -> NDArray[np.int64]:
    """Return the colour level of each loss, by its logarithm: 0 to 7."""
    logs = np.log(np.where(losses > 0, losses, np.nan))
    low, high = np.nanmin(logs), np.nanmax(logs)
    share = (logs - low) / ((high - low) or 1.0)
    return np.asarray(np.nan_to_num(share * (len(_BARS) - 1)).round(), np.int64)


def _grids(
    frontier: Frontier, cell: Callable[[int, int], Text], *, width: int
) -> Iterator[Table]:
    """Yield tables, a row for each epsilon, with as many costs as fit the width."""
    per_table = max(1, (width - 16) // 12)
    for first in range(0, len(frontier.costs), per_table):
        columns = range(first, min(first + per_table, len(frontier.costs)))
        costs = [f"cost {frontier.costs[column]:g}" for column in columns]
        table = new_table("epsilon", *costs, right=True)
        for row, epsilon in enumerate(frontier.epsilons):
            cells = [
                Text("-") if frontier.plans[row][column] is None else cell(row, column)
                for column in columns
            ]
            table.add_row(f"{epsilon:g}", *cells)
        yield table
