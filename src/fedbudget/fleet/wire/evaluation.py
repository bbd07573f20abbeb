"""The order to measure a model on held-out rows; the answer is a `Reply`.

An evaluation travels as orders do, under an identity of its own. The reply to its only
round has noisy numbers in place of a model, in float64. With `sum_terms` there is no
such reply: the numbers are the vector of a secure sum, a run of one round with peers,
keys and masks of its own (`secure_messages`).
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedbudget.fleet.secure.masks import LEAST_RING_BITS, MOST_RING_BITS
from fedbudget.fleet.wire.codec import MAX_BYTES
from fedbudget.fleet.wire.messages import (
    _LOSS,
    _RUN,
    PRECISIONS,
    Check,
    Message,
    Precision,
    bytes_field,
    number_field,
    one_of_field,
    optional,
    whole_field,
)

CORRECT, PER_CLASS, SQUARED_ERROR = MEASURES = ("correct", "per-class", "squared-error")
MOST_NOISE = 1e6  # standard deviation of a count; more would tell nothing
_PURPOSE = b"fedbudget evaluation sum 1"


@dataclass(frozen=True, kw_only=True)
class EvaluationSum(Message):
    """What the sum of an evaluation promises, and its grid; part of an order."""

    least_answers: int  # t
    colluders: int  # c
    row_steps: int  # grid steps of one row
    scale_bits: int  # a share's std is 2^scale_bits grid steps
    ring_bits: int

    kind: ClassVar[str] = "evaluation-sum"
    checks: ClassVar[Mapping[str, Check]] = {
        "least_answers": whole_field(most=1 << 20),
        "colluders": whole_field(least=0, most=1 << 20),
        "row_steps": whole_field(most=1 << 30),
        "scale_bits": whole_field(most=62),
        "ring_bits": whole_field(least=LEAST_RING_BITS, most=MOST_RING_BITS),
    }

    @property
    def share_std(self) -> float:
        """The noise of one device, in rows."""
        return 2.0**self.scale_bits / self.row_steps

    @property
    def noise_std(self) -> float:
        """The noise of the honest devices in a sum of t answers, in rows."""
        return self.share_std * math.sqrt(max(0, self.least_answers - self.colluders))


@dataclass(frozen=True, kw_only=True)
class EvaluationOrder(Message):
    """Measure a model, once; signed."""

    evaluation: bytes  # random: its permanent identity
    run: bytes  # whose model it is, for the owner's records
    measure: str  # one of MEASURES
    noise_std: float  # of each number; see `device.evaluation`
    loss: str
    num_classes: int
    dim: int
    precision: Precision
    theta: bytes  # the model
    sum_terms: bytes | None = None  # an EvaluationSum; None: each answer is seen

    rounds: ClassVar[int] = 1
    kind: ClassVar[str] = "evaluate"
    checks: ClassVar[Mapping[str, Check]] = {
        "evaluation": _RUN,
        "run": _RUN,
        "measure": one_of_field(*MEASURES),
        "noise_std": number_field(least=1e-3, most=MOST_NOISE),
        "loss": _LOSS,
        "num_classes": whole_field(most=1 << 16),
        "dim": whole_field(most=1 << 26),
        "precision": one_of_field(*PRECISIONS),
        "theta": bytes_field(least=4, most=MAX_BYTES),
        "sum_terms": optional(bytes_field(least=1, most=256)),
    }

    @property
    def num_params(self) -> int:
        """The length of the model."""
        return self.dim * (self.num_classes if self.loss == "softmax" else 1)


def sum_purpose(body: bytes) -> bytes:
    """Return what the peers of an evaluation have in common: the bytes of its order.

    It is in the digest of the list of peers, and so in every key, share and mask: those
    of a training run, or of another order, do not fit. (The terms of a run are CBOR,
    which never starts like this.)
    """
    return _PURPOSE + hashlib.sha256(body).digest()


def num_values(measure: str, num_classes: int) -> int:
    """Return how many numbers an answer has; `num_classes` as in a plan.

    >>> num_values("per-class", 1), num_values("correct", 6)
    (4, 1)
    """
    return 2 * max(2, num_classes) if measure == PER_CLASS else 1


def sensitivity(measure: str) -> float:
    """Return how far replacing one row moves the numbers, at most (Euclidean).

    One row is in one cell of (class, correct or wrong): replaced, it leaves one and
    enters another. A count of correct rows, and a sum of errors in [0, 1], move by 1.
    """
    return 2.0**0.5 if measure == PER_CLASS else 1.0
