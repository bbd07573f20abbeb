"""A virtual environment for each peer, made when it is first needed.

Packages come by name from wherever pip is set up to look. Only ready-made wheels are
taken; a peer that has none for this Python or machine is skipped, with pip's reason.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / ".venv-peers"
TORCH = "torch==2.13.0"

# Tried in this order: the compared versions, then the newest.
REQUIREMENTS: dict[str, list[list[str]]] = {
    "jax": [["jax==0.10.2", "jaxlib==0.10.2", "numpy==2.4.6"], ["jax", "jaxlib"]],
    "torch": [[TORCH, "numpy==2.4.6"], ["torch", "numpy"]],
    "pfl": [["pfl==0.6.0", TORCH, "numpy==2.4.6"], ["pfl==0.6.0", "torch"]],
    # FedJAX calls jax.tree_map, which JAX 0.6 no longer has.
    "fedjax": [
        [
            "fedjax==0.0.17",
            "jax==0.5.3",
            "jaxlib==0.5.3",
            "dm-haiku==0.0.13",
            "optax==0.2.4",
            "numpy==2.1.3",
        ]
    ],
    "opacus": [["opacus==1.6.0", TORCH, "numpy==2.4.6"], ["opacus", "torch"]],
    "flower": [["flwr[simulation]==1.41.0", "numpy==2.4.6"], ["flwr[simulation]"]],
}


class CannotInstallError(Exception):
    """A peer cannot be installed; the text states the reason."""


def python_of(name: str) -> str:
    """Return the interpreter of a peer's environment, made and filled if need be.

    Raises:
        CannotInstallError: pip finds no set of packages that fits.
    """
    python = ROOT / name / "bin" / "python"
    stamp, wanted = ROOT / name / ".installed", repr(REQUIREMENTS[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    print(f"making {ROOT.name}/{name} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", ROOT / name], check=True)
    reasons = []
    for packages in REQUIREMENTS[name]:
        command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        command += ["install", "--only-binary=:all:", *packages]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            stamp.write_text(wanted)
            return str(python)
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
        reasons.append((errors or [f"pip ended with {done.returncode}"])[-1])
    raise CannotInstallError(f"{' '.join(packages)}: {'; '.join(reasons)}")
