"""A module imports only from layers below its own; inside a layer, never in circles."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import fedbudget
from fedbudget.data import Categorical, Numeric, Schema
from fedbudget.fleet.transport.certificates import make_certificates
from tests.fleet.devices import write_device

# The order of the design, lowest first; a folder counts as one unit.
LAYERS = (
    {"errors", "checks", "files", "text", "version"},
    {"privacy", "budget", "losses", "metrics"},
    {"algorithm", "data", "ledger", "problem", "public_sample"},
    {"planning", "record"},
    {"training"},
    {"fleet", "release", "replanning", "reporting", "simulation"},
    {"estimators", "interop", "metering", "paper", "trackers"},
    {"auditing"},
    {"__main__", "cli", "ui"},
)
LEVEL = {unit: level for level, layer in enumerate(LAYERS) for unit in layer}
TOP = len(LAYERS) - 1
PACKAGE = "fedbudget"


def imported(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Yield line and full name of every import, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            is_package = path.name == "__init__.py"
            keep = len(parts) - node.level + is_package
            base = ".".join(parts[:keep]) if node.level else ""
            name = ".".join(filter(None, [base, node.module]))
            for alias in node.names:
                yield node.lineno, f"{name}.{alias.name}"


def edges(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield path:line, importing unit and imported unit ("" is the package itself)."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names = parts[:-1] if parts[-1] == "__init__" else parts
        if not names:
            continue  # the package's own __init__ gathers everything
        module = ".".join([PACKAGE, *names])
        for line, name in imported(path, module):
            first, *rest = name.split(".")
            if first == PACKAGE:
                unit = rest[0] if rest and _is_unit(root, rest[0]) else ""
                yield f"{path.relative_to(root)}:{line}", names[0], unit


def _is_unit(root: Path, name: str) -> bool:
    return (root / f"{name}.py").exists() or (root / name).is_dir()


def violations(root: Path) -> list[str]:
    """Return what breaks the order, one line each."""
    lines: list[str] = []
    sideways: dict[str, set[str]] = {}
    for location, unit, target in edges(root):
        if unit not in LEVEL:
            lines.append(f"{location}: {unit} has no layer: add it to LAYERS")
        elif target == "":
            if LEVEL[unit] < TOP:
                lines.append(f"{location}: {unit} imports the package itself")
        elif LEVEL.get(target, TOP + 1) > LEVEL[unit]:
            lines.append(f"{location}: {unit} imports {target}, which is above it")
        elif target != unit and LEVEL[target] == LEVEL[unit]:
            sideways.setdefault(unit, set()).add(target)
    return lines + [f"{unit} imports itself in a circle" for unit in _circles(sideways)]


def _circles(graph: dict[str, set[str]]) -> list[str]:
    def reachable(start: str) -> set[str]:
        visited: set[str] = set()
        todo = set(graph.get(start, ()))
        while todo:
            unit = todo.pop()
            visited.add(unit)
            todo |= graph.get(unit, set()) - visited
        return visited

    return sorted(unit for unit in graph if unit in reachable(unit))


def test_no_module_imports_upwards() -> None:
    assert violations(Path(fedbudget.__file__).parent) == []


# Modules that a device must not load: it has little memory, and does not plan.
ON_DEVICES = ("fleet/device", "fleet/secure", "fleet/wire")
NOT_ON_DEVICES = (
    *(f"{PACKAGE}.{unit}" for unit in ("planning", "simulation", "training", "record")),
    f"{PACKAGE}.fleet.coordinator",
    *("numba", "pandas", "pyarrow", "scipy"),
)


def device_modules(root: Path) -> dict[str, Path]:
    """Return the modules that run on devices, by their full names."""
    return {
        ".".join([PACKAGE, *path.relative_to(root).with_suffix("").parts]): path
        for folder in ON_DEVICES
        for path in sorted((root / folder).glob("*.py"))
        if path.name != "__init__.py"
    }


def forbidden(names: Iterable[str]) -> list[str]:
    """Return which of these modules no device may load."""
    return sorted(
        name
        for name in names
        if any(name == bad or name.startswith(f"{bad}.") for bad in NOT_ON_DEVICES)
    )


def test_what_runs_on_devices_names_nothing_heavy() -> None:
    modules = device_modules(Path(fedbudget.__file__).parent)
    assert f"{PACKAGE}.fleet.device.guard" in modules
    for module, path in modules.items():
        assert forbidden(name for _, name in imported(path, module)) == [], path


def test_what_runs_on_devices_loads_nothing_heavy() -> None:
    modules = device_modules(Path(fedbudget.__file__).parent)
    script = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert set(modules) <= set(done.stdout.split())
    assert forbidden(done.stdout.split()) == []


# Modules that only some devices need, or only in case of an error.
RARE_ON_DEVICES = (
    *("urllib.request", "http", "email", "concurrent", "gzip", "difflib"),
    *("decimal", "fractions", "zipfile", "statistics", "asyncio", "subprocess"),
    *("cryptography.x509", "cryptography.hazmat.primitives.serialization"),
    *("fedbudget.fleet.secure.protocol", "fedbudget.fleet.wire.secure_messages"),
    *("fedbudget.fleet.device.sum_terms", "fedbudget.fleet.device.unix_socket"),
    *("numpy.random", "numpy.fft", "numpy.ma", "numpy.polynomial"),
)


def test_a_usual_device_loads_nothing_that_is_rarely_needed(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", ["sensor-1"])
    target = Categorical(("no", "yes"))
    schema = Schema(features={"a": Numeric(0, 1)}, label="l", target=target)
    (tmp_path / "schema.json").write_text(json.dumps(schema.to_dict()))
    (tmp_path / "rows.csv").write_text("a,l\n" + "0.5,yes\n0.1,no\n" * 10)
    path = write_device(tmp_path)
    policy = path.read_text().replace('"rows.npz"', '"rows.csv"\nschema="schema.json"')
    certificate = "certs/devices/sensor-1"
    path.write_text(
        f'{policy}ca = "certs/ca.pem"\n'
        f'certificate = "{certificate}.pem"\nkey = "{certificate}.key"\n'
    )
    script = f"""
