"""A run of noisy gradients, its privacy statement, and warnings of weak guarantees."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.checks import Array, floats, within
from fedbudget.errors import InvalidInputError, needed


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

        A sample is in one of any B consecutive steps: together they cost as much as
        one step (parallel composition, also if later steps depend on earlier answers).
        Without disjoint batches, it is K.
        """
        return -(-floats(self.steps) // floats(self.blocks))

    @property
    def noise_multiplier(self) -> Array:
        """Noise std over one sample's share G / X (as in dp-accounting)."""
        return floats(self.noise_std) * floats(self.batch_size) / floats(self.lipschitz)

    @property
    def mu(self) -> Array:
        """The run's Gaussian-DP parameter, without amplification by sampling.

        Steps add up in mu^2, as they do in rho (paper: composition).
        """
        return 2 * np.sqrt(self.laps) / self.noise_multiplier

    @property
    def rho(self) -> Array:
        """The zCDP of the whole run, 2 K G^2 / (X_m^2 sigma_m^2) (paper: rho-zcdp)."""
        return self.mu**2 / 2


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """The privacy guarantee of a run: its unit, its neighbours and its adversary."""

    epsilon: float  # the largest over the devices
    delta: float  # the largest over the devices
    accountant: str
    unit: str = "one sample"
    adjacency: str = "replace one sample of one device"
    adversary: str = "the server, the other devices and anyone who sees every upload"

    def __str__(self) -> str:
        if self.epsilon == np.inf:
            return "NOT PRIVATE: no noise was added, and there is no privacy guarantee"
        return (
            f"({rounded_up(self.epsilon, digits=6)}, "
            f"{rounded_up(self.delta, digits=4)})-differential privacy for "
            f"{self.unit} ({self.adjacency}) against {self.adversary}; "
            f"accountant {self.accountant}"
        )


def rounded_up(value: float, *, digits: int = 4) -> str:
    """Show a number with a few digits, rounded up: an epsilon must not look smaller.

    >>> rounded_up(1.23401), rounded_up(4.0), rounded_up(3.9999999)
    ('1.235', '4', '4')
    """
    if not np.isfinite(value):
        return f"{value:g}"
    exact = Decimal(repr(float(value)))  # 0.0001, not 0.000100000000000000005
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(step, rounding=ROUND_CEILING)):.{digits}g}"


def dp_event(run: NoisyGradients, device: int | None = None) -> Any:
    """Return one device's run, such as `plan.gradients`, as a dp-accounting event.

    Its noise multiplier is relative to one sample's share G / X: use an accountant with
    NeighboringRelation.REPLACE_ONE, which doubles the sensitivity.
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


def weak_guarantees(
    epsilon: Array, delta: Array, num_samples: NDArray[np.int64]
) -> Iterator[str]:
    """Yield a warning for a weak epsilon or delta, each for the worst device.

    For an infinite epsilon, see `PrivacyStatement`.

    >>> list(weak_guarantees(np.array([4.0]), np.array([1e-4]), np.array([100])))
    []
    """
    worst = int(np.argmax(delta * num_samples))
    if delta[worst] * num_samples[worst] >= 1:
        yield (
            f"delta {delta[worst]:g} is not below one over the {num_samples[worst]} "
            f"samples of device {worst}: publishing one of them would be allowed; "
            "lower delta"
        )
    worst = int(np.argmax(epsilon))
    if WEAK_EPSILON < epsilon[worst] < np.inf:
        yield (
            f"epsilon {rounded_up(epsilon[worst])} of device {worst} is above "
            f"{WEAK_EPSILON:g}, usually called a weak guarantee: lower it if the "
            "model stays accurate enough"
        )
