"""What a model's predictions are worth: metrics that an accuracy alone hides.

With a rare class, always answering the frequent one has a high accuracy. So beside it
stand the constant guess's, recall, precision and F1 of every class, balanced accuracy,
the area under the ROC curve (AUC), which does not depend on a threshold, and the
calibration error of the probabilities. Numbers are judged in the label's unit.

All are computed over rows pooled from all devices: a device may have no row of a rare
class. `cautions` says in words what they mean.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.losses import MARGIN_LOSSES, Floats, Labels

_BINS = 10  # of the calibration error, of equal width
_MOST_CLASSES = 20  # with more, single classes are not listed
_POINTS = 0.005  # a smaller difference of accuracies is negligible
ORDERED = 0.65  # from this AUC on, scores order the rows well enough to be used


def class_metrics(
    loss: str, scores: Floats, y: Labels, classes: Sequence[str], *, cut: float = 0.0
) -> dict[str, float]:
    """Return the metrics of scores of classes; one that is undefined is left out.

    Args:
        loss: Its name, which says what the scores are.
        scores: Shape (n,), of the second of two classes, or (n, C).
        y: Class indices; shape (n,).
        classes: Their names.
        cut: With two classes, the score above which the second is predicted.

    Returns:
        "balanced_accuracy", "f1" (means over the classes), "auc" (for more than two
        classes, the mean of each against the rest), "calibration_error", and
        "recall/NAME", "precision/NAME" and "f1/NAME" of each class.

    >>> class_metrics("logistic", np.array([-1.0, 2.0]), np.array([0, 1]), "ab")["auc"]
    1.0
    """
    labels = np.asarray(y)
    if len(classes) == 2:
        margin = scores if scores.ndim == 1 else scores[:, 1] - scores[:, 0]
        predicted = (margin > cut).astype(np.int64)
        areas = [area_under_curve(margin, labels == 1)]
    else:
        predicted = np.argmax(scores, axis=1)
        areas = [
            area_under_curve(scores[:, c], labels == c) for c in range(len(classes))
        ]
    metrics = _of_classes(predicted, labels, classes)
    defined = [area for area in areas if area is not None]
    if defined:
        metrics["auc"] = float(np.mean(defined))
    if loss not in MARGIN_LOSSES:
        metrics["calibration_error"] = calibration_error(scores, labels)
    return metrics


def _of_classes(
    predicted: NDArray[np.int64], y: NDArray[np.int64], classes: Sequence[str]
) -> dict[str, float]:
    """Return recall, precision and F1 of every class that has rows, and means."""
    count = len(classes)
    table = np.bincount(y * count + predicted, minlength=count**2).reshape(count, count)
    hits, rows, answers = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    present = rows > 0
    recall = hits / np.maximum(rows, 1)
    precision = hits / np.maximum(answers, 1)
    f1 = 2 * hits / np.maximum(rows + answers, 1)
    metrics = {
        "balanced_accuracy": float(recall[present].mean()),
        "f1": float(f1[present].mean()),
    }
    if count > _MOST_CLASSES:
        return metrics
    for kind, values in (("recall", recall), ("precision", precision), ("f1", f1)):
        for c in np.flatnonzero(present).tolist():
            metrics[f"{kind}/{classes[c]}"] = float(values[c])
    return metrics


def area_under_curve(scores: Floats, positive: NDArray[np.bool_]) -> float | None:
    """Return the chance that a positive row scores above a negative one; ties half.

    None if there are no rows of one kind.

    >>> area_under_curve(np.array([0.0, 1.0, 1.0]), np.array([False, True, False]))
    0.75
    """
    count = int(positive.sum())
    others = len(positive) - count
    if not count or not others:
        return None
    # Sorted queries of a sorted array are much faster than ranks of all rows.
    above, below = np.sort(scores[positive]), np.sort(scores[~positive])
    less, not_more = (np.searchsorted(below, above, side) for side in ("left", "right"))
    return float((less.sum() + not_more.sum()) / (2 * count * others))


def calibration_error(scores: Floats, y: NDArray[np.int64]) -> float:
    """Return how far stated confidence and hit rate are apart, over bins of it.

    The expected calibration error: rows are binned by the probability of the predicted
    class (Guo, Pleiss, Sun and Weinberger, 2017). Scores as in `class_metrics`.
    """
    if scores.ndim == 1:
        confidence = 1 / (1 + np.exp(-np.abs(scores)))
        hit = (scores > 0) == (y == 1)
    else:
        confidence = 1 / np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1)
        hit = scores.argmax(axis=1) == y
    bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, weights=confidence - hit, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(y))


def value_metrics(predicted: Array, truth: Array) -> dict[str, float]:
    """Return the errors of predicted numbers, in their unit; R2 has none.

    Returns:
        "mae", "rmse", "bias" (mean of predicted minus true), and "r2", which is 0 for
        the mean of these labels; it is left out if all labels are equal.
    """
    error = predicted - truth
    metrics = {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "bias": float(error.mean()),
    }
    spread = float(np.mean((truth - truth.mean()) ** 2))
    if spread > 0:
        metrics["r2"] = 1 - metrics["rmse"] ** 2 / spread
    return metrics


_DETAILS = {
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "f1": "F1, mean of classes",
    "calibration_error": "calibration error",
    "mae": "mean absolute error",
    "rmse": "root mean square error",
    "bias": "bias",
    "r2": "R2",
}
_IN_UNITS = ("mae", "rmse", "bias")


def detail_rows(
    measured: Mapping[str, float], unit: str
) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the model's and the constant's value of each metric, as text.

    >>> list(detail_rows({"test_rmse": 0.25, "constant_test_rmse": 1.5}, "kWh"))
    [('root mean square error', '0.2500 kWh', '1.5000 kWh')]
    """
    details = [name for name in _DETAILS if f"test_{name}" in measured]
    for name in details:
        texts = []
        for value in (measured[f"test_{name}"], constant_value(measured, name)):
            shown = "" if value is None else number_text(value)
            of = f" {unit}" if unit and name in _IN_UNITS and shown else ""
            texts.append(f"{shown}{of}")
        yield _DETAILS[name], texts[0], texts[1]


