"""WISDM smartwatches (Weiss, 2019), included in the package.

51 people wore a watch; every window of 5 seconds (100 readings of the accelerometer at
20 Hz, three axes, no overlap) has one of 6 activities. A person is a device, with 120
to 144 windows. Rows are 51 public statistics of a window: see `windows`.
"""

from importlib.resources import files as package_files

import numpy as np

from fedbudget.data.dataset import Dataset, split_rows
from fedbudget.data.features import Categorical, Numeric
from fedbudget.data.fourier import FeatureStep
from fedbudget.data.partitions import own_or_even
from fedbudget.data.schema import Schema
from fedbudget.data.windows import Windows

SPLITS = ("by-person", "iid")

# The sensor measures up to 2 g; readings beyond it are clipped.
_LIMIT = 20.0  # m/s^2
CHANNELS = {axis: Numeric(-_LIMIT, _LIMIT) for axis in ("x", "y", "z")}

SCHEMA = Schema(
    features=CHANNELS,
    windows=Windows(length=100, columns=tuple(CHANNELS), magnitude=True),
    label="activity",
    target=Categorical(
        ("walking", "jogging", "stairs", "sitting", "standing", "kicking")
    ),
)


def load_wisdm(
    *,
    split: str = "by-person",
    seed: int = 0,
    num_devices: int | None = None,
    features: FeatureStep = None,
) -> Dataset:
    """Load the windows of the watches, partitioned by person or evenly.

    Args:
        split: ``by-person`` (51 watches) or ``iid`` (even shares).
        seed: Seeds the partition and the 80/10/10 split on every device.
        num_devices: For ``iid`` only; by default 51.
        features: The feature step, as for `Schema.with_features`; by default none.

    >>> load_wisdm().num_devices
    51
    """
    path = package_files("fedbudget.data") / "files" / "wisdm_watch.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        readings = arrays["x"].astype(np.float64)
        y, people = arrays["y"].astype(np.int64), arrays["device"]
    channels = {axis: readings[:, k].ravel() for k, axis in enumerate(CHANNELS)}
    schema = SCHEMA.with_features(features)
    x = schema.encode(channels)
    names, owners = np.unique(people, return_inverse=True)
    ids, device_names, dissimilarity = own_or_even(
        owners,
        tuple(map(str, names)),
        split=split,
        splits=SPLITS,
        num_devices=num_devices,
        seed=seed,
    )
    train, validation, test = split_rows(x, y, ids, seed=seed)
    return Dataset(
        name="wisdm",
        train=train,
        validation=validation,
        test=test,
        device_names=device_names,
        feature_names=schema.feature_names,
        classes=schema.classes,
        dissimilarity=dissimilarity,
        schema=schema,
    )
