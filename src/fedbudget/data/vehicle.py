"""The 23-sensor Vehicle data: a loader for ``vehicle.mat``, and a synthetic stand-in.

The real file is not part of the package: give its path. Without it a stand-in is drawn
from a simple model in this file. It uses no data, and is labelled SYNTHETIC.
"""

import hashlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import error as ZlibError  # noqa: N812  # a class with a lower-case name

import numpy as np
from numpy.typing import NDArray

from fedbudget.data.dataset import Dataset, split_rows
from fedbudget.data.partitions import generator, own_or_even
from fedbudget.data.unit_ball import LARGEST_NORM
from fedbudget.errors import (
    DataError,
    InvalidInputError,
    NotPrivateWarning,
    needed,
)
from fedbudget.text import shown

_STANDARDISED = (
    "NOT covered: the mean and the deviation of every sensor's columns, which were "
    "read from the rows"
)

SPLITS = ("by-sensor", "iid")
CLASSES = ("-1", "+1")

# The git blob id of the file that the federated literature uses.
GIT_BLOB = "9f37fd4230ef0856f26449c28d5f6a7bdec3bd64"

# Rows per sensor in the real data: 43,695 in all, recovered from public run logs.
COUNTS: tuple[int, ...]
COUNTS = (2578, 1511, 1519, 1425, 1375, 1164, 1683, 1735, 2000, 1701, 1803, 1803)
COUNTS += (1954, 2200, 2214, 1914, 2068, 1962, 2287, 2002, 2068, 2448, 2281)
SHARE_POSITIVE = 22841 / 43695  # real share of the label +1
INVERTED = 5  # the sensor with inverted labels, as in the real data
DIM = 100

# Orders of magnitude of 1,860 real rows, scaled to norm 1: two leading factors have
# 0.24 and 0.20 of the variance, the next one 0.044, and the others less; the distance
# of the class means is about 0.5. Tilt, spread and flip rates were tuned by hand until
# a linear SVM had an accuracy of 0.86, as a mean over sensors. Public logs of the real
# data show 0.84 to 0.88 for federated linear SVMs: agreement is by construction.
LEADING = (0.24, 0.20)
NUM_FACTORS, THIRD, DECAY = 32, 0.044, 0.75
CLASS_GAP = 0.53
SHIFT = 0.1  # norm of a sensor's own offset
TILT = 0.8  # deviation of a sensor's class direction from the common one
SHARE_SPREAD = 0.08  # spread of the sensors' shares of +1
FLIP_RATES = (0.04, 0.18)  # label noise, a rate per sensor drawn between these


def load_vehicle(
    path: str | Path,
    *,
    split: str = "by-sensor",
    seed: int = 0,
    num_devices: int | None = None,
    check: bool = True,
    standardise: bool = False,
) -> Dataset:
    """Load the real ``vehicle.mat``.

    Args:
        path: A MATLAB file with cells X{i} (n_i x 100) and Y{i} (-1 or +1).
        split: ``by-sensor`` (23 devices) or ``iid`` (even shares).
        seed: Seeds the partition and the 80/10/10 split on every device.
        num_devices: For ``iid`` only; by default as many as there are sensors.
        check: Refuse a file that is not the one the literature uses.
        standardise: Subtract each sensor's mean and divide by its standard deviation,
            as others do. Both are read from private rows, with a `NotPrivateWarning`.

    Raises:
        DataError: The file does not exist, is another file, or has another shape.
        MissingExtraError: scipy is not installed.
    """
    if not isinstance(path, str | Path):
        raise InvalidInputError(
            f"path must be a file's name, got {shown(path)}: leave it out for the "
            "stand-in"
        )
    x, y, sensor = _read(Path(path), check=check)
    if standardise:
        warnings.warn(
            "the mean and the deviation of every sensor's columns were read from "
            "private rows: no privacy guarantee covers them; use standardise=False",
            NotPrivateWarning,
            stacklevel=2,
        )
        for m in range(int(sensor[-1]) + 1):
            rows = x[sensor == m]
            deviation = np.maximum(rows.std(axis=0), 1e-12)
            x[sensor == m] = (rows - rows.mean(axis=0)) / deviation
    data = _dataset("vehicle", (x, y, sensor), split, seed, num_devices)
    return replace(data, caveats=(_STANDARDISED,)) if standardise else data


def load_standin(
    *, split: str = "by-sensor", seed: int = 0, num_devices: int | None = None
) -> Dataset:
    """Load the SYNTHETIC stand-in; its rows are fixed, the seed splits them.

    >>> load_standin().name
    'vehicle (synthetic)'
    """
    name = "vehicle (synthetic)"
    return _dataset(name, draw_standin(), split, seed, num_devices, synthetic=True)


