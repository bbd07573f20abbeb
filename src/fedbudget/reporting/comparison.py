"""Compare a run with its alternatives on the same rows; stored in the run folder.

The rows are loaded again from the source that the folder names. Where that fails (the
rows of a fleet stay on its devices), a report has no comparison and states the reason.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.data import Dataset, Schema, from_table, hold_out, load
from fedbudget.errors import (
    FedbudgetError,
    InvalidInputError,
    NotPrivateWarning,
    RecordError,
)
from fedbudget.files import whole_file
from fedbudget.losses import Loss
from fedbudget.record import RecordedRun
from fedbudget.reporting.baselines import centralised, constant
from fedbudget.simulation.measuring import measure_devices, measure_new
from fedbudget.simulation.personal import (
    adapt_all,
    best_constant,
    without_features,
)
from fedbudget.simulation.scaling import encoded_by

FILE = "comparison.json"
RUN, CONSTANT, LOCAL = "this run", "constant", "local only"
PERSONAL, CENTRAL = "personal", "centralised"
_ROUNDING = 1e-9  # error of a mean over a device's rows
_TABLE = ("label", "device", "schema", "partition", "missing", "features", "order")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The run and its alternatives on every device's own test rows; not private."""

    metric: str  # test_accuracy or test_loss
    device_names: tuple[str, ...]
    per_device: Mapping[str, Array]  # by name; nan for a device without test rows
    # Means over all rows of devices that never trained, by name; empty: there are none.
    new_devices: Mapping[str, float] = field(default_factory=dict)

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values are better."""
        return self.metric.endswith("accuracy")

    @property
    def means(self) -> dict[str, float]:
        """Means over the devices that have test rows."""
        return {name: float(np.nanmean(v)) for name, v in self.per_device.items()}

    def better_off(self, name: str, than: str) -> tuple[int, int, int]:
        """Count the devices that do better, equally and worse with one than another."""
        gain = self.per_device[name] - self.per_device[than]
        gain = (gain if self.higher_is_better else -gain)[~np.isnan(gain)]
        same = np.abs(gain) < _ROUNDING
        better = int(np.sum((gain > 0) & ~same))
        return better, int(same.sum()), len(gain) - better - int(same.sum())


def compare(
    run: RecordedRun, *, on_part: Callable[[str], None] | None = None
) -> Comparison:
    """Return the comparison stored in the folder, or compute and store it.

    Raises:
        RecordError: The rows cannot be loaded again, or are not those of the run.
    """
    if (stored := stored_comparison(run)) is not None:
        return stored
    if run.theta is None:
        raise RecordError(f"{run.path} holds a run that is not finished: resume it")
    data, held_out = rows_of(run)
    if len(data.test) == 0:
        raise RecordError("no device has test rows: nothing to compare on")
    model = run.plan.model
    metric = "test_accuracy" if data.classes is not None else "test_loss"

    theta = run.theta

    def on_own_rows(thetas: Array) -> Array:
        # Decisions by the run's threshold; a constant has no other answer.
        threshold = run.plan.threshold
        return measure_devices(data, model, thetas, threshold=threshold)[metric]

    def central() -> Array:
        baseline = centralised(data, loss=model.name)
        models[CENTRAL] = baseline.theta
        return on_own_rows(baseline.theta)

    def personal() -> Array:
        adapted = adapt_all(data, model, theta)
        alone.extend(device.own for device in adapted)
        return on_own_rows(np.array([device.theta for device in adapted]))

    models = {RUN: theta}
    alone: list[Array] = []  # local-only models, which adapting fits, too
    parts: dict[str, Callable[[], Array]] = {
        RUN: lambda: on_own_rows(theta),
        PERSONAL: personal,
        LOCAL: lambda: on_own_rows(np.array(alone)),
        CONSTANT: lambda: constant(data, loss=model.name).per_device[metric],
        CENTRAL: central,
    }
    per_device: dict[str, Array] = {}
    for name, measure in parts.items():
        if on_part is not None:
            on_part(name)
        per_device[name] = np.asarray(measure(), dtype=np.float64)
    comparison = Comparison(
        metric=metric,
        device_names=data.device_names,
        per_device=per_device,
        new_devices={}
        if held_out is None
        else _on_new(data, held_out, model, models, run.plan.threshold),
    )
    _write(run.path / FILE, comparison)
    return comparison


def stored_comparison(run: RecordedRun) -> Comparison | None:
    """Return the comparison stored in the folder, if any."""
    path = run.path / FILE
    return _read(path) if path.exists() else None


def _on_new(
    data: Dataset,
    held_out: Dataset,
    model: Loss,
    models: Mapping[str, Array],
    threshold: float,
) -> dict[str, float]:
    """Measure the models, and the best constant, on devices that never trained."""
    metric = "new_loss" if data.classes is None else "new_accuracy"
    _, flat, guess = best_constant(data, model)
    measured = {
        name: measure_new(held_out, model, theta, threshold=threshold)
        for name, theta in models.items()
    }
    measured[CONSTANT] = measure_new(without_features(held_out), flat, guess)
    return {name: values[metric] for name, values in measured.items()}


def rows_of(run: RecordedRun) -> tuple[Dataset, Dataset | None]:
    """Return the rows that a recorded run was trained on, and those of new devices.

    Raises:
        RecordError: They cannot be loaded, or have another shape.
    """
    about = run.about
    if "fleet" in about:
        raise RecordError("the rows are on the devices of a fleet, and stay there")
    source = about.get("source")
    if not isinstance(source, str):
        raise RecordError("the folder does not say where its rows are")
    try:
        with warnings.catch_warnings():  # the run itself warned already
            warnings.simplefilter("ignore", NotPrivateWarning)
            data, held_out = _load(source, about), None
            if count := int(about.get("new_devices", 0)):
                seed = int(about.get("seed", 0))
                data, held_out = hold_out(data, count=count, seed=seed)
            if "public_schema" in about:
                measured = Schema.from_dict(about["schema"])
                data = encoded_by(data, measured, trains=True)
                if held_out is not None:
                    held_out = encoded_by(held_out, measured, trains=False)
    except (FedbudgetError, OSError) as error:
        raise RecordError(f"the rows cannot be read again: {error}") from None
    fits = data.dim == run.plan.dim and len(data.num_samples) == run.plan.num_devices
    if not fits or (data.num_samples != run.plan.num_samples).any():
        raise RecordError(
            f"{source} no longer holds the rows of this run: its devices or columns "
            "have changed"
        )
    return data, held_out


def _load(source: str, about: Mapping[str, Any]) -> Dataset:
    seed = int(about.get("seed", 0))
    if "split" in about:
        return load(
            source,
            split=about["split"],
            seed=seed,
            path=about.get("path"),
            num_devices=about.get("num_devices"),
            features=about.get("features"),
        )
    if not isinstance(about.get("label"), str):
        raise InvalidInputError("the folder does not name the label")
    options: dict[str, Any] = {name: about.get(name) for name in _TABLE}
    options["missing"] = options["missing"] or "error"
    if "public_schema" in about:  # the schema has measured bounds, which clip labels
        options |= {"schema": about["public_schema"], "features": "linear"}
    return from_table(source, seed=seed, **options)


def _write(path: Path, comparison: Comparison) -> None:
    plain = {
        "note": "NOT private: computed on the devices' own test rows",
        "metric": comparison.metric,
        "device_names": list(comparison.device_names),
        "per_device": {
            name: [None if np.isnan(x) else x for x in values.tolist()]
            for name, values in comparison.per_device.items()
        },
        "new_devices": dict(comparison.new_devices),
    }
    with whole_file(path) as file:
        file.write(json.dumps(plain, indent=1))


def _read(path: Path) -> Comparison:
    try:
        plain = json.loads(path.read_text())
        return Comparison(
            metric=plain["metric"],
            device_names=tuple(plain["device_names"]),
            per_device={
                name: np.array([np.nan if x is None else x for x in values])
                for name, values in plain["per_device"].items()
            },
            new_devices=dict(plain.get("new_devices", {})),
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RecordError(
            f"{path} is damaged ({error}): remove it, and it is computed again"
        ) from None
