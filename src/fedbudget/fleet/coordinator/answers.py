"""What a device's reply is worth: replies are untrusted.

A reply must be from the device whose topic it came over, for this run and an open
round, finite and of the right size, and not farther from the order's model than honest
steps and noise can lead. Whatever is not is dropped by name, and the model unharmed.
A hostile device can still pull the average within that limit, by its weight.
"""

from dataclasses import dataclass

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import MessageError
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import (
    ACCEPTED,
    ANSWERED,
    Reply,
    RoundOrder,
    theta_from_bytes,
)
from fedbudget.planning import Plan

# A normal vector of length d is longer than sqrt(d) + 6 once in 65 million times.
_TAIL = 6.0
_ROUNDING = 1 + 1e-3  # of the noise to a grid, and of models to single precision

# A device that says this may answer the same order later.
_PASSING = "device-trouble"
# It had refused the run, and then joined: what came of this round is not known.
JOINED_LATE = "joined-late"
# A device of which this is known may have been charged: its answer was lost, its model
# grew beyond all bounds, its disk was full after the charge, or it is further than us.
MAY_BE_CHARGED = (
    "already-charged",
    "bad-model",
    "device-trouble",
    "wrong-round",
    JOINED_LATE,
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The open round that replies are read against."""

    run: bytes
    round: int
    theta: Array  # that devices start from
    plan: Plan
    precision: str
    reach: Array  # how far drift control may take each device: see `reach`


def farthest(plan: Plan, index: int, theta: Array) -> float:
    """Return how far from `theta` an honest answer of a device can be, by its steps.

    Each of tau steps moves by at most eta (G + l2 |theta|) and its noise; the L2 term
    only pulls back. The noises of all steps add up to one normal vector.
    """
    eta, tau, dim = plan.learning_rate, plan.tau, len(theta)
    pull = plan.lipschitz + plan.l2 * float(np.linalg.norm(theta))
    noise = float(plan.noise_std[index]) * np.sqrt(tau) * (np.sqrt(dim) + _TAIL)
    return float(eta * (tau * pull + noise)) * _ROUNDING


def read_reply(payload: bytes, *, device: str, run: bytes) -> Reply | None:
    """Return a device's reply to this run; none if it is to another.

    Raises:
        MessageError: It is damaged, or in the name of another device.
    """
    reply = Reply.from_bytes(payload)
    if reply.device != device:
        raise MessageError(f"speaks as {reply.device!r}, over the topic of {device!r}")
    if reply.run != run:
        return None
    wrong = ANSWERED if reply.round == 0 else ACCEPTED
    if reply.code == wrong:
        raise MessageError(f"code {reply.code!r} does not go with round {reply.round}")
    return reply


def read_answer(reply: Reply, asked: Asked, index: int) -> Array:
    """Return the model in a reply to the open round.

    Raises:
        MessageError: It cannot have come from honest steps.
    """
    assert reply.theta is not None  # the message's own check
    theta = theta_from_bytes(reply.theta, asked.precision, len(asked.theta))
    moved = float(np.linalg.norm(theta - asked.theta))
    limit = farthest(asked.plan, index, asked.theta) + float(asked.reach[index])
    # Single precision rounds a large model by more than a small step moves it.
    slack = 1e-6 * float(np.linalg.norm(asked.theta))
    if not moved <= limit + slack:
        raise MessageError(
            f"its model is {moved:.4g} away from the order's, and honest steps lead "
            f"at most {limit:.4g}"
        )
    return theta


def is_final(reply_code: str) -> bool:
    """Return whether a device that refused so will refuse this round again."""
    return reply_code != _PASSING


def theta_of(payload: bytes, precision: str, num_params: int) -> Array:
    """Return the model in an order of ours, as devices will read it."""
    body, _ = decode(payload)
    return theta_from_bytes(RoundOrder.from_bytes(body).theta, precision, num_params)
