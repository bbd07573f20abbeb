"""Ours against the peers: each in an environment of its own, in turns, in one run.

    python benchmarks/peers/run.py                     all peers, all workloads
    python benchmarks/peers/run.py --workloads w       some workloads
    python benchmarks/peers/run.py --peers numpy jax   some peers
    python benchmarks/peers/run.py --small             to try it out: times mean nothing

Every peer is checked first (it learns, and has noise on every step), and the fastest of
its variants is compared. Then ours on all cores, ours on one core, `fb.train` (which
also measures every round and has ledgers; the peers do neither) and the peer take
turns. A ratio is one of medians. `--python` names another interpreter that has
fedbudget.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from environments import ROOT, CannotInstallError, python_of

HERE = Path(__file__).resolve().parent
TURNS = (3, 11)  # at least and at most
SECONDS = 25.0  # of a peer's turns, about
OURS_PER_TURN = 3
OURS = ("ours", "one core", "train")

# script, options, environment (None: that of ours)
PEERS: dict[str, tuple[str, list[str], str | None]] = {
    "numpy": ("numpy_peer.py", [], None),
    "jax": ("jax_peer.py", [], "jax"),
    "pfl, numpy": ("pfl_peer.py", [], "pfl"),
    "pfl, torch": ("pfl_peer.py", ["--torch"], "pfl"),
    "fedjax": ("fedjax_peer.py", [], "fedjax"),
    "torch": ("torch_peer.py", [], "torch"),
    "opacus": ("opacus_peer.py", [], "opacus"),
    "flower": ("flower_peer.py", [], "flower"),
}
GOALS: dict[str, dict[str, float]] = {  # times faster, at least
    "w": {
        "numpy": 20,
        "jax": 20,
        "pfl, numpy": 25,
        "pfl, torch": 150,
        "fedjax": 40,
        "torch": 40,
        "opacus": 350,
        "flower": 800,
    },
    "w2": {
        "numpy": 10,
        "jax": 10,
        "pfl, numpy": 15,
        "pfl, torch": 100,
        "fedjax": 25,
        "torch": 25,
        "opacus": 250,
        "flower": 500,
    },
    "many": {"jax": 40},
    "wide-1000": {"jax": 3},
    "wide-10000": {"jax": 3},
}
MEMORY_GOAL = 10  # times less than JAX, for many devices


class Failed(Exception):  # noqa: N818 (the peer's failure, not ours)
    """A script ended before its result; the text is its last words."""


class Contestant:
    """A script that runs once for each line that it is sent."""

    def __init__(self, name: str, python: str, script: str, options: list[str]) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [python, HERE / script, *options, "--turns"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=HERE,
        )

    def read(self) -> dict[str, Any]:
        """Return the next line; wait for it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            words = [w for w in self.log.read().splitlines() if w.strip()]
            raise Failed((words or [f"ended with {self.process.returncode}"])[-1])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def turn(self) -> float:
        """Run once; return the seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.read()["seconds"])

    def finish(self) -> dict[str, Any]:
        """Return the result."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        result = self.read()
        self.process.wait()
        return result

    def stop(self) -> None:
        """End it, whatever it is doing."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def compare(peer: str, workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run ours and a peer in turns; return the result, or the reason for none."""
    script, extra, environment = PEERS[peer]
    row: dict[str, Any] = {"peer": peer, "workload": workload}
    try:
        python = python_of(environment) if environment else options.python
    except CannotInstallError as error:
        return row | {"skipped": f"cannot be installed here: {error}"}
    arguments = [workload] + ["--small"] * options.small
    started: list[Contestant] = []
    try:
        for name, with_python, what, more in (
            (peer, python, script, extra),
            ("ours", options.python, "ours.py", []),
            ("ours, one core", options.python, "ours.py", ["--one-core"]),
            ("ours, through train", options.python, "ours.py", ["--train"]),
        ):
            # One at a time: while one is checked, the others do nothing.
            started.append(Contestant(name, with_python, what, arguments + more))
            started[-1].read()
        return row | take_turns(*started)
    except Failed as error:
        return row | {"skipped": f"{started[-1].name} failed: {error}"}
    finally:
        for contestant in started:
            contestant.stop()


