"""`fedbudget init`, and commands that read a fedbudget.toml."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedbudget.cli.config import line_of, read_config
from fedbudget.errors import DataError
from tests.cli.examples import BUDGET, sensors, write_sensors
from tests.cli.running import assert_one_line, run

COLUMNS = ("--label", "alarm", "--device", "sensor_id")


@pytest.fixture
def config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A written file, whose bounds its owner has replaced by public ones."""
    monkeypatch.chdir(tmp_path)
    write_sensors(tmp_path)
    result = run(capsys, "init", "sensors.csv", *COLUMNS)
    assert result.code == 0
    path = tmp_path / "fedbudget.toml"
    text = path.read_text().replace("public_bounds = false", "public_bounds = true")
    lines = [
        "volts = { low = 0, high = 5 }" if line.startswith("volts") else line
        for line in text.splitlines()
    ]
    path.write_text("\n".join(lines))
    return path


def test_the_file_is_toml_with_a_mark_on_all_that_was_read_from_the_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, out = write_sensors(tmp_path), tmp_path / "new.toml"
    result = run(capsys, "init", str(table), *COLUMNS, "--out", str(out))
    assert result.code == 0
    assert "300 rows, 3 columns, 5 devices" in result.words
    assert "empty cells" not in result.out
    assert result.err.startswith("warning: NOT PRIVATE: the bounds and categories of 3")
    text = out.read_text()
    plain = tomllib.loads(text)
    assert plain["features"]["site"] == {"values": ["cellar", "roof"]}
    assert plain["label"] == {"name": "alarm", "values": ["no", "yes"]}
    assert plain["data"]["table"] == "sensors.csv"
    for line in text.splitlines():
        if "low =" in line or line.startswith("values") or "{ values" in line:
            assert "read from the rows: replace by what is publicly known" in line


