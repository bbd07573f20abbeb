"""What the public encoding of a table says about its rows, before any is read.

Columns scaled to [-1, 1], one-hot columns and an intercept give rows whose mean is
large: it is the steepest direction of the loss, the spike of the spectral model. A
schema fixes how much of a row's squared norm each kind of column contributes, and how
much of that can lie in the mean:

    intercept     1, all of it in the mean
    a number      a mean of square MEAN_SQUARE and a variance of VARIANCE
    a category    1; of it sum p^2 in the mean, for frequencies p that fall as i^-FALL

The three numbers are medians over tables: benchmarks/fit_spectrum.py.
"""

from dataclasses import dataclass

import numpy as np

from fedbudget.text import counted

MEAN_SQUARE, VARIANCE = 0.33, 0.1  # of a number, scaled by its public bounds
FALL = 1.5  # the i-th most frequent category has a frequency of about i^-FALL

# Beside the mean, eigenvalue i falls as i^-q. Numbers are correlated, and categories of
# one column exclude each other: their eigenvalues differ less.
NUMBERS_DECAY, CATEGORIES_DECAY = 1.6, 1.1
# Their parts of the gap fall likewise. Few categories tell most.
NUMBERS_GAP_DECAY, CATEGORIES_GAP_DECAY = 1.1, 1.6
CONSTANT_GAP, FIRST_GAP = 0.1, 0.4  # shares of the gap: of a constant, a first mode
# Of standardised numbers, whose rows have no mean: those of the synthetic Vehicle rows.
CENTRED_DECAY, CENTRED_GAP_DECAY = 1.0, 1.6


# Fourier features. Of a Gaussian kernel, the mean of the features has a squared norm of
# E k(z, z'), which follows from the scale and the spread of the columns. For k normal
# columns with a total variance of V it is (1 + 2 V / (k s^2))^(-k / 2). Few columns
# hold most of the variance: k = 4 fits. The usual scale has s^2 = V.
NUMBER_SPREAD = 0.15  # variance of a number in [-1, 1], before rows are scaled
_COLUMNS = 4
FOURIER_DECAY, FOURIER_GAP_DECAY = 1.35, 1.2
FOURIER_GAIN = 0.015  # of the loss at zero, that their best model gains over a linear


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The kinds of columns that a schema has.

    >>> round(Encoding(numbers=10, categories=(), intercept=True).spike_share, 2)
    0.81
    """

    numbers: int
    categories: tuple[int, ...]  # the number of values of each categorical column
    intercept: bool
    scale: float | None = None  # of Fourier features; None: columns as they are

    @property
    def usual_scale(self) -> float:
        """The scale of Fourier features: the root of the columns' total variance."""
        spread = NUMBER_SPREAD * self.numbers
        spread += sum(1 - _repeated(count) for count in self.categories)
        return float(f"{max(spread, NUMBER_SPREAD) ** 0.5:.3g}")

    @property
    def spike_share(self) -> float:
        """The share of the rows' mean in their mean squared norm."""
        if self.scale is not None:
            unlike = 2 * (self.usual_scale / self.scale) ** 2 / _COLUMNS
            return float((1 + unlike) ** (-_COLUMNS / 2))
        in_mean = self.intercept + MEAN_SQUARE * self.numbers
        in_mean += sum(map(_repeated, self.categories))
        return float(in_mean / self._norm)

    @property
    def spike_gap(self) -> float:
        """The share of the gap along the mean.

        Rows that differ little along their mean tell only how frequent the classes
        are. The more they differ, the more that direction is like any first one.
        """
        share = self.spike_share
        if self.scale is not None:
            return CONSTANT_GAP
        return CONSTANT_GAP * share + FIRST_GAP * (1 - share)

    @property
    def spectrum_decay(self) -> float:
        """The decay of the eigenvalues beside the mean, by the kinds of columns."""
        if self.scale is not None:
            return FOURIER_DECAY
        return self._mixed(NUMBERS_DECAY, CATEGORIES_DECAY)

    @property
    def gap_decay(self) -> float:
        """The decay of the gap over those modes."""
        if self.scale is not None:
            return FOURIER_GAP_DECAY
        return self._mixed(NUMBERS_GAP_DECAY, CATEGORIES_GAP_DECAY)

    def _mixed(self, of_numbers: float, of_categories: float) -> float:
        """Return the mean, weighted by what both kinds add beside the mean."""
        numbers = VARIANCE * self.numbers
        categories = sum(1 - _repeated(count) for count in self.categories)
        total = numbers + categories
        if total == 0:
            return of_numbers
        return float((numbers * of_numbers + categories * of_categories) / total)

    @property
    def _norm(self) -> float:
        numbers = (MEAN_SQUARE + VARIANCE) * self.numbers
        return self.intercept + numbers + len(self.categories)

    def __str__(self) -> str:
        parts = [
            counted(self.numbers, "number") if self.numbers else "",
            counted(len(self.categories), "one-hot column") if self.categories else "",
            "an intercept" if self.intercept else "no intercept",
            "" if self.scale is None else "their Fourier features",
        ]
        return ", ".join(filter(None, parts))


def _repeated(values: int) -> float:
    """Return sum p^2: the chance that two rows have the same category.

    >>> _repeated(1)
    1.0
    """
    frequency = np.arange(1.0, values + 1) ** -FALL
    return float(np.sum(frequency**2) / np.sum(frequency) ** 2)
