"""`fedbudget doctor`."""

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from fedbudget.cli.commands import doctor as doctoring
from fedbudget.cli.commands.doctor import USES, Package, packages
from tests.cli.running import run

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_every_extra_is_for_something() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert set(USES) - {""} == set(extras) - {"all", "dev", "docs"}


@pytest.mark.parametrize(
    ("needed", "version", "state"),
    [
        ("1.9", None, "missing"),
        ("1.9", "1.10.0", "ok"),
        ("1.9", "1.8.9rc1", "too old"),
        ("", "0.1", "ok"),
        ("2", "2.0+local", "ok"),
    ],
)
def test_states(needed: str, version: str | None, state: str) -> None:
    package = Package(name="x", extra="lab", needed=needed, version=version)
    assert package.state == state


def test_packages_are_those_of_the_install(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy!=2.0.*,>=1.26",
        "nowhere-to-be-found>=2; extra == 'lab'",
        "pytest>=8; extra == 'dev'",
        "mkdocs-material>=9; extra == 'docs'",
        'fedbudget[lab]; extra == "all"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    by_name = {package.name: package for package in packages()}
    assert set(by_name) == {"numpy", "nowhere-to-be-found"}
    assert by_name["numpy"].version == metadata.version("numpy")
    assert by_name["numpy"].needed == "1.26"
    assert by_name["nowhere-to-be-found"].state == "missing"


def test_a_table_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [
        Package(name="numpy", extra="", needed="1", version="2.0"),
        Package(name="numba", extra="lab", needed="1", version=None),
    ]
    monkeypatch.setattr(doctoring, "packages", lambda: iter(held))
    result = run(capsys, "doctor")
    assert (result.code, result.err) == (0, "")
    assert "numba missing: pip install '.[lab]'" in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines())
    printed = json.loads(run(capsys, "doctor", "--json").out)
    assert printed["extras"]["base"]["state"] == "ok"
    assert printed["extras"]["lab"]["state"] == "missing"
    assert printed["extras"]["ui"]["state"] == "unknown"
    assert printed["extras"]["lab"]["packages"][0]["name"] == "numba"
    assert {"python", "processors", "energy"} <= set(printed["system"])


def test_one_tracker_is_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [
        Package(name="wandb", extra="track", needed="0.19", version=None),
        Package(name="tensorboard", extra="track", needed="2", version="2.20"),
    ]
    monkeypatch.setattr(doctoring, "packages", lambda: iter(held))
    assert "wandb missing" not in run(capsys, "doctor").out
    printed = json.loads(run(capsys, "doctor", "--json").out)["extras"]["track"]
    assert printed["state"] == "ok"
    assert [package["state"] for package in printed["packages"]] == ["missing", "ok"]
    held.pop()
    assert "wandb missing: pip install '.[track]'" in run(capsys, "doctor").out


def test_a_broken_base_install_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [Package(name="numpy", extra="", needed="9", version="2.0")]
    monkeypatch.setattr(doctoring, "packages", lambda: iter(held))
    assert run(capsys, "doctor").code == 1