def constant_value(measured: Mapping[str, float], name: str) -> float | None:
    """Return a metric of the constant answer, measured or known."""
    if name == "auc":
        return 0.5
    if name == "r2":
        return 0.0
    if name == "balanced_accuracy":
        classes = sum(each.startswith("test_recall/") for each in measured)
        return 1 / classes if classes else None
    return measured.get(f"constant_test_{name}")


def class_rows(measured: Mapping[str, float]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name of each class, and its recall, precision and F1, as text."""
    prefix = "test_recall/"
    for key in measured:
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            values = [
                measured[f"test_{kind}/{name}"]
                for kind in ("recall", "precision", "f1")
            ]
            recall, precision, f1 = map(number_text, values)
            yield name, recall, precision, f1


def number_text(value: float) -> str:
    """Return four decimals; three digits for a large number."""
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


def cautions(measured: Mapping[str, float]) -> tuple[str, ...]:
    """Return in words what the metrics of a run's test rows warn of; empty if nothing.

    >>> cautions({"test_accuracy": 0.96, "constant_test_accuracy": 0.96})
    ('accuracy 0.960 is no better than a constant answer, 0.960',)
    """
    return (*_about_constant(measured), *_about_recall(measured), *_about_r2(measured))


def _about_constant(measured: Mapping[str, float]) -> list[str]:
    accuracy = measured.get("test_accuracy")
    constant = measured.get("constant_test_accuracy")
    if accuracy is None or constant is None or accuracy - constant > _POINTS:
        return []
    text = f"accuracy {accuracy:.3f} is no better than a constant answer, "
    text += f"{constant:.3f}"
    area = measured.get("test_auc")
    if area is not None and area >= ORDERED and not _unrecognised(measured):
        text += (
            f"; judge it by its balanced accuracy, "
            f"{measured['test_balanced_accuracy']:.3f}, and its AUC, {area:.3f}"
        )
    return [text]


def _unrecognised(measured: Mapping[str, float]) -> list[str]:
    """Return the classes of which no test row is recognised."""
    prefix = "test_recall/"
    return [
        name.removeprefix(prefix)
        for name, value in measured.items()
        if name.startswith(prefix) and value == 0
    ]


def _about_recall(measured: Mapping[str, float]) -> list[str]:
    names = _unrecognised(measured)
    if not names:
        return []
    classes = f"class {', '.join(map(repr, names))}"
    area = measured.get("test_auc")
    if area is None:
        return [f"no row of {classes} is recognised (recall 0)"]
    if area >= ORDERED:
        return [
            f"no row of {classes} is recognised (recall 0), although the scores order "
            f"the rows well (AUC {area:.3f}): predict it from a lower probability on "
            "(Plan.threshold, --threshold shares)"
        ]
    return [
        f"no row of {classes} is recognised (recall 0), and the scores hardly order "
        f"the rows (AUC {area:.3f}): the model needs a larger budget, more rows, or "
        "bounds closer to the data"
    ]


def _about_r2(measured: Mapping[str, float]) -> list[str]:
    r2 = measured.get("test_r2")
    if r2 is None or r2 > _POINTS:
        return []
    return [
        f"R2 is {r2:.3g}: no better than the mean of the labels; the label's bounds "
        "may be much wider than its values, or a budget too small"
    ]
