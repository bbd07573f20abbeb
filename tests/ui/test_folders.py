"""Run folders as the page reads them, complete or being written."""

from dataclasses import replace
from pathlib import Path

import numpy as np

import fedbudget as fb
from fedbudget.ui.charts import curve_chart
from fedbudget.ui.folders import find_folders, read_folder, summary
from tests.examples import round_of

PLAN = replace(
    fb.plan(
        fb.Problem(num_samples=[200, 300], dim=2),
        fb.Budget(epsilon=[4.0, 2.0], cost=300),
        fb.Prices(communication=90, computation=2),
    ),
    rounds=3,
    tau=5,
    noise_std=np.ones(2),
    epsilon=np.array([4.0, 2.0]),
    cost=np.full(2, 300.0),
)


def write_run(folder: Path, plan: fb.Plan = PLAN, *, done: int) -> Path:
    """Write the folder of a run of three rounds, of which some are done."""
    record = fb.Record(folder, about={"data": "adult: 2 devices"})
    record.open(plan)
    for n in range(1, done + 1):
        latest = round_of(
            n,
            epsilon=plan.epsilon * n / 3,
            cost=plan.cost * n / 3,
            measured={"train_loss": 1 / n, "test_accuracy": 0.7 + 0.01 * n},
        )
        record.add_round(latest, {"rounds_done": np.array(n)})
    if done == 3:
        record.finish(np.zeros(2), latest)
    return folder


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", done=2)
    with open(folder / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "answ')  # an incomplete line
    run = read_folder(folder)
    assert run is not None and not run.run.finished
    assert run.measures == ("test_accuracy", "train_loss")
    assert [row["cost"] for row in run.curve()] == [100, 200]
    shares = [row["share"] for row in run.spending()]
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert summary(run)["rounds"] == "2 of 3"


def test_every_epsilon_of_a_curve_is_shown_rounded_up(tmp_path: Path) -> None:
    run = read_folder(write_run(tmp_path / "a", done=3))
    assert run is not None
    rows = run.curve()
    assert [row["spent"] for row in rows] == ["1.334", "2.667", "4"]
    chart = curve_chart(rows, x="cost", y="test_accuracy", titles=("cost", "accuracy"))
    shown = chart.to_dict()["layer"][0]["encoding"]["tooltip"]
    assert [tip["field"] for tip in shown if tip.get("title") == "epsilon"] == ["spent"]
    assert "epsilon" not in [tip["field"] for tip in shown]


def test_some_rounds_may_not_be_measured(tmp_path: Path) -> None:
    record = fb.Record(tmp_path / "a")
    record.open(PLAN)
    for n, measured in ((1, {}), (2, {"train_loss": 0.5}), (3, {})):
        latest = round_of(n, cost=PLAN.cost * n / 3, measured=measured)
        record.add_round(latest, {"rounds_done": np.array(n)})
    run = read_folder(tmp_path / "a")
    assert run is not None and run.measures == ("train_loss",)
    assert [row["round"] for row in run.curve()] == [2]
    assert len(run.spending()) == 6


def test_a_run_without_privacy_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", PLAN.without_privacy(), done=3)
    run = read_folder(folder)
    assert run is not None and run.run.finished
    assert summary(run)["privacy"] == "none: NOT PRIVATE"
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
