"""`fedbudget sweep`."""

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from tests.cli.examples import SCHEMA, sensors
from tests.cli.running import assert_one_line, run

GRID = ("--epsilons", "1,4", "--costs", "50,500,1000", "--seeds", "3")


def test_json_is_the_sweep_of_the_library(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = sensors(tmp_path)
    result = run(capsys, "sweep", *arguments, *GRID, "--json")
    assert (result.code, result.err) == (0, "")
    printed = json.loads(result.out)
    data = fb.from_table(
        arguments[0],
        label="alarm",
        device="sensor_id",
        schema=fb.Schema.from_dict(SCHEMA),
    )
    assert printed["data"] == str(data)
    plan = fb.plan(
        data.problem(),
        fb.Budget(epsilon=4, cost=500),
        fb.Prices(communication=100, computation=1),
    )
    measured = fb.sweep(data, [plan], seeds=range(3)).measured
    point = printed["points"][4]
    assert (point["planner"], point["epsilon"], point["cost"]) == ("joint", 4, 500)
    assert (point["tau"], point["rounds"]) == (plan.tau, plan.rounds)
    accuracy = measured["test_accuracy"][0]
    assert point["accuracy"] == pytest.approx(accuracy.mean())
    assert point["accuracy_std"] == pytest.approx(np.std(accuracy, ddof=1))
    assert point["loss"] == pytest.approx(measured["train_loss"][0].mean())
    assert [point["feasible"] for point in printed["points"]] == [False, True, True] * 2
    assert len(printed["runs"]) == 4 * 3


def test_the_table_compares_planners(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    options = ("--planners", "joint, paper", "--out", str(table))
    result = run(capsys, "sweep", *sensors(tmp_path), *GRID, *options)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert sum(line.split()[:1] == ["joint"] for line in lines) == 6
    assert sum(line.split()[:1] == ["paper"] for line in lines) == 6
    for words in ("8 plans x 3 seeds", "no plan", " +- ", "NOT private", "3 seeds"):
        assert words in result.out
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 * 3
    assert {row["planner"] for row in rows} == {"joint", "paper"}
    assert {float(row["budget_cost"]) for row in rows} == {500, 1000}
    assert all(float(row["epsilon"]) <= float(row["budget_epsilon"]) for row in rows)
    assert {row["data"].split(":")[0] for row in rows} == {"sensors"}
    assert not list(tmp_path.glob(".*"))


def test_synthetic_data_say_so_everywhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    grid = ("--epsilons", "4", "--costs", "1000", "--seeds", "1", "--out", str(table))
    for options in ((), ("--json",)):
        result = run(capsys, "sweep", "vehicle", *grid, *options)
        assert "SYNTHETIC" in result.out
    header, *rows = table.read_text().splitlines()
    assert header.endswith(",data")
    assert all("SYNTHETIC" in row for row in rows)


def test_one_seed_has_no_deviation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = run(capsys, "sweep", *sensors(tmp_path), *GRID[:4], "--seeds", "1")
    assert result.code == 0
    assert "+-" not in result.out
    assert "4 plans x 1 seed\n" in result.out


def test_devices_without_test_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = sensors(tmp_path, rows=40, devices=40)
    result = run(capsys, "sweep", *arguments, *GRID)
    assert result.code == 0
    assert "no device has test rows" in result.out
    printed = json.loads(run(capsys, "sweep", *arguments, *GRID, "--json").out)
    assert printed["points"][-1]["accuracy"] is None


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--costs", "5,6"), 1, ("none of the costs 5,6", "--costs")),
        (("--epsilons", "x"), 2, ("--epsilons 'x'", "1,2,4,10")),
        (("--epsilons", "0"), 2, ("epsilons", "above 0")),
        (("--seeds", "0"), 2, ("--seeds", "at least 1", "got 0")),
        (("--planners", "joint,magic"), 2, ("planner 'magic'", "paper")),
        (("--planner", "joint"), 2, ("--planner", "fedbudget sweep --help")),
        (("--backend", "magic"), 2, ("backend 'magic'", "ray")),
        (("--address", "x:1"), 2, ("--address x:1", "ray or dask")),
        (("--out", "/no/such/table.csv"), 2, ("/no/such/table.csv", "folder")),
        (("--out", "/proc/table.csv"), 1, ("/proc/table.csv", "cannot write")),
    ],
)
def test_bad_input(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: tuple[str, ...],
    code: int,
    says: tuple[str, ...],
) -> None:
    grid = ("--epsilons", "4", "--costs", "500", "--seeds", "1")
    result = run(capsys, "sweep", *sensors(tmp_path), *grid, *options)
    assert_one_line(result, code=code, says=says)


def test_nothing_to_sweep_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(run(capsys, "sweep", *GRID), code=2, says=("no data", "adult"))


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_missing_cluster_package_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    if importlib.util.find_spec(backend) is not None:
        pytest.skip(f"{backend} is installed")
    grid = ("--epsilons", "4", "--costs", "500", "--seeds", "1")
    result = run(capsys, "sweep", *sensors(tmp_path), *grid, "--backend", backend)
    assert_one_line(result, code=1, says=(f".[{backend}]",))