def take_turns(
    peer: Contestant, ours: Contestant, one: Contestant, train: Contestant
) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in ("peer", *OURS)}
    load = os.getloadavg()[0]
    turns = TURNS[1]
    while len(times["peer"]) < turns:
        times["ours"] += [ours.turn() for _ in range(OURS_PER_TURN)]
        times["train"] += [train.turn() for _ in range(OURS_PER_TURN)]
        start = time.perf_counter()
        times["peer"].append(peer.turn())
        taken = time.perf_counter() - start
        times["one core"] += [one.turn() for _ in range(OURS_PER_TURN)]
        turns = max(TURNS[0], min(TURNS[1], int(SECONDS / taken)))
    results = {"theirs": peer.finish(), "ours": ours.finish(), "one_core": one.finish()}
    results["train"] = train.finish()
    ordered = sorted(times["ours"])
    return results | {
        "seconds": median(times["peer"]),
        "seconds_ours": median(ordered),
        "seconds_one_core": median(times["one core"]),
        "ratio": median(times["peer"]) / median(ordered),
        "ratio_one_core": median(times["peer"]) / median(times["one core"]),
        "ratio_train": median(times["peer"]) / median(times["train"]),
        "memory_ratio": results["theirs"]["peak_gb"] / results["ours"]["peak_gb"],
        "spread_ours": ordered[-1 - len(ordered) // 10] / ordered[len(ordered) // 10],
        "turns": turns,
        "load_before": load,
    }


def doubts(row: dict[str, Any]) -> list[str]:
    """Return what a reader of the row must know."""
    notes = []
    if row["spread_ours"] > 1.3:
        notes.append(f"noisy machine: ours varied {row['spread_ours']:.1f}x")
    theirs, ours = row["theirs"], row["ours"]
    gap = abs(theirs["loss_without_noise"] - ours["loss_without_noise"])
    if gap > 0.01:
        notes.append(f"ends at another loss than ours, by {gap:.3f}")
    if theirs["notes"]:
        notes.append(theirs["notes"])
    return notes


def table(rows: Iterable[dict[str, Any]]) -> str:
    lines = [
        "| workload | peer: fastest variant | ms | ours, ms | times faster "
        "| on one core | through `fb.train` | goal | reached | notes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        goal = GOALS[row["workload"]][row["peer"]]
        if "skipped" in row:
            text = f"| {row['workload']} | {row['peer']} | | | | | | {goal:g} | |"
            lines.append(f"{text} SKIPPED: {row['skipped']} |")
            continue
        theirs = row["theirs"]
        cells = [
            row["workload"],
            f"{row['peer']} {theirs['version']}: {theirs['variant']}",
            f"{1e3 * row['seconds']:.1f}",
            f"{1e3 * row['seconds_ours']:.2f}",
            f"{row['ratio']:.1f}",
            f"{row['ratio_one_core']:.1f}",
            f"{row['ratio_train']:.1f}",
            f"{goal:g}",
            "yes" if row["ratio"] >= goal else "NO",
            "; ".join(doubts(row)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
        if row["workload"] == "many":
            most = max(v["peak_gb"] for v in theirs["variants"].values())
            lines.append(
                f"| many, memory | peak {theirs['peak_gb']:.2f} GB (up to {most:.2f} "
                f"in other variants) | | {row['ours']['peak_gb']:.2f} GB | "
                f"{row['memory_ratio']:.1f} | | | {MEMORY_GOAL} | "
                f"{'yes' if row['memory_ratio'] >= MEMORY_GOAL else 'NO'} | |"
            )
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ours against the peers, in turns")
    parser.add_argument("--workloads", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path, default=ROOT / "peers.json")
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    rows = []
    for workload in options.workloads:
        for peer in GOALS[workload]:
            if peer not in options.peers:
                continue
            print(f"{workload}: {peer} ...", file=sys.stderr, flush=True)
            rows.append(compare(peer, workload, options))
            if "skipped" in rows[-1]:
                print(f"SKIPPED: {rows[-1]['skipped']}", file=sys.stderr, flush=True)
            else:
                print(f"  {rows[-1]['ratio']:.1f} times", file=sys.stderr, flush=True)
            record = {"cores": cores, "load_at_start": load, "rows": rows}
            options.json.parent.mkdir(exist_ok=True)
            options.json.write_text(json.dumps(record, indent=1))
    print(table(rows))
    print(f"\n{cores} cores, load average {load:.1f} at the start.", end=" ")
    if load > 0.3:
        print("NOISY: other work was running on this machine.", end=" ")
    print(f"Details: {options.json}")


if __name__ == "__main__":
    main()
