"""`fedbudget train`: its text and its JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import fedbudget as fb
from fedbudget.cli import output
from fedbudget.cli.run_progress import show_round
from fedbudget.record import read_run
from fedbudget.reporting.comparison import compare
from tests.cli.examples import BUDGET, SCHEMA, sensors
from tests.cli.running import Result, assert_one_line, run
from tests.examples import round_of


def train_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    result = run(capsys, "train", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    printed: dict[str, Any] = json.loads(result.out)
    return printed


def test_json_is_the_run_of_the_library(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = sensors(tmp_path)
    out = tmp_path / "run"
    printed = train_json(capsys, *arguments, *BUDGET, "--seed", "3", "--out", str(out))
    data = fb.from_table(
        arguments[0],
        label="alarm",
        device="sensor_id",
        schema=fb.Schema.from_dict(SCHEMA),
        seed=3,
    )
    budget = fb.Budget(epsilon=4, cost=1000)
    prices = fb.Prices(communication=100, computation=1)
    plan = fb.plan(data.problem(), budget, prices)
    devices = fb.SimulatedDevices(data, seed=3, budget=budget, prices=prices)
    trained = fb.train(plan, devices)
    planned = plan.to_dict()
    assert planned.pop("loss") == printed["loss_name"]
    assert printed["kind"] == "simulation"
    assert planned.pop("privacy") in printed["privacy"] == str(trained.privacy)
    assert planned.items() <= printed.items()
    assert printed["accuracy"] == trained.measured["test_accuracy"]
    assert printed["loss"] == trained.measured["train_loss"]
    assert printed["measured"] == trained.measured
    assert printed["rounds_run"] == plan.rounds
    assert printed["record"] == str(out)
    assert printed["data"] == str(data)
    assert printed["seconds"] > 0
    with np.load(out / "model.npz") as model:
        assert model["theta"].tolist() == trained.theta.tolist()


def test_the_page_says_all_that_matters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    result = run(capsys, "train", "adult", "--split", "iid", *BUDGET, "--out", out)
    assert (result.code, result.err) == (0, "")
    for words in (
        "adult: 16 devices",
        "local steps, learning rate",
        "simulation: devices would spend (4,",
        "-differential privacy for one sample",
        "nothing is promised for this model",
        "of 1000 units",
        "16 of 16 devices",
        "test accuracy 0.8",
        "NOT private",
    ):
        assert words in result.words
    assert out in result.out.replace("\n", "").replace(" ", "")
    unbroken = [line for line in result.out.splitlines() if out not in line]
    assert all(len(line) <= 80 for line in unbroken)


def test_the_record_says_what_was_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = sensors(tmp_path)
    out = tmp_path / "deep" / "run"
    options = ("--participation", "0.5", "--seed", "2")
    result = run(capsys, "train", *arguments, *BUDGET, *options, "--out", str(out))
    assert result.code == 0
    about = json.loads((out / "about.json").read_text())
    settings = {"seed": 2, "participation": 0.5, "label": "alarm"}
    assert settings.items() <= about.items()
    assert about["data"].startswith("sensors: 5 devices")
    lines = (out / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert min(row["answered"] for row in rows) < 5
    assert "of 5 devices per round" in result.out


def test_without_a_folder_nothing_is_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = sensors(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = run(capsys, "train", *arguments, *BUDGET)
    assert "none; use --out FOLDER to save the run" in result.out
    assert {p.name for p in tmp_path.iterdir()} == {"sensors.csv", "schema.json"}


def test_a_release_measures_nothing_and_promises(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments, out = sensors(tmp_path), tmp_path / "run"
    options = (*arguments, *BUDGET, "--release", "--out", str(out))
    result = run(capsys, "train", *options)
    assert (result.code, result.err) == (0, "")
    assert "Released: " in result.out and "accuracy 0." not in result.out
    assert "release: (4," in result.words and "nothing is promised" not in result.words
    about = json.loads((out / "about.json").read_text())
    assert about["kind"] == "release" and "rows" not in about
    rows = (out / "rounds.jsonl").read_text().splitlines()
    assert all(json.loads(row)["not_private"] == {} for row in rows)
    assert "release: (" in fb.report(out).read_text()
    again = ("--release", "--out", str(tmp_path / "again"))
    printed = train_json(capsys, *arguments, *BUDGET, *again)
    assert (printed["kind"], printed["accuracy"], printed["loss"]) == (
        "release",
        None,
        None,
    )
    with np.load(out / "model.npz") as model:
        assert np.isfinite(model["theta"]).all()


def test_no_two_releases_are_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments, thetas = sensors(tmp_path), []
    for name in ("a", "b"):
        options = ("--release", "--seed", "0", "--out", str(tmp_path / name))
        assert run(capsys, "train", *arguments, *BUDGET, *options).code == 0
        with np.load(tmp_path / name / "model.npz") as model:
            thetas.append(model["theta"])
    assert (thetas[0] != thetas[1]).all()


@pytest.mark.parametrize(
    "option", ["--personal", "--no-privacy", "--participation 0.5"]
)
def test_a_release_has_no_options_of_simulations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    words = (*sensors(tmp_path), *BUDGET, "--release", *option.split())
    result = run(capsys, "train", *words, "--out", str(tmp_path / "run"))
    assert_one_line(result, code=2, says=(option, "does not go with --release"))


def test_a_release_needs_a_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = run(capsys, "train", *sensors(tmp_path), *BUDGET, "--release")
    assert_one_line(result, code=2, says=("--release without --out", "name a folder"))


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_stand_in_says_that_it_is_synthetic(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    result = run(capsys, "train", "vehicle", *BUDGET, *options)
    assert result.code == 0
    assert "SYNTHETIC" in result.out


def test_a_baseline_without_privacy_is_loud(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = sensors(tmp_path)
    result = run(capsys, "train", *arguments, *BUDGET, "--no-privacy")
    assert result.code == 0
    assert result.err.startswith("warning: NOT PRIVATE: --no-privacy adds no noise")
    assert result.err.count("\n") == 1
    assert "NOT PRIVATE: no noise was added" in result.out
    result = run(capsys, "train", *arguments, *BUDGET, "--no-privacy", "--json")
    printed = json.loads(result.out)
    assert printed["noise_std"] == [0.0] * 5
    assert printed["epsilon"] == [None] * 5
    assert printed["privacy"].startswith("NOT PRIVATE")


def test_devices_without_test_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = sensors(tmp_path, rows=40, devices=40)
    printed = train_json(capsys, *arguments, *BUDGET)
    assert printed["accuracy"] is None
    assert set(printed["measured"]) == {"train_loss"}
    result = run(capsys, "train", *arguments, *BUDGET)
    assert result.code == 0
    assert "Result: no test rows" in result.out
    assert "no device has test rows: no test accuracy" in result.out


def test_labels_that_are_numbers_have_no_accuracy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "heat.csv"
    rows = [f"{i % 3},{i % 7},{i / 90 - 0.3}" for i in range(90)]
    path.write_text("who,volts,heat\n" + "\n".join(rows) + "\n")
    arguments = (str(path), "--label", "heat", "--device", "who")
    result = run(capsys, "train", *arguments, *BUDGET)
    assert result.code == 0
    assert "the labels are numbers: there is a loss, but no accuracy" in result.out


class Bar(output.Bar):
    """Record what it shows."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int | None]] = []

    def show(self, text: str, *, done: int | None = None) -> None:
        self.shown.append((text, done))


