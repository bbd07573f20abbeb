"""Data sets partitioned over devices: Adult, Vehicle, and your own tables."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbudget.errors import InvalidInputError
from fedbudget.text import shown

if TYPE_CHECKING:
    from fedbudget.data.dataset import Dataset, Part, hold_out
    from fedbudget.data.features import Categorical, Numeric
    from fedbudget.data.schema import Schema
    from fedbudget.data.tables import from_partitions, from_table, infer_schema

__all__ = [
    "Categorical",
    "Dataset",
    "Numeric",
    "Part",
    "Schema",
    "from_partitions",
    "from_table",
    "hold_out",
    "infer_schema",
    "load",
]


# Imported on first use: a device needs the schema only.
_MODULES = {
    "dataset": "Dataset Part hold_out",
    "features": "Categorical Numeric",
    "schema": "Schema",
    "tables": "from_partitions from_table infer_schema",
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
) -> "Dataset":
    """Load a data set by its name.

    Args:
        name: ``adult`` (splits ``by-education``, ``iid``), or ``vehicle`` (splits
            ``by-sensor``, ``iid``).
        split: How rows are partitioned over devices; by default the first named above.
        seed: Seeds the partition and the 80/10/10 split on every device.
        path: A ``vehicle.mat``; without it, vehicle is SYNTHETIC data.
        num_devices: For split ``iid`` only.

    >>> print(load("adult", split="iid", seed=1))
    adult: 16 devices, 32561 rows (26048 train, 3249 validation, 3264 test), \
102 columns, 2 classes, dissimilarity iid
    """
    if name == "adult":
        from fedbudget.data.adult import load_adult

        split = "by-education" if split is None else split
        if path is not None:
            raise InvalidInputError(
                f"path={shown(path)} does not go with adult, which comes with the "
                "package: leave it out, or use from_table for your own file"
            )
        return load_adult(split=split, seed=seed, num_devices=num_devices)
    if name == "vehicle":
        from fedbudget.data.vehicle import load_standin, load_vehicle

        split = "by-sensor" if split is None else split
        if path is None:
            return load_standin(split=split, seed=seed, num_devices=num_devices)
        return load_vehicle(path, split=split, seed=seed, num_devices=num_devices)
    raise InvalidInputError(
        f"data set {shown(name)} is not known: use adult or vehicle, or from_table "
        "for a file of your own"
    )
