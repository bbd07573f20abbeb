"""Invalid input gives one line on stderr and the right exit code."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedbudget.fleet.transport.certificates import make_certificates
from tests.cli.running import assert_one_line, run

FLEET = "plan --samples 1628x16 --dim 102"
ADULT = "plan adult --split iid"
BUDGET = "--epsilon 4 --cost 1000"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (f"{FLEET} --epsilon 4 --cost 100", 1, ("cost budget 100", "101", "raise")),
        (f"{FLEET} --epsilon 0 --cost 1000", 2, ("epsilon", "above 0", "got 0")),
        (f"{FLEET} --epsilon -1 --cost 1000", 2, ("epsilon", "got -1")),
        (f"{FLEET} --epsilon nan --cost 1000", 2, ("epsilon", "got nan")),
        (f"{FLEET} --epsilon inf --cost 1000", 2, ("epsilon", "got inf")),
        (
            f"{FLEET} --epsilon 1e308 --cost 9",
            2,
            ("epsilon", "at most 1e+12", "1e+308"),
        ),
        (f"{FLEET} --epsilon 4 --cost 1e308", 2, ("cost", "at most 1e+100", "1e+308")),
        ("sweep adult --epsilons -1 --costs 900", 2, ("epsilons", "got -1\n")),
        ("frontier adult --epsilons 1 --costs 900,-2", 2, ("costs", "got -2\n")),
        ("fleet demo --epsilon -1", 2, ("epsilon", "got -1")),
        ("fleet demo --cost 0", 2, ("cost", "got 0")),
        (f"{FLEET} --epsilon 4 --cost 0", 2, ("cost", "got 0")),
        (f"{FLEET} --epsilon 4 --cost nan", 2, ("cost", "got nan")),
        (f"{FLEET} {BUDGET} --delta 0", 2, ("delta", "got 0")),
        (f"{FLEET} {BUDGET} --delta 1", 2, ("delta", "below 1", "got 1")),
        (f"{FLEET} {BUDGET} --delta 1.5", 2, ("delta", "got 1.5")),
        (f"{FLEET} {BUDGET} --communication-price -1", 2, ("communication", "-1")),
        (f"{FLEET} {BUDGET} --planner magic", 2, ("planner 'magic'", "joint")),
        (f"{FLEET} {BUDGET} --accountant magic", 2, ("accountant 'magic'", "gdp")),
        (f"{FLEET} {BUDGET} --weights magic", 2, ("weights 'magic'", "uniform")),
        (f"{FLEET} {BUDGET} --loss magic", 2, ("loss 'magic'", "logistic")),
        (f"{FLEET} {BUDGET} --dissimilarity odd", 2, ("dissimilarity 'odd'", "mild")),
        (f"{FLEET} {BUDGET} --dissimilarity nan", 2, ("dissimilarity", "nan")),
        (f"{FLEET} {BUDGET} --batch-size 0", 2, ("batch_size", "at least 1")),
        (f"{FLEET} {BUDGET} --learning-rate 0", 2, ("learning_rate", "got 0")),
        (f"{FLEET} {BUDGET} --l2 -1", 2, ("l2", "-1")),
        (f"{FLEET} {BUDGET} --classes 1 --loss softmax", 2, ("classes", "2", "1")),
        (f"{FLEET} {BUDGET} --classes 3 --loss logistic", 2, ("softmax", "3")),
        (f"plan --samples 5x3 --dim 0 {BUDGET}", 2, ("dim", "got 0")),
        (f"plan --samples 5x3 {BUDGET}", 2, ("--dim",)),
        (f"plan --samples 100,0 --dim 5 {BUDGET}", 2, ("device 1", "is 0")),
        (f"plan {BUDGET}", 2, ("nothing to plan for", "--samples")),
        (f"plan adult --samples 5x3 {BUDGET}", 2, ("--samples 5x3", "adult")),
        (f"{FLEET} {BUDGET} --split iid", 2, ("--split iid", "--samples")),
        (f"plan adult {BUDGET} --label income", 2, ("--label income", "adult")),
        (f"plan adult {BUDGET} --split magic", 2, ("split 'magic'", "iid")),
        (f"plan adult {BUDGET} --path x.mat", 2, ("x.mat", "adult")),
        (f"{ADULT} {BUDGET} --num-devices 0", 2, ("num_devices", "0")),
        (f"{ADULT} {BUDGET} --num-devices 99999", 2, ("99999", "32561")),
        (f"{ADULT} {BUDGET} --seed -1", 2, ("seed", "-1")),
        (f"{ADULT} {BUDGET} --loss huber", 2, ("loss 'huber'", "logistic")),
        (f"plan vehicle {BUDGET} --path no.mat", 2, ("no.mat", "does not exist")),
        (f"plan magic {BUDGET}", 2, ("data 'magic'", "adult")),
        (f"plan no/file.csv {BUDGET} --label y", 2, ("no/file.csv",)),
        # What typer finds wrong.
        (f"{FLEET} --epsilon four --cost 1000", 2, ("--epsilon", "'four'", "--help")),
        (f"{FLEET} {BUDGET} --batch-size 1.5", 2, ("--batch-size", "'1.5'", "--help")),
        ("plan no.toml", 2, ("config 'no.toml' does not exist", "fedbudget init")),
        (f"ledger show {__file__}", 1, (__file__, "ledger.sqlite")),
        (f"{FLEET} --cost 1000", 2, ("--epsilon", "fedbudget plan --help")),
        (f"{FLEET} --epsilon 4", 2, ("--cost", "fedbudget plan --help")),
        (f"{FLEET} {BUDGET} --magic", 2, ("--magic", "fedbudget plan --help")),
        ("magic", 2, ("magic", "fedbudget --help")),
    ],
)
def test_bad_options(
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    code: int,
    says: tuple[str, ...],
) -> None:
    assert_one_line(run(capsys, *arguments.split()), code=code, says=says)


@pytest.mark.parametrize(
    "samples",
    ["", "x", "many", "5x", "x5", "5x0", "5,,6", "1.5x3", "-5x3", "5x3x2", "1e3"],
)
def test_garbled_samples(capsys: pytest.CaptureFixture[str], samples: str) -> None:
    arguments = ("plan", f"--samples={samples}", "--dim", "5", *BUDGET.split())
    assert_one_line(run(capsys, *arguments), code=2, says=("--samples", "1628x16"))


def test_too_many_devices(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", "--samples", "5x100000000000", "--dim", "5", *BUDGET.split())
    assert_one_line(run(capsys, *arguments), code=2, says=("100000000000", "part"))


HEADER = "who,volts,alarm\n"
GOOD = HEADER + "".join(f"{i % 3},{i % 5},{i % 2}\n" for i in range(30))


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        (GOOD, "--device who", ("--label",)),
        (GOOD, "--label alarm", ("--device", "--partition")),
        (GOOD, "--label magic --device who", ("'magic'",)),
        (GOOD, "--label alarm --device magic", ("'magic'",)),
        (GOOD, "--label alarm --device alarm", ("'alarm'",)),
        (GOOD, "--label alarm --partition magic", ("'magic'", "iid:16")),
        (GOOD, "--label alarm --partition iid:99", ("99", "30 rows")),
        (GOOD, "--label alarm --device who --missing magic", ("'magic'", "drop")),
        (GOOD, "--label alarm --device who --schema no.json", ("no.json", "JSON")),
        (GOOD, "--label alarm --device who --split iid", ("--split", "table")),
        (HEADER + "1,2,yes\n1,3,yes\n", "--label alarm --device who", ("one class",)),
        (GOOD + "1,,0\n", "--label alarm --device who", ("'volts'", "1 empty cells")),
        (GOOD + ",2,0\n", "--label alarm --device who", ("'who'", "empty")),
        (HEADER, "--label alarm --device who", ("empty",)),
        ("", "--label alarm --device who", ("empty",)),
    ],
)
def test_bad_tables(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str,
    arguments: str,
    says: tuple[str, ...],
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    result = run(capsys, "plan", str(path), *arguments.split(), *BUDGET.split())
    # Bounds that were read off the rows before are warned of, on a line of their own.
    lines = result.err.splitlines(keepends=True)
    assert all(line.startswith("warning: NOT PRIVATE") for line in lines[:-1])
    assert_one_line(replace(result, err=lines[-1]), code=2, says=says)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "JSON"),
        ("[]", "not a schema"),
        (json.dumps({"label": {"name": "alarm"}, "features": {}}), "alarm"),
    ],
)
def test_bad_schemas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, schema: str, says: str
) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    (tmp_path / "s.json").write_text(schema)
    arguments = ("--label", "alarm", "--device", "who", "--schema")
    result = run(
        capsys,
        *("plan", str(tmp_path / "t.csv"), *arguments, str(tmp_path / "s.json")),
        *BUDGET.split(),
    )
    assert_one_line(result, code=2, says=() if says == "alarm" else (says,))


def test_empty_cells_can_be_dropped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(GOOD + "1,,0\n")
    arguments = "--label alarm --device who --missing drop"
    result = run(capsys, "plan", str(path), *arguments.split(), *BUDGET.split())
    assert result.code == 0
    assert "30 rows" in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("certs keys --days 999999999999", 2, ("days", "36500")),
        ("certs keys --devices 999999999", 2, ("--devices", "100000")),
        ("certs keys --devices ²", 2, ("device name", "²")),
        ("certs keys --hosts ,", 2, ("hosts is empty",)),
        ("fleet broker --certs made --port 99999", 2, ("port", "65535")),
        ("server out --certs made --host ,", 2, ("host", "empty")),
        ("server out --certs made --wait nan", 2, ("wait", "nan")),
        ("server out --certs made --deadline 0", 2, ("deadline", "above 0")),
        ("server out --certs made --planner magic", 2, ("planner 'magic'",)),
        ("server out --certs made --dissimilarity odd", 2, ("'odd'", "mild")),
        ("server out --certs made --minimum 3 --devices 2", 2, ("devices", "3")),
        ("init rows.csv --label y --partition iid:0", 2, ("partition 'iid:0'",)),
        ("report listed", 1, ("this is not a plan: a list",)),
    ],
)
def test_a_fleets_commands_refuse_at_once(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    code: int,
    says: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("x,y\n1,0\n2,1\n")
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "plan.json").write_text("[]")
    make_certificates("made", [])
    assert_one_line(run(capsys, *arguments.split()), code=code, says=says)
    made = {"rows.csv", "listed", "made", "made-authority"}
    assert {path.name for path in tmp_path.iterdir()} == made
