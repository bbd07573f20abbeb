"""Drift correction on a real device: its state from round to round.

`algorithm.next_shift` computes the constant (the shift) that a device adds to each step
of its next round: it corrects the local steps by the device's last deviation from the
average. It needs the average of the last round, which no message contains: the model of
an order is the average plus the server's momentum,

    theta_(k+1) = average_k + momentum (theta_k - theta_(k-1)).

So a device that has received the orders of three consecutive rounds (two, in the first
round or without momentum) can compute the average of the second one.

A device that missed a round continues with its last shift, and computes the next one as
soon as an average is available again. (A simulated device does not miss averages: it
computes its shift after each answer, and uses it when it returns.) A device that joins
late, or whose state was lost, starts with a shift of zero: no correction.

Privacy is unaffected. A shift is computed from orders and from the device's *released*
answer: the bytes that are sent, after noise and rounding; never from rows, gradients or
other private values. So it is post-processing of a release that is already charged, and
everyone who saw the messages can compute it. It is added to the model, not to the
gradient: the sensitivity of a step and its noise do not change
(`exact_steps.noisy_steps` guarantees its noise for any model).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedbudget.algorithm import next_shift
from fedbudget.checks import Array
from fedbudget.errors import MessageError
from fedbudget.fleet.device.ledger_file import StoredAnswer
from fedbudget.fleet.wire.messages import Reply, RunOffer, theta_from_bytes

_NUMBERS = np.dtype("<f8")


@dataclass(frozen=True, kw_only=True, eq=False)
class DriftState:
    """The state of drift correction in one round; arrays of equal length."""

    round: int
    shift: Array  # added to the model in each step
    start: Array  # the order's model
    velocity: Array | None  # start minus the previous order's model; None: unknown

    def to_bytes(self) -> bytes:
        """Return the arrays as bytes, for the ledger's file."""
        arrays = [self.shift, self.start]
        arrays += [] if self.velocity is None else [self.velocity]
        return np.stack(arrays).astype(_NUMBERS).tobytes()

    @classmethod
    def from_bytes(
        cls, data: bytes, *, round: int, num_params: int
    ) -> "DriftState | None":
        """Return the stored state; none if the bytes are invalid."""
        if len(data) not in (k * num_params * _NUMBERS.itemsize for k in (2, 3)):
            return None
        arrays = np.frombuffer(data, dtype=_NUMBERS).reshape(-1, num_params)
        if not np.isfinite(arrays).all():
            return None
        velocity = arrays[2] if len(arrays) == 3 else None
        return cls(round=round, shift=arrays[0], start=arrays[1], velocity=velocity)


class LastAnswer(NamedTuple):
    """The last answered round of a device."""

    state: DriftState
    theta: Array  # as released

    @classmethod
    def read(cls, stored: StoredAnswer, offer: RunOffer) -> "LastAnswer | None":
        """Return the stored state; none if the bytes are invalid."""
        try:
            released = Reply.from_bytes(stored.reply).theta or b""
            theta = theta_from_bytes(released, offer.precision, offer.num_params)
        except MessageError:
            return None
        state = DriftState.from_bytes(
            stored.drift_state or b"", round=stored.round, num_params=offer.num_params
        )
        return None if state is None else cls(state, theta)


def next_state(
    last: LastAnswer | None,
    theta: Array,  # of the order for `round`
    *,
    round: int,
    tau: int,
    momentum: float,
) -> DriftState:
    """Return the state of a round, from the messages before it."""
    if last is None:
        zero = np.zeros_like(theta)
        # The server has no momentum before the first round.
        velocity = zero if round == 1 else None
        return DriftState(round=round, shift=zero, start=theta, velocity=velocity)
    state = last.state
    if state.round != round - 1:
        return DriftState(round=round, shift=state.shift, start=theta, velocity=None)
    average = None  # unknown
    if momentum == 0:
        average = theta
    elif state.velocity is not None:
        average = theta - momentum * state.velocity
    shift = state.shift
    if average is not None:
        shift = np.asarray(next_shift(shift, last.theta, average, tau=tau), np.float64)
    return DriftState(
        round=round, shift=shift, start=theta, velocity=theta - state.start
    )
