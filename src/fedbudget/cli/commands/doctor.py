"""`fedbudget doctor`: what is installed, and what is missing for which command."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

import typer

from fedbudget.cli.options import AsJson
from fedbudget.cli.output import print_json

# What each extra is for; "" is the base install.
USES = {
    "": "plan and frontier with --samples; measure; device, server, ledger, certs",
    "lab": "adult and tables: init, plan, frontier, train, sweep, report, paper; "
    "measure with a config; estimators",
    "ray": "sweep --backend ray",
    "dask": "sweep --backend dask",
    "fleet": "a broker inside Python, for fleet demo",
    "flower": "a coordinator inside Flower: flwr run deploy/flower",
    "interop": "export FILE.onnx",
    "track": "train --track, with any one of its packages",
    "ui": "ui",
}
_ANY_WILL_DO = ("track",)
_NOT_FOR_USERS = ("all", "dev", "docs")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_LEAST = re.compile(r">=([0-9.]+)")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package that some extra asks for."""

    name: str
    extra: str  # "" is the base install
    needed: str  # the least version
    version: str | None  # None: not installed

    @property
    def state(self) -> str:
        """Return ok, missing or too old."""
        if self.version is None:
            return "missing"
        old = _numbers(self.version) < _numbers(self.needed)
        return "too old" if old else "ok"


def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, and what is missing for which command."""
    found = list(packages())
    system = dict(system_facts())
    if as_json:
        extras = {
            name or "base": {
                "for": use,
                "state": _state(found, name),
                "install": _install(name),
                "packages": [
                    vars(package) | {"state": package.state}
                    for package in found
                    if package.extra == name
                ],
            }
            for name, use in USES.items()
        }
        print_json({"extras": extras, "system": system})
    else:
        from fedbudget.cli.views.layout import (  # rich's tables, only where shown
            new_page,
            new_table,
            show_heading,
            show_item,
            show_pairs,
            show_table,
        )

        with new_page() as console:
            show_heading(console, "Installed")
            table = new_table("install", "package", "version", "needed", "")
            for package in found:
                extra = package.extra or "base"
                version = package.version or "-"
                least = f">={package.needed}" if package.needed else "any"
                table.add_row(extra, package.name, version, least, package.state)
            show_table(console, table)
            show_heading(console, "Which commands work")
            table = new_table("install", "state", "for")
            for name, use in USES.items():
                table.add_row(name or "base", _state(found, name), use)
            show_table(console, table)
            for name in USES:
                if lacking := _lacking(found, name):
                    told = f"{', '.join(lacking)} missing: {_install(name)}"
                    show_item(console, told)
            if any(_state(found, name) == "unknown" for name in USES):
                show_item(console, "unknown: this was not installed with pip: do so")
            show_heading(console, "This machine")
            show_pairs(console, system.items())
    if _lacking(found, ""):
        raise typer.Exit(1)


def packages() -> Iterator[Package]:
    """Yield every package that the installed fedbudget asks for, by extra."""
    try:
        required = metadata.requires("fedbudget") or []
    except metadata.PackageNotFoundError:  # a source tree on the path
        return
    for line in required:
        package, extra = _NAME.match(line), _EXTRA.search(line)
        least = _LEAST.search(line.partition(";")[0])
        name = "" if extra is None else extra[1]
        if package is None or name in _NOT_FOR_USERS or package[0] == "fedbudget":
            continue
        yield Package(
            name=package[0],
            extra=name,
            needed="" if least is None else least[1],
            version=_installed(package[0]),
        )


def system_facts() -> Iterator[tuple[str, str]]:
    """Yield what else commands depend on."""
    from fedbudget.metering import Rapl

    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "processors", str(os.cpu_count())
    yield (
        "kernels",
        "compiled once, then kept"
        if _cache_is_kept()
        else "compiled in every run: set "
        "NUMBA_CACHE_DIR to a folder that can be written",
    )
    readable = Rapl().readable
    yield "energy", "RAPL counters" if readable else "no RAPL counters: give --watts"
    sbin = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    broker = shutil.which("mosquitto", path=sbin)
    yield "mosquitto", broker or "not found: any MQTT broker will do"


def _cache_is_kept() -> bool:
    """Return whether numba finds a folder that it may write to."""
    import fedbudget

    own = os.path.dirname(fedbudget.__file__)
    places = [os.environ.get("NUMBA_CACHE_DIR"), own, os.path.expanduser("~")]
    return any(place and os.access(place, os.W_OK) for place in places)


def _lacking(found: list[Package], extra: str) -> list[str]:
    mine = [p for p in found if p.extra == extra]
    if extra in _ANY_WILL_DO and any(p.state == "ok" for p in mine):
        return []
    return [p.name for p in mine if p.state != "ok"]


def _state(found: list[Package], extra: str) -> str:
    """Return ok, missing, or unknown where an older install knows no such extra."""
    if _lacking(found, extra):
        return "missing"
    return "ok" if any(p.extra == extra for p in found) else "unknown"


def _install(extra: str) -> str:
    """Return what to type in a clone of the repository."""
    return f"pip install '.[{extra}]'" if extra else "pip install ."


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare.

    >>> _numbers("1.10.0rc1") > _numbers("1.9")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0]))