def test_the_bar_shows_what_is_spent() -> None:
    bar = Bar()
    spent = {"epsilon": np.array([1.0, 2.5]), "cost": np.array([1.0, 300.0])}
    latest = round_of(3, **spent, measured={"test_accuracy": 0.8})
    show_round(bar, latest, rounds=9)
    spent["epsilon"][1] = np.inf
    latest = round_of(3, **spent, measured={"train_loss": 0.25})
    show_round(bar, latest, rounds=9)
    assert bar.shown == [
        ("round 3/9  accuracy 0.800 (not private)  epsilon 2.5  cost 300", 3),
        ("round 3/9  loss 0.250 (not private)  epsilon none  cost 300", 3),
    ]
    show_round(bar, round_of(3, **spent), rounds=9)
    assert bar.shown[-1] == ("round 3/9  epsilon none  cost 300", 3)


def test_some_rounds_are_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments, out = sensors(tmp_path), str(tmp_path / "run")
    printed = train_json(
        capsys, *arguments, *BUDGET, "--measure-every", "3", "--out", out
    )
    recorded = read_run(out)
    numbers = [done.number for done in recorded.measured_rounds]
    last = printed["rounds_run"]
    assert numbers == [*range(3, last, 3), last] and last > 3
    assert printed["measured"] == recorded.last_measured


def test_the_bar_says_when_kernels_are_compiled() -> None:
    bar = Bar()
    with output.telling_of_compilation(bar, "training"):
        numba.njit(lambda x: x + 1)(1)
    assert "compiling kernels" in bar.shown[0][0]
    assert bar.shown[-1] == ("training", None)
    numba.njit(lambda x: x + 2)(1)
    assert bar.shown[-1] == ("training", None)


