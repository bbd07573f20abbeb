"""Turn a problem, budgets and prices into a plan, before any data is read.

planner.py    plan(): checks the arguments, runs a planner, completes its choice
joint.py      the default planner, on top of
  spectral.py   the predicted loss of many candidates
  weights.py    the weight of each device, and when devices stop early
  advice.py     when not to federate
bounds.py     the paper's planner, and one that uses the sound form of its bound
settings.py   the input and the output of a planner; the affordable pairs of tau and
              rounds; the noise and the cost of a choice
plans.py      the plan itself
shared_noise.py  a given schedule, completed for a server that sees only sums
feature_steps.py  linear or Fourier features, by predicted losses
frontier.py   the predicted loss over many budgets: exact plans, and a coarse map
"""

from fedbudget.planning.frontier import (
    Frontier,
    TrustComparison,
    compare_trust,
    frontier,
)
from fedbudget.planning.planner import PLANNERS, plan
from fedbudget.planning.plans import Plan

__all__ = [
    "PLANNERS",
    "Frontier",
    "Plan",
    "TrustComparison",
    "compare_trust",
    "frontier",
    "plan",
]
