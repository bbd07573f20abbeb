"""`fedbudget plan` and `fedbudget frontier`."""

from typing import Annotated

import typer

import fedbudget
from fedbudget.budget import Budget
from fedbudget.cli.options import BUDGETS, Cost, Epsilon, ShapeQuestion, asks, numbers
from fedbudget.cli.output import print_json, progress
from fedbudget.cli.sources import about, limits, read_source
from fedbudget.errors import InfeasibleBudgetError


@asks
def plan(
    question: ShapeQuestion,
    *,
    epsilon: Epsilon,
    cost: Cost,
) -> None:
    """Plan a run within both budgets, from the shape of the data alone."""
    budget = Budget(epsilon=epsilon, delta=question.delta, cost=cost)
    with progress("planning"):
        source = read_source(question)
        budget, prices = limits(question, source, budget)
        chosen = fedbudget.plan(source.problem, budget, prices, **question.how)
    if question.json:
        print_json(chosen.to_dict() | about(source))
        return
    from fedbudget.cli.views.plan import show_plan  # rich's tables, only where shown

    show_plan(source, budget, chosen)


@asks
def frontier(
    question: ShapeQuestion,
    *,
    epsilons: Annotated[
        str,
        typer.Option(help="Privacy budgets to try, no unit.", rich_help_panel=BUDGETS),
    ] = "0.5,1,2,4,7,10",
    costs: Annotated[
        str | None,
        typer.Option(
            help="Cost budgets to try, in the prices' unit. Default: 2 to 10 times the "
            "price of a round with one step.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ] = None,
) -> None:
    """Show what more of each budget would buy: the predicted loss over both."""
    epsilon_axis = numbers("--epsilons", epsilons)
    cost_axis = None if costs is None else numbers("--costs", costs)
    with progress("planning for every pair of budgets") as advance:
        source = read_source(question)
        found = fedbudget.frontier(
            source.problem,
            question.prices,
            epsilons=epsilon_axis,
            costs=cost_axis,
            delta=question.delta,
            on_point=advance,
            **question.how,
        )
    if not any(any(row) for row in found.plans):
        raise InfeasibleBudgetError(
            f"none of the costs up to {found.costs.max():g} pays for one round with "
            "one step: raise --costs or lower the prices"
        )
    if question.json:
        print_json(found.to_dict() | about(source))
        return
    from fedbudget.cli.views.plan import show_frontier

    show_frontier(source, found)
