"""`fedbudget measure`."""

import json
import tomllib
from pathlib import Path

import pytest

from fedbudget.cli.config import with_prices
from fedbudget.losses import loss_named
from fedbudget.metering import round_messages
from tests.cli.examples import write_sensors
from tests.cli.running import assert_one_line, run
from tests.fleet.conftest import new_broker

QUICK = ("--seconds", "0.01")
STEP = ("--samples", "40", "--dim", "4")


def test_json_has_seconds_bytes_and_joules(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "measure", *STEP, *QUICK, "--watts", "2", "--json")
    printed = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert (printed["unit"], printed["samples"], printed["dim"]) == ("joules", 40, 4)
    assert (printed["loss"], printed["tau"]) == ("logistic", 10)
    assert printed["computation"] == pytest.approx(2 * printed["step"]["seconds"])
    assert printed["communication"] == pytest.approx(2 * printed["round"]["seconds"])
    assert printed["reply_bytes"] > printed["order_bytes"] > 4 * 4


def test_the_table_says_that_no_network_was_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, "measure", *STEP, *QUICK, "--watts", "2", "--unit", "seconds")
    assert result.code == 0
    assert "Prices in seconds" in result.out
    assert "no network was used" in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines())


def test_prices_are_written_into_the_config(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sensors(tmp_path)
    run(capsys, "init", "sensors.csv", "--label", "alarm", "--device", "sensor_id")
    path = tmp_path / "fedbudget.toml"
    before = path.read_text()
    result = run(
        capsys, "measure", "fedbudget.toml", "--write", *QUICK, "--watts", "4", "--json"
    )
    printed = json.loads(result.out)
    assert (printed["samples"], printed["dim"], printed["loss"]) == (48, 4, "logistic")
    after = path.read_text()
    prices = tomllib.loads(after)["prices"]
    assert prices["communication"] == pytest.approx(printed["communication"], rel=1e-5)
    assert prices["computation"] == pytest.approx(printed["computation"], rel=1e-5)
    changed = [
        new
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    ]
    assert len(changed) == 3  # the prices, and nothing else
    assert run(capsys, "plan", "fedbudget.toml", "--cost", "1").code == 0


TABLE = """\
[prices]  # in joules
communication = 100.0  # a round
computation = 1.0
# the last one
computation_per_sample = 0.5
"""
SPELLINGS = {
    "table": TABLE,
    "carriage returns": TABLE.replace("\n", "\r\n"),
    "white space": "  [ prices ]\n\tcommunication   =1e2   # a round\n\n",
    "quoted": '["prices"]\n\'communication\' = 1_00.0\n"computation" = 1\n',
    "empty table": "[prices]\n",
    "missing": "",
    "dotted": "prices.communication = 100\nprices . 'computation' = 1  # a step\n",
    "one dotted": "prices.computation = 1\n",
    "inline": "prices = { communication = 100.0, computation = 1 }  # both\n",
    "inline empty": "prices = {}\n",
}


@pytest.mark.parametrize("prices", SPELLINGS.values(), ids=SPELLINGS)
def test_prices_are_written_into_any_spelling(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prices: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sensors(tmp_path)
    run(capsys, "init", "sensors.csv", "--label", "alarm", "--device", "sensor_id")
    path = tmp_path / "fedbudget.toml"
    first, _, rest = path.read_text().partition("[prices]")
    rest = rest[rest.index("# Budgets and prices of a single device") :]
    text = rest + first if prices.lstrip().startswith("[") else first + rest
    before = prices + text.replace("\n", "\r\n" if "\r" in prices else "\n")
    path.write_bytes(before.encode())
    result = run(
        capsys, "measure", "fedbudget.toml", "--write", *QUICK, "--watts", "4", "--json"
    )
    measured = json.loads(result.out)
    after = path.read_bytes().decode()
    names = ("communication", "computation")
    written = {name: float(f"{measured[name]:.6g}") for name in names}
    expected = tomllib.loads(before) | {"prices": written}
    expected["prices"]["computation_per_sample"] = 0.0
    assert tomllib.loads(after) == expected
    comments = [line for line in before.splitlines() if line.lstrip().startswith("#")]
    assert [line for line in after.splitlines() if line in comments] == comments
    assert ("\n" in after.replace("\r\n", "")) == ("\r" not in before)
    planned = run(capsys, "plan", "fedbudget.toml", "--cost", "1", "--json")
    plan = json.loads(planned.out)
    cost = plan["rounds"] * (
        written["communication"] + plan["tau"] * written["computation"]
    )
    assert max(plan["cost"]) == pytest.approx(cost)


KINDS = "id,volts,kind\n" + "".join(
    f"s{row % 3},{row % 5},{'abc'[row % 7 % 3]}\n" for row in range(120)
)


@pytest.mark.parametrize(
    ("options", "samples", "dim", "loss", "classes"),
    [
        ((), 32, 2, "softmax", 3),
        (("--loss", "softmax"), 32, 2, "softmax", 3),
        (("--samples", "7"), 7, 2, "softmax", 3),
        (("--samples", "7", "--dim", "5"), 7, 5, "softmax", 3),
        (("--samples", "7", "--dim", "5", "--loss", "softmax"), 7, 5, "softmax", 3),
        (("--classes", "4"), 32, 2, "softmax", 4),
        (("--loss", "hinge", "--classes", "2"), 32, 2, "hinge", 2),
    ],
)
def test_options_stand_before_the_config_and_the_rest_is_its_own(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    samples: int,
    dim: int,
    loss: str,
    classes: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kinds.csv").write_text(KINDS)
    run(capsys, "init", "kinds.csv", "--label", "kind", "--device", "id")
    result = run(capsys, "measure", "fedbudget.toml", *options, *QUICK, "--json")
    printed = json.loads(result.out)
    assert (printed["samples"], printed["dim"]) == (samples, dim)
    assert printed["loss"] == loss
    params = loss_named(loss, num_classes=classes).num_params(dim)
    assert printed["order_bytes"] == len(round_messages(params)[0])


def test_a_config_with_a_loss_of_its_own_is_measured_with_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sensors(tmp_path)
    run(capsys, "init", "sensors.csv", "--label", "alarm", "--device", "sensor_id")
    path = tmp_path / "fedbudget.toml"
    path.write_text(path.read_text().replace("[plan]\n", '[plan]\nloss = "hinge"\n'))
    result = run(capsys, "measure", "fedbudget.toml", *STEP, *QUICK, "--json")
    printed = json.loads(result.out)
    assert (printed["samples"], printed["dim"], printed["loss"]) == (40, 4, "hinge")
    refused = run(capsys, "measure", "fedbudget.toml", "--classes", "3", *QUICK)
    assert refused.code == 2
    assert refused.err.endswith("loss 'hinge' is for 2 classes, got 3: use 'softmax'\n")


def test_a_config_without_prices_gets_them() -> None:
    text = with_prices("[data]\ntable = 'x'", {"communication": (0.5, "why")})
    assert tomllib.loads(text)["prices"] == {"communication": 0.5}
    text = with_prices("[prices]\n[train]\nseed = 1", {"computation": (2, "why")})
    assert tomllib.loads(text) == {"prices": {"computation": 2}, "train": {"seed": 1}}


@pytest.mark.parametrize("kind", ["amqtt", "mosquitto"])
def test_the_fleets_broker_takes_the_certificate_for_measuring_and_no_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    certs = tmp_path / "certs"
    assert run(capsys, "certs", str(certs), "--devices", "oven").code == 0

    def files(pair: Path) -> tuple[str, ...]:
        ends = (f"{pair}.pem", f"{pair}.key")
        return "--ca", f"{certs}/ca.pem", "--certificate", ends[0], "--key", ends[1]

    with new_broker(kind, certs, tmp_path) as broker:
        where = ("measure", *STEP, *QUICK, "--broker", f"localhost:{broker.port}")
        done = run(capsys, *where, *files(certs / "measure"), "--json")
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.out)["link"] == f"MQTT, localhost:{broker.port}"
        table = run(capsys, *where, *files(certs / "measure"))
        assert table.code == 0 and "no network was used" not in table.out
        refused = run(capsys, *where, *files(certs / "devices" / "oven"))
    says = ("oven.pem' belongs to 'oven'", "use measure.pem")
    assert_one_line(refused, code=2, says=says)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, ("nothing to measure", "--samples")),
        ((*STEP, "--write"), 2, ("--write", "name the config")),
        ((*STEP, "--watts", "0"), 2, ("watts", "above 0")),
        ((*STEP, "--seconds", "nan"), 2, ("seconds", "got nan")),
        ((*STEP, "--loss", "magic"), 2, ("'magic'",)),
        ((*STEP, "--unit", "miles", *QUICK), 2, ("unit 'miles'", "seconds, joules")),
        ((*STEP, "--broker", "a:b"), 2, ("'a:b'", "HOST:PORT")),
        ((*STEP, "--broker", "127.0.0.1:1", *QUICK), 1, ("cannot be reached",)),
        ((*STEP, "--broker", "[::1]:1", *QUICK), 1, ("broker [::1]:1 cannot",)),
        ((*STEP, "--ca", "ca.pem"), 2, ("--ca", "add --broker")),
        ((*STEP, "--broker", "a", "--ca", "b"), 2, ("--certificate is missing",)),
        (("none.toml",), 2, ("none.toml",)),
    ],
)
def test_refusals(
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    says: tuple[str, ...],
) -> None:
    assert_one_line(run(capsys, "measure", *arguments), code=code, says=says)


def test_a_config_of_sums_gets_the_price_of_a_secure_round(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sensors(tmp_path)
    run(capsys, "init", "sensors.csv", "--label", "alarm", "--device", "sensor_id")
    path = tmp_path / "fedbudget.toml"
    text = path.read_text()
    assert 'trust = "uploads"' in text
    path.write_text(text.replace('trust = "uploads"', 'trust = "sum"'))
    command = ("measure", "fedbudget.toml", "--write", *QUICK, "--json")
    printed = json.loads(run(capsys, *command).out)
    assert printed["secure"]["devices"] == 5
    written = tomllib.loads(path.read_text())["prices"]["secure_round"]
    assert written == pytest.approx(printed["secure_round"], rel=1e-5)
    shown = run(capsys, "measure", *STEP, *QUICK, "--sum-devices", "5").out
    assert "secure_round = " in shown and "bytes, secure sum" in shown
