"""UCI Adult (Becker and Kohavi, 1996), included in the package.

The paper's Adult-1 is the split by education, its Adult-2 an even split: 32,561 rows,
16 devices, the 8 categorical columns one-hot in 102, ``?`` a category of its own.
"""

import csv
import gzip
from collections.abc import Sequence
from importlib.resources import files as package_files
from typing import Literal

import numpy as np

from fedbudget.checks import one_of
from fedbudget.data.columns import Coded
from fedbudget.data.dataset import Dataset, split_rows
from fedbudget.data.features import Categorical
from fedbudget.data.fourier import FeatureStep
from fedbudget.data.partitions import own_or_even
from fedbudget.data.schema import Schema

SPLITS = ("by-education", "iid")

# The categories that the data set's documentation lists, and `?`. They are public, and
# were not read from the rows.
_CATEGORIES = {
    "workclass": """? Federal-gov Local-gov Never-worked Private Self-emp-inc
        Self-emp-not-inc State-gov Without-pay""",
    "education": """10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc
        Bachelors Doctorate HS-grad Masters Preschool Prof-school Some-college""",
    "marital-status": """Divorced Married-AF-spouse Married-civ-spouse
        Married-spouse-absent Never-married Separated Widowed""",
    "occupation": """? Adm-clerical Armed-Forces Craft-repair Exec-managerial
        Farming-fishing Handlers-cleaners Machine-op-inspct Other-service
        Priv-house-serv Prof-specialty Protective-serv Sales Tech-support
        Transport-moving""",
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "native-country": """? Cambodia Canada China Columbia Cuba Dominican-Republic
        Ecuador El-Salvador England France Germany Greece Guatemala Haiti
        Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan
        Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland
        Portugal Puerto-Rico Scotland South Taiwan Thailand Trinadad&Tobago
        United-States Vietnam Yugoslavia""",
}

SCHEMA = Schema(
    features={name: Categorical(tuple(v.split())) for name, v in _CATEGORIES.items()},
    label="income",
    target=Categorical(("<=50K", ">50K")),
    intercept=False,
)

_FILES = {"train": ("adult",), "both": ("adult", "adult_test")}


def load_adult(
    *,
    split: str = "by-education",
    seed: int = 0,
    num_devices: int | None = None,
    features: FeatureStep = None,
    files: Literal["train", "both"] = "train",
) -> Dataset:
    """Load Adult, partitioned by education or evenly.

    Args:
        split: ``by-education`` (16 heterogeneous devices) or ``iid`` (even shares).
        seed: Seeds the partition and the 80/10/10 split on every device.
        num_devices: For ``iid`` only; by default 16.
        features: The feature step, as for `Schema.with_features`; by default none.
        files: ``train`` for the 32,561 rows that the paper uses, ``both`` for 48,842.

    >>> load_adult(split="iid").num_devices
    16
    """
    one_of("split", split, SPLITS)  # before the file is read
    one_of("files", files, _FILES)
    columns = _read(_FILES[files])
    schema = SCHEMA.with_features(features)
    x = schema.encode(columns)
    y = SCHEMA.encode_label(columns["income"])
    education = columns["education"]
    # Education predicts the label, and each device has one value of it.
    ids, names, dissimilarity = own_or_even(
        education.codes.astype(np.int64),
        education.values,
        split=split,
        splits=SPLITS,
        unlike="strong",
        num_devices=num_devices,
        seed=seed,
    )
    train, validation, test = split_rows(x, y, ids, seed=seed)
    return Dataset(
        name="adult",
        train=train,
        validation=validation,
        test=test,
        device_names=names,
        feature_names=schema.feature_names,
        classes=SCHEMA.classes,
        dissimilarity=dissimilarity,
        schema=schema,
    )


def _read(names: Sequence[str]) -> dict[str, Coded]:
    """Read the categorical columns and the label, coded as the schema lists them."""
    rows: list[list[str]] = []
    for name in names:
        path = package_files("fedbudget.data") / "files" / f"{name}.csv.gz"
        with path.open("rb") as packed, gzip.open(packed, "rt", newline="") as text:
            header, *records = csv.reader(text)
            rows += records
    cells = dict(zip(header, zip(*rows, strict=True), strict=True))
    columns = {}
    for name, kind in {**SCHEMA.features, SCHEMA.label: SCHEMA.target}.items():
        assert isinstance(kind, Categorical)  # true for every column of SCHEMA
        index = {value: code for code, value in enumerate(kind.values)}
        codes = np.fromiter(map(index.__getitem__, cells[name]), np.int32, len(rows))
        columns[name] = Coded(codes=codes, values=tuple(kind.values))
    return columns
