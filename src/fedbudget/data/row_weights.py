"""Weights of rows and classes between 0 and 1, which leave the sensitivity as it is.

A row of weight w is kept with probability w, by one draw before training; a row that
is left out becomes a row of zeros, whose gradient is zero for every loss here. So the
expected gradient is the weighted one, and numbers of rows, which are public, do not
change. Replacing one row changes one row's gradient, of norm at most G, whatever the
draws: the sensitivity is 2 G / N as before. That needs weights that depend on the row
itself only: from a public table of class shares, never from counts of private rows.
The guarantee holds for every outcome of the draws, so they need not be secret.

With balanced class weights the rarest class has weight 1 and every other class the
share of the rarest over its own: all classes count the same in expectation. The price
is signal: the rows that are left out teach nothing. A threshold (`Plan.threshold`)
changes decisions without that loss.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array, numbers, one_of, within
from fedbudget.data.columns import Bools
from fedbudget.data.dataset import Dataset, Part
from fedbudget.data.partitions import generator
from fedbudget.errors import InvalidInputError
from fedbudget.text import shown

# A row that counts more than once would raise the sensitivity.
DIVIDE = "divide all weights by a publicly known maximum"
_SUM = 0.02  # shares need not sum to 1 exactly: they are rounded


def read_shares(text: str) -> dict[str, float]:
    """Read public class shares.

    >>> read_shares("no=0.97,yes=0.03")
    {'no': 0.97, 'yes': 0.03}
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.rpartition("=")
        try:
            shares[name.strip()] = float(value)
        except ValueError:
            shares[""] = 0.0
    if "" in shares:
        raise InvalidInputError(
            f"class shares {shown(text)} are not a list: write no=0.97,yes=0.03",
            argument="class_shares",
        )
    return shares


def check_shares(shares: Mapping[str, float], classes: tuple[str, ...] | None) -> Array:
    """Return the public share of each class, in the order of the classes.

    Raises:
        InvalidInputError: A class is missing or unknown, or the shares do not sum to 1.
    """
    if classes is None:
        raise InvalidInputError(
            "class shares are given, but the labels are numbers: leave them out",
            argument="class_shares",
        )
    if set(shares) != set(classes):
        raise InvalidInputError(
            f"class shares are for {shown(list(shares))}, the classes are "
            f"{shown(list(classes))}: give one share for each",
            argument="class_shares",
        )
    given = [shares[name] for name in classes]
    values = np.asarray(numbers("class_shares", given), dtype=np.float64)
    if not (values > 0).all() or abs(values.sum() - 1) > _SUM:
        raise InvalidInputError(
            f"class shares {shown(dict(shares))} must be above 0 and sum to 1: give "
            "publicly known shares",
            argument="class_shares",
        )
    return np.asarray(values / values.sum())


def balanced_threshold(shares: Mapping[str, float], classes: tuple[str, ...]) -> float:
    """Return the probability from which on the second of two classes is predicted.

    For a calibrated model, predicting it above its own share errs equally often on both
    classes, by the balanced accuracy: p(1|x) > p(1) means p(x|1) > p(x|0).

    >>> balanced_threshold({"no": 0.97, "yes": 0.03}, ("no", "yes"))
    0.03
    """
    values = check_shares(shares, classes)
    if len(values) != 2:
        raise InvalidInputError(
            f"a threshold is for two classes, there are {len(values)}: leave it out",
            argument="threshold",
        )
    return float(values[1])


def weight_rows(
    data: Dataset,
    *,
    class_weight: str | Mapping[str, float] | None = None,
    class_shares: Mapping[str, float] | None = None,
    sample_weight: ArrayLike | None = None,
    seed: int = 0,
) -> Dataset:
    """Return the data with training rows kept by their weights; others become zeros.

    Validation and test rows are unchanged. Losses on training rows include the zeros.

    Args:
        data: The rows of every device.
        class_weight: "balanced", with `class_shares`; or a weight per class. If one is
            above 1, all are divided by the largest.
        class_shares: The publicly known share of each class, never counted on the rows.
        sample_weight: A weight in [0, 1] per training row, in their order in
            `data.train`; it must depend on that row only.
        seed: Seeds the draws.

    Raises:
        InvalidInputError: A weight is outside [0, 1], or does not fit the data.
    """
    if class_weight is None and sample_weight is None:
        return data
    weights = np.ones(len(data.train))
    if class_weight is not None:
        weights = _of_classes(data, class_weight, class_shares)[data.train.y]
    if sample_weight is not None:
        weights = weights * check_sample_weight(sample_weight, len(weights))
    keep = generator(seed, stream=7).random(len(weights)) < weights
    return replace(data, train=_zeroed(data.train, keep))


def check_sample_weight(
    sample_weight: ArrayLike, num_rows: int, *, remedy: str = DIVIDE
) -> Array:
    """Return the weight of each row, in [0, 1].

    Raises:
        InvalidInputError: A weight is outside, there is not one for each row, or all
            are 0.
    """
    shape = np.asarray(sample_weight, dtype=object).shape
    if shape != (num_rows,):
        raise InvalidInputError(
            f"sample_weight has shape {shape}, there are {num_rows} training rows: "
            "give one weight for each",
            argument="sample_weight",
        )
    weights = np.asarray(
        within("sample_weight", sample_weight, least=0, most=1, of="row", remedy=remedy)
    )
    if not weights.any():
        raise InvalidInputError(
            f"sample_weight is zero for all {num_rows} rows, and nothing would be "
            "learned: give at least one row a weight above 0, up to 1",
            argument="sample_weight",
        )
    return weights


def _of_classes(data: Dataset, class_weight: Any, class_shares: Any) -> Array:
    """Return a weight in [0, 1] per class."""
    if isinstance(class_weight, Mapping):
        if data.classes is None or set(class_weight) != set(data.classes):
            raise InvalidInputError(
                f"class_weight is for {shown(list(class_weight))}, the classes are "
                f"{shown(data.classes)}: give one weight for each",
                argument="class_weight",
            )
        values = [class_weight[name] for name in data.classes]
        remedy = "give weights from 0 on"
        weights = np.asarray(
            within("class_weight", values, least=0, most=1e9, of="class", remedy=remedy)
        )
        return np.asarray(weights / max(1.0, float(weights.max())))
    one_of("class_weight", class_weight, ("balanced",))
    if class_shares is None:
        raise InvalidInputError(
            "class_weight 'balanced' needs publicly known class shares: counting "
            "private rows would not be private; give class_shares",
            argument="class_shares",
        )
    shares = check_shares(class_shares, data.classes)
    return np.asarray(shares.min() / shares)


def _zeroed(part: Part, keep: Bools) -> Part:
    """Return the part with zeros in the rows that are not kept."""
    factors = keep.astype(np.float32)
    if isinstance(part.x, np.ndarray):
        x: Any = part.x * factors[:, None]
    else:
        x = part.x.copy()
        x.data = x.data * np.repeat(factors, np.diff(x.indptr))
        x.eliminate_zeros()
    return Part(x=x, y=part.y, offsets=part.offsets, owned=True)
