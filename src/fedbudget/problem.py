"""The learning problem that a plan is for: sizes and constants, each with its source.

Planning must not read private rows. So every constant states its source:

    analytic             follows from the loss and from rows in the unit ball
    assumed              a guess; replace it if you know a better value
    public sample        measured on rows that are not private
    measured privately   measured on private rows, with noise: its privacy cost is
                         charged to every device before the run is planned
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.checks import Array, PerDevice, one_of, per_device, whole, within
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Floats, Labels, Loss, Rows, loss_named

SOURCES = ("analytic", "assumed", "public sample", "measured privately")

# Share of the initial gap by which a device's local optimum differs from the global.
DISSIMILARITY: Mapping[str, float] = MappingProxyType(
    {"iid": 0.1, "mild": 0.2, "strong": 0.35}
)
USUAL_DISSIMILARITY = "mild"  # the default

# Hinge has no Hessian. Smoothed over a margin of width 1, its curvature is 1, which
# limits the step size. A run is not smoothed: the trace, from which the effect of noise
# and the progress are predicted, was fitted to the synthetic Vehicle data.
_HINGE_CURVATURE, _HINGE_TRACE = 1.0, 2.0

# A larger theta does not fit into the memory of a device or of this planner.
_MOST_PARAMS = 10**9

Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Constant:
    """A number that the planner uses, with its source."""

    value: float
    source: str
    note: str = ""
    mu: PerDevice = 0.0  # privacy cost of measuring it, per device, as Gaussian DP
    release: str = ""  # name of the measurement: ledgers count each name once

    def __post_init__(self) -> None:
        one_of("source", self.source, SOURCES)
        value = np.asarray(within("value", self.value))
        if value.ndim > 0:
            raise InvalidInputError(f"value must be one number, got {self.value}")
        object.__setattr__(self, "value", float(value))
        object.__setattr__(self, "mu", within("mu", self.mu, least=0))
        costs = np.asarray(self.mu) > 0
        if not np.all(costs == (self.source == "measured privately")):
            raise InvalidInputError(
                f"source {self.source!r} with mu={self.mu}: a constant measured on "
                "private rows costs every device a positive mu, any other costs none"
            )
        if bool(self.release) != (self.source == "measured privately"):
            raise InvalidInputError(
                f"source {self.source!r} with release={self.release!r}: a constant "
                "measured on private rows needs a name that no other measurement has, "
                "any other constant has none"
            )

    def __str__(self) -> str:
        note = f": {self.note}" if self.note else ""
        return f"{self.value:g} ({self.source}{note})"


@dataclass(frozen=True, init=False, eq=False)
class Problem:
    """Devices, number of rows and a loss: the input of a plan, without data.

    >>> problem = Problem(num_samples=[1628] * 16, dim=102, loss="logistic")
    >>> print(problem.constants["smoothness"])
    0.25 (analytic: rows in the unit ball)
    """

    num_samples: Counts  # N_m: training rows of each device
    dim: int  # columns of a row
    model: Loss
    dissimilarity: str | float  # iid, mild, strong, or a share of the gap
    overrides: Mapping[str, Constant]
    spent_mu: Array  # privacy cost of constants that were replaced, per device
    spent_on: frozenset[str]  # the names of those measurements

    def __init__(
        self,
        *,
        num_samples: ArrayLike,
        dim: int,
        loss: str | Loss = "logistic",
        num_classes: int | None = None,
        l2: float = 0.0,
        dissimilarity: str | float = USUAL_DISSIMILARITY,
        overrides: Mapping[str, Constant] | None = None,
        spent_mu: ArrayLike = 0.0,
        spent_on: Iterable[str] = (),
    ) -> None:
        counts = _counts(num_samples)
        spent = per_device(
            "spent_mu", within("spent_mu", spent_mu, least=0), len(counts)
        )
        values = {
            "num_samples": counts,
            "dim": whole("dim", dim, most=_MOST_PARAMS),
            "model": _loss(loss, num_classes, l2),
            "dissimilarity": _dissimilarity(dissimilarity),
            "overrides": MappingProxyType(dict(overrides or {})),
            "spent_mu": spent,
            "spent_on": frozenset(spent_on),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        allowed = set(self._defaults()) - {"lipschitz"}
        for name, constant in self.overrides.items():
            if name not in allowed:
                raise InvalidInputError(
                    f"constant {name!r} cannot be given: choose one of "
                    f"{', '.join(sorted(allowed))} (privacy rests on lipschitz, which "
                    "follows from the loss)"
                )
            if name in ("gradient_variance", "spectrum_decay", "dissimilarity"):
                within(name, constant.value, least=0, most=1e3)
            else:
                within(name, constant.value, above=0, most=1e12)
        if self["strong_convexity"] > self["smoothness"]:
            raise InvalidInputError(
                f"strong_convexity {self['strong_convexity']:g} is above smoothness "
                f"{self['smoothness']:g}: no function has that; lower it"
            )

    @property
    def num_devices(self) -> int:
        """M."""
        return len(self.num_samples)

    @property
    def num_params(self) -> int:
        """d: the length of theta; noise is added to every entry."""
        return self.model.num_params(self.dim)

    @cached_property
    def constants(self) -> Mapping[str, Constant]:
        """Every constant with its source."""
        return MappingProxyType(self._defaults() | dict(self.overrides))

    @property
    def prior_mu(self) -> Array:
        """Privacy cost of all constants measured on private rows, per device."""
        spent = self.spent_mu**2
        for name, constant in self.overrides.items():
            mu = per_device(f"mu of {name}", constant.mu, self.num_devices)
            spent = spent + mu**2
        return np.sqrt(spent)

    @property
    def prior_releases(self) -> frozenset[str]:
        """Names of the measurements on private rows that `prior_mu` includes."""
        own = {constant.release for constant in self.overrides.values()}
        return self.spent_on | (own - {""})

    def __getitem__(self, name: str) -> float:
        """Return the value of a constant."""
        return self.constants[name].value

    def with_constants(self, **constants: Constant) -> "Problem":
        """Return the problem with these constants replaced.

        The privacy cost of a replaced constant stays spent.

        >>> problem = Problem(num_samples=[100], dim=5)
        >>> better = problem.with_constants(
        ...     smoothness=Constant(value=0.1, source="assumed"))
        >>> better["smoothness"]
        0.1
        """
        spent = self.spent_mu**2
        for name, old in self.overrides.items():
            if name in constants and constants[name] is not old:
                mu = per_device(f"mu of {name}", old.mu, self.num_devices)
                spent = spent + mu**2
        return Problem(
            num_samples=self.num_samples,
            dim=self.dim,
            loss=self.model,
            dissimilarity=self.dissimilarity,
            overrides={**self.overrides, **constants},
            spent_mu=np.sqrt(spent),
            spent_on=self.prior_releases,
        )

    def with_public_sample(self, x: Rows, y: Labels) -> "Problem":
        """Return the problem with constants measured on rows that are not private."""
        rows = x if isinstance(x, np.ndarray) else np.asarray(_dense(x))
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise InvalidInputError(
                f"the public sample has rows of shape {rows.shape}, the problem has "
                f"{self.dim} columns: give rows of the same columns"
            )
        return self.with_constants(**_measure(self.model, rows, np.asarray(y)))

    def _defaults(self) -> dict[str, Constant]:
        model, ball = self.model, "rows in the unit ball"
        smooth = np.isfinite(model.smoothness)
        trace = model.hessian_trace if smooth else _HINGE_TRACE
        dissimilarity = self.dissimilarity
        named = isinstance(dissimilarity, str)
        return {
            "lipschitz": _analytic(model.lipschitz, ball),
            "smoothness": _analytic(model.smoothness, ball)
            if smooth
            else _assumed(_HINGE_CURVATURE + model.l2, "the loss has a kink"),
            "strong_convexity": _analytic(model.l2, "the L2 term")
            if model.l2 > 0
            else _assumed(
                min(trace / self.num_params, _HINGE_CURVATURE),
                "the Hessian's mean eigenvalue",
            ),
            "gradient_variance": _analytic(
                model.lipschitz**2, "of one sample, at most lipschitz squared"
            ),
            "initial_gap": _analytic(model.loss_at_zero, "the loss at theta = 0"),
            "learnable_share": _assumed(0.5, "of the loss at zero, by the best model"),
            "hessian_trace": _analytic(trace, ball)
            if smooth
            else _assumed(trace, "the loss has a kink"),
            "spectrum_decay": _assumed(1.4, "eigenvalue i falls as i^-1.4"),
            "dissimilarity": _assumed(
                DISSIMILARITY[str(dissimilarity)] if named else float(dissimilarity),
                f"stated as {dissimilarity if named else 'a number'}",
            ),
        }


def _analytic(value: float, note: str) -> Constant:
    return Constant(value=value, source="analytic", note=note)


def _assumed(value: float, note: str) -> Constant:
    return Constant(value=value, source="assumed", note=note)


def _counts(value: ArrayLike) -> Counts:
    """Return the number of samples per device as whole numbers above zero."""
    floats = np.atleast_1d(np.asarray(within("num_samples", value)))
    whole_numbers = (floats == np.floor(floats)) & (floats < 2**53)
    for invalid, remedy in (
        (~whole_numbers, "must be a whole number"),
        (floats < 1, "a device without samples cannot train: leave it out"),
    ):
        if invalid.any():
            device = int(np.argmax(invalid))
            raise InvalidInputError(
                f"num_samples of device {device} is {floats[device]:g}: {remedy}"
            )
    counts = floats.astype(np.int64)
    counts.setflags(write=False)
    return counts


def _loss(loss: object, num_classes: int | None, l2: float) -> Loss:
    """Return the loss by its name, or the `Loss` itself."""
    if isinstance(loss, Loss):
        if num_classes not in (None, loss.num_outputs) or l2 not in (0.0, loss.l2):
            raise InvalidInputError(
                "num_classes and l2 go with the name of a loss: give them to the "
                f"{loss.name} object instead"
            )
        return loss
    if not isinstance(loss, str):
        raise InvalidInputError(
            f"loss must be a name or a Loss, got {loss!r}", argument="loss"
        )
    within("l2", l2, least=0, most=1e6)
    if num_classes is not None:
        num_classes = whole("num_classes", num_classes, least=2, most=_MOST_PARAMS)
    return loss_named(loss, num_classes=num_classes, l2=float(l2))


def _dissimilarity(value: object) -> str | float:
    if isinstance(value, str):
        return one_of("dissimilarity", value, tuple(DISSIMILARITY))
    number = np.asarray(within("dissimilarity", value, least=0, most=1e3))  # type: ignore[arg-type]
    if number.ndim > 0:
        raise InvalidInputError(
            f"dissimilarity must be one number, got {value}", argument="dissimilarity"
        )
    return float(number)


def _dense(x: object) -> object:
    """Return sparse rows as an array; a public sample is small."""
    return x.toarray() if hasattr(x, "toarray") else x


def _measure(model: Loss, x: Floats, y: Labels) -> dict[str, Constant]:
    """Measure the curvature and the gradients' variance on public rows."""
    if len(x) < 2 or y.shape != (len(x),):
        raise InvalidInputError(
            f"the public sample has {len(x)} rows and labels of shape {y.shape}: give "
            "at least 2 rows and one label each"
        )
    longest = float(np.linalg.norm(x, axis=1).max())
    if not 0 < longest <= 1 + 1e-6:
        raise InvalidInputError(
            f"the longest row of the public sample has norm {longest:g}, not above 0 "
            "and at most 1: scale each row into the unit ball, as the private rows are"
        )
    classes = max(2, model.num_outputs)
    if model.name != "huber" and not np.isin(y, np.arange(classes)).all():
        raise InvalidInputError(
            f"labels of the public sample must be 0 .. {classes - 1}, got {y.min()} .. "
            f"{y.max()}"
        )
    labels = y if model.name == "huber" else y.astype(np.int64)
    second_moment = np.linalg.eigvalsh(x.T.astype(np.float64) @ x / len(x))[::-1]
    eigenvalues = second_moment[second_moment > 1e-9 * second_moment[0]]
    rank = np.arange(1, len(eigenvalues) + 1)
    decay = (
        -np.polyfit(np.log(rank), np.log(eigenvalues), 1)[0] if rank[-1] > 1 else 1.0
    )
    smooth = np.isfinite(model.curvature)
    curvature = model.curvature if smooth else _HINGE_CURVATURE
    trace = (model.hessian_trace if smooth else _HINGE_TRACE) * float(eigenvalues.sum())
    gradients = model.sample_gradients(
        np.zeros(model.num_params(x.shape[1])), x, labels
    )
    smoothness = curvature * float(eigenvalues[0]) + model.l2
    values = {
        "smoothness": smoothness,
        "hessian_trace": trace,
        "gradient_variance": float(gradients.var(axis=0).sum()),
        "spectrum_decay": max(float(decay), 0.0),
    }
    if model.l2 == 0:  # otherwise it is the L2 weight
        mean = trace / model.num_params(x.shape[1])
        values["strong_convexity"] = min(mean, smoothness)
    note = f"{len(x)} rows"
    return {
        name: Constant(value=value, source="public sample", note=note)
        for name, value in values.items()
    }
