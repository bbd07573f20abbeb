"""Runs in the background: names, options, failures."""

from pathlib import Path

import pytest

from fedbudget.errors import InvalidInputError, RecordError
from fedbudget.ui.running import DATA, OWN, Runner, options_for

NUMBERS = {"--epsilon": 4.0, "--cost": 1234567.25, "--seed": 3}


def test_a_form_stands_for_options() -> None:
    table = {"table": " my.csv ", "--label": "alarm", "--device": "", "--schema": "s"}
    assert options_for(OWN, table, NUMBERS) == [
        *("my.csv", "--label", "alarm", "--schema", "s"),
        *("--epsilon", "4", "--cost", "1234567.25", "--seed", "3"),
    ]
    named = options_for(next(iter(DATA)), table, NUMBERS)
    assert named[:3] == ["adult", "--split", "iid"]
    with pytest.raises(InvalidInputError, match="name the file"):
        options_for(OWN, {"table": ""}, NUMBERS)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "-o"])
def test_a_name_stays_inside_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is not a folder's"):
        Runner(tmp_path).start(name, [])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_written_twice(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    runner = Runner(tmp_path)
    with pytest.raises(RecordError, match="take another name"):
        runner.start("run-1", [])
    assert runner.free_name() == "run-2"
    with pytest.raises(RecordError, match="not started from this page"):
        runner.resume("run-1")


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    runner.start("bad", ["nowhere.csv", "--epsilon", "4", "--cost", "1000"])
    runner.processes["bad"].wait(timeout=60)
    said = runner.failure("bad")
    assert said is not None and "'nowhere.csv' is not known" in said
    assert not runner.is_running("bad")
