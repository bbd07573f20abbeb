"""Time stamps as columns: circles, whatever spells them."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedbudget as fb
from fedbudget.data.schema import Schema
from fedbudget.data.times import Time, seconds
from fedbudget.errors import DataError, InvalidInputError, NotPrivateWarning
from tests.iot_tables import write

STAMP = "2026-02-02 06:00:00"  # a Monday
SCHEMA = Schema.from_dict(
    {
        "label": {"name": "y", "values": ["no", "yes"]},
        "features": {"at": {"cycles": ["hour", "weekday"]}, "v": {"low": 0, "high": 1}},
    }
)


def test_angles_by_hand() -> None:
    columns = Time(("hour", "weekday", "month")).columns("at", [STAMP, "2026-02-05"])
    assert columns["at_hour_sin"] == pytest.approx([1, 0])  # a quarter; midnight
    assert columns["at_hour_cos"] == pytest.approx([0, 1])
    # A quarter of Monday, and the start of Thursday, of seven days.
    assert columns["at_weekday_sin"] == pytest.approx(
        np.sin(2 * np.pi * np.array([0.25, 3]) / 7)
    )
    year = 2 * np.pi * (pd.Timestamp(STAMP).day_of_year - 1) / 365.25
    assert columns["at_month_cos"][0] == pytest.approx(np.cos(year), abs=0.02)


@pytest.mark.parametrize(
    "cells",
    [
        [STAMP],
        ["2026-02-02T06:00:00Z"],
        ["2026-02-02T06:00:00+05:30"],  # the wall clock counts
        [datetime(2026, 2, 2, 6)],
        np.array([STAMP], dtype="datetime64[ns]"),
        np.array([pd.Timestamp(STAMP).timestamp()]),
    ],
)
def test_every_spelling_is_the_same_time(cells: Any) -> None:
    assert seconds("at", cells).tolist() == [1770012000.0]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["02.02.2026"], "'02.02.2026', which is no time stamp: write it as 2026"),
        ([STAMP, None], "no time stamp in row 1"),
        (np.array(["NaT"], dtype="datetime64[s]"), "no time stamp in row 0"),
        (np.array([1.77e12]), "divide milliseconds by 1000"),
    ],
)
def test_what_is_no_time_is_refused(cells: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        seconds("at", cells)


@pytest.mark.parametrize("cycles", ["hour", [], ["minute"], ["hour", "hour"], 3])
def test_cycles_are_checked(cycles: Any) -> None:
    with pytest.raises(InvalidInputError, match="cycles"):
        Time(cycles)


def test_a_schema_has_them_and_its_digest_tells_them() -> None:
    assert SCHEMA.feature_names[:2] == ("at_hour_sin", "at_hour_cos")
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    plain = SCHEMA.to_dict()
    plain["features"]["at"] = {"cycles": ["hour"]}
    assert Schema.from_dict(plain).digest != SCHEMA.digest
    plain["features"]["at_hour_sin"] = {"low": 0, "high": 1}
    with pytest.raises(InvalidInputError, match="two columns the name 'at_hour_sin'"):
        Schema.from_dict(plain)
    plain["label"] = {"name": "when", "cycles": ["hour"]}
    del plain["features"]["at_hour_sin"]
    with pytest.raises(InvalidInputError, match="'when' is a time stamp"):
        Schema.from_dict(plain)


def table() -> dict[str, Any]:
    stamps = pd.date_range("2026-02-02", periods=60, freq="7h")
    return {
        "id": np.arange(60) % 3,
        "at": stamps.strftime("%Y-%m-%dT%H:%M:%S+02:00").to_numpy(dtype=object),
        "v": np.linspace(0, 1, 60),
        "y": np.where(stamps.hour < 12, "no", "yes"),
    }


def test_files_frames_and_devices_read_the_same(tmp_path: Path) -> None:
    from fedbudget.data.text_rows import typed_columns

    rows = table()
    path = write(tmp_path / "rows.csv", rows)
    options: dict[str, Any] = {"label": "y", "device": "id", "order": "at"}
    data = fb.from_table(path, schema=SCHEMA, **options)
    frame = pd.DataFrame(rows)
    frame["at"] = pd.to_datetime(frame["at"])  # with a zone
    other = fb.from_table(frame, schema=SCHEMA, **options)
    assert np.array_equal(data.train.x, other.train.x)  # type: ignore[arg-type]
    with pytest.warns(NotPrivateWarning, match="columns 'v', 'y' were read"):
        inferred = fb.from_table(path, **options)
    assert inferred.schema is not None
    assert inferred.schema.features["at"] == Time()
    lines = [line.split(",") for line in path.read_text().splitlines()]
    columns = typed_columns(SCHEMA.columns, lines[0], lines[1:])
    assert SCHEMA.encode(columns)[0] == pytest.approx(
        SCHEMA.encode({n: rows[n] for n in SCHEMA.features})[0]
    )


def test_windows_have_the_time_of_their_last_reading() -> None:
    plain = SCHEMA.to_dict() | {"windows": {"length": 20, "columns": ["v"]}}
    schema = Schema.from_dict(plain)
    rows = table()
    x = np.asarray(schema.encode({n: rows[n] for n in schema.features}))
    at = schema.feature_names.index("at_hour_sin")
    hours = np.sin(2 * np.pi * (7 * np.array([19, 39, 59]) % 24) / 24)
    assert x[:, at] / x[:, -1] == pytest.approx(hours, abs=1e-6)
