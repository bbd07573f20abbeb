"""A device's data file: read as by the library, without pandas or pyarrow."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.fleet.device.data_file import read_rows, stamp_of
from fedbudget.fleet.device.policy import DataPolicy

SCHEMA: dict[str, Any] = {
    "label": {"name": "alarm", "values": ["no", "yes"]},
    "features": {
        "heat": {"low": -10, "high": 50, "missing": 20},
        "site": {"values": ["a", "b", "NA"], "other": "ignore"},
        "on": {"values": ["false", "true"]},
    },
}
LINES = [
    "heat,site,on,alarm,comment",
    "20,a,true,yes,x",
    '-30.5,b,False,no,"two, words"',
    ",NA,true,yes,",
    "1e1,c,TRUE,no,",
]


def policy(file: Path, **changes: Any) -> DataPolicy:
    defaults: dict[str, Any] = {
        "file": file,
        "schema": SCHEMA,
        "label": None,
        "loss": "logistic",
        "classes": 2,
        "lineage": "x",
    }
    return DataPolicy(**(defaults | changes))


def table(folder: Path, lines: list[str], name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_rows_are_those_of_the_library(tmp_path: Path) -> None:
    lines, path = LINES, table(tmp_path, LINES)
    device_rows = read_rows(policy(path, label="alarm"))
    schema = fb.Schema.from_dict(SCHEMA)
    expected = fb.from_table(
        table(tmp_path, [f"d,{lines[0]}", *(f"1,{x}" for x in lines[1:])], "l.csv"),
        label="alarm",
        device="d",
        schema=schema,
    )
    parts = (expected.train, expected.validation, expected.test)
    theirs = np.concatenate([np.asarray(part.x) for part in parts])
    mine = device_rows.rows.x
    order = [np.lexsort(x.T.round(5)) for x in (mine, theirs)]
    assert mine[order[0]] == pytest.approx(theirs[order[1]], abs=2e-7)
    assert (device_rows.dim, device_rows.num_classes, len(device_rows)) == (7, 1, 4)
    assert device_rows.rows.y.tolist() == [1, 0, 1, 0]


CONFIG = """[data]
table = "somewhere.csv"
device = "id"
public_bounds = PUBLIC
intercept = false

[label]
name = "alarm"
values = ["no", "yes"]

[features]
heat = { low = -10, high = 50, missing = 20 }
site = { values = ["a", "b"], other = "ignore" }

