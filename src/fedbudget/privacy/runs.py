"""A run of noisy gradients, its privacy statement, and warnings of weak guarantees."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.checks import Array, floats, within
from fedbudget.errors import InvalidInputError, needed

# A release keeps its promise: exact sums, noise of the operating system on a grid. A
# simulation is fast and reproducible, and promises nothing for the model it makes.
Kind: TypeAlias = Literal["release", "simulation"]
# What the server sees: each device's uploads, or only sums of several devices' uploads.
Trust: TypeAlias = Literal["uploads", "sum"]
# Whose replacement the guarantee is about: one sample, or all samples of a device.
Unit: TypeAlias = Literal["sample", "device"]
TRUSTS: tuple[Trust, ...] = ("uploads", "sum")
UNITS: tuple[Unit, ...] = ("sample", "device")


class Scope(NamedTuple):
    """What a guarantee protects, and against whom."""

    unit: Unit = "sample"
    trust: Trust = "uploads"
    colluders: int = 0  # with trust "sum": devices that may collude with the server

    def lacks(self, wanted: "Scope") -> str:
        """Return why releases of this scope do not count for another; empty if they do.

        Statement: losses of releases add up to a loss of the wanted scope only if each
        of them is bounded for it. A bound for a device holds for each of its samples.
        One against those who see every upload holds against those who see sums, and one
        against c colluding devices against fewer. No converse holds: for a device of X
        samples, a mu for one of them may be X times as large (group privacy: Dong, Roth
        and Su 2022, Theorem 2.14).
        """
        if wanted.unit == "device" and self.unit == "sample":
            return "protect one sample, not one device"
        if wanted.trust == "uploads" and self.trust == "sum":
            return "hold only if the server sees sums, not uploads"
        if self.trust == "sum" and self.colluders < wanted.colluders:
            return f"hold against {self.colluders} colluders, not {wanted.colluders}"
        return ""


class Releases(Protocol):
    """What devices release in a run: `NoisyGradients` or `NoisyUploads`."""

    @property
    def mu(self) -> Array:
        """The run's Gaussian-DP parameter, without amplification by sampling."""
        ...

    @property
    def noise_multiplier(self) -> Array:
        """Noise std over half of what replacing one unit moves, at most."""
        ...

    @property
    def laps(self) -> Array:
        """The largest number of releases that use any one unit."""
        ...

    @property
    def sampling_probability(self) -> ArrayLike:
        """q: below 1, Poisson-sampled batches."""
        ...


