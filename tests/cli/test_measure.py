"""`fedbudget measure`."""

import json
import tomllib
from pathlib import Path

import pytest

from fedbudget.cli.config import with_prices
from tests.cli.examples import write_sensors
from tests.cli.running import assert_one_line, run

QUICK = ("--seconds", "0.01")
STEP = ("--samples", "40", "--dim", "4")


def test_json_has_seconds_bytes_and_joules(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "measure", *STEP, *QUICK, "--watts", "2", "--json")
    found = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert (found["unit"], found["samples"], found["dim"]) == ("joules", 40, 4)
    assert found["computation"] == pytest.approx(2 * found["step"]["seconds"])
    assert found["communication"] == pytest.approx(2 * found["round"]["seconds"])
    assert found["reply_bytes"] > found["order_bytes"] > 4 * 4


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
    found = json.loads(result.out)
    assert (found["samples"], found["dim"], found["loss"]) == (48, 4, "logistic")
    after = path.read_text()
    prices = tomllib.loads(after)["prices"]
    assert prices["communication"] == pytest.approx(found["communication"], rel=1e-5)
    assert prices["computation"] == pytest.approx(found["computation"], rel=1e-5)
    changed = [
        new
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    ]
    assert len(changed) == 3  # the prices, and nothing else
    assert run(capsys, "plan", "fedbudget.toml", "--cost", "1").code == 0


def test_a_config_without_prices_gets_them() -> None:
    text = with_prices("[data]\ntable = 'x'", {"communication": (0.5, "why")})
    assert tomllib.loads(text)["prices"] == {"communication": 0.5}
    text = with_prices("[prices]\n[train]\nseed = 1", {"computation": (2, "why")})
    assert tomllib.loads(text) == {"prices": {"computation": 2}, "train": {"seed": 1}}


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
