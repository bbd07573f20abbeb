"""From a problem, budgets and prices to a plan, before any data is touched.

planner.py      plan(): checks the question, asks a planner, completes the answer
joint.py        the default planner, on top of
  scoring.py      the predicted loss of many candidates
  spectral.py     the predicted loss of a run
  weighting.py    how much each device counts
  leaving.py      devices that leave before the end
  advice.py       when not to federate
bounds.py       the paper's planner, and one on the sound form of its bound
cautions.py     when an epsilon or a delta promises next to nothing
affordable.py   which tau and rounds every device can pay for
choices.py      what planners are asked and what they answer; noise and cost added
plans.py        the plan itself
frontier.py     what more budget would buy; mapping.py: over many budgets, coarsely
"""

from fedbudget.planning.frontier import Frontier, frontier
from fedbudget.planning.planner import PLANNERS, plan
from fedbudget.planning.plans import Plan

__all__ = ["PLANNERS", "Frontier", "Plan", "frontier", "plan"]