@dataclass(frozen=True, kw_only=True)
class NoisyGradients:
    """All gradients that a device releases in a run; neighbours replace one sample.

    Each field is a number, or an array with one entry per device.
    """

    lipschitz: ArrayLike  # G: largest norm of one sample's gradient
    batch_size: ArrayLike  # X_m: samples averaged in each gradient
    noise_std: ArrayLike  # sigma_m: std of the noise on that average, per coordinate
    steps: ArrayLike  # K: gradients released
    sampling_probability: ArrayLike = 1.0  # q: below 1, Poisson-sampled batches
    blocks: ArrayLike = 1  # B: disjoint batches taken in turn; 1: a row may be in all

    def __post_init__(self) -> None:
        for name in ("lipschitz", "batch_size", "noise_std"):
            within(name, getattr(self, name), above=0)
        within("steps", self.steps, least=0)  # 0 for a device that is not selected
        within("sampling_probability", self.sampling_probability, above=0, most=1)
        within("blocks", self.blocks, least=1)
        for name in ("steps", "blocks"):
            value = getattr(self, name)
            if np.any(floats(value) != np.floor(floats(value))):
                raise InvalidInputError(
                    f"{name} must be whole numbers, got {value!r}: round them "
                    f"{'up' if name == 'steps' else 'down'}"
                )
        sampled = floats(self.sampling_probability) < 1
        if np.any(sampled & (floats(self.blocks) > 1)):
            raise InvalidInputError(
                "batches are Poisson-sampled or taken in turn, not both: leave out "
                "sampling_probability or blocks"
            )

    @property
    def laps(self) -> Array:
        """The largest number of steps that use any one sample: ceil(K / B).

        Statement: B consecutive steps on disjoint batches, which are fixed without a
        look at the rows, are as private as one step; without disjoint batches, B = 1.
        Proof: the replaced sample is in one of the B batches. Given the answers so far,
        the other B - 1 steps have the same distribution for both neighbours, whatever
        they depend on; so the likelihood ratio of all B answers is that of one step
        (parallel composition, McSherry 2009, Theorem 4, for replacement).
        """
        return -(-floats(self.steps) // floats(self.blocks))

    @property
    def noise_multiplier(self) -> Array:
        """Noise std over one sample's share G / X (as in dp-accounting)."""
        return floats(self.noise_std) * floats(self.batch_size) / floats(self.lipschitz)

    @property
    def mu(self) -> Array:
        """The run's Gaussian-DP parameter, without amplification by sampling.

        Statement: the run is mu-Gaussian-DP with mu = 2 sqrt(K) G / (X sigma), exactly.
        Proof: replacing a sample moves a mean gradient by at most 2 G / X, for any
        model; with noise of std sigma, a step is (2 G / (X sigma))-GDP (Dong, Roth and
        Su 2022, Theorem 2.7), also for a smaller batch, drawn independently of the
        rows. Steps whose models depend on earlier answers compose to the root of the
        sum of squares (Corollary 3.3), as rho adds up (paper: composition). It is
        attained: opposite gradients of norm G in every step.
        """
        return 2 * np.sqrt(self.laps) / self.noise_multiplier

    @property
    def rho(self) -> Array:
        """The zCDP of the whole run, 2 K G^2 / (X_m^2 sigma_m^2) (paper: rho-zcdp).

        A mu-GDP Gaussian mechanism is (mu^2 / 2)-zCDP: Bun and Steinke 2016,
        Proposition 1.6.
        """
        return self.mu**2 / 2


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """The privacy guarantee of a plan or a run: unit, neighbours and adversary.

    >>> print(PrivacyStatement(
    ...     epsilon=4, delta=1e-5, accountant="gdp", kind="simulation"))
    simulation: devices would spend (4, 1e-05)-differential privacy for one sample ...
    """

    epsilon: float  # the largest over the devices
    delta: float  # the largest over the devices
    accountant: str
    unit: Unit = "sample"
    trust: Trust = "uploads"
    least_answers: int = 1  # t: of a sum that the server sees
    colluders: int = 0  # c: devices that may collude with the server
    epsilon_alone: float | None = None  # if everybody else colludes; for sums
    kind: Kind | None = None  # None: a plan, which has not run
    caveats: tuple[str, ...] = ()  # what the guarantee does not cover

    @property
    def protected(self) -> str:
        """The unit in words."""
        return "one sample" if self.unit == "sample" else "one device"

    @property
    def adjacency(self) -> str:
        """Which data sets are neighbours."""
        samples = "one sample" if self.unit == "sample" else "all samples"
        return f"replace {samples} of one device"

    @property
    def adversary(self) -> str:
        """Against whom the guarantee holds, and what it is worth if all collude."""
        if self.trust == "uploads":
            return "the server, the other devices and anyone who sees every upload"
        devices = "device" if self.colluders == 1 else "devices"
        server = f"the server and up to {self.colluders} colluding {devices}, who"
        if self.colluders == 0:
            server = "the server and devices that do not collude, who"
        answers = "answer" if self.least_answers == 1 else "answers"
        server += f" together see only sums of at least {self.least_answers} {answers}"
        if self.epsilon_alone is None:
            return server
        return (
            f"{server}; alone, without the others' noise, a device's share gives "
            f"epsilon {rounded_up(self.epsilon_alone, digits=6)}"
        )

    def __str__(self) -> str:
        if self.epsilon == np.inf:
            return "NOT PRIVATE: no noise was added, and there is no privacy guarantee"
        guarantee = (
            f"({rounded_up(self.epsilon, digits=6)}, "
            f"{rounded_up(self.delta, digits=4)})-differential privacy for "
            f"{self.protected} ({self.adjacency}) against {self.adversary}; "
            f"accountant {self.accountant}"
        )
        if self.kind == "simulation":
            guarantee = (
                f"simulation: devices would spend {guarantee}; nothing is promised "
                "for this model"
            )
        elif self.kind == "release":
            guarantee = f"release: {guarantee}"
        return "; ".join([guarantee, *self.caveats])


def rounded_up(value: float, *, digits: int = 4) -> str:
    """Show a number with a few digits, rounded up: an epsilon must not look smaller.

    >>> rounded_up(1.23401), rounded_up(4.0), rounded_up(3.9999999)
    ('1.235', '4', '4')
    """
    if not np.isfinite(value):
        return f"{value:g}"
    from decimal import ROUND_CEILING, Decimal  # late: devices save the memory

    exact = Decimal(repr(float(value)))  # 0.0001, not 0.000100000000000000005
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(step, rounding=ROUND_CEILING)):.{digits}g}"


