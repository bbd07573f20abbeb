"""What is shipped, what the base install can do, and shells that complete commands."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.cli.running import run_python

ROOT = Path(__file__).parent.parent
COMMAND = "from fedbudget.cli import main; main()"
FLEET = "plan --samples 1628x16 --dim 102 --loss logistic --epsilon 4 --cost 1000"

# Every package of an extra, as it is imported: none is there in the base install.
ABSENT = (
    *("dp_accounting", "matplotlib", "numba", "pyarrow", "sklearn", "scipy"),
    *("threadpoolctl", "tomlkit", "joblib", "ray", "distributed", "dask", "amqtt"),
    *("onnx", "mlflow", "tensorboard", "wandb", "flwr", "altair", "streamlit"),
    *("pandas", "polars", "datasets", "hypothesis"),
)
BASE_ONLY = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r})); {COMMAND}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (FLEET, "Plan: "),
        ("frontier --samples 64x3 --dim 5 --epsilons 1 --costs 500", "excess loss"),
        ("measure --samples 40 --dim 4 --seconds 0.01", "Measured on this device"),
        ("doctor", "Which commands work"),
    ],
)
def test_the_base_install_is_enough_for(arguments: str, says: str) -> None:
    result = run_python(BASE_ONLY, *arguments.split())
    assert (result.code, result.err) == (0, "")
    assert says in result.out


@pytest.mark.parametrize(
    "arguments",
    [
        "plan adult --epsilon 4 --cost 1000",
        "train adult --split iid --epsilon 4 --cost 1000",
        "init README.md --label x --device y --out nothing.toml",
    ],
)
def test_the_base_install_says_what_is_missing(arguments: str) -> None:
    result = run_python(BASE_ONLY, *arguments.split())
    assert result.code == 1
    assert "pip install '.[lab]'" in result.err
    assert result.err.count("\n") == 1


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and an sdist, built without a network."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    pytest.importorskip("build", reason="build is not installed")
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_has_the_package_its_data_and_nothing_else(shipped: Path) -> None:
    (wheel,) = shipped.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        places = {name.split("/")[0] for name in names}
        entry = next(name for name in names if name.endswith("entry_points.txt"))
        assert "fedbudget = fedbudget.cli:main" in archive.read(entry).decode()
    assert len(places) == 2 and "fedbudget" in places  # and its metadata
    source = ROOT / "src"
    for path in (source / "fedbudget").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(source).as_posix() in names


def test_the_sdist_has_what_tests_and_documents_need(shipped: Path) -> None:
    (sdist,) = shipped.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("README.md", "LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml")
    assert names.issuperset(needed)
    assert {"docs/plan.schema.json", "tests/test_packaging.py"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_every_extra_is_in_all() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    (everything,) = extras["all"]
    named = everything.removeprefix("fedbudget[").removesuffix("]").split(",")
    assert sorted(named) == sorted(set(extras) - {"all", "dev", "docs", "flower"})


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "offered"), [("pl", "plan"), ("plan --epsi", "--epsilon")]
)
def test_bash_completes(tmp_path: Path, typed: str, offered: str) -> None:
    command = tmp_path / "fedbudget"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{COMMAND}" "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = (
        'eval "$(_FEDBUDGET_COMPLETE=source_bash fedbudget)"\n'
        f"COMP_WORDS=(fedbudget {typed})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        '_fedbudget_completion fedbudget\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert offered in done.stdout.splitlines(), done.stderr
