"""The losses, and their constants, which do not depend on the data.

Every model here is linear in its parameters: scores are ``x @ theta``, and a loss is
a function of the score and the label. Together with rows in the unit ball (``|x| <=
1``) this determines the constants that privacy and planning need:

    loss          labels          lipschitz  smoothness  hessian trace  loss at zero
    logistic      0, 1            1          1/4         1/4            log 2
    softmax       0 .. C-1        sqrt(2)    1/2         1 - 1/C        log C
    hinge         0, 1            1          none        none           1
    smooth_hinge  0, 1            1          1/width     1/width        1 - width/2
    huber         real, |y| <= b  t          1           1              huber(b)

``lipschitz`` bounds the gradient of *one sample's* loss, and therefore the sensitivity.
The optional L2 term ``l2/2 |theta|^2`` does not depend on data and adds nothing to it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import number, one_of, whole
from fedbudget.errors import InvalidInputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats: TypeAlias = NDArray[np.floating[Any]]
Labels: TypeAlias = NDArray[Any]  # class indices 0 .. C-1, or real targets
Rows: TypeAlias = "Floats | csr_array"  # shape (n, dim), every row in the unit ball


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A convex loss of a linear score, with an optional L2 term."""

    l2: float = 0.0  # weight of the L2 term, per parameter squared

    def __post_init__(self) -> None:
        number("l2", self.l2, least=0)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the loss, as in `loss_named`."""

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """G: the largest norm of one sample's gradient, without the L2 term."""

    @property
    @abstractmethod
    def curvature(self) -> float:
        """Largest second derivative along one direction, without the L2 term.

        Infinite if the loss is not differentiable everywhere.
        """

    @property
    @abstractmethod
    def hessian_trace(self) -> float:
        """Bound on the trace of the data's Hessian; infinite for a kinked loss."""

    @property
    @abstractmethod
    def loss_at_zero(self) -> float:
        """The largest loss of a sample at theta = 0."""

    @property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of the Hessian, with the L2 term."""
        return self.curvature + self.l2

    @property
    def num_outputs(self) -> int:
        """Scores per row: one, or one per class."""
        return 1

    @abstractmethod
    def losses(self, scores: Floats, y: Labels) -> Floats:
        """Return the loss of each sample; shape (n,)."""

    @abstractmethod
    def slopes(self, scores: Floats, y: Labels) -> Floats:
        """Return d loss / d score; shape of `scores`."""

    @abstractmethod
    def predictions(self, scores: Floats) -> Labels:
        """Return the predicted class (or value) of each score."""

    def num_params(self, dim: int) -> int:
        """The length of theta for rows of `dim` columns."""
        return self.num_outputs * dim

    def scores(self, theta: Floats, x: Rows) -> Floats:
        """Return x @ theta: shape (n,), or (n, num_outputs) for several outputs."""
        if self.num_outputs == 1:
            return np.asarray(x @ theta)
        return np.asarray(x @ theta.reshape(self.num_outputs, -1).T)

    def value(self, theta: Floats, x: Rows, y: Labels) -> float:
        """Return the mean loss over the rows, plus the L2 term."""
        mean = float(np.mean(self.losses(self.scores(theta, x), y)))
        return mean + 0.5 * self.l2 * float(theta @ theta)

    def gradient(self, theta: Floats, x: Rows, y: Labels) -> Floats:
        """Return the gradient of `value`; shape of theta."""
        slopes = self.slopes(self.scores(theta, x), y)
        mean: Floats = np.asarray((x.T @ slopes).T).reshape(-1) / x.shape[0]
        return mean + self.l2 * theta

    def sample_gradients(self, theta: Floats, x: Floats, y: Labels) -> Floats:
        """Return one gradient per row, shape (n, num_params), without the L2 term."""
        slopes = self.slopes(self.scores(theta, x), y).reshape(len(x), -1)
        return np.asarray(np.einsum("nc,nd->ncd", slopes, x)).reshape(len(x), -1)


def _signs(y: Labels) -> Floats:
    """Map the classes 0 and 1 to -1 and +1."""
    return np.where(np.asarray(y) > 0, 1.0, -1.0)


@dataclass(frozen=True, kw_only=True)
class Logistic(Loss):
    """Binary logistic regression: log(1 + exp(-s y)) for y = -1, +1."""

    name = "logistic"
    lipschitz = 1.0
    curvature = 0.25
    hessian_trace = 0.25
    loss_at_zero = log(2)

    def losses(self, scores: Floats, y: Labels) -> Floats:
        """Return the loss of each sample."""
        margin = _signs(y) * scores
        # log(1 + exp(-m)) without overflow, and twice as fast as logaddexp.
        return np.maximum(-margin, 0) + np.log1p(np.exp(-np.abs(margin)))

    def slopes(self, scores: Floats, y: Labels) -> Floats:
        """Return d loss / d score."""
        sign = _signs(y)
        # 1 / (1 + exp(m)), written with tanh so that no margin m overflows.
        return np.asarray(-sign * 0.5 * (1 - np.tanh(0.5 * sign * scores)))

    def predictions(self, scores: Floats) -> Labels:
        """Return class 1 for a positive score, else class 0."""
        return (scores > 0).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Softmax(Loss):
    """Softmax cross-entropy over any number of classes."""

    num_classes: int = 2

    name = "softmax"
    lipschitz = sqrt(2)  # the supremum of |p - e_y|
    curvature = 0.5  # largest eigenvalue of diag(p) - p p^T over all p

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("num_classes", self.num_classes, least=2)

    @property
    def hessian_trace(self) -> float:
        """Sum of p (1 - p) over the classes, largest at the uniform p."""
        return 1 - 1 / self.num_classes

    @property
    def loss_at_zero(self) -> float:
        """Every class has probability 1/C."""
        return log(self.num_classes)

    @property
    def num_outputs(self) -> int:
        """One score per class."""
        return self.num_classes

    def losses(self, scores: Floats, y: Labels) -> Floats:
        """Return the loss of each sample."""
        top = scores.max(axis=1)
        log_sum = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
        return np.asarray(log_sum - scores[np.arange(len(scores)), y])

    def slopes(self, scores: Floats, y: Labels) -> Floats:
        """Return d loss / d score."""
        slopes: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes[np.arange(len(scores)), y] -= 1
        return slopes

    def predictions(self, scores: Floats) -> Labels:
        """Return the class with the largest score."""
        return np.asarray(np.argmax(scores, axis=1))


@dataclass(frozen=True, kw_only=True)
class Hinge(Loss):
    """Linear support vector machine: max(0, 1 - s y) for y = -1, +1."""

    name = "hinge"
    lipschitz = 1.0
    curvature = inf  # the kink at margin 1
    hessian_trace = inf
    loss_at_zero = 1.0

    def losses(self, scores: Floats, y: Labels) -> Floats:
        """Return the loss of each sample."""
        return np.maximum(0, 1 - _signs(y) * scores)

    def slopes(self, scores: Floats, y: Labels) -> Floats:
        """Return a subgradient; at the kink itself, zero."""
        sign = _signs(y)
        return np.where(sign * scores < 1, -sign, 0.0)

    def predictions(self, scores: Floats) -> Labels:
        """Return class 1 for a positive score, else class 0."""
        return (scores > 0).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class SmoothHinge(Loss):
    """Hinge with its kink rounded: a parabola for margins from 1 - width to 1.

    For width 1 it is the smooth hinge of Rennie and Srebro (2005): the widest for which
    every misclassified row has the full slope, as in hinge. A narrower one is closer
    to hinge, but its curvature 1 / width allows smaller steps only.
    """

    width: float = 1.0

    name = "smooth_hinge"
    lipschitz = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number("width", self.width, above=0, most=1)

    @property
    def curvature(self) -> float:
        """The slope falls from 1 to 0 over the width."""
        return 1 / self.width

    @property
    def hessian_trace(self) -> float:
        """One direction per row, that of the row."""
        return self.curvature

    @property
    def loss_at_zero(self) -> float:
        """Margin 0 is on the straight part."""
        return 1 - self.width / 2

    def losses(self, scores: Floats, y: Labels) -> Floats:
        """Return the loss of each sample."""
        shortfall = np.maximum(0, 1 - _signs(y) * scores)
        inside = np.minimum(shortfall, self.width)
        return np.asarray(inside * (shortfall - 0.5 * inside) / self.width)

    def slopes(self, scores: Floats, y: Labels) -> Floats:
        """Return d loss / d score."""
        sign = _signs(y)
        return np.asarray(-sign * np.clip((1 - sign * scores) / self.width, 0, 1))

    def predictions(self, scores: Floats) -> Labels:
        """Return class 1 for a positive score, else class 0."""
        return (scores > 0).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Huber(Loss):
    """Regression: r^2/2 up to |r| = threshold, then linear, for r = score - y."""

    threshold: float = 1.0
    label_bound: float = 1.0  # public bound on |y|

    name = "huber"
    curvature = 1.0
    hessian_trace = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threshold", "label_bound"):
            number(name, getattr(self, name), above=0)

    @property
    def lipschitz(self) -> float:
        """The slope is clipped at the threshold."""
        return self.threshold

    @property
    def loss_at_zero(self) -> float:
        """The loss of the largest label."""
        return float(self.losses(np.zeros(1), np.array([self.label_bound]))[0])

    def losses(self, scores: Floats, y: Labels) -> Floats:
        """Return the loss of each sample."""
        residual = np.abs(scores - y)
        inside = np.minimum(residual, self.threshold)
        return np.asarray(inside * (residual - 0.5 * inside))

    def slopes(self, scores: Floats, y: Labels) -> Floats:
        """Return d loss / d score."""
        return np.clip(scores - y, -self.threshold, self.threshold)

    def predictions(self, scores: Floats) -> Labels:
        """Return the score itself."""
        return scores


LOSSES: dict[str, type[Loss]] = {
    str(cls.name): cls for cls in (Logistic, Softmax, Hinge, SmoothHinge, Huber)
}
MARGIN_LOSSES = ("hinge", "smooth_hinge")  # their scores are not log-odds


def loss_named(name: str, *, num_classes: int | None = None, l2: float = 0.0) -> Loss:
    """Return the loss called `name`.

    >>> loss_named("softmax", num_classes=10).lipschitz
    1.4142135623730951
    """
    one_of("loss", name, sorted(LOSSES))
    if name == "softmax":
        return Softmax(num_classes=2 if num_classes is None else num_classes, l2=l2)
    if num_classes not in (None, 2) and name in ("logistic", *MARGIN_LOSSES):
        raise InvalidInputError(
            f"loss {name!r} is for 2 classes, got {num_classes}: use 'softmax'",
            argument="loss",
        )
    return LOSSES[name](l2=l2)
