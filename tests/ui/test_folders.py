"""Run folders as the page reads them, also while they are written."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.ui.folders import find_folders, read_folder, summary


def write_run(folder: Path, *, done: int, **plan: Any) -> Path:
    """Write a folder as a run of three rounds leaves it after some of them."""
    folder.mkdir(parents=True)
    whole = {"rounds": 3, "tau": 5, "epsilon": [4.0, 2.0], "cost": [300.0, 300.0]}
    whole |= {"accountant": "gdp", "privacy": "(4, 0.0001)", "weights": [0.5, 0.5]}
    (folder / "plan.json").write_text(json.dumps(whole | plan))
    (folder / "about.json").write_text(json.dumps({"data": "adult: 2 devices"}))
    rows = [
        {
            "round": n,
            "answered": 2,
            "epsilon": [4 * n / 3, 2 * n / 3],
            "cost": [100.0 * n, 100.0 * n],
            "not_private": {"train_loss": 1 / n, "test_accuracy": 0.7 + 0.01 * n},
        }
        for n in range(1, done + 1)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rounds.jsonl").write_text(text)
    if done == 3:
        np.savez(folder / "model.npz", theta=np.zeros(2))
    return folder


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", done=2)
    with open(folder / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "answ')  # a torn line
    run = read_folder(folder)
    assert run is not None and not run.finished
    assert run.measures == ("test_accuracy", "train_loss")
    assert [row["cost"] for row in run.curve()] == [100, 200]
    shares = [row["share"] for row in run.spending()]
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert summary(run)["rounds"] == "2 of 3"


def test_a_run_without_privacy_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", done=3, accountant="none", epsilon=[None, None])
    run = read_folder(folder)
    assert run is not None and run.finished
    assert summary(run)["promise"] == "none: NOT PRIVATE"
    assert {row["budget"] for row in run.spending()} == {"cost"}


def test_what_is_no_run_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "a", done=3)
    write_run(tmp_path / "sweep" / "b", done=0)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "plan.json").write_text("{")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "plan.json").write_text("[1]")
    (tmp_path / "d" / "about.json").write_text("{}")
    assert {run.name for run in find_folders(tmp_path)} == {"a", "sweep/b"}
    empty = next(run for run in find_folders(tmp_path) if run.name == "sweep/b")
    assert summary(empty)["accuracy"] is None
    assert find_folders(tmp_path / "nowhere") == []