def draw_standin(
    *, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Draw the stand-in's rows, labels (0 or 1) and sensors from a simple model.

    A row is the sum of low-rank factors, white noise, the sensor's offset, and half the
    class gap along the sensor's class direction, which deviates from a common one. Each
    sensor has its own rate of wrong labels; one sensor's labels are inverted. The seed
    draws the rows; directions, shares and rates are fixed.
    """
    fixed = np.random.default_rng(23)  # for all that does not depend on the seed
    num_sensors, n = len(COUNTS), sum(COUNTS)
    tail = THIRD * np.arange(1.0, NUM_FACTORS - 1) ** -DECAY
    variances = np.concatenate([LEADING, tail])
    factors = np.linalg.qr(fixed.standard_normal((DIM, NUM_FACTORS)))[0].T
    common, own = np.split(fixed.standard_normal((num_sensors + 1, NUM_FACTORS)), [1])
    directions = (common + TILT * own) @ factors
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    shares = SHARE_SPREAD * fixed.standard_normal(num_sensors)
    shares += SHARE_POSITIVE - np.average(shares, weights=COUNTS)
    offsets = SHIFT / DIM**0.5 * fixed.standard_normal((num_sensors, DIM))
    flip_rates = fixed.uniform(*FLIP_RATES, num_sensors)

    rng = generator(seed)
    sensor = np.repeat(np.arange(num_sensors), COUNTS)
    y = (rng.random(n) < shares[sensor]).astype(np.int64)
    flipped = (rng.random(n) < flip_rates[sensor]) ^ (sensor == INVERTED)
    side = np.where(flipped, 1 - 2 * y, 2 * y - 1)  # the row's class, -1 or +1
    x = (rng.standard_normal((n, NUM_FACTORS)) * np.sqrt(variances)) @ factors
    x += rng.standard_normal((n, DIM)) * np.sqrt((1 - variances.sum()) / DIM)
    x += offsets[sensor] + (CLASS_GAP / 2) * side[:, None] * directions[sensor]
    # The real rows, standardised, have norms near 10.
    x *= DIM**0.5
    return x, y, sensor


def _dataset(
    name: str,
    rows: tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]],
    split: str,
    seed: int,
    num_devices: int | None,
    *,
    synthetic: bool = False,
) -> Dataset:
    """Scale each row into the unit ball and partition the rows."""
    x, y, owners = rows
    sensors = tuple(map(str, range(int(owners.max()) + 1)))
    ids, names, dissimilarity = own_or_even(
        owners, sensors, split=split, splits=SPLITS, num_devices=num_devices, seed=seed
    )
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    scaled = (x * (LARGEST_NORM / np.maximum(LARGEST_NORM, norms))).astype(np.float32)
    train, validation, test = split_rows(scaled, y, ids, seed=seed)
    return Dataset(
        name=name,
        train=train,
        validation=validation,
        test=test,
        device_names=names,
        feature_names=tuple(f"x{j}" for j in range(x.shape[1])),
        classes=CLASSES,
        dissimilarity=dissimilarity,
        synthetic=synthetic,
        centred=True,  # every sensor's columns were standardised
    )


def _read(
    path: Path, *, check: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Read the MATLAB cells: rows, labels 0 or 1, sensors."""
    if not path.is_file():
        raise DataError(
            f"file {str(path)!r} does not exist: get vehicle.mat (linked from "
            "litian96/fair_flearn, data/vehicle), or leave path out for the stand-in"
        )
    raw = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(raw) + raw).hexdigest()
    if check and blob != GIT_BLOB:
        raise DataError(
            f"file {str(path)!r} has git id {blob}, the known vehicle.mat has "
            f"{GIT_BLOB}: get that file, or pass check=False to load_vehicle if you "
            "trust yours"
        )
    cells = _cells(path)
    x = [np.asarray(cell, dtype=np.float64) for cell in np.ravel(cells["X"])]
    y = [np.asarray(cell, dtype=np.float64).ravel() for cell in np.ravel(cells["Y"])]
    shapes_agree = [len(rows) for rows in x] == [len(labels) for labels in y]
    if not x or not shapes_agree or len({rows.shape[1:] for rows in x}) > 1:
        raise DataError(
            f"file {str(path)!r}: cells X and Y differ in their numbers of rows: each "
            "X{i} must be n_i x 100 and each Y{i} n_i x 1"
        )
    labels, rows = np.concatenate(y), np.concatenate(x)
    if not np.isin(labels, (-1, 1)).all() or not np.isfinite(rows).all():
        raise DataError(
            f"file {str(path)!r} holds labels other than -1 and +1, or values that are "
            "not finite: correct the file"
        )
    sensor = np.repeat(np.arange(len(x)), [len(part) for part in x])
    return rows, (labels > 0).astype(np.int64), sensor


def _cells(path: Path) -> dict[str, Any]:
    """Return the file's variables, X and Y among them."""
    with needed("loading vehicle.mat", "scipy"):
        from scipy.io import loadmat
    try:
        variables: dict[str, Any] = loadmat(path)
    except (ValueError, TypeError, NotImplementedError, OSError, ZlibError) as error:
        raise DataError(
            f"file {str(path)!r} is not a MATLAB file that scipy reads ({error}): save "
            "it as version 7 or below"
        ) from None
    if not {"X", "Y"} <= set(variables):
        names = ", ".join(name for name in variables if not name.startswith("__"))
        raise DataError(
            f"file {str(path)!r} holds {names or 'nothing'}: it must hold cells X and Y"
        )
    return variables
