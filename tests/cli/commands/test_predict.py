"""`fedbudget predict`: raw rows in, label names or real units out."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbudget.interop.export import LinearModel
from tests import iot_tables as iot
from tests.cli.running import assert_one_line, run


@pytest.fixture
def alarms(tmp_path: Path) -> tuple[Path, Path]:
    """Return the files of a model and of a table."""
    theta = np.linspace(-3, 3, len(iot.ALARMS.feature_names))
    LinearModel(theta=theta, loss="logistic", schema=iot.ALARMS).save(
        tmp_path / "m.json"
    )
    table = iot.alarms(300)
    table["heat"][0] = np.nan  # an empty cell: `missing` says what it counts as
    return tmp_path / "m.json", iot.write(tmp_path / "rows.csv", table)


def test_a_table_is_written_with_its_predictions(
    alarms: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, table = alarms
    out = tmp_path / "predicted.csv"
    result = run(capsys, "predict", str(model), str(table), "--out", str(out))
    assert result.code == 0, result.err
    with out.open() as file:
        rows = list(csv.DictReader(file))
    with table.open() as file:  # its own cells are unchanged
        for row, old in zip(rows, csv.DictReader(file), strict=True):
            assert {name: row[name] for name in old} == old
    linear = LinearModel.load(model)
    assert [row["predicted_alarm"] for row in rows] == linear.predict(table).tolist()
    second = [float(row["probability_yes"]) for row in rows]
    assert second == pytest.approx(linear.probabilities(table)[:, 1], abs=1e-8)
    count = linear.predict(table).tolist().count("no")
    assert 0 < count < 300
    assert f"300 rows: alarm {count} no" in result.words


@pytest.mark.parametrize(
    ("source", "target"), [(".csv", ".parquet"), (".parquet", ".csv")]
)
def test_parquet(
    source: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas as pd

    theta = np.linspace(-0.5, 0.5, len(iot.ENERGY.feature_names))
    LinearModel(theta=theta, loss="huber", schema=iot.ENERGY).save(tmp_path / "m.json")
    frame = pd.DataFrame(iot.energy(100, 10))
    path, out = tmp_path / f"rows{source}", tmp_path / f"out{target}"
    if source == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    result = run(
        capsys, "predict", str(tmp_path / "m.json"), str(path), "--out", str(out)
    )
    assert result.code == 0, result.err
    assert "kWh" in result.words
    written = pd.read_csv(out) if target == ".csv" else pd.read_parquet(out)
    expected = LinearModel.load(tmp_path / "m.json").predict(frame)
    assert written["predicted_kwh"].to_numpy() == pytest.approx(expected, abs=1e-8)


def test_without_a_file_the_first_rows_are_shown(
    alarms: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, table = alarms
    result = run(capsys, "predict", str(model), str(table))
    assert "--out FILE writes all" in result.words
    plain = json.loads(run(capsys, "predict", str(model), str(table), "--json").out)
    assert plain["rows"] == 300
    assert sum(plain["classes"].values()) == 300
    assert plain["schema_digest"] == iot.ALARMS.digest
    assert len(plain["first"]) == 5


def test_bad_input_is_one_line(
    alarms: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, table = alarms
    result = run(capsys, "predict", str(model), "none.csv")
    assert_one_line(result, code=2, says=("'none.csv' does not exist",))
    result = run(capsys, "predict", str(model), str(table), "--out", "o.xlsx")
    assert_one_line(result, code=2, says=("'.xlsx'", ".csv or .parquet"))
    (tmp_path / "short.csv").write_text("heat,site,volts,door\n1,roof,2,open\n")
    result = run(capsys, "predict", str(model), str(tmp_path / "short.csv"))
    assert_one_line(result, code=2, says=("column 'hum' is not in the table",))
    text = "heat,site,volts,door,hum\n1,roof,2,open,0.1\nhot,roof,2,open,0.1\n"
    (tmp_path / "text.csv").write_text(text)
    result = run(capsys, "predict", str(model), str(tmp_path / "text.csv"))
    assert_one_line(result, code=2, says=("lines 2 to 3: column 'heat' holds 'hot'",))
    text = "heat,site,volts,door,hum,predicted_alarm\n1,roof,2,open,0.1,no\n"
    (tmp_path / "twice.csv").write_text(text)
    result = run(capsys, "predict", str(model), str(tmp_path / "twice.csv"))
    assert_one_line(result, code=2, says=("already has a column 'predicted_alarm'",))


def test_a_base_install_is_enough(alarms: tuple[Path, Path], tmp_path: Path) -> None:
    model, table = alarms
    heavy = ("pyarrow", "pandas", "scipy", "sklearn", "onnx", "numba", "joblib")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({heavy!r}))"
    out = tmp_path / "predicted.csv"
    arguments = ["predict", str(model), str(table), "--out", str(out)]
    script = f"{blocked}; from fedbudget.cli.app import main; main({arguments!r})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == 301


def test_windows_say_whose_readings_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run knows the device column of its training."""
    rng = np.random.default_rng(2)
    owner = np.tile(np.arange(3), 400)  # interleaved
    force = rng.uniform(-1, 1, 1200)
    table = {"watch": owner, "force": force, "y": np.where(owner > 1, "no", "yes")}
    path = iot.write(tmp_path / "rows.csv", table)
    schema = {
        "label": {"name": "y", "values": ["no", "yes"]},
        "features": {"force": {"low": -1, "high": 1}},
        "windows": {"length": 20, "columns": ["force"]},
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    folder = str(tmp_path / "run")
    options = ["--label", "y", "--device", "watch", "--epsilon", "4", "--cost", "300"]
    options += ["--schema", str(tmp_path / "schema.json"), "--out", folder]
    result = run(capsys, "train", str(path), *options)
    assert result.code == 0, result.err
    result = run(capsys, "predict", folder, str(path))
    assert "60 rows" in result.words and "readings of one watch each" in result.words
    plain = json.loads(run(capsys, "predict", folder, str(path), "--json").out)
    assert plain["device"] == "watch"
    other = iot.write(tmp_path / "other.csv", {"force": force, "who": owner})
    assert "taken as one device's" in run(capsys, "predict", folder, str(other)).words
    result = run(capsys, "predict", folder, str(other), "--device", "who")
    assert "readings of one who each" in result.words
