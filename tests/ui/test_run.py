"""Runs in the background: names, options, failures."""

import json
from pathlib import Path

import pytest

from fedbudget.errors import InvalidInputError, RecordError
from fedbudget.ui.folders import find_folders
from fedbudget.ui.results_page import different_data
from fedbudget.ui.run import DATA, OWN, Runner, options_for
from tests.ui.test_folders import write_run

NUMBERS: dict[str, float | str] = {
    "--epsilon": 4.0,
    "--cost": 1234567.25,
    "--trust": "sum",
    "--seed": 3,
}


def test_a_form_stands_for_options() -> None:
    table = {"table": " my.csv ", "--label": "alarm", "--device": "", "--schema": "s"}
    assert options_for(OWN, table, NUMBERS) == [
        *("my.csv", "--label", "alarm", "--schema", "s"),
        *("--epsilon", "4", "--cost", "1234567.25", "--trust", "sum", "--seed", "3"),
    ]
    named = options_for(next(iter(DATA)), {"table": " ", "--label": ""}, NUMBERS)
    assert named[:3] == ["adult", "--split", "iid"]
    with pytest.raises(InvalidInputError, match="name the file"):
        options_for(OWN, {"table": ""}, NUMBERS)


@pytest.mark.parametrize("data", DATA)
def test_a_named_file_replaces_the_selected_data(data: str) -> None:
    assert options_for(data, {"table": "my.toml"}, NUMBERS) == [
        "my.toml",
        "--seed",
        "3",
    ]
    replaced = options_for(data, {"table": "my.toml"}, NUMBERS, replace_budgets=True)
    assert replaced[:3] == ["my.toml", "--epsilon", "4"]
    assert options_for(data, {"table": "my.csv"}, NUMBERS)[0] == "my.csv"
    with pytest.raises(InvalidInputError, match="name the file"):
        options_for(data, {"table": "", "--label": "alarm"}, NUMBERS)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "-o"])
def test_a_name_stays_inside_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is not valid"):
        Runner(tmp_path).start(name, [])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_written_twice(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    runner = Runner(tmp_path)
    with pytest.raises(RecordError, match="choose another name"):
        runner.start("run-1", [])
    assert runner.free_name() == "run-2"
    with pytest.raises(RecordError, match="not started from this page"):
        runner.resume("run-1")


def test_a_run_that_is_still_being_planned_has_its_name(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    options = ["adult", "--split", "iid", "--epsilon", "4", "--cost", "1000"]
    first = runner.start(None, options)
    assert not first.exists()  # it is still being planned
    second = runner.start(None, options)
    assert (first.name, second.name, runner.free_name()) == ("run-1", "run-2", "run-3")
    with pytest.raises(RecordError, match="choose another name"):
        runner.start("run-1", options)
    for process in runner.processes.values():
        process.kill()
        process.wait()
    assert Runner(tmp_path).free_name() == "run-3"  # also after the page was restarted


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    runner.start("bad", ["nowhere.csv", "--epsilon", "4", "--cost", "1000"])
    runner.processes["bad"].wait(timeout=60)
    message = runner.failure("bad")
    assert message is not None and "'nowhere.csv' is not known" in message
    assert not runner.is_running("bad")
    assert not runner.can_resume("bad")
    # A page that was started again has only the log.
    again = Runner(tmp_path)
    assert again.failure("bad") == message and not again.can_resume("bad")


def test_a_stopped_run_can_be_resumed(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    runner.start("slow", ["adult", "--split", "iid", "--epsilon", "4", "--cost", "900"])
    runner.stop("slow")
    assert runner.failure("slow") is None and runner.can_resume("slow")


def test_the_report_is_written_or_its_error_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "first", done=3)
    runner = Runner(tmp_path)
    assert runner.report("first").read_text().startswith("<!")
    with pytest.raises(RecordError, match="not a run folder"):
        runner.report("nothing")


def test_runs_on_different_data_are_not_compared(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        write_run(tmp_path / name, done=2)
    about = tmp_path / "three" / "about.json"
    plain = json.loads(about.read_text()) | {"data": "others: 3 devices"}
    about.write_text(json.dumps(plain))
    runs = {run.name: run for run in find_folders(tmp_path)}
    assert different_data([runs["one"], runs["two"]]) == ""
    assert different_data([]) == ""
    message = different_data([runs["one"], runs["two"], runs["three"]])
    assert message.startswith("one and three are on different data")
