"""Random Fourier features: a non-linear step of a schema, public and without rows.

A row z of encoded columns becomes cos(w_j z / s) and sin(w_j z / s) for random
frequencies w_j, each divided by the square root of their number. A linear model of
these approximates a model with the Gaussian kernel exp(-|z - z'|^2 / (2 s^2)) (Rahimi
and Recht, 2007). cos^2 + sin^2 = 1, so every row has norm 1 by construction, and the
sensitivity of a gradient is that of any other rows in the unit ball.

The frequencies follow from a seed by SHAKE-256 and sums of whole numbers, which are the
same on every device and in every version of Python and NumPy. They are generated in
blocks: a device holds at most `_BLOCK` of them at a time.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import number, whole
from fedbudget.data.unit_ball import LARGEST_NORM
from fedbudget.errors import InvalidInputError
from fedbudget.text import shown

Matrix = NDArray[np.float64]

USUAL_COUNT, MOST_FEATURES = 500, 100_000
_BLOCK = 1 << 16  # entries of frequencies at a time: 512 KiB
_TERMS = 12  # uniform numbers in a sum: its variance is 1, its kurtosis 2.9
_MIDDLE = _TERMS * (2**16 - 1) // 2
_MARK = b"fedbudget fourier 1"
_INTERCEPT = 0.1  # share of a row's squared norm that a constant column has


@dataclass(frozen=True, kw_only=True)
class Fourier:
    """Random Fourier features of all encoded columns.

    >>> Fourier(count=4, scale=1.0).encode(np.zeros((1, 3))).tolist()
    [[0.707..., 0.707..., 0.0, 0.0]]
    """

    count: int  # of features, even: a cosine and a sine for each frequency
    scale: float  # s: rows at a larger distance are unlike
    seed: int = 0  # of the frequencies

    def __post_init__(self) -> None:
        whole("count", self.count, least=2, most=MOST_FEATURES)
        if self.count % 2:
            raise InvalidInputError(
                f"count is {self.count}, and every frequency gives two features: use "
                f"an even number, such as {self.count + 1}",
                argument="count",
            )
        number("scale", self.scale, above=0, most=1e6)
        whole("seed", self.seed, least=0, most=2**32 - 1)

    @classmethod
    def read(cls, plain: Any, usual_scale: float) -> Self:
        """Read the fields that `plain` has; without a scale it is the usual one."""
        if not isinstance(plain, Mapping) or plain.get("kind") != "fourier":
            raise InvalidInputError(
                f"expansion is {shown(plain)}: write kind = 'fourier', and count",
                argument="expansion",
            )
        fields = {name: value for name, value in plain.items() if name != "kind"}
        unknown = [name for name in fields if name not in ("count", "scale", "seed")]
        if unknown:
            raise InvalidInputError(
                f"expansion has {shown(unknown[0])}, which is not known: use only "
                "kind, count, scale, seed",
                argument="expansion",
            )
        return cls(**{"count": USUAL_COUNT, "scale": usual_scale} | fields)

    @property
    def plain(self) -> dict[str, Any]:
        """Plain values, ready for JSON or TOML."""
        return {
            "kind": "fourier",
            "count": self.count,
            "scale": self.scale,
            "seed": self.seed,
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        numbers = range(1, self.count // 2 + 1)
        return tuple(f"{part} {j}" for part in ("cos", "sin") for j in numbers)

    def encode(self, z: Matrix, *, intercept: bool = False) -> NDArray[np.float32]:
        """Return the features of rows, shape (n, count), with a constant if wanted."""
        half = self.count // 2
        x = np.empty((len(z), self.count + intercept), dtype=np.float32)
        scale, constant = self.scales(intercept=intercept)
        for first, frequencies in self.blocks(z.shape[1]):
            last = first + len(frequencies)
            angle = z @ frequencies.T
            x[:, first:last] = scale * np.cos(angle)
            x[:, half + first : half + last] = scale * np.sin(angle)
        if intercept:
            x[:, -1] = constant
        return x

    def scales(self, *, intercept: bool) -> tuple[float, float]:
        """Return the factor of every cosine and sine, and the value of a constant."""
        share = _INTERCEPT if intercept else 0.0
        each = sqrt((1 - share) / (self.count // 2))
        return LARGEST_NORM * each, LARGEST_NORM * sqrt(share)

    def blocks(self, columns: int) -> Iterator[tuple[int, Matrix]]:
        """Yield the number of the first frequency of a block, and the block.

        A block has shape (frequencies, columns), divided by the scale.
        """
        total = self.count // 2
        size = max(1, _BLOCK // columns)
        for first in range(0, total, size):
            last = min(first + size, total)
            yield first, _normals(self.seed, columns, first, last) / self.scale


# What stands for a feature step: its text, itself, or its fields; None: none.
FeatureStep: TypeAlias = "str | Fourier | Mapping[str, Any] | None"


def parse_features(text: str) -> int | None:
    """Read a feature step from its text: the count of features, or None.

    >>> parse_features("fourier"), parse_features("fourier:200")
    (500, 200)
    """
    kind, _, rest = text.partition(":")
    if text == "linear":
        return None
    if kind == "fourier" and (rest.isdecimal() or text == "fourier"):
        return int(rest or USUAL_COUNT)
    raise InvalidInputError(
        f"features {text!r} is not known: use linear, fourier or fourier:500",
        argument="features",
    )


@lru_cache(maxsize=1)  # a device reads its rows in blocks, with the same frequencies
def _normals(seed: int, columns: int, first: int, last: int) -> Matrix:
    """Return almost normal numbers, shape (last - first, columns): see `_TERMS`.

    Frequency j is the same for any block, and for any count.
    """
    values = np.empty((last - first, columns))
    for j in range(first, last):
        name = _MARK + seed.to_bytes(4, "big") + j.to_bytes(4, "big")
        drawn = hashlib.shake_256(name).digest(2 * _TERMS * columns)
        terms = np.frombuffer(drawn, dtype="<u2").reshape(columns, _TERMS)
        # Exact: a whole number below 2^24 over a power of two.
        values[j - first] = (terms.sum(axis=1, dtype=np.int64) - _MIDDLE) / 2**16
    values.setflags(write=False)
    return values
