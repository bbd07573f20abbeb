"""Constants of the spectral model, measured on tables: `--cases FOLDER`.

Prints three Markdown tables: what every table says; per constant the value in use, the
median over the tables, and the range of that median if one table is left out; and the
decays of rows without a mean. The planner reads none of them: the values in use stand
in the code, and no single table moves them far. Adult comes with the package;
`--more FILE` adds wisdm_watch.npz and beijing_air.npz, which are not part of the
project.

    trace       mean curvature between zero and the optimum, over that at zero
    spike       share of the largest eigenvalue of E x x^T in the trace
    its gap     share of the initial gap along it, by g^2 / (2 h) at zero
    decay       q of i^-q over the other eigenvalues, and over their gaps: the maximum
                likelihood of a power law, sum w_i log i = E_q log i
    learnable   share of the loss at zero that the best linear model removes
    mean^2, variance   of a column of numbers, scaled to [-1, 1] by its bounds
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cases as tables_of
import numpy as np
from cases import read_cases
from tables import add_option, header, row, show

import fedbudget as fb
from fedbudget import problem as used
from fedbudget.data import encoding
from fedbudget.losses import Loss, loss_named
from fedbudget.public_sample import curvature_at_zero
from fedbudget.simulation.personal import fit

STRENGTH = 1e-4  # of the L2 term of the best model
FLAT = 1e-6  # a smaller eigenvalue, over the largest one, says nothing


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows in the unit ball, and their labels."""

    name: str
    x: np.ndarray
    y: np.ndarray
    loss: str
    classes: int | None


def adult() -> Table:
    """Return Adult, which comes with the package."""
    part = fb.load("adult", split="iid").train
    rows = part.x if isinstance(part.x, np.ndarray) else part.x.toarray()
    return Table(name="adult", x=rows, y=part.y, loss="logistic", classes=2)


