"""The loader of Beijing's air, on small files in the original format.

With the real files, in a folder that FEDBUDGET_BEIJING names, their counts are tested.
"""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import DataError, InvalidInputError, NotPrivateWarning

HEADER = (
    "No year month day hour PM2.5 PM10 SO2 NO2 CO O3 TEMP PRES DEWP RAIN wd WSPM "
    "station"
).split()


def write_station(folder: Path, name: str, rows: int, gaps: int = 0) -> None:
    path = folder / f"PRSA_Data_{name}_20130301-20170228.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for i in range(rows):
            particles = "NA" if i < gaps else 20 + 10 * (i % 12)
            numbers = [4, 7, 300, 77, -0.7, 1023, -18.8, 0]
            moment = [i + 1, 2013, 1 + i % 12, 1, i % 24]
            writer.writerow([*moment, particles, 9, *numbers, "NNW", 4.4, name])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_station(tmp_path, "Dingling", 60, gaps=10)
    write_station(tmp_path, "Wanliu", 40)
    return tmp_path


def test_stations_are_devices_and_incomplete_hours_are_left_out(folder: Path) -> None:
    with pytest.warns(NotPrivateWarning, match="leaves out rows"):
        data = fb.load("beijing", path=folder)
    assert data.device_names == ("Dingling", "Wanliu")
    total = data.train.sizes + data.validation.sizes + data.test.sizes
    assert total.tolist() == [50, 40]
    assert data.classes == ("no", "yes")
    assert "PM10" not in data.feature_names
    y = np.concatenate([p.y for p in (data.train, data.validation, data.test)])
    # 20, 30 .. 130: six of twelve values are above 75.
    particles = [20 + 10 * (i % 12) for i in (*range(10, 60), *range(40))]
    assert y.sum() == sum(value > 75 for value in particles)


def test_an_even_split(folder: Path) -> None:
    with pytest.warns(NotPrivateWarning):
        data = fb.load("beijing", path=folder, split="iid", num_devices=3)
    assert data.num_devices == 3


def test_refusals(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not part of the package"):
        fb.load("beijing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no PRSA_Data"):
        fb.load("beijing", path=tmp_path / "empty")
    with pytest.raises(InvalidInputError, match="which has 2"):
        fb.load("beijing", path=folder, num_devices=5)
    with pytest.raises(InvalidInputError, match="choose one of by-station, iid"):
        fb.load("beijing", path=folder, split="by-person")


@pytest.mark.skipif(
    "FEDBUDGET_BEIJING" not in os.environ,
    reason="set FEDBUDGET_BEIJING to the folder of the CSV files of UCI data set 501",
)
def test_the_real_files_have_12_stations() -> None:
    with pytest.warns(NotPrivateWarning):
        data = fb.load("beijing", path=os.environ["FEDBUDGET_BEIJING"])
    total = data.train.sizes + data.validation.sizes + data.test.sizes
    assert data.num_devices == 12
    assert 382_000 < total.sum() < 383_000
