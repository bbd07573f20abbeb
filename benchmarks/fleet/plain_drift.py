"""Drift control by its definition, from messages alone: a witness of the guard's own.

`hostile_orders.py` compares the two.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbudget.fleet.wire.messages import RoundOrder, RunOffer, theta_from_bytes


@dataclass
class PlainDrift:
    """All orders and answers of a run, and the shifts that follow from them."""

    offer: RunOffer
    models: dict[int, Any] = field(default_factory=dict)  # of orders that were answered
    shift: Any = 0.0
    last: int = 0  # round that was answered
    answer: Any = None  # to it

    def shift_for(self, order: RoundOrder) -> Any:
        """Return what the guard must add in every step of this round."""
        momentum, number = self.offer.drift_momentum, order.round
        self.models[number] = self._read(order.theta)
        if momentum is None or self.last != number - 1 or self.last == 0:
            return self.shift
        average = self.models[number]
        if momentum > 0:
            # The server stood still before the first round.
            before = self.models[1] if self.last == 1 else self.models.get(number - 2)
            if before is None:
                return self.shift
            average = average - momentum * (self.models[self.last] - before)
        return self.shift + (average - self.answer) / self.offer.tau

    def answered(self, order: RoundOrder, theta: bytes) -> None:
        """Take in a fresh answer."""
        self.shift = self.shift_for(order)
        self.last, self.answer = order.round, self._read(theta)

    def _read(self, theta: bytes) -> Any:
        offer = self.offer
        return np.asarray(theta_from_bytes(theta, offer.precision, offer.num_params))
