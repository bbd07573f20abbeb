"""Machine code on disk: used again, and never for another source."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fedbudget

HEAD = "from fedbudget.simulation.kernels.simd import compiled\n"
INNER = "\n\n@compiled\ndef inner_number():\n    return {}\n"
OUTER = (
    HEAD
    + "from fedbudget.simulation.kernels.random import inner_number\n"
    + "\n\n@compiled\ndef outer_number():\n    return inner_number()\n"
)
CALL = (
    "from fedbudget.auditing.kernels import outer_number\n"
    "print(outer_number(), sum(outer_number.stats.cache_hits.values()))\n"
)


def test_a_change_in_another_file_is_compiled(tmp_path: Path) -> None:
    package = tmp_path / "fedbudget"
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(fedbudget.__file__).parent, package, ignore=hidden)
    outer = package / "auditing" / "kernels.py"
    outer.write_text(outer.read_text() + OUTER)
    inner = package / "simulation" / "kernels" / "random.py"
    source = inner.read_text() + HEAD

    def call(number: int) -> list[str]:
        inner.write_text(source + INNER.format(number))
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", CALL]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout.split()

    assert call(1) == ["1", "0"]
    assert call(1) == ["1", "1"]  # from disk
    assert call(2) == ["2", "0"]
