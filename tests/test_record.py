"""The run folder: complete, resumable, and never silently overwritten."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.files import whole_file
from fedbudget.record import read_rounds

PLAN: dict[str, Any] = {"tau": 3, "privacy": "a statement"}
STATE = {"theta": np.arange(3.0), "rounds_done": np.array(1)}


def test_a_new_folder_holds_the_plan_and_who_ran_it(tmp_path: Path) -> None:
    record = fb.Record(tmp_path / "deep" / "run", about={"seed": 7})
    assert record.open(PLAN) == (None, [])
    about = json.loads((record.path / "about.json").read_text())
    assert about["seed"] == 7 and about["privacy"] == "a statement"
    assert about["versions"]["numpy"] == np.__version__
    assert json.loads((record.path / "plan.json").read_text()) == PLAN


def test_an_interrupted_run_is_resumed_after_its_last_complete_round(
    tmp_path: Path,
) -> None:
    first = fb.Record(tmp_path / "run")
    first.open(PLAN)
    first.add_round({"round": 1}, STATE)
    with open(tmp_path / "run" / "rounds.jsonl", "a") as file:
        file.write('{"round": 2}\n{"rou')  # a row without its state, and a torn one
    state, rows = fb.Record(tmp_path / "run").open(PLAN)
    assert state is not None and state["theta"].tolist() == [0, 1, 2]
    assert rows == [{"round": 1}] == read_rounds(tmp_path / "run")


def test_a_folder_killed_before_its_first_round_starts_again(tmp_path: Path) -> None:
    fb.Record(tmp_path / "run").open(PLAN)
    assert fb.Record(tmp_path / "run").open(PLAN) == (None, [])


def test_a_first_row_without_its_state_is_not_there_twice(tmp_path: Path) -> None:
    fb.Record(tmp_path / "run").open(PLAN)
    (tmp_path / "run" / "rounds.jsonl").write_text('{"round": 1}\n')
    again = fb.Record(tmp_path / "run")
    assert again.open(PLAN) == (None, [])
    again.add_round({"round": 1}, STATE)
    assert read_rounds(tmp_path / "run") == [{"round": 1}]


@pytest.mark.parametrize("step", ["about.json", "plan.json", "state.npz", "model.npz"])
def test_a_half_written_file_is_never_taken_for_a_whole_one(
    tmp_path: Path, step: str
) -> None:
    record = fb.Record(tmp_path / "run")
    record.open(PLAN)
    record.add_round({"round": 1}, STATE)
    (tmp_path / "run" / f".{step}.partial").write_bytes(b"torn")
    state, rows = fb.Record(tmp_path / "run").open(PLAN)
    assert state is not None and len(rows) == 1


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    record = fb.Record(tmp_path / "run", about={"seed": 1})
    record.open(PLAN)
    with pytest.raises(fb.RecordError, match="run of another plan"):
        fb.Record(tmp_path / "run", about={"seed": 1}).open({**PLAN, "tau": 4})
    with pytest.raises(fb.RecordError, match="with seed 1, not 2"):
        fb.Record(tmp_path / "run", about={"seed": 2}).open(PLAN)
    record.add_round({"round": 1}, STATE)
    record.finish(np.zeros(3))
    with pytest.raises(fb.RecordError, match="already holds a finished run"):
        fb.Record(tmp_path / "run", about={"seed": 1}).open(PLAN)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "holiday.jpg").touch()
    with pytest.raises(fb.RecordError, match="holds no run"):
        fb.Record(tmp_path / "other").open(PLAN)


def test_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = fb.Record(tmp_path / "run")
    record.open(PLAN)
    record.add_round({"round": 1}, STATE)
    # The kernel's own full disk: every write to /dev/full fails with ENOSPC.
    (tmp_path / "run" / ".state.npz.partial").symlink_to("/dev/full")
    with pytest.raises(fb.RecordError, match="No space left on device: make room"):
        record.add_round({"round": 2}, STATE)
    assert not (tmp_path / "run" / ".state.npz.partial").is_symlink()
    state, rows = fb.Record(tmp_path / "run").open(PLAN)
    assert state is not None and rows == [{"round": 1}]


def test_a_file_is_written_whole_or_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for mode, content in (("w", "a\r\nb\n"), ("wb", b"a\r\nb\n")):
        with whole_file(path, mode, permissions=0o600) as file:
            file.write(content)
        assert path.read_bytes() == b"a\r\nb\n"
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write("half")
        1 / 0  # noqa: B018
    assert path.read_bytes() == b"a\r\nb\n"
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]
    for wrong in (path / "below", tmp_path, ""):
        with pytest.raises(fb.RecordError, match="cannot write"), whole_file(wrong):
            pass


WRITER = """
import sys, time
import fedbudget as fb
record = fb.Record(sys.argv[1])
record.open({"tau": 3, "privacy": "a statement"})
print("open", flush=True)
time.sleep(600)
"""


def test_a_folder_has_one_writer_and_a_killed_one_is_no_obstacle(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
        before = sorted(folder.iterdir())
        with pytest.raises(fb.RecordError, match="another process is writing to it"):
            fb.Record(folder).open(PLAN)
        writer.kill()
    assert fb.Record(folder).open(PLAN) == (None, [])
    assert sorted(folder.iterdir()) == before  # no lock is left behind


def test_a_folder_is_free_once_its_record_is_gone(tmp_path: Path) -> None:
    code = WRITER.replace("time.sleep(600)", "")
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    record = fb.Record(tmp_path / "run")
    record.open(PLAN)
    refused = subprocess.run(command, capture_output=True, text=True)
    assert "another process is writing to it" in refused.stderr
    del record
    assert subprocess.run(command, capture_output=True).returncode == 0
