"""The planners as the evaluation asks them, and what each of them was told.

joint       everything planned, exact accounting; reads no row
bound       the paper's bound, made sound, over whole numbers; reads no row
paper       as the paper says: uniform weights, zCDP, a learning rate within its own
            step-size condition; reads no row
paper-tuned the same with a learning rate tuned on validation rows, and a smoothness
            for which that rate keeps the step-size condition, as the paper assumes

The noise that the paper prints, and what it really spends, is erratum 1.
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

PRINTED = "printed-sigma"  # the scheme of runs with this noise

# Whether a planner's choice depends on private rows.
READS = {JOINT: False, BOUND: False, PAPER: False, TUNED: True}


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """A plan, and how long it took to make."""

    plan: Plan
    seconds: float


def ask(
    planner: str, problem: Problem, epsilon: float, cost: float, *, rate: float
) -> Planned:
    """Plan for one budget.

    Args:
        planner: One of `PLANNERS`.
        problem: What may be known.
        epsilon: The privacy budget.
        cost: The cost budget.
        rate: The learning rate that was tuned on validation rows; `paper-tuned` alone
            is told.
    """
    budget = Budget(epsilon=epsilon, delta=DELTA, cost=cost)
    started = time.perf_counter()
    if planner in (JOINT, BOUND):
        found = plan(problem, budget, PRICES, planner=planner)
    else:
        found = plan(
            assuming(problem, rate) if planner == TUNED else problem,
            budget,
            PRICES,
            planner="paper",
            accountant="zcdp",
            weights="uniform",
            learning_rate=rate if planner == TUNED else None,
        )
    return Planned(plan=found, seconds=time.perf_counter() - started)


def assuming(problem: Problem, rate: float) -> Problem:
    """Return the problem with the smoothness for which the rate suits every tau.

    The paper assumes its learning rate to be small enough for its step-size condition,
    and tunes it on validation rows. With the analytic smoothness, rates that learn
    anything within the budgets break the condition; so the assumption is taken at its
    word here, and the smoothness is what it has to be.
    """
    # At this smoothness the rate is exactly the largest one for the longest tau.
    smoothness = problem["smoothness"] * largest_rate(problem, LONGEST_TAU) / rate
    note = f"as small as learning rate {rate:g} needs it"
    return problem.with_constants(
        smoothness=Constant(value=smoothness, source="assumed", note=note),
        strong_convexity=Constant(
            value=min(problem["strong_convexity"], smoothness),
            source="assumed",
            note=note,
        ),
    )


def fixed_rate(lab: Lab, scale: Scale) -> float:
    """Return the learning rate with which the paper's planner does best in a case.

    The paper holds it fixed and tunes hyper-parameters on validation rows; so its plans
    for all budgets are run with every rate, and the best mean accuracy wins.
    """
    entries = [
        Entry(
            plan=ask(TUNED, lab.problem, epsilon, cost, rate=rate).plan,
            says={"rate": rate},
        )
        for rate in scale.rates
        for epsilon, cost in scale.budgets
    ]
    repeats = range(scale.rate_repeats)
    found = lab.run("rates", entries, repeats=repeats, noise=PICKING)

    def merit(rate: float) -> float:
        mine = [row for row in found if row["rate"] == rate]
        return float(sum(row["validation_accuracy"] for row in mine))

    return max(scale.rates, key=merit)


def printed_noise(plan: Plan, *, epsilon: float) -> Plan:
    """Return the plan with the paper's printed sigma, and the epsilon that it spends.

    The printed root is the wrong one of the two (see docs/paper.md, erratum 1): rho is
    too large by far, and the noise too small.
    """
    log_term = log(1 / DELTA)
    wrong = (sqrt(epsilon + log_term) + sqrt(log_term)) ** 2
    right = float(rho_from_epsilon(epsilon, delta=DELTA))
    noise_std = plan.noise_std * sqrt(right / wrong)
    run = NoisyGradients(
        lipschitz=plan.lipschitz,
        batch_size=plan.batch_size,
        noise_std=noise_std,
        steps=plan.steps,
    )
    spent = np.broadcast_to(GDP.epsilon(run, delta=DELTA), plan.epsilon.shape)
    return replace(plan, noise_std=noise_std, epsilon=spent, accountant="gdp")
