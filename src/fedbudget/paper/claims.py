"""The paper's claims and whether the rows support them: yes, in part, or no.

`Findings` are computed once, for figures, tables and summary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from fedbudget.checks import Array
from fedbudget.paper.cases import (
    DP_PASGD,
    DP_SGD,
    FIRST_COST,
    FIRST_EPSILON,
    PASGD_TAU,
    SGD_TAU,
    Scale,
)
from fedbudget.paper.evaluation import Tables
from fedbudget.paper.planners import JOINT, TUNED
from fedbudget.paper.results import (
    Estimate,
    Regret,
    Runs,
    fixed_rates,
    mean_interval,
    own_rate,
    paired,
    regrets,
)

HOLDS, IN_PART, DOES_NOT_HOLD = "holds", "holds in part", "does not hold"
UNDECIDED = "is undecided"
EXCEPTION = "Adult-1"  # the case that behaves differently, according to the paper

# The paper says "always", "all" and "almost always": one setting in ten may differ.
HOLDS_SHARE, PART_SHARE = 0.9, 1 / 3

# Taus are close if they differ by at most this much, or by at most this factor.
MAX_TAU_DISTANCE, MAX_TAU_FACTOR = 2, 1.5


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim in one reading."""

    number: str
    claim: str
    reading: str
    holds: int  # settings whose interval supports the claim
    against: int  # settings whose interval supports the reverse
    total: int
    effect: Estimate
    unit: str
    effect_decides: bool = True  # a positive effect supports the claim
    tested: bool = True  # settings count by their interval; else by their sign alone

    @property
    def verdict(self) -> str:
        """Yes, in part, or no, by the share of settings and by the effect over all."""
        if self.holds >= HOLDS_SHARE * self.total:
            return HOLDS
        sign = self.effect.sign if self.effect_decides else 0
        if not self.tested and self.holds > 0:
            # Signs are partly chance, so the effect over all settings decides.
            return {1: IN_PART, 0: UNDECIDED, -1: DOES_NOT_HOLD}[sign]
        supported = self.holds >= PART_SHARE * self.total or sign > 0
        if supported and sign >= 0 and self.holds > self.against:
            return IN_PART
        return DOES_NOT_HOLD


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """An evaluation's rows, and the results computed from them."""

    scale: Scale
    tables: Tables
    runs: Runs
    rates: dict[str, float]  # the learning rate of each case
    claims: list[Claim]
    regrets: list[Regret]


def judge(tables: Tables, scale: Scale) -> Findings:
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


def all_claims(runs: Runs, rates: dict[str, float], scale: Scale) -> list[Claim]:
    """Test every claim under every reading."""
    return [
        *_first(runs, rates, scale),
        *_second(runs, scale),
        *_third(runs, scale),
        *_fourth(runs, scale),
        *_fifth(runs, scale),
    ]


def _signed(
    number: str, claim: str, reading: str, differences: Sequence[Array]
) -> Claim:
    """Judge a claim by differences over repeats; it states that they are positive."""
    estimates = [mean_interval(each) for each in differences]
    return Claim(
        number=number,
        claim=claim,
        reading=reading,
        holds=sum(each.sign > 0 for each in estimates),
        against=sum(each.sign < 0 for each in estimates),
        total=len(estimates),
        effect=_over_all(differences),
        unit="points of accuracy",
    )


def _over_all(differences: Sequence[Array]) -> Estimate:
    """Return the mean over all settings in points, its interval over the repeats."""
    count = min(map(len, differences))
    points = [100 * each[:count] for each in differences]
    return mean_interval(np.mean(points, axis=0))


