"""`fedbudget doctor`: which packages are installed, and which commands work."""

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
    "lab": "built-in data, tables: init, plan, frontier, train, sweep, report, paper; "
    "measure with a config; estimators",
    "ray": "sweep --backend ray",
    "dask": "sweep --backend dask",
    "fleet": "fleet broker and fleet demo: an MQTT broker in Python",
    "flower": "the coordinator as a Flower app: flwr run deploy/flower",
    "interop": "export FILE.onnx",
    "track": "train --track; one of its packages is enough",
    "ui": "ui, the page in the browser",
}
_ONE_IS_ENOUGH = ("track",)
_NOT_FOR_USERS = ("all", "dev", "docs")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_MINIMUM = re.compile(r">=([0-9.]+)")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that an extra requires."""

    name: str
    extra: str  # "" is the base install
    needed: str  # the minimum version
    version: str | None  # None: not installed

    @property
    def state(self) -> str:
        """Return ok, missing or too old."""
        if self.version is None:
            return "missing"
        too_old = _numbers(self.version) < _numbers(self.needed)
        return "too old" if too_old else "ok"


def doctor(as_json: AsJson = False) -> None:
    """Show which packages are installed, and which commands work."""
    required = list(packages())
    system = dict(system_facts())
    if as_json:
        extras = {
            name or "base": {
                "for": use,
                "state": _state(required, name),
                "install": _install(name),
                "packages": [
                    vars(package) | {"state": package.state}
                    for package in required
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
            table = new_table("extra", "package", "version", "required", "state")
            for package in required:
                extra = package.extra or "base"
                version = package.version or "-"
                minimum = f">={package.needed}" if package.needed else "any"
                table.add_row(extra, package.name, version, minimum, package.state)
            show_table(console, table)
            show_heading(console, "Which commands work")
            table = new_table("extra", "state", "commands")
            for name, use in USES.items():
                table.add_row(name or "base", _state(required, name), use)
            show_table(console, table)
            for name in USES:
                if missing := _missing(required, name):
                    names = ", ".join(missing)
                    show_item(console, f"{names} missing: {_install(name)}")
            if any(_state(required, name) == "unknown" for name in USES):
                show_item(
                    console, "unknown: fedbudget is not installed; run pip install ."
                )
            show_heading(console, "This machine")
            show_pairs(console, system.items())
    if _missing(required, ""):
        raise typer.Exit(1)


def packages() -> Iterator[Package]:
    """Yield every package that the installed fedbudget requires, by extra."""
    try:
        lines = metadata.requires("fedbudget") or []
    except metadata.PackageNotFoundError:  # a source tree on the path
        return
    for line in lines:
        package, extra = _NAME.match(line), _EXTRA.search(line)
        minimum = _MINIMUM.search(line.partition(";")[0])
        name = "" if extra is None else extra[1]
        if package is None or name in _NOT_FOR_USERS or package[0] == "fedbudget":
            continue
        yield Package(
            name=package[0],
            extra=name,
            needed="" if minimum is None else minimum[1],
            version=_installed(package[0]),
        )


def system_facts() -> Iterator[tuple[str, str]]:
    """Yield the properties of this machine that commands depend on."""
    from fedbudget.metering import Rapl

    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "processors", str(os.cpu_count())
    yield (
        "kernels",
        "compiled once, then cached"
        if _cache_is_writable()
        else "compiled in every run: set NUMBA_CACHE_DIR to a writable folder",
    )
    readable = Rapl().readable
    yield (
        "energy",
        "RAPL counters" if readable else "no RAPL counters: use measure --watts",
    )
    sbin = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    broker = shutil.which("mosquitto", path=sbin)
    yield "mosquitto", broker or "not found; any other MQTT broker works, too"


def _cache_is_writable() -> bool:
    """Return whether numba can write its cache."""
    import fedbudget

    own = os.path.dirname(fedbudget.__file__)
    folders = [os.environ.get("NUMBA_CACHE_DIR"), own, os.path.expanduser("~")]
    return any(folder and os.access(folder, os.W_OK) for folder in folders)


def _missing(required: list[Package], extra: str) -> list[str]:
    candidates = [p for p in required if p.extra == extra]
    if extra in _ONE_IS_ENOUGH and any(p.state == "ok" for p in candidates):
        return []
    return [p.name for p in candidates if p.state != "ok"]


def _state(required: list[Package], extra: str) -> str:
    """Return ok, missing, or unknown if the installed version lacks the extra."""
    if _missing(required, extra):
        return "missing"
    return "ok" if any(p.extra == extra for p in required) else "unknown"


def _install(extra: str) -> str:
    """Return the command that installs an extra, in a clone of the repository."""
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
