"""From a problem, budgets and prices to a plan, before any data is touched.

planner.py    plan(): checks the question, asks a planner, completes the answer
joint.py      the default planner, on top of
  spectral.py   the predicted loss of many candidates
  weights.py    how much each device counts, and when devices leave
  advice.py     when not to federate
bounds.py     the paper's planner, and one on the sound form of its bound
settings.py   what planners are asked and what they answer; which tau and rounds every
              device can pay for; noise and cost added
plans.py      the plan itself
frontier.py   what more budget would buy, and a coarse map over many budgets
"""

from fedbudget.planning.frontier import Frontier, frontier
from fedbudget.planning.planner import PLANNERS, plan
from fedbudget.planning.plans import Plan

__all__ = ["PLANNERS", "Frontier", "Plan", "frontier", "plan"]
