"""How far drift control may take an honest device: a limit for its answers.

A device computes its shift itself (`drift`), and the coordinator keeps no copy. But in

    tau * shift_(k+1) = tau * shift_k + average_k - reply_k

what the last shift has moved cancels against the reply, which holds it: what is left is
how far the average moved, and the device's own noisy gradients. Only the L2 term pulls
at where the last shift led, and gives a part of that back. So the shifts do not add up,
and a limit follows from the orders and averages of the rounds that are over.
"""

import numpy as np

from fedbudget.checks import Array
from fedbudget.fleet.coordinator.answers import farthest, theta_of
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.planning import Plan


class Reach:
    """Follows the closed rounds of a run; a new one finds all of them in the file."""

    def __init__(self, plan: Plan, checkpoints: Checkpoints, precision: str) -> None:
        self._plan, self._checkpoints, self._precision = plan, checkpoints, precision
        self._num_params = plan.model.num_params(plan.dim)
        self._rounds = 0  # that are taken into account
        self._reach = np.zeros(plan.num_devices)

    def before(self, round: int) -> Array:
        """Return how far all shifts of a round lead at most; shape (M,).

        Who missed rounds has an older shift: the largest limit so far holds for all.
        """
        while self._plan.drift_control and self._rounds < round - 1:
            self._rounds += 1
            order = self._checkpoints.order(self._rounds)
            average = self._checkpoints.closed_round(self._rounds)
            if order is not None and average is not None:
                theta = theta_of(order, self._precision, self._num_params)
                found = next_reach(self._plan, theta, average, self._reach)
                self._reach = np.maximum(self._reach, found)
        return self._reach


def next_reach(plan: Plan, theta: Array, average: Array, reach: Array) -> Array:
    """Return how far the shifts after a round lead at most, from those in it."""
    own = np.array([farthest(plan, m, theta) for m in range(plan.num_devices)])
    # What a step has moved, the L2 term of the steps after it takes back in part: most
    # of the first step's, this much.
    shrunk = 1 - min(1.0, plan.learning_rate * plan.l2)
    pull = 1 - shrunk ** (plan.tau - 1)
    moved = float(np.linalg.norm(average - theta))
    return np.asarray(moved + own + pull * (own + reach))
