"""The learning problem that a plan is for: sizes and constants, each with its source.

Planning must not read private rows. So every constant states its source:

    analytic             follows from the loss and from rows in the unit ball
    assumed              a guess; replace it if you know a better value
    stated               known to whoever plans, such as the spread of the labels
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

from fedbudget.checks import (
    Array,
    PerDevice,
    floats,
    one_of,
    per_device,
    whole,
    within,
)
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Huber, Labels, Loss, Rows, loss_named
from fedbudget.public_sample import HINGE_CURVATURE, Modes, measure_sample

SOURCES = ("analytic", "assumed", "stated", "public sample", "measured privately")

# Share of the initial gap by which a device's local optimum differs from the global.
DISSIMILARITY: Mapping[str, float] = MappingProxyType(
    {"iid": 0.1, "mild": 0.2, "strong": 0.35}
)
USUAL_DISSIMILARITY = "mild"  # the default

# Hinge has no Hessian. Smoothed over a margin of width 1, its largest curvature is 1,
# which limits the step size. The paper's planners take the trace of its Hessian for 2.
_STEEPEST_HINGE, _HINGE_TRACE = 1.0, 2.0

# The constants of the spectral model that no analysis gives: medians over tables, by
# benchmarks/fit_spectrum.py; docs/explanation/planning.md has their ranges.
# Mean curvature between theta = 0 and the optimum, over that at 0: a logistic loss
# flattens as the model becomes sure, a square does not. That of hinge is known as a
# mean only: HINGE_CURVATURE.
CURVATURE_SHARE: Mapping[str, float] = MappingProxyType(
    {
        "logistic": 0.43,
        "softmax": 0.43,
        "hinge": 1.0,
        "smooth_hinge": 0.43,
        "huber": 1.0,
    }
)
# Rows in [-1, 1] with an intercept have one large eigenvalue, along their mean.
SPIKE_SHARE = 0.78  # of the trace
SPIKE_GAP: Mapping[str, float] = MappingProxyType(
    {"logistic": 0.1, "softmax": 0.1, "hinge": 0.1, "smooth_hinge": 0.1, "huber": 0.8}
)
SPECTRUM_DECAY, GAP_DECAY = 1.4, 1.1
LEARNABLE_SHARE: Mapping[str, float] = MappingProxyType(
    {"logistic": 0.5, "softmax": 0.5, "hinge": 0.5, "smooth_hinge": 0.5, "huber": 0.9}
)
LABEL_SPREAD = 0.7  # root mean square label, as a share of its bound

# A larger theta does not fit into the memory of a device or of this planner.
_MOST_PARAMS = 10**9

# Constants of at least 0, and those that are also at most 1; all others are above 0.
_FROM_ZERO = ("gradient_variance", "spectrum_decay", "gap_decay", "dissimilarity")
_SHARES = ("spike_share", "spike_gap", "label_spread")

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
    prior_cost: Array  # of all measurements on private rows, per device
    modes: Modes | None  # measured on a public sample; None: assumed
    schema: str  # canonical JSON of the rows' public schema; empty: not known

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
        prior_cost: ArrayLike = 0.0,
        modes: Modes | None = None,
        schema: str = "",
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
            "prior_cost": per_device(
                "prior_cost", within("prior_cost", prior_cost, least=0), len(counts)
            ),
            "modes": modes,
            "schema": schema,
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
            if name in _SHARES:
                within(name, constant.value, least=0, most=1)
            elif name in _FROM_ZERO:
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
            prior_cost=self.prior_cost,
            modes=self.modes,
            schema=self.schema,
        )

    def with_spending(
        self, mu: ArrayLike, release: str, cost: ArrayLike = 0.0
    ) -> "Problem":
        """Return the problem after a measurement that is no constant of it.

        Args:
            mu: Its privacy cost, per device, as Gaussian DP.
            release: A name that no other measurement has: ledgers count each once.
            cost: Its cost, per device, in the unit of the prices.
        """
        return Problem(
            num_samples=self.num_samples,
            dim=self.dim,
            loss=self.model,
            dissimilarity=self.dissimilarity,
            overrides=self.overrides,
            spent_mu=np.sqrt(self.spent_mu**2 + floats(mu) ** 2),
            spent_on={*self.spent_on, release},
            prior_cost=self.prior_cost + floats(cost),
            modes=self.modes,
            schema=self.schema,
        )

    def with_public_sample(self, x: Rows, y: Labels, *, note: str = "") -> "Problem":
        """Return the problem with modes measured on rows that are not private.

        A mode is an eigenvector of the rows' second moment. The sample gives its
        curvature, and its part of the gap: `public_sample`. `note` says whose rows
        they are; `Dataset.problem(donors=...)` reads those of devices that consent.
        """
        rows = x if isinstance(x, np.ndarray) else np.asarray(_dense(x))
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise InvalidInputError(
                f"the public sample has rows of shape {rows.shape}, the problem has "
                f"{self.dim} columns: give rows of the same columns"
            )
        modes = measure_sample(self.model, rows, np.asarray(y))
        note = note or f"{len(rows)} public rows"
        values = modes.constants(self.model, share=CURVATURE_SHARE[self.model.name])
        if self.model.l2 == 0:  # otherwise it is the L2 weight
            mean = values["hessian_trace"] / self.num_params
            values["strong_convexity"] = min(mean, values["smoothness"])
        constants = {
            name: Constant(value=value, source="public sample", note=note)
            for name, value in values.items()
        }
        # The modes replace both decays; a part of the gap is spread by the usual one.
        constants["spectrum_decay"] = _assumed(
            self["spectrum_decay"], "not used: the sample gives the modes"
        )
        constants["gap_decay"] = _assumed(GAP_DECAY, "of what the sample does not show")
        measured = self.with_constants(**constants)
        object.__setattr__(measured, "modes", modes)
        return measured

    def _defaults(self) -> dict[str, Constant]:
        model, ball = self.model, "rows in the unit ball"
        smooth = np.isfinite(model.smoothness)
        share = CURVATURE_SHARE[model.name]
        trace = share * (model.hessian_trace if smooth else HINGE_CURVATURE)
        mean = (model.hessian_trace if smooth else _HINGE_TRACE) / self.num_params
        constants = {
            "lipschitz": _analytic(model.lipschitz, ball),
            "smoothness": _analytic(model.smoothness, ball)
            if smooth
            else _assumed(_STEEPEST_HINGE + model.l2, "the loss has a kink"),
            "strong_convexity": _analytic(model.l2, "the L2 term")
            if model.l2 > 0
            else _assumed(
                min(mean, _STEEPEST_HINGE), "the Hessian's mean eigenvalue, at most"
            ),
            "gradient_variance": _analytic(
                model.lipschitz**2, "of one sample, at most lipschitz squared"
            ),
            **self._gap(),
            "hessian_trace": _assumed(
                trace, f"{share:g} of its bound" if smooth else "the loss has a kink"
            ),
            "spectrum_decay": _assumed(SPECTRUM_DECAY, "eigenvalue i falls as i^-q"),
            "gap_decay": _assumed(GAP_DECAY, "the gap of mode i falls as i^-q"),
            "spike_share": _assumed(SPIKE_SHARE, "of the trace, along the rows' mean"),
            "spike_gap": _assumed(SPIKE_GAP[model.name], "of the gap, along that mean"),
        }
        stated, named = self.dissimilarity, isinstance(self.dissimilarity, str)
        constants["dissimilarity"] = _assumed(
            DISSIMILARITY[str(stated)] if named else float(stated),
            f"stated as {stated if named else 'a number'}",
        )
        return constants

    def _gap(self) -> dict[str, Constant]:
        """Return the loss at theta = 0, and the share that can be learned."""
        model = self.model
        share = _assumed(
            LEARNABLE_SHARE[model.name], "of the loss at zero, by the best model"
        )
        if not isinstance(model, Huber):
            gap = _analytic(model.loss_at_zero, "the loss at theta = 0")
            return {"initial_gap": gap, "learnable_share": share}
        spread = self.overrides.get("label_spread") or _assumed(
            LABEL_SPREAD, "root mean square label, over its bound; state it if known"
        )
        label = np.array([spread.value * model.label_bound])
        loss = max(float(model.losses(np.zeros(1), label)[0]), 1e-9)
        gap = Constant(
            value=loss,
            source=spread.source if spread.source != "measured privately" else "stated",
            note="the loss at theta = 0, by label_spread",
        )
        return {"label_spread": spread, "initial_gap": gap, "learnable_share": share}


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
