"""Starting and stopping: help, version, imports, pipes, Ctrl-C, colour."""

import dataclasses
import importlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import fedbudget
from fedbudget.cli import DEVICE_COMMANDS, output
from fedbudget.cli.app import app
from fedbudget.fleet.coordinator.process import Settings
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.planning import PLANNERS
from fedbudget.planning.weights import WEIGHTS
from fedbudget.privacy import ACCOUNTANTS
from tests.cli.running import assert_one_line, run, run_python

HEAVY = {"dp_accounting", "numba", "pandas", "pyarrow", "scipy", "sklearn"}
COMMAND = "from fedbudget.cli import main; main()"
FLEET = ("plan", "--samples", "64x3", "--dim", "5", "--epsilon", "4", "--cost", "999")


@pytest.mark.parametrize("code", ["import fedbudget", "import fedbudget.cli"])
def test_imports_nothing_heavy(code: str) -> None:
    result = run_python(f"{code}\nimport sys\nprint(*sys.modules)")
    assert result.code == 0
    assert not HEAVY & set(result.out.split())


def test_help_imports_nothing_heavy() -> None:
    code = (
        f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {COMMAND}"
    )
    result = run_python(code, "--help")
    assert result.code == 0
    assert "frontier" in result.out
    assert not HEAVY & set(result.out.split())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "--version")
    assert (result.code, result.out) == (0, f"fedbudget {fedbudget.__version__}\n")


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys)
    assert result.code == 2
    assert "Usage" in result.out


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the words and the command of each; a group has none of its own options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help_and_a_default(command: str) -> None:
    parsed = COMMANDS[command]
    assert parsed.help
    for option in parsed.params:
        assert option.help, option.name
        flag = getattr(option, "is_flag", False)
        stated = option.show_default or option.required or flag
        assert stated or any(
            word in option.help for word in ("Default", "Required", "Leave it out")
        ), option.name


def test_the_file_of_a_command_is_the_word_that_is_typed() -> None:
    for registered in app.registered_commands:
        command = registered.callback
        assert command is not None
        assert command.__module__ == f"fedbudget.cli.commands.{command.__name__}"
    for group in app.registered_groups:
        module = importlib.import_module(f"fedbudget.cli.commands.{group.name}")
        assert getattr(module, str(group.name)) is group.typer_instance


def test_the_words_after_device_are_its_commands() -> None:
    words = {name.split()[1] for name in COMMANDS if name.startswith("device ")}
    assert set(DEVICE_COMMANDS) == words


NUMBERS = [
    (name, option.opts[0])
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option.default, int | float)
    or option.name in ("epsilon", "cost", "dim", "classes", "batch_size", "watts")
    if not getattr(option, "is_flag", False)
]


@pytest.mark.parametrize(("command", "option"), NUMBERS)
def test_what_is_no_number_is_shown(
    capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    result = run(capsys, *command.split(), option, "four")
    says = (f"'{option}': 'four' is not a", f": see fedbudget {command} --help\n")
    assert_one_line(result, code=2, says=says)


def test_a_coordinators_defaults_are_those_of_its_settings() -> None:
    settings = {item.name: item.default for item in dataclasses.fields(Settings)}
    settings |= {item.name: item.default for item in dataclasses.fields(BrokerAddress)}
    shown = {option.name: option.default for option in COMMANDS["server run"].params}
    both = (set(settings) & set(shown)) - {"out"}
    assert {"port", "wait", "deadline", "minimum", "precision", "planner"} <= both
    assert {name: shown[name] for name in both} == {n: settings[n] for n in both}


@pytest.mark.parametrize("command", ["", "train", "ledger show", "fleet demo"])
def test_help_shows_flags_without_a_value(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    result = run(capsys, *command.split(), "--help")
    assert result.code == 0 and "--help" in result.out
    assert "bool" not in result.out.lower()


def test_shells_can_complete() -> None:
    words = {"COMP_WORDS": "fedbudget plan --eps", "COMP_CWORD": "2"}
    result = run_python(COMMAND, _FEDBUDGET_COMPLETE="complete_bash", **words)
    assert result.out.split() == ["--epsilon"]


def test_metavars_name_what_the_library_knows() -> None:
    group = typer.main.get_command(app)
    options = {p.name: p for p in group.commands["plan"].params}  # type: ignore[attr-defined]
    assert options["planner"].metavar.split("|") == list(PLANNERS)
    assert set(options["accountant"].metavar.split("|")) == set(ACCOUNTANTS)
    assert options["weights"].metavar.split("|") == list(WEIGHTS)


def test_no_colour_in_pipes() -> None:
    result = run_python(COMMAND, *FLEET)
    assert result.code == 0
    assert "\x1b" not in result.out
    assert not any(line != line.rstrip() for line in result.out.splitlines())


def test_no_color_is_obeyed() -> None:
    result = run_python(COMMAND, *FLEET, NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b[3" not in result.out


def test_a_terminal_that_knows_only_ascii() -> None:
    frontier = ("frontier", *FLEET[1:5], "--epsilons", "1,4", "--costs", "500")
    result = run_python(COMMAND, *frontier, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.code == 0
    assert result.err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_ctrl_c_leaves_without_a_traceback() -> None:
    endless = ("frontier", "--samples", "64x1000000", "--dim", "10")
    started = (
        "import fedbudget; begin = fedbudget.frontier\n"
        "def announced(*a, **k): print('begun', flush=True); return begin(*a, **k)\n"
        f"fedbudget.frontier = announced; {COMMAND}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", started, *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes differ")
def test_a_reader_that_stops_reading() -> None:
    many = ("--samples", "64x20000", *FLEET[3:])
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "plan", "--json", *many],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *FLEET],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot read or write")
    assert done.stderr.count("\n") == 1


def test_json_has_no_numbers_that_json_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_json({"a": [1.0, float("nan")], "b": {"c": float("inf")}, "d": "x"})
    assert capsys.readouterr().out == '{"a": [1.0, null], "b": {"c": null}, "d": "x"}\n'


def test_progress_shows_only_after_a_while(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if stderr were a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with output.progress("quick") as advance:
        advance()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "PROGRESS_DELAY", 0.01)
    with output.progress("slow", total=2) as advance:
        advance()
        deadline = time.monotonic() + 30
        while not (shown := capsys.readouterr().err) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "slow" in shown + capsys.readouterr().err
