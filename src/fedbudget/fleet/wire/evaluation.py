"""The order to measure a model on held-out rows; the answer is a `Reply`.

An evaluation travels as orders do, under an identity of its own. The reply to its only
round has noisy numbers in place of a model, in float64.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

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
    whole_field,
)

CORRECT, PER_CLASS, SQUARED_ERROR = MEASURES = ("correct", "per-class", "squared-error")
MOST_NOISE = 1e6  # standard deviation of a count; more would tell nothing


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
    }

    @property
    def num_params(self) -> int:
        """The length of the model."""
        return self.dim * (self.num_classes if self.loss == "softmax" else 1)


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
