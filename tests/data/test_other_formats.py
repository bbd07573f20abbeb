"""Tables that a spreadsheet saved: semicolons, decimal commas, time stamps, ids."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbudget.data import Categorical, Numeric, Schema, from_table
from fedbudget.data.columns import decimal_comma
from fedbudget.data.drafts import draft
from fedbudget.errors import DataError
from tests import iot_tables as iot
from tests.cli.running import assert_one_line, run

SCHEMA = Schema(
    features={"a": Numeric(0, 9)}, label="y", target=Categorical(("no", "yes"))
)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("id;a;y\n1;2.5;no\n2;3.5;yes\n", "semicolons"),
        ("id;a;y\n1;2,5;no\n2;3,5;yes\n", "semicolons"),
        ("id\ta\ty\n1\t2.5\tno\n", "tabs"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_other_separators_are_named(
    text: str, word: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"t{suffix}"
    data = text.encode()
    path.write_bytes(gzip.compress(data) if suffix == ".csv.gz" else data)
    with pytest.raises(DataError, match=f"separates its cells by {word}.*commas"):
        from_table(path, label="y", device="id", schema=SCHEMA)


def test_decimal_commas_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('id,a,y\n1,"2,5",no\n2,"3,5",yes\n')
    with pytest.raises(DataError, match=r"'2,5', a decimal comma: write 2\.5"):
        from_table(path, label="y", device="id", schema=SCHEMA)
    with pytest.raises(DataError, match="decimal comma"):
        draft(path, label="y", device="id")
    assert [decimal_comma(text) for text in ("3", "a,b", "1,2,3", "")] == [""] * 4


def test_a_device_names_semicolons_too(tmp_path: Path) -> None:
    from fedbudget.fleet.device.data_file import read_rows
    from fedbudget.fleet.device.policy import DataPolicy

    path = tmp_path / "t.csv"
    path.write_text("a;y\n1;no\n")
    policy: dict[str, Any] = {"file": path, "schema": SCHEMA.to_dict(), "label": None}
    with pytest.raises(DataError, match="semicolons"):
        read_rows(DataPolicy(**policy, loss="logistic", classes=2, lineage="x"))


def test_init_copes_with_time_stamps_and_identifiers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = iot.energy(600, 10)
    table["serial"] = np.array([f"x{i}" for i in range(600)])
    table["row"] = np.arange(600)
    path = iot.write(tmp_path / "energy.csv", table)
    drafted = draft(path, label="kwh", device="meter")
    assert set(drafted.left_out) == {"serial", "row"}
    assert set(drafted.schema.features) == {*iot.ENERGY.features, "time"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    result = run(capsys, "init", "energy.csv", "--label", "kwh", "--device", "meter")
    assert result.code == 0
    assert "time stamps: time (its hour and weekday" in result.words
    assert "# [windows]" in Path("fedbudget.toml").read_text()
    assert (
        "# serial is left out: 600 distinct texts" in Path("fedbudget.toml").read_text()
    )
    result = run(capsys, "plan", "fedbudget.toml")
    assert result.code == 0


def test_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;y\n1;no\n")
    result = run(capsys, "init", str(path), "--label", "y", "--partition", "iid:2")
    assert_one_line(result, code=2, says=("semicolons",))
