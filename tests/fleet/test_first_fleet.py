"""The recipe of a first fleet, run literally: broker, coordinator, five devices."""

import os
import re
import subprocess
import sys
from pathlib import Path

from fedbudget.fleet.demo import HeldPort

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "first-fleet.md"


def test_the_recipe_works_as_written(tmp_path: Path) -> None:
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    held = HeldPort()
    recipe = "".join(blocks).replace("\nwait\n", "\nwait || true\n")
    script = recipe.replace("PORT=8883", f"PORT={held.number}")
    assert script.count(f"PORT={held.number}") == 1
    # A program on the PATH, not a function: bash would run that in a shell of its own,
    # and ending the shell would leave the device behind.
    program = tmp_path / "bin" / "fedbudget"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedbudget "$@"\n')
    program.chmod(0o700)
    start = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", start + script],
        cwd=tmp_path,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    words = " ".join(done.stdout.split())
    (accuracy,) = re.findall(r"accuracy ([\d.]+), 95 % interval", words)
    assert 0.5 < float(accuracy) <= 1
    assert "finished" in words and "evaluation samples 200" in words
    assert (tmp_path / "sites" / "one" / "personal.json").exists()
    for name in ("keys", "keys-authority", "sites", "runs"):  # nobody else can enter
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    predicted = words.split("alarm")[-1]
    assert "yes" in predicted and "no" in predicted
