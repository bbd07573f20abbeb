"""The planners of the evaluation, and what each of them gets.

joint       everything planned, exact accounting; reads no row
bound       minimises the corrected bound over whole numbers; reads no row
paper       as in the paper: uniform weights, zCDP, a learning rate that satisfies
            its step-size condition; reads no row
paper-tuned the same with a learning rate tuned on validation rows, and a smoothness
            for which that rate satisfies the condition, as the paper assumes

The noise that the paper prints, and the epsilon that it spends: erratum 1.
"""

import time
from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np

from fedbudget.budget import Budget
from fedbudget.paper.cases import DELTA, LONGEST_TAU, PRICES, Scale
from fedbudget.paper.lab import PICKING, Entry, Lab
from fedbudget.planning import Plan, plan
from fedbudget.planning.bounds import largest_rate
from fedbudget.privacy import GDP, NoisyGradients, rho_from_epsilon
from fedbudget.problem import Constant, Problem

JOINT, BOUND, PAPER, TUNED = "joint", "bound", "paper", "paper-tuned"
PLANNERS = (JOINT, BOUND, PAPER, TUNED)

PRINTED = "printed-sigma"  # the scheme of runs with the printed noise

# Whether a planner's choice depends on private rows.
READS_PRIVATE_ROWS = {JOINT: False, BOUND: False, PAPER: False, TUNED: True}


@dataclass(frozen=True, kw_only=True, eq=False)
class TimedPlan:
    """A plan, and the time that planning took."""

    plan: Plan
    seconds: float


def make_plan(
    planner: str, problem: Problem, epsilon: float, cost: float, *, rate: float
) -> TimedPlan:
    """Plan for one budget.

    Args:
        planner: One of `PLANNERS`.
        problem: The public description of the data.
        epsilon: The privacy budget.
        cost: The cost budget.
        rate: The learning rate that was tuned on validation rows; only `paper-tuned`
            uses it.
    """
    budget = Budget(epsilon=epsilon, delta=DELTA, cost=cost)
    started = time.perf_counter()
    if planner in (JOINT, BOUND):
        result = plan(problem, budget, PRICES, planner=planner)
    else:
        result = plan(
            with_assumed_smoothness(problem, rate) if planner == TUNED else problem,
            budget,
            PRICES,
            planner="paper",
            accountant="zcdp",
            weights="uniform",
            learning_rate=rate if planner == TUNED else None,
        )
    return TimedPlan(plan=result, seconds=time.perf_counter() - started)


def with_assumed_smoothness(problem: Problem, rate: float) -> Problem:
    """Return the problem with the smoothness for which the rate fits every tau.

    The paper assumes its learning rate to be small enough for its step-size condition,
    and tunes it on validation rows. With the analytic smoothness, every rate that
    learns within the budgets breaks the condition. So this follows the assumption: it
    sets the smoothness to the value for which the condition holds.
    """
    # With this smoothness the rate is the largest one for the longest tau.
    smoothness = problem["smoothness"] * largest_rate(problem, LONGEST_TAU) / rate
    note = f"as small as learning rate {rate:g} requires"
    return problem.with_constants(
        smoothness=Constant(value=smoothness, source="assumed", note=note),
        strong_convexity=Constant(
            value=min(problem["strong_convexity"], smoothness),
            source="assumed",
            note=note,
        ),
    )


def fixed_rate(lab: Lab, scale: Scale) -> float:
    """Return the learning rate with which the paper's planner is best in a case.

    The paper fixes the rate and tunes hyper-parameters on validation rows. So its plans
    for all budgets are run with every rate, and the best mean accuracy wins.
    """
    entries = [
        Entry(
            plan=make_plan(TUNED, lab.problem, epsilon, cost, rate=rate).plan,
            labels={"rate": rate},
        )
        for rate in scale.rates
        for epsilon, cost in scale.budgets
    ]
    repeats = range(scale.rate_repeats)
    rows = lab.run("rates", entries, repeats=repeats, noise=PICKING)

    def merit(rate: float) -> float:
        return float(sum(r["validation_accuracy"] for r in rows if r["rate"] == rate))

    return max(scale.rates, key=merit)


def printed_noise(plan: Plan, *, epsilon: float) -> Plan:
    """Return the plan with the paper's printed sigma, and the epsilon that it spends.

    The paper prints the wrong one of two roots (docs/paper.md, erratum 1): rho is much
    too large, so the noise is too small.
    """
    log_term = log(1 / DELTA)
    printed_rho = (sqrt(epsilon + log_term) + sqrt(log_term)) ** 2
    private_rho = float(rho_from_epsilon(epsilon, delta=DELTA))
    noise_std = plan.noise_std * sqrt(private_rho / printed_rho)
    run = NoisyGradients(
        lipschitz=plan.lipschitz,
        batch_size=plan.batch_size,
        noise_std=noise_std,
        steps=plan.steps,
    )
    spent = np.broadcast_to(GDP.epsilon(run, delta=DELTA), plan.epsilon.shape)
    return replace(plan, noise_std=noise_std, epsilon=spent, accountant="gdp")
