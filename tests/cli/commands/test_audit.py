"""`fedbudget audit`."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedbudget import auditing
from fedbudget.auditing.audits import CONSISTENT
from fedbudget.auditing.mechanisms import DevicePath
from tests.auditing.examples import FloatSums
from tests.cli.running import assert_one_line, run
from tests.fleet.devices import write_device


@pytest.fixture(autouse=True)
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the time by a number of trials, and by a confidence that never fails."""
    whole = auditing.audit

    def fast(target: Any, **options: Any) -> Any:
        assert 1 <= options["seconds"] <= 60
        assert options["confidence"] == 0.999
        return whole(target, **(options | {"trials": 2000, "confidence": 1 - 1e-7}))

    monkeypatch.setattr(auditing, "audit", fast)


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> str:
    options = ["--samples", "60x2", "--dim", "3", "--epsilon", "4", "--cost", "300"]
    path = tmp_path / "plan.json"
    path.write_text(run(capsys, "plan", *options, "--json").out)
    return str(path)


def test_a_plan_is_consistent(capsys: pytest.CaptureFixture[str], plan: str) -> None:
    result = run(capsys, "audit", plan, "--seconds", "30")
    assert result.code == 0
    assert CONSISTENT in result.words
    for words in ("claimed", "at least", "best fit", "whole runs", "caught", "grid"):
        assert words in result.words
    assert max(map(len, result.out.splitlines())) <= 80
    assert "prove" not in result.words


def test_json_has_the_same(capsys: pytest.CaptureFixture[str], plan: str) -> None:
    result = run(capsys, "audit", plan, "--path", "device", "--json")
    plain = json.loads(result.out)
    assert result.code == 0 and plain["verdict"] == CONSISTENT
    assert plain["claims"][0]["path"] == "device"
    assert plain["claims"][0]["claim"]["epsilon"] == pytest.approx(4, rel=1e-6)


def test_a_policy_shows_its_guard(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = run(capsys, "audit", str(write_device(tmp_path)))
    assert result.code == 0
    assert "through a guard" in result.words and "beyond: refused" in result.words


def test_a_violation_exits_with_1(
    capsys: pytest.CaptureFixture[str], plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = FloatSums()
    monkeypatch.setattr(
        DevicePath,
        "exact_sum",
        lambda self, *arguments: broken.exact_sum(*arguments),
    )
    result = run(capsys, "audit", plan, "--path", "device")
    assert result.code == 1
    assert "violated: " in result.words and "BROKEN" in result.words


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["nowhere.json"], 2, ("nowhere.json", "cannot be read")),
        (["nowhere.toml"], 2, ("nowhere.toml", "cannot be read")),
        (["."], 1, ("not a run folder",)),
        (["nowhere.json", "--seconds", "many"], 2, ("not a number",)),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    says: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(run(capsys, "audit", *arguments), code=code, says=says)


def test_an_unknown_path_is_refused(
    capsys: pytest.CaptureFixture[str], plan: str
) -> None:
    result = run(capsys, "audit", plan, "--path", "cloud")
    assert_one_line(result, code=2, says=("'cloud'", "device, release"))
