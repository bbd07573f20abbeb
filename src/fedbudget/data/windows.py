"""Windows of sensor readings as rows of statistics, by public formulas.

A window is a fixed number of consecutive readings of every channel. Each channel, and
the magnitude (the Euclidean norm of all channels) if wanted, gives 12 statistics; each
pair of channels gives a correlation:

    mean, minimum, maximum, median                  between the channel's bounds
    deviation, change (mean absolute difference of
    neighbours), iqr (interquartile range)          0 to a share of the channel's range
    band1 .. band5: amplitudes of the spectrum      0 to a share of the channel's range

The last two lines are stored as square roots: most of their values are small, and a
root spreads them. All bounds follow from the channels' bounds, so that no row is read
for them. No statistic can exceed twice its bound (four times for changes and bands);
only square waves at the limits of the sensor do, and these are clipped.
"""

from collections.abc import Mapping
from itertools import combinations, pairwise
from math import hypot, sqrt

import numpy as np
from numpy.typing import NDArray

from fedbudget.data.columns import Numbers
from fedbudget.data.features import Numeric

Readings = NDArray[np.float64]  # shape (windows, readings per window)

# Limits of the bands, as shares of the highest frequency, half the sampling rate.
BANDS = (0.0, 0.1, 0.2, 0.4, 0.6, 1.0)
MAGNITUDE = "magnitude"
LEAST_LENGTH = 20  # readings: with fewer, the first band has no frequency

_LEVELS = ("mean", "minimum", "maximum", "median")
# Bounds of the other statistics, in units of half the channel's range.
_SPREADS = {"deviation": 0.5, "change": 0.5, "iqr": 1.0}
_BAND = 0.25
_FLAT = 1e-12  # channels whose product of norms is below this have no correlation


def statistic_bounds(
    channels: Mapping[str, Numeric], *, magnitude: bool = False
) -> dict[str, Numeric]:
    """Return a public description of every statistic, in the order of `statistics`.

    >>> list(statistic_bounds({"x": Numeric(-2, 2)}).items())[4]
    ('x_deviation', Numeric(low=0.0, high=1.0, missing=None, unit=''))
    """
    bounds: dict[str, Numeric] = {}
    for name, channel in _with_magnitude(channels, magnitude).items():
        half = (channel.high - channel.low) / 2
        for level in _LEVELS:
            bounds[f"{name}_{level}"] = Numeric(channel.low, channel.high)
        spreads = _SPREADS | {f"band{k}": _BAND for k in range(1, len(BANDS))}
        for spread, share in spreads.items():
            bounds[f"{name}_{spread}"] = Numeric(0.0, sqrt(share * half))
    for first, second in combinations(channels, 2):
        bounds[f"{first}_{second}_correlation"] = Numeric(-1.0, 1.0)
    return bounds


def statistics(
    readings: Mapping[str, Readings],
    channels: Mapping[str, Numeric],
    *,
    magnitude: bool = False,
) -> dict[str, Numbers]:
    """Return the columns of statistics: one row per window, computed from it alone.

    Args:
        readings: Each channel's windows; shape (n, length), clipped to its bounds here.
        channels: The bounds of the same channels.
        magnitude: Whether to add the statistics of the channels' Euclidean norm.
    """
    clipped = {
        name: np.clip(readings[name], bounds.low, bounds.high)
        for name, bounds in channels.items()
    }
    if magnitude:
        squares = sum(x**2 for x in clipped.values())
        clipped[MAGNITUDE] = np.sqrt(squares)
    columns: dict[str, Numbers] = {}
    for name, x in clipped.items():
        columns |= {f"{name}_{kind}": value for kind, value in _of_channel(x).items()}
    for first, second in combinations(channels, 2):
        columns[f"{first}_{second}_correlation"] = _correlation(
            clipped[first], clipped[second]
        )
    return columns


def _with_magnitude(
    channels: Mapping[str, Numeric], magnitude: bool
) -> dict[str, Numeric]:
    """Return the channels, and the bounds of their Euclidean norm if wanted."""
    if not magnitude:
        return dict(channels)
    highest = hypot(*(max(abs(c.low), abs(c.high)) for c in channels.values()))
    return {**channels, MAGNITUDE: Numeric(0.0, highest)}


def _of_channel(x: Readings) -> dict[str, Numbers]:
    lower, median, upper = np.quantile(x, (0.25, 0.5, 0.75), axis=1)
    values = {
        "mean": x.mean(axis=1),
        "minimum": x.min(axis=1),
        "maximum": x.max(axis=1),
        "median": median,
        "deviation": np.sqrt(x.std(axis=1)),
        "change": np.sqrt(np.abs(np.diff(x, axis=1)).mean(axis=1)),
        "iqr": np.sqrt(upper - lower),
    }
    for number, amplitude in enumerate(_amplitudes(x).T, start=1):
        values[f"band{number}"] = np.sqrt(amplitude)
    return values


def _correlation(first: Readings, second: Readings) -> Numbers:
    """Return the correlation of two channels in each window; 0 if one is constant."""
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (first, second))
    scale = np.sqrt(np.sum(a**2, axis=1) * np.sum(b**2, axis=1))
    product = np.sum(a * b, axis=1)
    share = product / np.where(scale > _FLAT, scale, np.inf)
    return np.asarray(np.clip(share, -1.0, 1.0))


def _amplitudes(x: Readings) -> Readings:
    """Return the root of the power in each band; shape (n, bands).

    The squares of all bands add up to the variance (Parseval), so each amplitude is at
    most the deviation.
    """
    length = x.shape[1]
    centred = x - x.mean(axis=1, keepdims=True)
    power = 2 * np.abs(np.fft.rfft(centred, axis=1)) ** 2 / length**2
    if length % 2 == 0:
        power[:, -1] /= 2  # the highest frequency has no mirror image
    limits = [round(share * (length // 2)) for share in BANDS]
    sums = [power[:, a + 1 : b + 1].sum(axis=1) for a, b in pairwise(limits)]
    return np.asarray(np.sqrt(np.stack(sums, axis=1)))
