"""Data sets partitioned over devices: built-in ones, and your own tables."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbudget.errors import InvalidInputError
from fedbudget.text import shown

if TYPE_CHECKING:
    from fedbudget.data.dataset import Dataset, Part, hold_out
    from fedbudget.data.features import Categorical, Numeric
    from fedbudget.data.fourier import FeatureStep, Fourier
    from fedbudget.data.row_weights import weight_rows
    from fedbudget.data.schema import Schema
    from fedbudget.data.tables import from_partitions, from_table, infer_schema
    from fedbudget.data.times import Time
    from fedbudget.data.windows import Windows

__all__ = [
    "Categorical",
    "Dataset",
    "Fourier",
    "Numeric",
    "Part",
    "Schema",
    "Time",
    "Windows",
    "from_partitions",
    "from_table",
    "hold_out",
    "infer_schema",
    "load",
    "weight_rows",
]


# Imported on first use: a device needs the schema only.
_MODULES = {
    "dataset": "Dataset Part hold_out",
    "features": "Categorical Numeric",
    "times": "Time",
    "fourier": "Fourier",
    "row_weights": "weight_rows",
    "schema": "Schema",
    "windows": "Windows",
    "tables": "from_partitions from_table infer_schema",
}
BUILT_IN = {  # names, and the split that each has by default
    "adult": "by-education",
    "wisdm": "by-person",
    "vehicle": "by-sensor",
    "beijing": "by-station",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def load(
    name: str,
    *,
    split: str | None = None,
    seed: int = 0,
    path: str | Path | None = None,
    num_devices: int | None = None,
    features: "FeatureStep" = None,
) -> "Dataset":
    """Load a data set by its name.

    Args:
        name: ``adult`` (splits ``by-education``, ``iid``), ``wisdm`` (``by-person``,
            ``iid``), ``vehicle`` (``by-sensor``, ``iid``), or ``beijing``
            (``by-station``, ``iid``).
        split: How rows are partitioned over devices; by default the first named above.
        seed: Seeds the partition and the 80/10/10 split on every device.
        path: A ``vehicle.mat``; without it, vehicle is SYNTHETIC data. For beijing,
            the folder of its CSV files.
        num_devices: For split ``iid`` only.
        features: ``linear`` (the default), ``fourier`` or ``fourier:COUNT``: random
            Fourier features of all columns, as for `Schema.with_features`.

    >>> print(load("adult", split="iid", seed=1))
    adult: 16 devices, 32561 rows (26048 train, 3249 validation, 3264 test), \
102 columns, 2 classes, dissimilarity iid
    """
    if name not in BUILT_IN:
        raise InvalidInputError(
            f"data set {shown(name)} is not known: use {', '.join(BUILT_IN)}, or "
            "from_table for a file of your own"
        )
    split = BUILT_IN[name] if split is None else split
    options: Any = {"split": split, "seed": seed, "num_devices": num_devices}
    if name in ("adult", "wisdm"):
        return _included(name, path, features=features, **options)
    if name == "beijing":
        from fedbudget.data.beijing import load_beijing

        return load_beijing(path, features=features, **options)
    if features not in (None, "linear"):
        raise InvalidInputError(
            f"features={shown(features)} do not go with vehicle, whose rows have no "
            "schema: leave them out, or use scikit-learn's RBFSampler before "
            "PrivateFederatedClassifier",
            argument="features",
        )
    from fedbudget.data.vehicle import load_standin, load_vehicle

    if path is None:
        return load_standin(**options)
    return load_vehicle(path, **options)


def _included(name: str, path: Any, **options: Any) -> "Dataset":
    """Load a data set that comes with the package."""
    if path is not None:
        raise InvalidInputError(
            f"path={shown(path)} does not go with {name}, which comes with the "
            "package: leave it out, or use from_table for your own file"
        )
    if name == "adult":
        from fedbudget.data.adult import load_adult

        return load_adult(**options)
    from fedbudget.data.wisdm import load_wisdm

    return load_wisdm(**options)
