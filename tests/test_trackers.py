"""Trackers, against the real packages: what was logged is read back by them."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InvalidInputError, MissingExtraError, TrackingError
from fedbudget.trackers import parameters, scalars, tracker
from tests.cli.examples import BUDGET, sensors
from tests.cli.running import assert_one_line, run, run_python
from tests.examples import round_of

PROBLEM = fb.Problem(num_samples=[200, 300], dim=3)
PLAN = fb.plan(
    PROBLEM, fb.Budget(epsilon=4, cost=900), fb.Prices(communication=100, computation=1)
)
NAMES = ("north", "south/1")


def logged(number: int) -> fb.Round:
    measured = {"test_accuracy": 0.5 + number / 10, "train_loss": 0.7}
    epsilon = np.array([0.5 * number, np.inf])
    return round_of(number, epsilon=epsilon, measured=measured)


def test_names_say_what_is_not_private_and_whose_a_number_is() -> None:
    assert scalars(logged(2), NAMES) == {
        "not_private/test_accuracy": 0.7,
        "not_private/train_loss": 0.7,
        "steps": 20.0,
        "answered": 2.0,
        "epsilon/north": 1.0,  # south's epsilon is unbounded, and so is the maximum
        "cost/north": 220.0,
        "cost/south/1": 180.0,
        "cost/max": 220.0,
    }
    epsilon = np.append(np.ones(100), np.inf)
    many = scalars(round_of(epsilon=epsilon), NAMES)
    assert {k for k in many if k.startswith("epsilon")} == {
        "epsilon/min",
        "epsilon/median",
    }


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracker(f"tensorboard:{tmp_path}/tb", PLAN, device_names=NAMES) as log:
        for number in (1, 2, 3):
            log(logged(number))
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    curve = events.Scalars("not_private/test_accuracy")
    assert [point.step for point in curve] == [1, 2, 3]
    assert [point.value for point in curve] == pytest.approx([0.6, 0.7, 0.8])
    assert events.Scalars("cost/south/1")[-1].value == pytest.approx(270)
    text = events.Tensors("plan")[0].tensor_proto.string_val[0].decode()
    assert f"tau: {PLAN.tau}" in text
    assert "differential privacy" in text


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("mlflow", reason="mlflow is not installed: not tried for real")
    # A store of files needs no database; newer MLflow allows it only with this setting.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    yield f"file:{tmp_path}/mlruns"


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_reads_back_what_was_logged(store: str) -> None:
    import mlflow

    with tracker(f"mlflow:{store}", PLAN, device_names=NAMES) as log:
        for number in (1, 2):
            log(logged(number))
    with pytest.raises(KeyError):  # a second run, of the same experiment, that fails
        with tracker(f"mlflow:{store}", PLAN, device_names=NAMES):
            raise KeyError
    client: Any = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("fedbudget").experiment_id
    runs = client.search_runs([experiment], order_by=["attributes.start_time ASC"])
    assert [run.info.status for run in runs] == ["FINISHED", "FAILED"]
    history = client.get_metric_history(runs[0].info.run_id, "cost/south/1")
    assert [(point.step, point.value) for point in history] == [(1, 90.0), (2, 180.0)]
    assert runs[0].data.params["tau"] == str(PLAN.tau)


def test_wandb_keeps_a_run_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: not tried for real")
    # In a process of its own: wandb starts helpers that outlive a test.
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.test_trackers import NAMES, PLAN, logged, tracker\n"
        "with tracker('wandb:demo', PLAN, device_names=NAMES) as log:\n"
        "    log(logged(1)); log(logged(2))\n"
    )
    result = run_python(
        code,
        WANDB_MODE="offline",
        WANDB_DIR=str(tmp_path),
        WANDB_SILENT="true",
        PYTHONPATH=os.pathsep.join(sys.path),
    )
    assert result.code == 0, result.err
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = path.read_bytes()
    assert b"not_private/test_accuracy" in content
    assert b"epsilon/north" in content


def test_the_command_tracks_while_it_trains(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track = ("--track", f"tensorboard:{tmp_path}/tb")
    result = run(capsys, "train", *sensors(tmp_path), *BUDGET, *track, "--json")
    assert (result.code, result.err) == (0, "")
    output = json.loads(result.out)
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    curve = events.Scalars("not_private/test_accuracy")
    assert len(curve) == output["rounds"]
    assert curve[-1].value == pytest.approx(output["accuracy"])
    assert events.Scalars("epsilon/s0")[-1].value == pytest.approx(output["epsilon"][0])


@pytest.mark.parametrize("where", ["", "tensorboard", "tensorboard:", "comet:x"])
def test_unknown_trackers_are_refused(where: str) -> None:
    with pytest.raises(InvalidInputError, match="write tensorboard:FOLDER"):
        tracker(where, PLAN)


@pytest.mark.parametrize(
    ("where", "module"),
    [("tensorboard:x", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")],
)
def test_a_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, where: str, module: str
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"\.\[track\]"):
        tracker(where, PLAN)


def test_a_folder_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    with pytest.raises(TrackingError, match="'tensorboard' failed"):
        tracker("tensorboard:/proc/tb", PLAN).__enter__()
    track = ("--track", "tensorboard:/proc/tb")
    result = run(capsys, "train", *sensors(tmp_path), *BUDGET, *track)
    assert_one_line(result, code=1, says=("tracker 'tensorboard' failed",))


def test_a_plan_without_privacy_has_no_epsilon() -> None:
    shown = parameters(PLAN.without_privacy(), "simulation")
    assert shown["epsilon"] == "none"


def test_a_tracker_tells_a_release_from_a_simulation() -> None:
    simulation, release = parameters(PLAN, "simulation"), parameters(PLAN, "release")
    assert "nothing is promised for this model" in simulation["privacy"]
    assert release["privacy"].startswith("release: (")
    assert (simulation["kind"], release["kind"]) == ("simulation", "release")
    caveat = "NOT covered: how many rows a device has"
    assert parameters(PLAN, "release", [caveat])["privacy"].endswith(caveat)