def with_intercept(
    columns: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Scale columns to [-1, 1], add an intercept, and scale rows to norm 1."""
    scaled = np.clip(2 * (columns - low) / (high - low) - 1, -1, 1)
    rows = np.column_stack([scaled, np.ones(len(scaled))])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def wisdm(path: Path) -> Table:
    """Return six statistics of every axis, and of the length, of a watch's windows."""
    with np.load(path) as stored:
        x, labels = stored["x"].astype(np.float64), stored["y"]
    axes = np.concatenate([x, np.linalg.norm(x, axis=1, keepdims=True)], axis=1)
    steps = np.abs(np.diff(axes, axis=2)).mean(2)
    parts = [axes.mean(2), axes.std(2), axes.min(2), axes.max(2), np.median(axes, 2)]
    # Bounds of the sensor: 2 g on every axis, and so 35 m/s^2 in length.
    signed, positive = [-20.0] * 3 + [0.0], [0.0] * 4
    low = np.array([*signed, *positive, *signed, *signed, *signed, *positive])
    length, spread = [20.0] * 3 + [35.0], [15.0] * 4
    high = np.array([*length, *spread, *length, *length, *length, *spread])
    rows = with_intercept(np.concatenate([*parts, steps], axis=1), low, high)
    classes = np.unique(labels, return_inverse=True)[1]
    return Table(name="wisdm", x=rows, y=classes, loss="softmax", classes=6)


def beijing(path: Path, *, regression: bool) -> Table:
    """Return 8,000 hours of weather, and whether or how far the air is polluted."""
    with np.load(path) as stored:
        x, y, dust = (stored[name] for name in ("x", "y", "pm25"))
    chosen = np.random.default_rng(0).choice(len(x), 8000, replace=False)
    rows = with_intercept(x[chosen].astype(np.float64), x.min(0), x.max(0))
    if regression:
        labels = 2 * np.clip(dust[chosen] / 500, 0, 1) - 1  # 500: end of the index
        return Table(name="beijing pm2.5", x=rows, y=labels, loss="huber", classes=None)
    labels = y[chosen].astype(np.int64)
    return Table(name="beijing", x=rows, y=labels, loss="logistic", classes=2)


def modes(
    model: Loss, x: np.ndarray, y: np.ndarray, at_zero: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return eigenvalues, eigenvectors and parts of the gap, steepest first."""
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    zero = np.zeros(model.num_params(x.shape[1]))
    gradient = model.gradient(zero, x, y).reshape(-1, x.shape[1]) @ vectors
    parts = (gradient**2).sum(0) / (2 * np.maximum(at_zero * values, 1e-12))
    return values, vectors, np.where(values > FLAT * values[0], parts, 0)


def measured(table: Table) -> dict[str, float]:
    """Return the constants of one table; nan where it says nothing."""
    model = loss_named(
        table.loss, num_classes=table.classes if table.loss == "softmax" else None
    )
    x = np.asarray(table.x, dtype=np.float64)
    # That of hinge is to be found: over the curvature of a square.
    at_zero = 1.0 if table.loss == "hinge" else curvature_at_zero(model)
    values, vectors, gaps = modes(model, x, table.y, at_zero)
    theta = fit(model, x, table.y, strength=STRENGTH)
    zero, best = (model.value(t, x, table.y) for t in (0 * theta, theta))
    curvature = at_zero * values
    along = theta.reshape(-1, x.shape[1]) @ vectors
    seen = values > FLAT * values[0]
    squares, variances = _numbers(x)
    return {
        "trace": (zero - best) / (0.5 * float(np.sum(curvature * along**2))),
        "spike": float(values[0] / values.sum()),
        "its gap": float(gaps[0] / gaps.sum()),
        "decay": _decay(values[1:][seen[1:]]),
        "decay of gaps": _decay(gaps[1:][seen[1:]]),
        "learnable": 1 - best / zero,
        "mean^2": squares,
        "variance": variances,
        "label spread": float(np.sqrt(np.mean(table.y**2)))
        if table.loss == "huber"
        else np.nan,
    }


def _decay(weights: np.ndarray) -> float:
    """Return the q for which i^-q has the same mean log rank as the weights."""
    logs = np.log(np.arange(1, len(weights) + 1))
    if len(weights) < 3:
        return np.nan
    observed = np.average(logs, weights=weights)
    trials = np.linspace(0, 5, 501)
    expected = [np.average(logs, weights=np.exp(-q * logs)) for q in trials]
    return float(trials[np.argmin(np.abs(np.array(expected) - observed))])


def _numbers(x: np.ndarray) -> tuple[float, float]:
    """Return the squared mean and the variance of columns of numbers.

    Dividing by the intercept undoes the scaling of rows; one-hot columns are left out.
    """
    for column in np.flatnonzero((x > 0).all(axis=0)):
        raw = np.delete(x, column, axis=1) / x[:, [column]]
        if np.abs(raw).max() <= 1 + 1e-3:
            one_hot = np.isin(raw.round(3), (0, 1)).all(axis=0)
            numbers = raw[:, ~one_hot]
            if numbers.shape[1]:
                return float((numbers.mean(0) ** 2).mean()), float(
                    numbers.var(0).mean()
                )
    return np.nan, np.nan


def in_use(name: str, loss: str) -> float:
    """Return the value that the planner uses."""
    return {
        "trace": used.CURVATURE_SHARE[loss],
        "spike": used.SPIKE_SHARE,
        "its gap": used.SPIKE_GAP[loss],
        "decay": used.SPECTRUM_DECAY,
        "decay of gaps": used.GAP_DECAY,
        "learnable": used.LEARNABLE_SHARE[loss],
        "mean^2": encoding.MEAN_SQUARE,
        "variance": encoding.VARIANCE,
        "label spread": used.LABEL_SPREAD,
    }[name]


def by_table(tables: Sequence[Table]) -> Iterator[str]:
    """Yield a line per table."""
    names = list(measured(tables[0]))
    yield from header(["table", "loss", *names])
    for table in tables:
        values = measured(table)
        cells = ["" if np.isnan(values[n]) else f"{values[n]:.2f}" for n in names]
        yield row([table.name, table.loss, *cells])


def constants(tables: Sequence[Table]) -> Iterator[str]:
    """Yield a line per constant, for classification and for regression."""
    yield from header(["constant", "in use", "median", "leaving one out", "tables"])
    for regression in (False, True):
        group = [t for t in tables if (t.loss == "huber") == regression]
        rows = [measured(table) for table in group]
        for name in rows[0] if rows else ():
            values = np.array([each[name] for each in rows])
            values = values[~np.isnan(values)]
            if not len(values):
                continue
            medians = [np.median(np.delete(values, i)) for i in range(len(values))]
            left_out = f"{min(medians):.2f} to {max(medians):.2f}"
            yield row(
                [
                    f"{name}{', regression' if regression else ''}",
                    f"{in_use(name, group[0].loss):g}",
                    f"{np.median(values):.2f}",
                    left_out if len(values) > 2 else "",
                    f"{values.min():.2f} to {values.max():.2f} ({len(values)})",
                ]
            )


def centred() -> Iterator[str]:
    """Yield the decays of the Vehicle rows, whose columns have mean 0: no spike."""
    part = fb.load("vehicle", split="iid").train
    values, _, gaps = modes(loss_named("hinge"), np.asarray(part.x), part.y, 1.0)
    yield from header(["synthetic Vehicle rows", "in use", "measured"])
    yield row(["decay", f"{encoding.CENTRED_DECAY:g}", f"{_decay(values):.2f}"])
    used_decay = f"{encoding.CENTRED_GAP_DECAY:g}"
    yield row(["decay of gaps", used_decay, f"{_decay(gaps):.2f}"])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables_of.add_option(parser)
    parser.add_argument("--more", type=Path, action="append", default=[], help="a file")
    add_option(parser)
    options = parser.parse_args()
    tables = [adult()]
    for case in read_cases(options.cases):
        arrays = case.arrays
        classes = arrays["meta"]["classes"]
        x, y = arrays["x"], arrays["y"]
        tables.append(Table(name=case.name, x=x, y=y, loss=case.loss, classes=classes))
    for path in options.more:
        if path.stem == "wisdm_watch":
            tables.append(wisdm(path))
        else:
            tables += [beijing(path, regression=r) for r in (False, True)]
    show("spectra", by_table(tables), options.tables)
    show("spectrum-constants", constants(tables), options.tables)
    show("spectrum-centred", centred(), options.tables)


if __name__ == "__main__":
    main()
