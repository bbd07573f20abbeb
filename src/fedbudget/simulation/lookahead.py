"""Rounds that are simulated before the loop orders them.

The loop orders one round at a time, but what it will order next is known: the server's
update is a fixed rule (`algorithm.Server.update`), and the kernels apply it with the
same rounding. So one call of the kernels simulates several rounds, on threads that
live as long, and one more measures their models side by side. A result is used only if
the loop's order is, to the last bit, the one that it was computed for: otherwise it is
thrown away and computed again from the order. Nothing is charged, released or recorded
before its order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.data import Dataset
from fedbudget.losses import Loss
from fedbudget.simulation.kernels.layouts import PackedRows
from fedbudget.simulation.kernels.runs import (
    RoundPlan,
    Simulated,
    rounds_within,
    simulate,
)
from fedbudget.simulation.measuring import measure_all
from fedbudget.training import Order

_SECONDS = 0.05  # of the kernels, at a time: a run can be watched, and stopped


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """All that rounds depend on, besides the server's model and the devices' shifts."""

    rows: PackedRows
    plan: RoundPlan
    seed: int

    def same_as(self, other: "Setting") -> bool:
        """Return whether both give the same rounds."""
        if self is other:
            return True
        plan, others = vars(self.plan), vars(other.plan)
        return (
            self.rows.rows is other.rows.rows
            and self.rows.loss == other.rows.loss
            and self.seed == other.seed
            and all(np.array_equal(plan[name], others[name]) for name in plan)
        )


class Lookahead:
    """Simulates rounds ahead of the orders for one data set."""

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self._setting: Setting | None = None
        self._rounds: Simulated | None = None
        self._first_step = 0  # of the first of the rounds
        self._first_round = 0  # rounds of the run before the first of them
        self._used = 0  # rounds that were ordered
        self._most = 1 << 30  # rounds to simulate at a time
        self._measured: dict[int, dict[str, float]] = {}  # by number of used rounds
        self._stride = 1  # between measured rounds

    def average(
        self, setting: Setting, order: Order, *, most: int
    ) -> tuple[Array, NDArray[np.float32] | None]:
        """Return the average of an order, and the devices' next shifts.

        Args:
            setting: The devices that answer, their rows and their seed.
            order: The order of the loop.
            most: Rounds, from this one on, that the same devices answer.
        """
        if not self._foreseen(setting, order):
            self._simulate(setting, order, most)
        assert self._rounds is not None
        self._used += 1
        average = self._rounds.averages[self._used - 1]
        if not setting.plan.drift_correction:
            return average, order.state.get("shifts")
        return average, self._rounds.shifts[self._used - 1]

    def measure(self, loss: Loss, theta: Array) -> dict[str, float]:
        """Return the measurements of a model; the next models are measured with it."""
        rounds = self._rounds
        if rounds is None or not self._is_last(loss, theta):
            measured = measure_all(self._data, loss, theta[None])
            return {name: float(values[0]) for name, values in measured.items()}
        if self._used not in self._measured:
            if self._measured:
                self._stride = max(1, self._used - max(self._measured))
            numbers = range(self._used, len(rounds.models) + 1, self._stride)
            models = rounds.models[self._used - 1 :: self._stride]
            measured = measure_all(self._data, loss, models)
            for i, number in enumerate(numbers):
                self._measured[number] = {k: float(v[i]) for k, v in measured.items()}
        return dict(self._measured[self._used])

    def _is_last(self, loss: Loss, theta: Array) -> bool:
        """Return whether this is the server's model after the last ordered round."""
        if self._rounds is None or self._setting is None:
            return False
        last = self._rounds.models[self._used - 1]
        return self._setting.rows.loss == loss and np.array_equal(last, theta)

    def _foreseen(self, setting: Setting, order: Order) -> bool:
        """Return whether the next simulated round is the one that is ordered."""
        rounds = self._rounds
        if rounds is None or self._setting is None:
            return False
        if self._used == len(rounds.models):
            self._most = min(2 * self._most, 1 << 30)
            return False
        last = self._used - 1
        step = self._first_step + self._used * setting.plan.tau
        same = step == order.first_step
        same = same and self._first_round + self._used == order.number - 1
        same = same and np.array_equal(rounds.models[last], order.theta)
        if same and setting.plan.drift_correction:
            shifts = order.state.get("shifts", np.empty(0))
            same = np.array_equal(rounds.shifts[last], shifts)
        if same and self._setting.same_as(setting):
            return True
        self._most = 1  # what was simulated ahead is of no use: be careful
        return False

    def _simulate(self, setting: Setting, order: Order, most: int) -> None:
        shifts = order.state.get("shifts") if setting.plan.drift_correction else None
        within = rounds_within(_SECONDS, setting.rows, setting.plan)
        count = min(most, self._most, within)
        if order.velocity is None and setting.plan.momentum:
            count = 1  # the server's next model is not known
        self._rounds = simulate(
            setting.rows,
            order.theta,
            setting.plan,
            rounds=max(1, count),
            seed=setting.seed,
            first_step=order.first_step,
            first_round=order.number - 1,
            velocity=order.velocity,
            shifts=shifts,
        )
        self._setting, self._first_step = setting, order.first_step
        self._first_round = order.number - 1
        self._used, self._measured = 0, {}