def _first(runs: Runs, rates: dict[str, float], scale: Scale) -> Iterator[Claim]:
    claim = f"{DP_PASGD} beats {DP_SGD} in all cases"
    names = [case.name for case in scale.cases]
    yield _signed(
        "1a",
        claim,
        "as in the paper: both at the learning rate of the case",
        [pasgd_gain(runs, name, rates[name], rates[name]) for name in names],
    )
    yield _signed(
        "1b",
        claim,
        "fair: each at its own best learning rate, selected on validation rows",
        [
            pasgd_gain(
                runs,
                name,
                own_rate(runs, name, PASGD_TAU),
                own_rate(runs, name, SGD_TAU),
            )
            for name in names
        ],
    )
    low, middle, high = (
        scale.rates[0],
        scale.rates[len(scale.rates) // 2],
        max(rates.values()),
    )
    for letter, rate in zip("cde", sorted({low, middle, high}), strict=False):
        yield _signed(
            f"1{letter}",
            claim,
            f"both at learning rate {rate:g}",
            [pasgd_gain(runs, name, rate, rate) for name in names],
        )


def pasgd_gain(runs: Runs, case: str, fast: float, slow: float) -> Array:
    """Return the accuracy of DP-PASGD minus that of DP-SGD, per repeat.

    Args:
        runs: Scored runs.
        case: Name of the case.
        fast: Learning rate of DP-PASGD.
        slow: Learning rate of DP-SGD.
    """
    accuracies = []
    for tau, rate in ((PASGD_TAU, fast), (SGD_TAU, slow)):
        at = case, f"tau={tau}", FIRST_EPSILON, FIRST_COST
        last = max(runs.distinct("rounds", *at))
        accuracies.append(runs.values(*at, rounds=last, learning_rate=rate))
    return paired(*accuracies)


def _second(runs: Runs, scale: Scale) -> Iterator[Claim]:
    claim = "the planner's tau is close to the grid search's best, everywhere"
    for letter, planner, curve, reading in (
        ("a", TUNED, "curve-fixed", "the paper's planner and grid, one learning rate"),
        ("b", TUNED, "curve-own", "fair: the grid has its own best rate for every tau"),
        ("c", JOINT, "curve-full", "the joint planner; grid over everything"),
    ):
        near, losses = [], []
        for case in scale.cases:
            for epsilon, cost in scale.budgets:
                at = case.name, curve, epsilon, cost
                best = runs.best("tau", *at)
                planned = runs.distinct("tau", case.name, planner, epsilon, cost)[0]
                near.append(close_taus(planned, best))
                values = runs.values(case.name, planner, epsilon, cost)
                losses.append(paired(runs.values(*at, tau=best), values))
        yield Claim(
            number=f"2{letter}",
            claim=claim,
            reading=reading,
            holds=sum(near),
            against=len(near) - sum(near),
            total=len(near),
            effect=_over_all(losses),
            unit="points of accuracy lost to the grid's tau",
            effect_decides=False,
        )


def close_taus(first: int, second: int) -> bool:
    """Return whether two taus are about the same."""
    low, high = sorted((first, second))
    return high - low <= MAX_TAU_DISTANCE or high <= MAX_TAU_FACTOR * low


def _third(runs: Runs, scale: Scale) -> Iterator[Claim]:
    grows, falls = "the best tau grows with epsilon", "the best tau falls as C grows"
    names = [case.name for case in scale.cases]
    few, many = min(scale.epsilons), max(scale.epsilons)
    low, high = min(scale.costs), max(scale.costs)
    for letter, scheme, among, reading in (
        ("a", "curve-fixed", scale.taus, "grid, one learning rate, the paper's taus"),
        ("b", "curve-own", None, "fair: grid, own rates, all taus"),
        ("c", TUNED, None, "the paper's planner"),
        ("d", JOINT, None, "the joint planner"),
    ):

        def tau(
            name: str,
            epsilon: float,
            cost: float,
            scheme: str = scheme,
            among: Sequence[int] | None = among,
        ) -> float:
            return float(runs.best("tau", name, scheme, epsilon, cost, among=among))

        by_epsilon = [
            log2(tau(name, many, cost) / tau(name, few, cost))
            for name in names
            for cost in scale.costs
        ]
        by_cost = [
            log2(tau(name, epsilon, low) / tau(name, epsilon, high))
            for name in names
            for epsilon in scale.epsilons
        ]
        yield _ratios(
            f"3{letter}", f"{grows} ({few:g} to {many:g})", reading, by_epsilon
        )
        yield _ratios(f"3{letter}'", f"{falls} ({low:g} to {high:g})", reading, by_cost)


def _ratios(number: str, claim: str, reading: str, doublings: Sequence[float]) -> Claim:
    return Claim(
        number=number,
        claim=claim,
        reading=reading,
        holds=sum(each > 0 for each in doublings),
        against=sum(each < 0 for each in doublings),
        total=len(doublings),
        effect=mean_interval(doublings),  # over the settings
        unit="doublings of tau",
        tested=False,
    )


def _fourth(runs: Runs, scale: Scale) -> Iterator[Claim]:
    low, high = min(scale.line_costs), max(scale.line_costs)
    few, many = min(scale.line_epsilons), max(scale.line_epsilons)
    for letter, scheme, reading in (
        ("a", TUNED, "as in the paper: its planner, one learning rate"),
        ("b", JOINT, "fair: the joint planner plans everything"),
    ):
        yield _signed(
            f"4{letter}",
            f"accuracy grows with C ({low:g} to {high:g})",
            reading,
            [
                paired(
                    runs.values(case.name, scheme, epsilon, high),
                    runs.values(case.name, scheme, epsilon, low),
                )
                for case in scale.cases
                for epsilon in scale.epsilons
            ],
        )
        yield _signed(
            f"4{letter}'",
            f"accuracy grows with epsilon ({few:g} to {many:g})",
            reading,
            [
                paired(
                    runs.values(case.name, scheme, many, cost),
                    runs.values(case.name, scheme, few, cost),
                )
                for case in scale.cases
                for cost in scale.panel_costs
            ],
        )


def _fifth(runs: Runs, scale: Scale) -> Iterator[Claim]:
    """Compare the effect of each budget on Adult-1 and on the other cases."""
    names = [case.name for case in scale.cases]
    others = [name for name in names if name != EXCEPTION]
    if EXCEPTION not in names or not others:
        return
    low, high = min(scale.line_costs), max(scale.line_costs)
    few, many = min(scale.line_epsilons), max(scale.line_epsilons)
    for letter, scheme, reading in (
        ("a", TUNED, "as in the paper: its planner, one learning rate"),
        ("b", JOINT, "fair: the joint planner plans everything"),
    ):

        def by_epsilon(name: str, scheme: str = scheme) -> Array:
            gains = [
                runs.values(name, scheme, many, cost)
                - runs.values(name, scheme, few, cost)
                for cost in scale.panel_costs
            ]
            return np.asarray(np.mean(gains, axis=0))

        def by_cost(name: str, scheme: str = scheme) -> Array:
            gains = [
                runs.values(name, scheme, epsilon, high)
                - runs.values(name, scheme, epsilon, low)
                for epsilon in scale.epsilons
            ]
            return np.asarray(np.mean(gains, axis=0))

        yield _signed(
            f"5{letter}",
            f"epsilon ({few:g} to {many:g}) matters less on {EXCEPTION} than elsewhere",
            reading,
            [by_epsilon(name) - by_epsilon(EXCEPTION) for name in others],
        )
        yield _signed(
            f"5{letter}'",
            f"C ({low:g} to {high:g}) matters more on {EXCEPTION} than elsewhere",
            reading,
            [by_cost(EXCEPTION) - by_cost(name) for name in others],
        )
