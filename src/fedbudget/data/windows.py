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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, pairwise
from math import hypot, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import whole
from fedbudget.data.columns import Cells, Coded, Column, Numbers, as_column
from fedbudget.data.features import Feature, Numeric
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.text import shown

Readings = NDArray[np.float64]  # shape (windows, readings per window)

# Limits of the bands, as shares of the highest frequency, half the sampling rate.
BANDS = (0.0, 0.1, 0.2, 0.4, 0.6, 1.0)
MAGNITUDE = "magnitude"
LEAST_LENGTH = 20  # readings: with fewer, the first band has no frequency
MOST_LENGTH = 100_000

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


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How time-ordered readings of a device become samples: one window, one sample.

    Windows do not overlap: a reading in k windows would be in k samples, and its
    privacy would cost k times as much. Readings after the last whole window wait for
    it. A window has the label, and the other columns, of its last reading.
    """

    length: int  # readings
    columns: tuple[str, ...]  # the channels: numeric features
    step: int | None = None  # readings between two starts: the length
    order: str | None = None  # the column of the time; None: rows are in order
    magnitude: bool = False  # add the statistics of the channels' Euclidean norm
    # Public (low, high) of statistics by their names; others follow from the channels.
    bounds: Mapping[str, tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        whole("length", self.length, least=LEAST_LENGTH, most=MOST_LENGTH)
        columns: Any = self.columns
        if isinstance(columns, str) or not isinstance(columns, Sequence):
            raise InvalidInputError(
                f"columns must be a list of names, got {shown(columns)}: name the "
                "channels of a window"
            )
        object.__setattr__(self, "columns", tuple(columns))
        step = self.length if self.step is None else whole("step", self.step)
        object.__setattr__(self, "step", step)
        if step != self.length:
            shared = -(-self.length // step)
            why = "the readings between windows would be lost"
            if step < self.length:
                why = f"a reading would be in up to {shared} samples, and cost as often"
            raise InvalidInputError(
                f"step is {step}, not the length {self.length}: {why}; use step = "
                f"{self.length}",
                argument="windows",
            )
        if not isinstance(self.magnitude, bool):
            raise InvalidInputError(
                f"magnitude must be true or false, got {shown(self.magnitude)}: use "
                "true to add the Euclidean norm of the channels"
            )
        if not isinstance(self.order, str | None):
            raise InvalidInputError(
                f"order must name a column, got {shown(self.order)}: name the column "
                "of the time, or leave it out"
            )
        if self.bounds is not None:
            object.__setattr__(self, "bounds", _read_bounds(self.bounds))

    @classmethod
    def read(cls, plain: Any) -> Self:
        """Read the fields that `plain` returns."""
        names = [item.name for item in fields(cls)]
        if not isinstance(plain, Mapping) or not {"length", "columns"} <= set(plain):
            raise InvalidInputError(
                f"windows is {shown(plain)}: write length and columns",
                argument="windows",
            )
        unknown = [name for name in plain if name not in names]
        if unknown:
            raise InvalidInputError(
                f"windows has {shown(unknown[0])}, which is not known: use only "
                f"{', '.join(names)}",
                argument="windows",
            )
        return cls(**plain)

    @property
    def plain(self) -> dict[str, Any]:
        """Plain values, ready for JSON or TOML."""
        values: dict[str, Any] = {
            "length": self.length,
            "step": self.step,
            "columns": list(self.columns),
            "magnitude": self.magnitude,
        }
        values |= {} if self.order is None else {"order": self.order}
        if self.bounds is not None:
            values["bounds"] = {name: list(pair) for name, pair in self.bounds.items()}
        return values

    def features(self, raw: Mapping[str, Feature]) -> dict[str, Feature]:
        """Return the features of a sample: statistics, then the other columns."""
        channels = self._channels(raw)
        others = {name: kind for name, kind in raw.items() if name not in channels}
        kinds: dict[str, Feature]
        kinds = dict(statistic_bounds(channels, magnitude=self.magnitude))
        for name in kinds:
            if name in raw:  # its bounds would be those of the other
                raise InvalidInputError(
                    f"windows has the statistic {shown(name)}, and a column has the "
                    "same name: rename the column",
                    argument="windows",
                    column=name,
                )
        for name, (low, high) in (self.bounds or {}).items():
            if name not in kinds:
                raise InvalidInputError(
                    f"windows has bounds of {shown(name)}, which is no statistic of "
                    f"its channels: name some of {', '.join(kinds)}",
                    argument="windows",
                )
            kinds[name] = Numeric(low, high)
        return {**kinds, **others}

    def _channels(self, raw: Mapping[str, Feature]) -> dict[str, Numeric]:
        channels: dict[str, Numeric] = {}
        for name in self.columns:
            kind = raw.get(name)
            if not isinstance(kind, Numeric):
                raise InvalidInputError(
                    f"windows has the column {shown(name)}, which is no numeric "
                    f"feature: name some of {', '.join(map(repr, raw))}",
                    argument="windows",
                )
            channels[name] = kind
        if not channels:
            raise InvalidInputError("windows has no columns: name at least one channel")
        return channels

    def count(self, readings: int) -> int:
        """Return how many windows so many readings give."""
        return readings // self.length

    def last_rows(self, readings: int) -> NDArray[np.int64]:
        """Return the position of the last reading of every window."""
        return np.arange(1, self.count(readings) + 1) * self.length - 1

    def samples(
        self, columns: Mapping[str, Any], raw: Mapping[str, Feature]
    ) -> dict[str, Any]:
        """Return one row per window, computed from its own readings alone.

        Args:
            columns: The readings of one device, in the order of their time; or those
                of several, each with a multiple of the length.
            raw: The features of the readings.
        """
        channels = self._channels(raw)
        windows: dict[str, Readings] = {}
        for name, kind in channels.items():
            # Checks and fills empty cells; back from [-1, 1] to the channel's unit.
            readings = kind.decode(kind.encode(name, as_column(columns[name])))
            count = self.count(len(readings))
            cut = readings[: count * self.length]
            windows[name] = cut.reshape(count, self.length)
        samples: dict[str, Any]
        samples = dict(statistics(windows, channels, magnitude=self.magnitude))
        for name in raw:
            if name not in channels:
                samples[name] = self.at_end(columns[name])
        return samples

    def at_end(self, cells: Cells) -> Column:
        """Return the cell of every window's last reading."""
        column = as_column(cells)
        last = self.last_rows(len(column))
        if isinstance(column, Coded):
            return Coded(codes=column.codes[last], values=column.values)
        return column[last]

    def by_device(self, owners: Coded) -> NDArray[np.int64]:
        """Return the rows of whole windows, each of one device, by their last rows.

        Raises:
            DataError: A reading has no device.
        """
        codes = np.asarray(owners.codes, dtype=np.int64)
        if (codes < 0).any():
            raise DataError(
                f"row {int(np.argmax(codes < 0)) + 1} names no device, so its reading "
                "belongs to no window: fill the cell"
            )
        windows = self.arranged(codes, None).reshape(-1, self.length)
        return np.asarray(windows[np.argsort(windows[:, -1])].reshape(-1))

    def arranged(
        self, owners: NDArray[np.int64], times: NDArray[Any] | None
    ) -> NDArray[np.int64]:
        """Return the rows by device and time, each device's cut to whole windows."""
        keys = (owners,) if times is None else (times, owners)
        order = np.lexsort(keys)  # stable
        counts = np.bincount(owners)
        rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        whole_windows = counts // self.length * self.length
        return np.asarray(order[rank < np.repeat(whole_windows, counts)])


def _read_bounds(bounds: Any) -> dict[str, tuple[float, float]]:
    """Return bounds of statistics as pairs of numbers, in the order that is given."""
    try:
        kinds = {str(name): Numeric(*pair) for name, pair in bounds.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"windows has the bounds {shown(bounds)} ({error}): write NAME = [low, "
            "high] for statistics, with low below high",
            argument="windows",
        ) from None
    return {name: (kind.low, kind.high) for name, kind in kinds.items()}