def test_a_plan_of_the_file_is_that_of_the_options(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    from_file = run(capsys, "plan", "fedbudget.toml", "--json")
    assert (from_file.code, from_file.err) == (0, "")
    from_options = run(capsys, "plan", *sensors(config.parent), *BUDGET, "--json")
    assert json.loads(from_file.out) == json.loads(from_options.out)


def test_the_file_may_name_the_target_of_the_weights(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    text = config.read_text()
    assert "[plan]\n" in text
    config.write_text(text.replace("[plan]\n", '[plan]\ntarget = "size"\n'))
    from_file = run(capsys, "plan", "fedbudget.toml", "--json")
    assert (from_file.code, from_file.err) == (0, "")
    options = (*sensors(config.parent), *BUDGET, "--target", "size")
    assert from_file.out == run(capsys, "plan", *options, "--json").out


def test_the_command_line_overrules_the_file(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    result = run(capsys, "plan", "fedbudget.toml", "--json", "--epsilon", "2")
    assert max(json.loads(result.out)["epsilon"]) == pytest.approx(2)


def test_training_from_the_file(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    config.write_text(config.read_text().replace('# out = "runs', 'out = "runs'))
    result = run(capsys, "train", "fedbudget.toml", "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["accuracy"] > 0.7
    about = json.loads(Path("runs/first/about.json").read_text())
    assert (about["source"], about["label"]) == ("sensors.csv", "alarm")


def test_devices_set_budgets_of_their_own(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    own = "\n[devices.s1]\nepsilon = 1.5\ncost = 450\n[devices]\n"
    own += "s4 = { communication = 40 }\n"
    config.write_text(config.read_text() + own)
    result = run(capsys, "plan", "fedbudget.toml", "--json", "--epsilon", "3")
    printed = json.loads(result.out)
    assert printed["epsilon"][1] == pytest.approx(1.5)  # overrides the command line
    assert printed["epsilon"][0] == pytest.approx(3)
    assert printed["cost"][1] <= 450
    assert printed["cost"][4] < printed["cost"][0]
    result = run(capsys, "train", "fedbudget.toml", "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["epsilon"][1] == pytest.approx(1.5)
    for command in ("frontier", "sweep"):
        result = run(capsys, command, "fedbudget.toml")
        assert_one_line(result, code=2, says=("devices", f"{command} does not support"))


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("[devices.s9]\nepsilon = 1", ("line 64, devices.s9", "5 devices", "'s0'")),
        ("[devices.s1]\nepsilom = 1", ("devices.s1", "'epsilom'", "mean 'epsilon'")),
        ("[devices.s1]\nepsilon = 0", ("devices.s1", "epsilon 0", "above 0")),
        ("[devices.s1]\ncost = true", ("devices.s1", "cost True")),
        ("[devices.s1]\ncomputation = -1", ("devices.s1", "of at least 0")),
        ("[devices]\ns1 = 3", ("line 65, devices.s1", "section of its own")),
    ],
)
def test_devices_that_are_described_wrongly(
    capsys: pytest.CaptureFixture[str],
    config: Path,
    section: str,
    says: tuple[str, ...],
) -> None:
    config.write_text(config.read_text() + "\n" + section)
    result = run(capsys, "plan", "fedbudget.toml")
    assert_one_line(result, code=2, says=says)


def test_other_commands_leave_the_options_of_train_alone(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    config.write_text(config.read_text().replace('# out = "runs', 'out = "runs'))
    options = ("--epsilons", "4", "--costs", "500", "--seeds", "1", "--json")
    result = run(capsys, "sweep", "fedbudget.toml", *options)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["table"] is None
    assert not Path("runs").exists()


def test_a_file_in_another_folder(
    capsys: pytest.CaptureFixture[str], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config.parent / "elsewhere").mkdir()
    monkeypatch.chdir(config.parent / "elsewhere")
    assert run(capsys, "plan", "../fedbudget.toml").code == 0
    assert run(capsys, "init", "../sensors.csv", *COLUMNS).code == 0
    assert read_config("fedbudget.toml").values["data"]["table"] == "../sensors.csv"


def test_bounds_that_nobody_has_replaced_warn_in_every_command(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    config.write_text(config.read_text().replace("bounds = true", "bounds = false"))
    for command in ("plan", "train", "frontier"):
        options = ("--costs", "500") if command == "frontier" else ()
        result = run(capsys, command, "fedbudget.toml", *options)
        assert result.code == 0
        assert "NOT PRIVATE: fedbudget.toml, line 13, data.public_bounds" in result.err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("epsilon = 4.0", "epsilon = -4", ("line 32, budget.epsilon", "got -4")),
        ("epsilon = 4.0", 'epsilon = "4"', ("line 32", "must be a number, got '4'")),
        ("epsilon = 4.0", "epsilon = true", ("line 32", "must be a number")),
        ("epsilon = 4.0", "epsilom = 4", ("line 32", "did you mean 'epsilon'?")),
        ("epsilon = 4.0", "epsilon = = 4", ("line 32, column 11", "TOML")),
        ("epsilon = 4.0", "", ("Missing option '--epsilon'",)),
        ('"joint"', '"magic"', ("line 49, plan.planner", "joint, bound, paper")),
        ("[plan]", "[plans]", ("line 48, plans", "use only data, budget")),
        ("[plan]", "plan = 3", ("plan", "is not known")),
        ("low = 0", "low = 9", ("line 23, features.volts", "low must be below high")),
        ("low = 0", "lo = 0", ("line 23, features.volts", "'lo' is not known")),
        ("volts =", "watts =", ("line 23, features.watts", "name one of")),
        ('"cellar", ', "", ("line 24, features.site", "'cellar'")),
        ('["no", "yes"]', '["no"]', ("line 16, label.name", "one class")),
        ('"sensor_id"', '"who"', ("line 8, data.device", "'who'")),
        ('table = "', 'table = "no', ("line 7, data.table", "nosensors.csv")),
        ("table =", "tables =", ("data.table is missing",)),
        ("seed = 0", "seed = -1", ("line 57, train.seed", "-1")),
        ("communication = 100.0", "communication = -1", ("line 39, prices.comm",)),
    ],
)
def test_errors_name_the_key_and_the_line(
    capsys: pytest.CaptureFixture[str],
    config: Path,
    old: str,
    new: str,
    says: tuple[str, ...],
) -> None:
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    result = run(capsys, "plan", "fedbudget.toml")
    assert_one_line(result, code=2, says=says)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('device = "sensor_id"', 'partition = "iid:0"', "data.partition"),
        ('device = "sensor_id"', 'partition = "iid:400"', "data.partition"),
        ('missing = "error"', 'missing = "guess"', "data.missing"),
        ("volts = { low = 0", "volts = { low = 'x'", "features.volts"),
        ('name = "alarm"', 'name = "alarms"', "label.name"),
        ("delta = 0.0001", "delta = 2", "budget.delta"),
        ("cost = 1000.0", "cost = 0", "budget.cost"),
        ("computation = 1.0", "computation = -1", "prices.computation"),
        ("per_sample = 0.0", "per_sample = -1", "prices.computation_per_sample"),
        ('accountant = "gdp"', 'accountant = "magic"', "plan.accountant"),
        ('weights = "auto"', 'weights = "magic"', "plan.weights"),
        ('weights = "auto"', 'target = "magic"', "plan.target"),
        ('weights = "auto"', "batch_size = 0", "plan.batch_size"),
        ('weights = "auto"', "batch_size = 999", "plan.batch_size"),
        ('weights = "auto"', 'sampling = "magic"', "plan.sampling"),
        ('weights = "auto"', "l2 = -1", "plan.l2"),
        ('weights = "auto"', "dissimilarity = -1", "plan.dissimilarity"),
        ("# learning_rate = 4.0", "learning_rate = -4.0", "plan.learning_rate"),
        ("# learning_rate = 4.0", "learning_rate = 900.0", "plan.learning_rate"),
        ('# loss = "logistic"', 'loss = "huber"', "plan.loss"),
        ("seed = 0", "participation = 2", "train.participation"),
    ],
)
def test_errors_of_the_library_know_their_key(
    capsys: pytest.CaptureFixture[str], config: Path, old: str, new: str, says: str
) -> None:
    text = config.read_text()
    assert text.count(old) == 1
    config.write_text(text.replace(old, new))
    line = 1 + text[: text.index(old)].count("\n")
    result = run(capsys, "train", "fedbudget.toml")
    named = f"error: fedbudget.toml, line {line}, {says}: "
    assert_one_line(result, code=2, says=(named,))


@pytest.mark.parametrize(
    ("text", "keys", "line"),
    [
        ("a.b = 1\na.c = 2", ("a", "c"), 2),
        ("# b\na = { b = 1, c = 2 }\n", ("a", "c"), 2),
        ("[a]\n'b' = [\n  1,\n]\n\nc = 2\n", ("a", "b"), 2),
        ("[a]\nb = [\n  1,\n]\n\nc = 2\n", ("a", "c"), 6),
        ('[a]\nb = """\n[c]\nd = 1\n"""\n[c]\nd = 2\n', ("c", "d"), 7),
        ("[a.b]\nc = 1\n[a]\nd = 1", ("a", "b"), 1),
        ("[a]\n", ("a", ""), 1),
        ("[a]\n", ("a", "b"), None),
        ("", ("a",), None),
    ],
)
def test_the_line_of_a_key(text: str, keys: tuple[str, ...], line: int | None) -> None:
    assert line_of(text, keys) == line


def test_wrong_values_of_another_spelling_have_their_line(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    text = config.read_text().replace("[budget]", "[old]")
    start, _, rest = text.partition("[old]")
    rest = rest[rest.index("[prices]") :]
    config.write_text(f"budget = {{ epsilon = -4, cost = 9 }}\n{start}{rest}")
    result = run(capsys, "plan", "fedbudget.toml")
    assert_one_line(result, code=2, says=("line 1, budget.epsilon: epsilon must be",))
    assert run(capsys, "plan", "fedbudget.toml", "--epsilon", "4").code == 1


def test_a_value_from_the_command_line_is_not_blamed_on_the_file(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    result = run(capsys, "plan", "fedbudget.toml", "--epsilon", "-3")
    assert_one_line(result, code=2, says=("error: epsilon must be above 0",))


def test_odd_names_and_texts_survive(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    odd = ['a "quote"', "back\\slash", "tab\t", "ü\x7f"]
    table: dict[str, Any] = {"größe in m": [1.5, 2.5, 3.5, 4.5], "a.b": odd}
    table |= {"label": ["x", "y", "x", "y"], "id": [1, 1, 2, 2]}
    path, out = tmp_path / "t.parquet", tmp_path / "c.toml"
    pq.write_table(pa.table(table), path)
    named = (str(path), "--label", "label", "--device", "id", "--out", str(out))
    assert run(capsys, "init", *named).code == 0
    features = tomllib.loads(out.read_text())["features"]
    assert sorted(features["a.b"]["values"]) == sorted(odd)
    assert features["größe in m"] == {"low": 1.5, "high": 4.5}
    assert run(capsys, "plan", str(out)).code == 0


def test_gaps_identifiers_and_partitions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, out = tmp_path / "t.csv", tmp_path / "c.toml"
    rows = [f"{i % 9 if i else ''},name {i},{i % 2}" for i in range(20_000)]
    path.write_text("volts,who,alarm\n" + "\n".join(rows))
    arguments = (
        str(path),
        "--label",
        "alarm",
        "--partition",
        "iid:1",
        "--out",
        str(out),
    )
    result = run(capsys, "init", *arguments)
    assert result.code == 0
    assert "left out: who" in result.words and "20000 distinct texts" in result.words
    assert "1 row has an empty cell and is left out" in result.words
    plain = tomllib.loads(out.read_text())
    assert plain["data"]["missing"] == "drop"
    assert plain["budget"]["delta"] == 5e-6  # a tenth of one over 20,000 rows
    assert run(capsys, "plan", str(out)).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (COLUMNS, 1, ("fedbudget.toml already exists", "--force")),
        (("--label", "alarm"), 2, ("either --device", "--partition")),
        ((*COLUMNS, "--out", "/proc/x.toml"), 1, ("cannot write /proc/x.toml",)),
        ((*COLUMNS, "--out", "n.toml", "--drop", "nix"), 2, ("'nix'",)),
    ],
)
def test_init_refuses(
    capsys: pytest.CaptureFixture[str],
    config: Path,
    arguments: tuple[str, ...],
    code: int,
    says: tuple[str, ...],
) -> None:
    before = config.read_text()
    result = run(capsys, "init", "sensors.csv", *arguments)
    assert_one_line(result, code=code, says=says)
    assert config.read_text() == before


def test_a_file_that_cannot_be_read() -> None:
    with pytest.raises(
        DataError, match=r"nothing.toml' does not exist: check the path"
    ):
        read_config("/proc/nothing.toml")
    with pytest.raises(DataError, match=r"'/proc' cannot be read, Is a directory"):
        read_config("/proc")
