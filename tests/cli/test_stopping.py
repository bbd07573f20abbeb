"""A run that is stopped, killed or out of disk space resumes to the same numbers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbudget.cli import main
from fedbudget.cli.app import ctrl_c_outside_llvm
from tests.cli.examples import sensors
from tests.cli.running import Result, assert_one_line, run_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals differ")

COMMAND = "from fedbudget.cli import main; main()"
# Small steps, heterogeneous devices and free communication: rounds of one step.
MANY_ROUNDS = (
    *("--epsilon", "50", "--cost", "300", "--learning-rate", "0.01"),
    *("--communication-price", "0", "--dissimilarity", "10"),
)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return ("train", *sensors(tmp_path_factory.mktemp("data")), *MANY_ROUNDS)


@pytest.fixture(scope="module")
def whole(arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    result = train(arguments, out)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["rounds"] > 200
    return out


@pytest.fixture(scope="module")
def stopped(
    arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a run that was stopped."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    interrupt(arguments, out, signal.SIGINT)
    return out


def train(arguments: tuple[str, ...], out: Path, *options: str) -> Result:
    """Run the command in this process; only a signal needs another process."""
    shown, err = StringIO(), StringIO()
    with redirect_stdout(shown), redirect_stderr(err):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--out", str(out), "--json", *options])
    assert isinstance(stop.value.code, int)
    return Result(stop.value.code, shown.getvalue(), err.getvalue())


def interrupt(arguments: tuple[str, ...], out: Path, how: signal.Signals) -> Result:
    """Start a run and send it a signal after a few rounds.

    On a busy machine the run may end before that: it is then started again.
    """
    for _ in range(5):
        result = _interrupt_once(arguments, out, how)
        if not (out / "model.npz").exists():
            return result
        shutil.rmtree(out)
    raise AssertionError("the signal came too late, five times")


def _interrupt_once(
    arguments: tuple[str, ...], out: Path, how: signal.Signals
) -> Result:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    while len(rounds(out)) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(how)
    shown, err = process.communicate(timeout=60)
    return Result(process.returncode, shown, err)


def rounds(out: Path) -> list[str]:
    path = out / "rounds.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def theta(out: Path) -> list[float]:
    with np.load(out / "model.npz") as model:
        values: list[float] = model["theta"].tolist()
    return values


def assert_same(folder: Path, whole: Path) -> None:
    assert theta(folder) == theta(whole)
    assert rounds(folder) == rounds(whole)


def test_ctrl_c_leaves_a_folder_that_goes_on(
    arguments: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    stopped = interrupt(arguments, out, signal.SIGINT)
    with np.load(out / "state.npz") as state:
        done = int(state["rounds_done"])
    assert (stopped.code, stopped.out) == (130, "")
    assert stopped.err.lstrip() == (
        f"stopped after round {done}; run the same command to continue\n"
    )
    again = run_python(COMMAND, *arguments, "--out", str(out), "--json")
    assert (again.code, again.err) == (0, "")
    first: dict[str, Any] = json.loads(again.out)
    assert first["rounds_run"] == len(rounds(whole)) > done
    assert_same(out, whole)


def test_kill_9_leaves_a_folder_that_goes_on(
    arguments: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert interrupt(arguments, out, signal.SIGKILL).code == -signal.SIGKILL
    assert train(arguments, out).code == 0
    assert_same(out, whole)


@pytest.mark.parametrize("seconds", [0.5, 2.5, 4.5])  # it loads, plans, compiles
def test_ctrl_c_without_a_folder(seconds: float, tmp_path: Path) -> None:
    loaded = "import fedbudget.simulation.kernels.runs; print('ready', flush=True)"
    code = f"{loaded}; {COMMAND}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", "adult", *MANY_ROUNDS, "--cost", "6000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.lstrip().startswith("stopped")
    assert err.strip().count("\n") == 0


def test_ctrl_c_inside_llvm_is_held_back() -> None:
    inside: dict[str, Any] = {"__name__": "llvmlite.made_up", "signal": signal}
    exec(
        "def callback():\n    signal.raise_signal(signal.SIGINT)\n    return 'whole'",
        inside,
    )
    results = []
    with pytest.raises(KeyboardInterrupt), ctrl_c_outside_llvm():
        results.append(inside["callback"]())
        time.sleep(30)
    assert results == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(
    arguments: tuple[str, ...], whole: Path, stopped: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(stopped, out)
    partial = out / ".state.npz.partial"
    partial.unlink(missing_ok=True)
    partial.symlink_to("/dev/full")  # every write fails: disk full
    full = train(arguments, out)
    assert_one_line(full, code=1, says=(str(out), "No space left", "resumed"))
    assert not partial.is_symlink()  # removed
    assert train(arguments, out).code == 0
    assert_same(out, whole)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_from_the_start(
    arguments: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".about.json.partial").symlink_to("/dev/full")
    assert_one_line(train(arguments, out), code=1, says=(str(out), "No space left"))
    assert not (out / ".about.json.partial").is_symlink()  # removed
    assert train(arguments, out).code == 0
    assert_same(out, whole)


@pytest.mark.parametrize("damage", [b"", b"PK torn", b"no zip at all"])
def test_a_damaged_folder_is_one_line(
    arguments: tuple[str, ...], whole: Path, tmp_path: Path, damage: bytes
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in ("about.json", "plan.json", "rounds.jsonl"):
        (out / name).write_bytes((whole / name).read_bytes())
    (out / "state.npz").write_bytes(damage)
    result = train(arguments, out)
    assert_one_line(result, code=1, says=(str(out), "damaged", "another folder"))


def test_a_finished_folder_is_not_touched(
    arguments: tuple[str, ...], whole: Path
) -> None:
    before = {path: path.read_bytes() for path in whole.iterdir()}
    result = train(arguments, whole)
    assert_one_line(result, code=1, says=(str(whole), "finished run"))
    assert {path: path.read_bytes() for path in whole.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--seed", "1"), "run"),  # other rows for training, hence another plan or data
        (("--epsilon", "40"), "another plan"),
        (("--no-privacy",), "another plan"),
        (("--participation", "0.5"), "participation 1.0, not 0.5"),
        (("--missing", "drop"), "missing None, not 'drop'"),
    ],
)
def test_a_folder_of_another_run_is_not_touched(
    arguments: tuple[str, ...], stopped: Path, options: tuple[str, ...], says: str
) -> None:
    before = {path: path.read_bytes() for path in stopped.iterdir()}
    result = train(arguments, stopped, *options)
    line = result.err.splitlines(keepends=True)[-1]  # after the one on --no-privacy
    assert_one_line(
        Result(result.code, result.out, line), code=1, says=(str(stopped), says)
    )
    assert {path: path.read_bytes() for path in stopped.iterdir()} == before