def only_error(result: Result) -> Result:
    """Drop the warnings about bounds that were read from the rows."""
    lines = result.err.splitlines(keepends=True)
    assert all(line.startswith("warning: NOT PRIVATE") for line in lines[:-1])
    return replace(result, err=lines[-1])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("", 2, ("no data to train on", "adult")),
        ("magic", 2, ("data 'magic'", "adult")),
        ("adult --samples 5x3", 2, ("--samples", "fedbudget train --help")),
        ("adult --participation 0", 2, ("participation", "above 0", "got 0")),
        ("adult --participation 1.5", 2, ("participation", "got 1.5")),
        ("adult --participation nan", 2, ("participation", "got nan")),
        ("adult --measure-every 0", 2, ("measure_every", "got 0")),
        ("adult --seed -1", 2, ("seed", "-1")),
        ("adult --seed 99999999999999999999", 2, ("seed", "99999999999999999999")),
        ("adult --cost 100", 1, ("cost budget 100", "raise")),
        ("adult --epsilon 0", 2, ("epsilon", "got 0")),
        ("adult --learning-rate 1e300", 2, ("1e+300", "at most")),
        ("adult --out /dev/full", 1, ("/dev/full", "Not a directory")),
        ("adult --out /proc/run", 1, ("/proc/run",)),
    ],
)
def test_bad_options(
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    code: int,
    says: tuple[str, ...],
) -> None:
    # The last of an option given twice counts.
    result = run(capsys, "train", *BUDGET, *arguments.split())
    assert_one_line(result, code=code, says=says)


@pytest.mark.parametrize("value", ["nan", "NaN", ""])
def test_a_table_with_nan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, value: str
) -> None:
    path = tmp_path / "table.csv"
    rows = "".join(f"{i % 3},{i % 5},{i % 2}\n" for i in range(30))
    path.write_text(f"who,volts,alarm\n{rows}1,{value},0\n")
    arguments = (str(path), "--label", "alarm", "--device", "who")
    result = run(capsys, "train", *arguments, *BUDGET)
    assert_one_line(only_error(result), code=2, says=("'volts'",))


