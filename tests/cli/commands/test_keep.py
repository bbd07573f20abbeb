"""Personal models that are kept, and the keys of [train] that options have, too."""

from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from tests import iot_tables as iot
from tests.cli.running import assert_one_line, run

CONFIG = """
[data]
table = "alarms.csv"
device = "sensor"
public_bounds = true

[label]
name = "alarm"
values = ["no", "yes"]

[features]
heat = { low = -10, high = 60 }
volts = { low = 0, high = 5 }

[budget]
epsilon = 4
cost = 500

[train]
class_shares = "no=0.97,yes=0.03"
threshold = "shares"
scale = "private"
personal = true
keep = true
out = "kept"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = iot.alarms(600, 4)
    table["sensor"] = np.where(table["sensor"] == "s03", "a/b", table["sensor"])
    iot.write(tmp_path / "alarms.csv", table)
    (tmp_path / "fedbudget.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_device_has_a_model_of_its_own(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "train", "fedbudget.toml")
    assert result.code == 0
    assert "personal models: kept/personal/NAME.json" in result.words
    released = fb.LinearModel.load("kept")
    assert released.threshold == 0.03  # the file's shares
    assert released.schema is not None
    assert released.schema.features["heat"] != fb.Numeric(-10, 60)  # the file's scale
    # The first name is no file's name.
    files = sorted(path.name for path in Path("kept/personal").iterdir())
    assert files == ["0.json", "s00.json", "s01.json", "s02.json"]
    models = [fb.LinearModel.load(Path("kept/personal") / name) for name in files]
    assert all("NOT private" in model.privacy for model in models)
    assert all(model.schema == released.schema for model in models)
    rows = iot.alarms(50, 4, seed=1)
    probabilities = [model.probabilities(rows)[:, 1] for model in models]
    assert len({tuple(p) for p in probabilities}) == 4  # each is its device's


def test_models_without_a_folder_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--label", "alarm", "--device", "sensor", "--epsilon", "4")
    result = run(
        capsys, "train", "alarms.csv", *options, "--cost", "500", "--personal", "--keep"
    )
    assert_one_line(result, code=2, says=("--keep", "--out FOLDER"))


def test_the_library_returns_them() -> None:
    data = fb.from_table(
        iot.alarms(600, 4), label="alarm", device="sensor", schema=iot.ALARMS
    )
    budget = fb.Budget(epsilon=4, delta=1e-4, cost=500)
    plan = fb.plan(data.problem(), budget, fb.Prices(communication=100, computation=1))
    devices = fb.SimulatedDevices(data, seed=0)
    kept = fb.train(plan, devices, personal=True)
    assert kept.personal is not None
    assert kept.personal.shape == (4, data.dim)
    assert fb.train(plan, fb.SimulatedDevices(data, seed=0)).personal is None
