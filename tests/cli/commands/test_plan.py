"""`fedbudget plan`: its text and its JSON."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from tests.cli.running import run

FLEET = ("plan", "--samples", "1628x16", "--dim", "102")
BUDGET = ("--epsilon", "4", "--cost", "1000")


def plan_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    result = run(capsys, *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    printed: dict[str, object] = json.loads(result.out, parse_constant=refuse)
    return printed


def test_json_is_the_plan_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    printed = plan_json(capsys, *FLEET, *BUDGET)
    problem = fb.Problem(num_samples=np.full(16, 1628), dim=102)
    prices = fb.Prices(communication=100, computation=1)
    plan = fb.plan(problem, fb.Budget(epsilon=4, cost=1000), prices)
    assert printed.pop("data") == (
        "no data: 16 devices, 26048 training samples, 102 columns"
    )
    constants = printed.pop("constants")
    assert constants == {
        name: {"value": c.value, "source": c.source, "note": c.note}
        for name, c in problem.constants.items()
    }
    assert printed == plan.to_dict()


def test_every_option_reaches_the_planner(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "plan --samples 300,200x2 --dim 5 --classes 3 --loss softmax"
    arguments += " --epsilon 2 --delta 1e-5 --cost 500 --communication-price 50"
    arguments += " --computation-price 2 --computation-price-per-sample 0.01"
    arguments += " --planner bound --accountant zcdp --weights size --batch-size 100"
    arguments += " --learning-rate 0.1 --l2 0.01 --dissimilarity 0.3 --sampling fixed"
    printed = plan_json(capsys, *arguments.split())
    plan = fb.plan(
        fb.Problem(
            num_samples=np.array([300, 200, 200]),
            dim=5,
            loss="softmax",
            num_classes=3,
            l2=0.01,
            dissimilarity=0.3,
        ),
        fb.Budget(epsilon=2, delta=1e-5, cost=500),
        fb.Prices(communication=50, computation=2, computation_per_sample=0.01),
        planner="bound",
        accountant="zcdp",
        weights="size",
        batch_size=100,
        learning_rate=0.1,
    )
    assert plan.to_dict().items() <= printed.items()


def test_planned_weights_aim_at_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = ("plan", "--samples", "100,5000", "--dim", "5", *BUDGET)
    printed = plan_json(capsys, *fleet, "--target", "size")
    problem = fb.Problem(num_samples=[100, 5000], dim=5)
    budget = fb.Budget(epsilon=4, cost=1000)
    prices = fb.Prices(communication=100, computation=1)
    aimed = fb.plan(problem, budget, prices, target="size")
    assert printed["weights"] == aimed.weights.tolist()
    assert printed["weights"] != fb.plan(problem, budget, prices).weights.tolist()
    refused = run(capsys, *fleet, "--weights", "uniform", "--target", "size")
    assert refused.code == 2 and "are their own target" in refused.err


def test_sampling_reaches_the_planner_and_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = "plan --samples 300x4 --dim 5 --batch-size 64 --sampling cyclic"
    printed = plan_json(capsys, *arguments.split(), *BUDGET)
    assert printed["sampling"] == "cyclic"
    result = run(capsys, *arguments.split(), *BUDGET)
    assert "64: 4 disjoint batches, used in turn" in result.out


def test_the_table_says_all_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "plan", "adult", "--split", "by-education", *BUDGET)
    assert (result.code, result.err) == (0, "")
    for words in (
        "adult: 16 devices",
        "local steps per round",
        "replace one",
        "of 1000 units",
        "What limits the loss",
        "rows in the unit ball",
        "Preschool",
    ):
        assert words in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines())


def test_many_devices_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, *FLEET[:2], "51,1628x30", *FLEET[3:], *BUDGET)
    assert "31 devices" in result.out
    assert "median" in result.out
    assert len(result.out.splitlines()) < 75  # 31 rows of devices would be more


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_stand_in_says_that_it_is_synthetic(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    result = run(capsys, "plan", "vehicle", "--split", "by-sensor", *BUDGET, *options)
    assert result.code == 0
    assert "SYNTHETIC" in result.out


@pytest.mark.parametrize(
    "prices",
    [
        ("--communication-price", "0"),
        ("--computation-price", "0"),
        ("--communication-price", "0", "--computation-price", "0"),
    ],
)
def test_free_things_still_make_a_plan(
    capsys: pytest.CaptureFixture[str], prices: tuple[str, ...]
) -> None:
    printed = plan_json(capsys, *FLEET, *BUDGET, *prices)
    cost, epsilon = printed["cost"], printed["epsilon"]
    assert isinstance(cost, list)
    assert isinstance(epsilon, list)
    assert max(cost) <= 1000
    assert max(epsilon) <= 4


def test_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    printed = plan_json(capsys, "plan", "--samples", "100", "--dim", "5", *BUDGET)
    assert printed["weights"] == [1.0]


def test_a_million_devices(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = ("plan", "--samples", "64x1000000", "--dim", "10")
    result = run(capsys, *fleet, *BUDGET)
    assert result.code == 0
    assert "1000000 devices" in result.out


def write_table(folder: Path) -> str:
    path = folder / "sensors.csv"
    rows = [f"{i % 3},{i % 5},{'yes' if i % 2 else 'no'}" for i in range(60)]
    path.write_text("sensor_id,volts,alarm\n" + "\n".join(rows) + "\n")
    return str(path)


def test_a_table_without_schema_warns_loudly(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--label", "alarm", "--device", "sensor_id")
    result = run(capsys, "plan", write_table(tmp_path), *arguments, *BUDGET, "--json")
    assert result.code == 0
    assert result.err.startswith("warning: NOT PRIVATE: ")
    assert result.err.count("\n") == 1
    assert json.loads(result.out)["data"].startswith("sensors: 3 devices")


def test_a_table_with_a_schema_is_quiet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    label = {"name": "alarm", "values": ["no", "yes"]}
    features = {"volts": {"low": 0, "high": 5}}
    schema.write_text(json.dumps({"label": label, "features": features}))
    arguments = ("--label", "alarm", "--partition", "iid:4", "--schema", str(schema))
    result = run(capsys, "plan", write_table(tmp_path), *arguments, *BUDGET)
    assert (result.code, result.err) == (0, "")
    assert "sensors: 4 devices" in result.out


def test_names_from_a_table_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "odd.csv"
    names = ("[red]x[/red]", "\x1b[31mred")
    rows = [f"{names[i % 2]},{i % 5},{i % 3 == 0}" for i in range(40)]
    path.write_text("who,volts,alarm\n" + "\n".join(rows) + "\n")
    arguments = ("--label", "alarm", "--device", "who")
    result = run(capsys, "plan", str(path), *arguments, *BUDGET)
    assert result.code == 0
    assert "[red]x[/red]" in result.out
    assert "\x1b" not in result.out


SENSORS = """volts,site,alarm,id
1,a,no,1
2,b,yes,1
4,a,no,2
3,b,yes,2
1,b,yes,3
2,a,no,3
"""
SCHEMA = {
    "label": {"name": "alarm", "values": ["no", "yes"]},
    "features": {
        "volts": {"low": 0, "high": 5},
        "site": {"values": ["a", "b"]},
    },
}


@pytest.fixture
def table(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "rows.csv").write_text(SENSORS)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    files = (str(tmp_path / "rows.csv"), "--schema", str(tmp_path / "schema.json"))
    return ("plan", *files, "--label", "alarm", "--device", "id", *BUDGET)


def test_a_public_sample_is_measured(
    capsys: pytest.CaptureFixture[str], table: tuple[str, ...], tmp_path: Path
) -> None:
    sample = tmp_path / "public.csv"
    sample.write_text("volts,site,alarm\n" + "1,a,no\n4,b,yes\n2,b,yes\n" * 9)
    constants = plan_json(capsys, *table, "--public-sample", str(sample))["constants"]
    assert isinstance(constants, dict)
    assert constants["smoothness"]["source"] == "public sample"
    assert constants["smoothness"]["note"] == "27 public rows"
    prior = plan_json(capsys, *table)["constants"]
    assert isinstance(prior, dict)
    assert prior["spike_share"]["note"] == (
        "by the encoding: 1 number, 1 one-hot column, an intercept"
    )


def test_an_error_in_a_public_sample_names_its_file(
    capsys: pytest.CaptureFixture[str], table: tuple[str, ...], tmp_path: Path
) -> None:
    sample = tmp_path / "public.csv"
    sample.write_text("volts,alarm\n1,no\n4,yes\n")
    result = run(capsys, *table, "--public-sample", str(sample))
    assert result.code != 0
    message = result.err.replace("\n", "")
    assert "public sample" in message and "public.csv': column 'site' is not" in message


def test_donors_are_named_in_the_constants_and_warned_of(
    capsys: pytest.CaptureFixture[str], table: tuple[str, ...]
) -> None:
    result = run(capsys, *table, "--donors", "1,3", "--json")
    assert result.code == 0
    assert "no epsilon covers what it reveals" in " ".join(result.err.split())
    note = json.loads(result.out)["constants"]["smoothness"]["note"]
    assert note == "rows of 2 donor devices, not private"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--public-sample", "missing.csv"), "is not a file"),
        (("--donors", "9"), "donor '9' is not a device"),
        (
            ("--donors", "1", "--public-sample", "x"),
            "--donors 1 does not go with --public-sample",
        ),
    ],
)
def test_a_sample_that_cannot_be_read_is_refused(
    capsys: pytest.CaptureFixture[str],
    table: tuple[str, ...],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    result = run(capsys, *table, *arguments)
    assert result.code != 0 and message in " ".join(result.err.split())


def test_without_data_there_is_nothing_to_measure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, *FLEET, *BUDGET, "--public-sample", "x.csv")
    assert result.code != 0 and "does not go with --samples" in result.err


def test_the_text_shows_the_range_and_what_a_sample_would_save(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(run(capsys, *FLEET, *BUDGET).out.split())
    assert "likely 0." in text
    assert "plausible spectra" in text and "a public sample" in text
