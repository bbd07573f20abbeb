"""Simulated runs in processes of their own: started, stopped and resumed.

The page keeps nothing in memory that a reload would lose. Beside a run's folder lies
`.NAME.command.json`, the options it was started with, and `.NAME.log`, what it said.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedbudget.errors import InvalidInputError, RecordError

OWN = "My own table or fedbudget.toml"
DATA = {
    "Adult, dealt out evenly": ("adult", "--split", "iid"),
    "Adult, by education": ("adult", "--split", "by-education"),
    "Vehicle (SYNTHETIC), by sensor": ("vehicle", "--split", "by-sensor"),
    "Vehicle (SYNTHETIC), dealt out evenly": ("vehicle", "--split", "iid"),
    OWN: (),
}
_NAME = re.compile(r"\w[\w.-]{0,63}")


def options_for(
    data: str, table: Mapping[str, str], numbers: Mapping[str, float]
) -> list[str]:
    """Return the options of `fedbudget train` that a filled-in form stands for.

    A file that is named is what is trained on, whatever the data selected.

    >>> options_for(OWN, {"table": "my.toml"}, {"--epsilon": 4.0, "--seed": 1})
    ['my.toml', '--seed', '1']
    """
    path = table["table"].strip()
    columns = {n: v.strip() for n, v in table.items() if n != "table" and v.strip()}
    if not path and (data == OWN or columns):
        raise InvalidInputError(f"{OWN!r} comes without one: name the file")
    if path.endswith(".toml"):
        options, numbers = [path], {"--seed": numbers["--seed"]}
    elif path:
        options = [path, *_flat(columns)]
    else:
        options = list(DATA[data])
    return options + _flat({name: f"{v:.12g}" for name, v in numbers.items()})


def _flat(options: Mapping[str, str]) -> list[str]:
    return [part for pair in options.items() for part in pair]


@dataclass(eq=False)
class Runner:
    """The processes that this page has started, by folder."""

    root: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def start(self, name: str | None, options: list[str]) -> Path:
        """Start `fedbudget train` with these options, recorded in a new folder.

        Args:
            name: Of the folder; none takes the next that is free.
            options: What to train on, and how.
        """
        with self._starting:  # two windows may ask at once
            name = self.free_name() if name is None else name
            if not _NAME.fullmatch(name):
                raise InvalidInputError(
                    f"name {name!r} is not a folder's: take letters, digits, _, - and ."
                )
            if (self.root / name).exists() or self.is_running(name):
                raise RecordError(
                    f"{self.root / name} is there already: take another name"
                )
            self.root.mkdir(parents=True, exist_ok=True)
            self._command(name).write_text(json.dumps(options), encoding="utf-8")
            self._launch(name, options)
        return self.root / name

    def free_name(self) -> str:
        """Return a name that no run has, nor one that is still being planned."""
        return next(
            n for i in itertools.count(1) if not self._is_taken(n := f"run-{i}")
        )

    def _is_taken(self, name: str) -> bool:
        # A run that is being planned has no folder yet, but it has a command.
        there = (self.root / name).exists() or self._command(name).exists()
        return there or self.is_running(name)

    def resume(self, name: str) -> None:
        """Start a stopped run again; it goes on where it stopped."""
        if self.is_running(name):
            return
        try:
            options = json.loads(self._command(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise RecordError(
                f"{self.root / name} was not started from this page: run its command "
                "again to go on"
            ) from None
        self._launch(name, [str(option) for option in options])

    def stop(self, name: str) -> None:
        """Ask a run to stop, as Ctrl-C does, and wait until it has."""
        process = self.processes.get(name)
        if process is None or process.poll() is not None:
            return
        self.stopped.add(name)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()  # its folder can be resumed all the same
            process.wait()

    def is_running(self, name: str) -> bool:
        """Whether a process of this page works on the run now."""
        process = self.processes.get(name)
        return process is not None and process.poll() is None

    def can_resume(self, name: str) -> bool:
        """Whether the run was started here and is not finished."""
        done = (self.root / name / "model.npz").exists()
        return self._command(name).exists() and not done and not self.is_running(name)

    def failure(self, name: str) -> str | None:
        """Return the last line of a run that failed."""
        process = self.processes.get(name)
        if process is None or process.poll() in (None, 0) or name in self.stopped:
            return None
        log = self.root / f".{name}.log"
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        return said[-1] if said else f"it ended with exit code {process.returncode}"

    def _command(self, name: str) -> Path:
        return self.root / f".{name}.command.json"

    def _launch(self, name: str, options: list[str]) -> None:
        self.stopped.discard(name)
        command = [sys.executable, "-m", "fedbudget", "train", *options]
        with open(self.root / f".{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "--out", str(self.root / name)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"},
            )
