"""Beijing Multi-Site Air Quality (Zhang et al., 2017): a loader for its CSV files.

12 stations, hourly from March 2013 to February 2017. The label is whether the air holds
more than 75 micrograms of fine particles (PM2.5) per cubic metre, the limit of a day in
China's standard; PM10, which contains PM2.5, is no feature. The files are not part of
the package: the UCI Machine Learning Repository has them as data set 501.
"""

from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.checks import one_of
from fedbudget.data.columns import Coded, Numbers
from fedbudget.data.dataset import Dataset
from fedbudget.data.features import Categorical, Numeric
from fedbudget.data.fourier import FeatureStep
from fedbudget.data.reading import read_column, read_table
from fedbudget.data.schema import Schema
from fedbudget.data.tables import from_table
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.text import shown

SPLITS = ("by-station", "iid")
LIMIT = 75.0  # micrograms of PM2.5 per cubic metre
STATIONS = 12
PATTERN = "PRSA_Data_*.csv"

# Ranges of the usual instruments and of the climate; what exceeds them is clipped.
_NUMBERS = {
    "SO2": Numeric(0, 200),
    "NO2": Numeric(0, 250),
    "CO": Numeric(0, 8000),
    "O3": Numeric(0, 350),
    "TEMP": Numeric(-20, 42),
    "PRES": Numeric(980, 1045),
    "DEWP": Numeric(-36, 30),
    "RAIN": Numeric(0, 10),
    "WSPM": Numeric(0, 10),
}
_PERIODS = {"hour": 24, "month": 12}
_WINDS = "E ENE ESE N NE NNE NNW NW S SE SSE SSW SW W WNW WSW"

SCHEMA = Schema(
    features={
        **_NUMBERS,
        **{f"{name}_{f}": Numeric(-1, 1) for name in _PERIODS for f in ("sin", "cos")},
        "wd": Categorical(tuple(_WINDS.split())),
    },
    label="polluted",
    target=Categorical(("no", "yes")),
)


def load_beijing(
    path: str | Path | None,
    *,
    split: str = "by-station",
    seed: int = 0,
    num_devices: int | None = None,
    features: FeatureStep = None,
) -> Dataset:
    """Load the folder of CSV files, one per station.

    Rows with an empty cell are left out, with a `NotPrivateWarning`.

    Args:
        path: The folder with the 12 files PRSA_Data_STATION_20130301-20170228.csv.
        split: ``by-station`` (12 devices) or ``iid`` (even shares).
        seed: Seeds the partition and the 80/10/10 split on every device.
        num_devices: For ``iid`` only; by default as many as there are stations.
        features: The feature step, as for `Schema.with_features`; by default none.

    Raises:
        DataError: The folder has no such file, or a file lacks a column.
        InvalidInputError: No folder was given.
    """
    one_of("split", split, SPLITS)
    if path is None:
        raise InvalidInputError(
            "beijing needs path, the folder of its CSV files, which are not part of "
            "the package: get them from https://doi.org/10.24432/C5RK5G (--path)",
            argument="path",
        )
    files = sorted(Path(path).glob(PATTERN))
    if not files:
        raise DataError(
            f"folder {str(path)!r} holds no {PATTERN}: unpack the archive of UCI data "
            "set 501 there",
            argument="path",
        )
    if split == "iid":
        devices: dict[str, Any] = {"partition": f"iid:{num_devices or len(files)}"}
    elif num_devices in (None, len(files)):
        devices = {"device": "station"}
    else:
        raise InvalidInputError(
            f"num_devices={shown(num_devices)} does not go with split 'by-station', "
            f"which has {len(files)}: leave it out or use split 'iid'"
        )
    return from_table(
        _derived(files),
        label=SCHEMA.label,
        schema=SCHEMA,
        seed=seed,
        missing="drop",
        name="beijing",
        features=features,
        **devices,
    )


def _derived(files: list[Path]) -> Any:
    """Return one table with the label, and with hours and months on a circle."""
    import pyarrow as pa

    tables = [read_table(file, text={"wd": (), "station": ()}) for file in files]
    table = pa.concat_tables(tables, promote_options="permissive")
    particles = _numbers(table, "PM2.5")
    above = pa.array(np.where(particles > LIMIT, "yes", "no"), mask=np.isnan(particles))
    columns = {name: table.column(name) for name in ("station", "wd", *_NUMBERS)}
    for name, period in _PERIODS.items():
        angle = 2 * np.pi * _numbers(table, name) / period
        columns |= {f"{name}_sin": np.sin(angle), f"{name}_cos": np.cos(angle)}
    return pa.table({**columns, SCHEMA.label: above})


def _numbers(table: Any, name: str) -> Numbers:
    column = read_column(table, name)
    if isinstance(column, Coded):
        raise DataError(
            f"column {name!r} holds {shown(column.values[:1])}, not numbers: fetch the "
            "files again",
            column=name,
        )
    return column