def dp_event(run: Releases, device: int | None = None) -> Any:
    """Return one device's run, such as `plan.releases`, as a dp-accounting event.

    Its noise multiplier is relative to half of what replacing one unit moves, such as
    one sample's share G / X: use an accountant with NeighboringRelation.REPLACE_ONE,
    which doubles the sensitivity.
    """
    dp_accounting = dp_accounting_or_raise()
    each = (run.noise_multiplier, floats(run.sampling_probability), run.laps)
    columns = [np.ravel(column) for column in np.broadcast_arrays(*each)]
    count = len(columns[0])
    if device is None and count != 1:
        raise InvalidInputError(
            f"dp_event describes one device, got {count}: call it for each, with "
            "device="
        )
    if device is not None and not 0 <= device < count:
        raise InvalidInputError(
            f"device {device} does not exist: choose 0 .. {count - 1}"
        )
    noise, probability, laps = (float(column[device or 0]) for column in columns)
    event = dp_accounting.GaussianDpEvent(noise)
    if probability < 1:
        event = dp_accounting.PoissonSampledDpEvent(probability, event)
    return dp_accounting.SelfComposedDpEvent(event, int(laps))


def dp_accounting_or_raise() -> Any:
    """Import dp-accounting, or raise a `MissingExtraError`."""
    with needed("accountant 'pld'", "dp-accounting"):
        import dp_accounting
    return dp_accounting


WEAK_EPSILON = 10.0  # above it, a guarantee is usually called weak
_MOST_RISK = 0.1  # of delta times a device's rows; a planned delta stays within it


def weak_guarantees(
    epsilon: Array, delta: Array, num_samples: NDArray[np.int64]
) -> Iterator[str]:
    """Yield a warning for a weak epsilon or delta, each for the worst device.

    For an infinite epsilon, see `PrivacyStatement`.

    >>> list(weak_guarantees(np.array([4.0]), np.array([1e-4]), np.array([100])))
    []
    """
    worst = int(np.argmax(delta * num_samples))
    risk = float(delta[worst] * num_samples[worst])
    rows = f"one over the {num_samples[worst]} samples of device {worst}"
    if risk >= 1:
        yield (
            f"delta {delta[worst]:g} is not below {rows}: publishing one of them would "
            "be allowed; lower delta"
        )
    elif risk > _MOST_RISK * (1 + 1e-9):
        yield (
            f"delta {delta[worst]:g} is hardly below {rows}: lower it to at most a "
            "tenth of that, or leave it out to have it planned"
        )
    worst = int(np.argmax(epsilon))
    if WEAK_EPSILON < epsilon[worst] < np.inf:
        yield (
            f"epsilon {rounded_up(epsilon[worst])} of device {worst} is above "
            f"{WEAK_EPSILON:g}, usually called a weak guarantee: lower it if the "
            "model stays accurate enough"
        )
