"""Drift control on a real device: its own course, from round to round.

`algorithm.next_shift` says what a device adds to each step of its next round. It
needs the average of the last round, and no message carries one: an order's model is the
average, moved on by the server's momentum,

    theta_(k+1) = average_k + momentum (theta_k - theta_(k-1)),

so that a device which has the orders of three rounds in a row (two, in the first round
and without momentum) knows the average of the middle one.

A device that missed a round goes on with the shift that it had, and takes its next one
as soon as it knows an average again. (A simulated device does not miss averages: it
takes its shift when it has answered, and keeps that while it is away.) One that joins
late, or whose course was lost, begins with zero, which is no drift control at all.

Privacy is unaffected. A shift is computed from orders and from the device's *released*
answer: the bytes that are sent, after noise and rounding, never from rows, gradients or
anything else that stays on the device. So it is post-processing of what was paid for,
and everybody who saw the messages can compute it. It is added to the model, not to the
gradient: what a step reveals of a row, and the noise that hides it, are what they were
(`exact_steps.noisy_steps` promises its noise for any model whatsoever).
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
class Course:
    """What a device keeps of a round that it has answered; arrays of one length."""

    round: int
    shift: Array  # was added to the model in each step
    start: Array  # the order's model
    velocity: Array | None  # what start is ahead of the order before; none: not known

    def to_bytes(self) -> bytes:
        """Return the arrays, for the ledger's file."""
        known = [self.shift, self.start]
        known += [] if self.velocity is None else [self.velocity]
        return np.stack(known).astype(_NUMBERS).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, *, round: int, num_params: int) -> "Course | None":
        """Return what was stored; none if it cannot be that."""
        if len(data) not in (k * num_params * _NUMBERS.itemsize for k in (2, 3)):
            return None
        arrays = np.frombuffer(data, dtype=_NUMBERS).reshape(-1, num_params)
        if not np.isfinite(arrays).all():
            return None
        velocity = arrays[2] if len(arrays) == 3 else None
        return cls(round=round, shift=arrays[0], start=arrays[1], velocity=velocity)


class Answered(NamedTuple):
    """The last round that a device has answered."""

    course: Course
    theta: Array  # as it was released

    @classmethod
    def read(cls, stored: StoredAnswer, offer: RunOffer) -> "Answered | None":
        """Return what was stored; none if it cannot be that."""
        try:
            sent = Reply.from_bytes(stored.reply).theta or b""
            theta = theta_from_bytes(sent, offer.precision, offer.num_params)
        except MessageError:
            return None
        course = Course.from_bytes(
            stored.course or b"", round=stored.round, num_params=offer.num_params
        )
        return None if course is None else cls(course, theta)


def steer(
    last: Answered | None,
    theta: Array,  # of the order for `round`
    *,
    round: int,
    tau: int,
    momentum: float,
) -> Course:
    """Return the course of a round, from what was released before it."""
    if last is None:
        zero = np.zeros_like(theta)
        # The server stands still before the first round.
        velocity = zero if round == 1 else None
        return Course(round=round, shift=zero, start=theta, velocity=velocity)
    course = last.course
    if course.round != round - 1:
        return Course(round=round, shift=course.shift, start=theta, velocity=None)
    average = None  # not known
    if momentum == 0:
        average = theta
    elif course.velocity is not None:
        average = theta - momentum * course.velocity
    shift = course.shift
    if average is not None:
        shift = np.asarray(next_shift(shift, last.theta, average, tau=tau), np.float64)
    return Course(round=round, shift=shift, start=theta, velocity=theta - course.start)
