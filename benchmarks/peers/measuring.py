"""The common part of every peer script: check, select, time and print its runs.

A peer offers one or more variants, functions (rounds, noise_std, seed) -> theta. Each
must learn without noise and must show the noise of every local step; the fastest is
timed. Run as

    python <peer>.py <workload> [--repeats 5] [--small]

it prints one line of JSON. With `--turns` it prints a line when it is ready, one for
each line that it reads, and the result when there is nothing more to read: so the
driver can let ours and a peer take turns.
"""

import argparse
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from workloads import load

Run = Callable[[int, float, int], Any]  # (rounds, noise_std, seed) -> theta
Variants = dict[str, Run]

LONG = 15.0  # seconds: a run that would take longer is timed over a tenth of its rounds
LOUD = 10.0  # noise_std of the check: what the noise adds must drown the gradients


def restart_peak() -> None:
    """Forget the peak so far, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_gb() -> float:
    """Return the most memory that this process had, since the last restart."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1e6
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


class Measuring:
    """One peer on one workload, from the command line to the line of JSON."""

    def __init__(self, peer: str, version: str) -> None:
        parser = argparse.ArgumentParser(description=f"{peer}: times one workload")
        parser.add_argument("workload")
        parser.add_argument("--repeats", type=int, default=5)
        parser.add_argument("--turns", action="store_true", help="one run a line read")
        parser.add_argument("--small", action="store_true", help="to try it out")
        self.options = parser.parse_args()
        self.work = load(self.options.workload, small=self.options.small)
        self.result: dict[str, Any] = {
            "peer": peer,
            "version": version,
            "workload": self.work.name,
        }
        # Frameworks write to stdout too: keep it for ours, send the rest to stderr.
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def run(self, variants: Variants, notes: str = "") -> None:
        """Check the variants, time the fastest, print."""
        name, share = self._choose(variants)
        variant = variants[name]
        rounds = max(1, round(self.work.rounds * share))
        if share < 1:
            notes = f"{rounds} of {self.work.rounds} rounds, scaled; {notes}"
        times: list[float] = []
        restart_peak()
        for turn in self._turns():
            start = time.perf_counter()
            variant(rounds, self.work.noise_std, turn)
            taken = time.perf_counter() - start
            times.append(taken * self.work.rounds / rounds)
            if self.options.turns:
                self._say({"seconds": times[-1]})
        self.result |= {
            "variant": name,
            "seconds": median(times),
            "fastest": min(times),
            "repeats": len(times),
            "peak_gb": peak_gb(),
            "notes": notes.strip("; "),
        }
        self._say(self.result)

    def _turns(self) -> Iterator[int]:
        if not self.options.turns:
            yield from range(1, self.options.repeats + 1)
            return
        self._say({"ready": self.result["peer"]})
        for turn, _ in enumerate(sys.stdin, 1):
            yield turn

    def _choose(self, variants: Variants) -> tuple[str, float]:
        """Return the fastest of the variants, all of them checked, and its share."""
        work = self.work
        speeds, losses, first, measured = {}, {}, {}, {}
        for name, run in variants.items():
            start = time.perf_counter()
            losses[name] = self._check_learning(name, run)
            first[name] = time.perf_counter() - start
            self._check_noise(name, run)
            restart_peak()
            speeds[name] = self._quick(run)
            measured[name] = {"seconds": speeds[name], "peak_gb": peak_gb()}
        best = min(speeds, key=lambda name: speeds[name])
        self.result |= {
            "loss_without_noise": losses[best],
            "first_run": first[best],  # with compilation
            "variants": measured,
        }
        too_long = speeds[best] > LONG and work.rounds >= 10
        return best, 0.1 if too_long else 1.0

    def _quick(self, run: Run) -> float:
        """Return the least time of two runs."""
        times = []
        for seed in (1, 2):
            start = time.perf_counter()
            run(self.work.rounds, self.work.noise_std, seed)
            times.append(time.perf_counter() - start)
            if times[0] > LONG:
                break
        return min(times)

    def _check_learning(self, name: str, run: Run) -> float:
        work = self.work
        before = work.mean_loss(np.zeros(work.dim))
        after = work.mean_loss(np.asarray(run(work.rounds, 0.0, 0)).reshape(-1))
        if not after < 0.99 * before:
            raise SystemExit(f"{name} does not learn: loss {before:.4f} -> {after:.4f}")
        return after

    def _check_noise(self, name: str, run: Run) -> None:
        """After one round, tau noises per device have been added and averaged."""
        work = self.work
        noise_std = LOUD * np.sqrt(work.num_devices / work.tau)
        with np.errstate(over="ignore"):
            theta = np.asarray(run(1, noise_std, 3)).reshape(-1)
        ratio = float(np.std(theta)) / (work.learning_rate * LOUD)
        # 102 coordinates: 7 % of standard error; noise once a round would be a third.
        if not 0.65 < ratio < 1.35:
            raise SystemExit(f"{name}: noise is {ratio:.2f} times what it should be")

    def _say(self, what: dict[str, Any]) -> None:
        self.out.write(json.dumps(what) + "\n")
        self.out.flush()