def test_a_step_that_is_far_too_long(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = (*sensors(tmp_path), *BUDGET, "--learning-rate", "1e30")
    result = run(capsys, "train", *arguments)
    if result.code == 0:  # one bounded step is still a number
        assert "e+" in result.out
        assert all(len(line) <= 80 for line in result.out.splitlines())
    else:
        assert_one_line(result, code=result.code, says=("learning_rate",))


def test_personal_models_stand_beside_the_global_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = (*sensors(tmp_path), *BUDGET, "--personal")
    shown = run(capsys, "train", *arguments).out
    for words in ("global", "personal", "local only", "constant", "sends nothing"):
        assert words in shown
    measured = train_json(capsys, *arguments)["measured"]
    assert 0 <= measured["personal_test_accuracy"] <= 1
    assert measured["constant_test_accuracy"] < measured["alone_test_accuracy"]


def test_dissimilarity_is_measured_and_paid_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = (*sensors(tmp_path), *BUDGET, "--dissimilarity", "measure")
    printed = train_json(capsys, *arguments)
    stated = printed["constants"]["dissimilarity"]
    assert stated["source"] == "measured privately"
    assert max(printed["epsilon"]) <= 4 and min(printed["prior_mu"]) > 0
    # The query cost one round of one step; the rest pays for whole rounds.
    assert (
        max(printed["cost"]) == 101 + printed["rounds"] * (100 + printed["tau"]) <= 1000
    )
    shown = run(capsys, "train", *arguments).out
    assert f"cost     {max(printed['cost']):.0f} of 1000" in shown


def test_thresholds_and_class_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = (*sensors(tmp_path), *BUDGET)
    shares = ("--class-shares", "no=0.6,yes=0.4")
    plain = train_json(capsys, *table)
    assert plain["threshold"] == 0.5 and plain["cautions"] == []
    assert {"test_auc", "test_recall/yes", "constant_test_accuracy"} <= set(
        plain["measured"]
    )
    by_shares = train_json(capsys, *table, "--threshold", "shares", *shares)
    assert by_shares["threshold"] == pytest.approx(0.4)
    assert (
        by_shares["measured"]["test_recall/yes"]
        >= (plain["measured"]["test_recall/yes"])
    )
    assert by_shares["measured"]["test_loss"] == plain["measured"]["test_loss"]
    measured = train_json(capsys, *table, "--threshold", "measure")
    assert 0 < measured["threshold"] < 1 and max(measured["cost"]) <= 1000
    weights = train_json(capsys, *table, "--class-weight", "balanced", *shares)
    assert weights["measured"]["test_loss"] != plain["measured"]["test_loss"]
    result = run(capsys, "train", *table, "--threshold", "shares")
    assert_one_line(result, code=2, says=("needs --class-shares",))
    result = run(capsys, "train", *table, "--class-weight", "balanced")
    assert_one_line(result, code=2, says=("publicly known class shares",))
    for wrong in ("2", "half"):
        result = run(capsys, "train", *table, "--threshold", wrong)
        assert_one_line(result, code=2, says=("--threshold", wrong, "shares"))
    both = ("--threshold", "measure", "--dissimilarity", "measure")
    assert_one_line(run(capsys, "train", *table, *both), code=2, says=("measure one",))


def test_private_bounds_are_charged_and_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments, out = sensors(tmp_path), tmp_path / "run"
    scale = ("--scale", "private")
    result = run(capsys, "train", *arguments, *BUDGET, *scale, "--out", str(out))
    assert (result.code, result.err) == (0, "")
    assert "bounds measured privately" in result.words
    about = json.loads((out / "about.json").read_text())
    stated = json.loads((tmp_path / "schema.json").read_text())
    assert about["schema"] != stated
    plan = json.loads((out / "plan.json").read_text())
    assert min(plan["prior_mu"]) > 0 and max(plan["epsilon"]) <= 4
    assert "Alternatives" in fb.report(out).read_text()  # the same rows, loaded again
    assert about["public_schema"] == fb.Schema.from_dict(stated).to_dict()
    more = ("--new-devices", "1", "--features", "fourier:20", "--json")
    shares = ("--class-weight", "balanced", "--class-shares", "no=0.5,yes=0.5")
    printed = run(capsys, "train", *arguments, *BUDGET, *scale, *more, *shares)
    assert (printed.code, printed.err) == (0, "")
    wide = json.loads(printed.out)
    assert wide["schema"]["expansion"]["count"] == 20
    assert "21 columns" in wide["data"]  # of the features
    assert wide["schema"]["features"]["volts"] == about["schema"]["features"]["volts"]
    assert 0 < wide["measured"]["new_accuracy"] <= 1 and max(wide["epsilon"]) <= 4
    baseline = run(capsys, "train", *arguments, *BUDGET, *scale, "--no-privacy")
    assert_one_line(baseline, code=2, says=("another measurement", "--no-privacy"))
    built_in = run(capsys, "train", "adult", *BUDGET, *scale)
    assert built_in.code == 2 and "does not go with adult" in built_in.err
    unknown = run(capsys, "train", *arguments, *BUDGET, "--scale", "robust")
    assert unknown.code == 2 and "choose one of private" in unknown.err


@pytest.mark.parametrize("more", [(), ("--features", "fourier:20")])
def test_a_report_after_private_bounds_has_the_errors_of_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    """Labels of test rows are the true ones, also beyond the measured bounds."""
    rng, rows = np.random.default_rng(0), 6000
    x = rng.normal(5, 0.5, rows)
    y = np.where(rng.random(rows) < 0.01, 90.0, x + rng.normal(0, 0.3, rows))
    cells = zip(x, y, np.arange(rows) % 20, strict=True)
    lines = ["v,y,id", *(f"{a:.4f},{b:.4f},d{m}" for a, b, m in cells)]
    table, schema = tmp_path / "table.csv", tmp_path / "schema.json"
    table.write_text("\n".join(lines) + "\n")
    features = {"v": {"low": -100, "high": 100}}
    label = {"name": "y", "low": 0, "high": 100}
    schema.write_text(json.dumps({"features": features, "label": label}))
    out = tmp_path / "run"
    arguments = ("--label", "y", "--device", "id", "--schema", str(schema), *more)
    budget = ("--epsilon", "4", "--cost", "1500", "--scale", "private")
    new = ("--new-devices", "2", "--out", str(out), "--json")
    result = run(capsys, "train", str(table), *arguments, *budget, *new)
    assert (result.code, result.err) == (0, "")
    measured = json.loads(result.out)["measured"]
    recorded = read_run(out)
    assert recorded.plan.schema is not None
    target = recorded.plan.schema.target
    assert isinstance(target, fb.Numeric) and target.high < 50  # below the outliers
    comparison = compare(recorded)
    assert comparison.means["this run"] == pytest.approx(measured["test_loss"])
    assert comparison.new_devices["this run"] == pytest.approx(measured["new_loss"])
