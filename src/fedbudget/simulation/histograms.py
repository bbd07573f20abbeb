"""Histograms of every device's samples as one noisy query, and what it spends.

*Query.* A sample has one bin in each of D histograms of B bins. It becomes a row u of
D B entries: 1 / sqrt(D) in each of its bins, 0 elsewhere. A device answers with the
mean of u over its N training samples and Gaussian noise: the gradient of the hinge loss
at theta = 0 on the rows u with label +1, negated.

*Statement.* With noise of standard deviation sqrt(2) / (N mu) per coordinate, the
answer is mu Gaussian DP for the replacement of one sample.

*Proof.* Two rows u and u' differ in at most two entries of each histogram, by
1 / sqrt(D) each: |u - u'|^2 <= D (2 / D) = 2. Replacing a sample moves the mean by at
most sqrt(2) / N, and the Gaussian mechanism has mu = sqrt(2) / (N std) (Dong, Roth and
Su 2022). Rounding, in a release: `NoiseGrid` raises the noise by twice what moves of
2 G need, so by more than sqrt(2) G needs.
"""

from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fedbudget.data import Dataset, Part
from fedbudget.data.unit_ball import LARGEST_NORM
from fedbudget.errors import InvalidInputError

Bins = NDArray[np.int64]  # shape (n, D): the bin of each training sample

DISTANCE = sqrt(2.0)  # of two rows u, at most


def histogram_rows(data: Dataset, bins: Bins, count: int) -> Dataset:
    """Return the rows u of the training samples, each with label +1.

    Raises:
        InvalidInputError: There is not one row of bins for each training sample, or a
            bin is not in 0 .. count - 1.
    """
    from scipy.sparse import csr_array

    samples, histograms = len(data.train), bins.shape[1]
    inside = bins.dtype.kind in "iu" and bool(((bins >= 0) & (bins < count)).all())
    if len(bins) != samples or not inside:
        raise InvalidInputError(
            f"bins have shape {bins.shape}, there are {samples} training samples: give "
            f"one bin in 0 .. {count - 1} for each, in every histogram"
        )
    indices = (bins + count * np.arange(histograms)).astype(np.int32).reshape(-1)
    entries = np.full(indices.size, LARGEST_NORM / sqrt(histograms), np.float32)
    starts = np.arange(0, indices.size + 1, histograms)
    dim = histograms * count
    u = csr_array((entries, indices, starts), shape=(samples, dim))
    none = csr_array((0, dim), dtype=np.float32)
    empty = Part(
        x=none,
        y=np.zeros(0, np.int64),
        offsets=np.zeros(data.num_devices + 1, np.int64),
    )
    ones = np.ones(samples, dtype=np.int64)
    return replace(
        data,
        train=Part(x=u, y=ones, offsets=data.train.offsets, owned=True),
        validation=empty,
        test=empty,
        feature_names=tuple(map(str, range(dim))),
        classes=("absent", "present"),
        schema=None,
    )
