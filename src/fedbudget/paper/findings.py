"""What the rows of an evaluation say, found once for figures, tables and summary."""

from dataclasses import dataclass

from fedbudget.paper.cases import Scale
from fedbudget.paper.claims import Claim, all_claims
from fedbudget.paper.evaluation import Tables
from fedbudget.paper.regret import Regret, regrets
from fedbudget.paper.results import Runs, fixed_rates


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """An evaluation's rows, and what follows from them."""

    scale: Scale
    tables: Tables
    runs: Runs
    rates: dict[str, float]  # each case's one learning rate
    claims: list[Claim]
    regrets: list[Regret]


def findings(tables: Tables, scale: Scale) -> Findings:
    """Judge the claims and compare the planners."""
    runs, rates = Runs(tables.runs), fixed_rates(tables.searches)
    return Findings(
        scale=scale,
        tables=tables,
        runs=runs,
        rates=rates,
        claims=all_claims(runs, rates, scale),
        regrets=regrets(runs, tables.plans, scale),
    )