import sys
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.process import Connection, Device
policy = read_policy({str(path)!r})
device = Device(policy)
Connection(policy.broker, name=device.name, topics=device.topics)
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"paho.mqtt.client", f"{PACKAGE}.fleet.device.guard"} <= loaded
    assert loaded & set(RARE_ON_DEVICES) == set()


def test_a_device_of_sums_loads_no_reader_of_all_keys(tmp_path: Path) -> None:
    """Peers' certificates take `cryptography.x509`; its own files do not."""
    make_certificates(tmp_path, ["sensor-1"])
    script = f"""
import sys
from pathlib import Path
from fedbudget.fleet.device import sum_guard
from fedbudget.fleet.secure.introductions import introduce
from fedbudget.fleet.secure.peers import RunKeys
from fedbudget.privacy.uploads import check_learning_rate
own = Path({str(tmp_path / "devices" / "sensor-1")!r})
files = dict(certificate=own.with_suffix(".pem"), key=own.with_suffix(".key"))
introduce(bytes(16), "sensor-1", RunKeys.generate(), **files)
check_learning_rate(1.0, 0.25, 0.0)
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    of_sums = {name for name in RARE_ON_DEVICES if name.startswith(PACKAGE)}
    assert loaded & (set(RARE_ON_DEVICES) - of_sums) == set()


def test_the_packages_on_a_devices_path_are_empty() -> None:
    root = Path(fedbudget.__file__).parent
    for folder in ("fleet", *ON_DEVICES, "fleet/transport"):
        (docstring,) = ast.parse((root / folder / "__init__.py").read_text()).body
        assert isinstance(docstring, ast.Expr), folder


def test_heavy_modules_are_recognised() -> None:
    names = ["scipy.special", "fedbudget.planning", "fedbudget.planning.joint", "numpy"]
    assert forbidden(names) == names[1:3] + names[:1]
    assert forbidden(["fedbudget.planning_notes", "scipyx", "fedbudget.fleet"]) == []


def test_the_walk_sees_the_code() -> None:
    pairs = {
        (unit, target) for _, unit, target in edges(Path(fedbudget.__file__).parent)
    }
    assert {("cli", "planning"), ("planning", "problem"), ("data", "problem")} <= pairs


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_checker_finds_every_kind_of_breach(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "__init__.py": "from fedbudget.cli import main\n",
            "errors.py": "import math\n",
            "budget.py": "def f():\n    from fedbudget.planning import plan\n",
            "privacy/__init__.py": "from ..planning.planner import plan\n",
            "privacy/inner.py": "from . import other\nfrom .. import problem\n",
            "problem.py": "from fedbudget import data\n",
            "data/__init__.py": "import fedbudget.problem\n",
            "planning/__init__.py": "from fedbudget import Budget\n",
            "planning/planner.py": "from fedbudget.errors import FedbudgetError\n",
            "magic.py": "from fedbudget import errors\n",
            "cli/__init__.py": "import fedbudget\nfrom fedbudget.planning import x\n",
        },
    )
    assert violations(root) == [
        "budget.py:2: budget imports planning, which is above it",
        "magic.py:1: magic has no layer: add it to LAYERS",
        "planning/__init__.py:1: planning imports the package itself",
        "privacy/__init__.py:1: privacy imports planning, which is above it",
        "privacy/inner.py:2: privacy imports problem, which is above it",
        "data imports itself in a circle",
        "problem imports itself in a circle",
    ]


def test_the_checker_passes_a_clean_tree(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "errors.py": "",
            "checks.py": "from fedbudget.errors import FedbudgetError\n",
            "problem.py": "from fedbudget.checks import within\n",
            "data/__init__.py": "from fedbudget.problem import Problem\n",
            "ui/__init__.py": "import fedbudget as fb\nimport numpy\n",
        },
    )
    assert violations(root) == []