[budget]
epsilon = 4
cost = 1000
"""


def test_the_config_of_a_simulation_is_a_devices_schema(tmp_path: Path) -> None:
    from fedbudget.cli.config import read_config

    path = tmp_path / "fedbudget.toml"
    path.write_text(CONFIG.replace("PUBLIC", "true"))
    device_rows = read_rows(policy(table(tmp_path, LINES), schema=path))
    schema = read_config(path).schema
    assert device_rows.dim == len(schema.feature_names) == 3
    expected = schema.encode({"heat": [20, -30.5], "site": ["a", "b"]})
    assert device_rows.rows.x[:2] == pytest.approx(expected, abs=2e-7)


def test_bounds_that_were_read_from_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fedbudget.toml"
    path.write_text(CONFIG.replace("PUBLIC", "false"))
    with pytest.raises(InvalidInputError, match="set public_bounds = true"):
        read_rows(policy(table(tmp_path, LINES), schema=path))


def test_adult_is_read_as_the_package_reads_it(tmp_path: Path) -> None:
    from importlib.resources import files

    from fedbudget.data.adult import SCHEMA as ADULT

    packed = (files("fedbudget.data") / "files" / "adult.csv.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines(keepends=True)[:1501]
    path = tmp_path / "adult.csv.gz"
    path.write_bytes(gzip.compress(b"".join(lines)))
    (tmp_path / "schema.json").write_text(json.dumps(ADULT.to_dict()))
    device_rows = read_rows(policy(path, schema=tmp_path / "schema.json"))
    names = lines[0].decode().strip().split(",")
    cells = [line.decode().strip().split(",") for line in lines[1:]]
    columns = dict(zip(names, zip(*cells, strict=True), strict=True))
    expected = np.asarray(ADULT.encode(columns, dense=True))
    assert device_rows.rows.x.dtype == np.float32 and device_rows.rows.x.shape == (
        1500,
        102,
    )
    assert device_rows.rows.x == pytest.approx(expected, abs=2e-7)
    assert device_rows.rows.y.tolist() == ADULT.encode_label(columns["income"]).tolist()


def test_a_line_without_an_end_is_not_a_row_yet(tmp_path: Path) -> None:
    path = table(tmp_path, LINES[:3])
    assert len(read_rows(policy(path))) == 2
    before = stamp_of(path)
    with path.open("a") as file:
        file.write("20,a,true,ye")
    assert stamp_of(path) != before
    assert len(read_rows(policy(path))) == 2
    with path.open("a") as file:
        file.write("s,x\n")
    assert len(read_rows(policy(path))) == 3


def test_fingerprints_follow_rows_and_labels(tmp_path: Path) -> None:
    rows = read_rows(policy(table(tmp_path, LINES)))
    longer = read_rows(policy(table(tmp_path, [*LINES, "3,a,true,yes,"])))
    other = [*LINES[:2], LINES[2].replace(",no,", ",yes,"), *LINES[3:]]
    changed = read_rows(policy(table(tmp_path, other)))
    assert longer.fingerprint(4) == rows.fingerprint(4) != longer.fingerprint(5)
    assert changed.fingerprint(1) == rows.fingerprint(1)
    assert changed.fingerprint(2) != rows.fingerprint(2)


MISTAKES = {
    "no header": ([], {}, "no header line"),
    "no rows": (LINES[:1], {}, "0 rows"),
    "a cell too few": ([LINES[0], "20,a,true"], {}, "3 cells, the header 5"),
    "text for a number": ([LINES[0], "warm,a,true,yes,"], {}, "column 'heat' holds"),
    "Python's number": ([LINES[0], "1_0,a,true,yes,"], {}, "column 'heat' holds"),
    "infinity": ([LINES[0], "inf,a,true,yes,"], {}, "not a finite number"),
    "a value not listed": ([LINES[0], "1,a,maybe,yes,"], {}, "column 'on' holds"),
    "a class not listed": ([LINES[0], "1,a,true,perhaps,"], {}, "label 'alarm' holds"),
    "a missing column": (["heat,site,alarm", "1,a,yes"], {}, "column 'on' is not in"),
    "another label": (LINES, {"label": "fire"}, "label 'fire' is not the schema's"),
    "regression on classes": (LINES, {"loss": "huber"}, "does not support labels"),
}


@pytest.mark.parametrize("lines, changes, message", MISTAKES.values(), ids=MISTAKES)
def test_an_invalid_file_is_refused(
    tmp_path: Path, lines: list[str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_rows(policy(table(tmp_path, lines), **changes))


def test_an_error_names_its_lines(tmp_path: Path) -> None:
    lines = [LINES[0], *[LINES[1]] * 1200, "1,a,maybe,yes,"]
    with pytest.raises(DataError, match=r"lines 1002 to 1202: .* in row 200 "):
        read_rows(policy(table(tmp_path, lines)))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_rows(policy(tmp_path / "no.csv"))
    with pytest.raises(DataError, match=r"suffix '\.txt'"):
        read_rows(policy(table(tmp_path, LINES, "rows.txt")))
    (tmp_path / "x.csv.gz").write_bytes(b"not packed")
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(policy(tmp_path / "x.csv.gz"))
    (tmp_path / "x.csv").write_bytes(b"heat\xff\n")
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(policy(tmp_path / "x.csv"))
    with pytest.raises(InvalidInputError, match=r"schema .*no\.json"):
        read_rows(policy(table(tmp_path, LINES), schema=tmp_path / "no.json"))


def npz(folder: Path, x: Any, y: Any) -> DataPolicy:
    np.savez(folder / "rows.npz", x=x, y=y)
    return policy(folder / "rows.npz", schema=None)


def test_arrays_are_checked(tmp_path: Path) -> None:
    x, y = np.eye(3, dtype=np.float32), np.array([0, 1, 1])
    assert len(read_rows(npz(tmp_path, x, y))) == 3
    for invalid_x, invalid_y, message in (
        (x * 2, y, "norm 2"),
        (x, y[:2], "one label per row"),
        (x, y + 1, "whole numbers from 0 to 1"),
        (x, y * 0.5, "whole numbers from 0 to 1"),
        (x * np.nan, y, "norm nan"),
    ):
        with pytest.raises(DataError, match=message):
            read_rows(npz(tmp_path, invalid_x, invalid_y))
    np.savez(tmp_path / "rows.npz", x=x)
    with pytest.raises(DataError, match="with x and y"):
        read_rows(policy(tmp_path / "rows.npz", schema=None))
    with (tmp_path / "rows.npz").open("wb") as file:
        np.save(file, x)  # one array without a name
    with pytest.raises(DataError, match="with x and y"):
        read_rows(policy(tmp_path / "rows.npz", schema=None))
    np.savez(tmp_path / "rows.npz", x=np.array([print]), y=y)  # pickled: never loaded
    with pytest.raises(DataError, match="with x and y"):
        read_rows(policy(tmp_path / "rows.npz", schema=None))
