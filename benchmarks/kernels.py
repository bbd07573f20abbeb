"""The kernels against NumPy and JAX on the same workloads, in one run on one machine.

    python benchmarks/kernels.py                 all sections
    python benchmarks/kernels.py w w2 sweep      some of them

Every time is the median over repeats; peers and kernels take turns, and each figure
is what a user waits for after compilation. JAX is optional: without it, only NumPy
is a peer, and the table says so.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from baselines import jax_rounds, numpy_rounds

from fedbudget.losses import Hinge, Logistic
from fedbudget.simulation.kernels.layouts import (
    MERGED_BATCH,
    PackedRows,
    pack_one_hot,
    pack_rows,
)
from fedbudget.simulation.kernels.runs import RoundPlan, run_rounds, sweep_runs

CATEGORIES = (9, 16, 7, 15, 6, 5, 2, 42)  # the 102 one-hot columns of Adult
TAU, LEARNING_RATE, NOISE_STD = 10, 0.5, 0.01

# Not imported here: the memory of our own process would count it.
HAVE_JAX = find_spec("jax") is not None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Rows of M devices with n rows each, in the layouts of peers and kernels."""

    x: Any  # (M, n, 8) columns or (M, n, dim) rows
    y: Any  # (M, n): -1 and 1
    dim: int
    loss: str
    batch: int
    rounds: int

    def peer_settings(self) -> dict[str, Any]:
        """The settings of both peers."""
        return {
            "dim": self.dim,
            "loss": self.loss,
            "tau": TAU,
            "rounds": self.rounds,
            "batch": self.batch,
            "learning_rate": LEARNING_RATE,
            "noise_std": NOISE_STD,
        }

    def packed(self) -> PackedRows:
        """The rows in the layout of the kernels."""
        num_devices, n, width = self.x.shape
        offsets = np.arange(num_devices + 1) * n
        y = self.y.reshape(-1) > 0
        x = self.x.reshape(-1, width)
        if self.loss == "logistic":
            return pack_one_hot(x, y, offsets, dim=self.dim, loss=Logistic())
        return pack_rows(x, y, offsets, loss=Hinge())

    def plan(self, learning_rate: float = LEARNING_RATE) -> RoundPlan:
        """The order of every round to every device."""
        return RoundPlan(
            tau=TAU,
            learning_rate=learning_rate,
            batch_size=self.batch,
            noise_std=NOISE_STD,
            weights=1 / len(self.x),
        )


def one_hot(num_devices: int, n: int, batch: int, rounds: int) -> Workload:
    rng = np.random.default_rng(0)
    x = np.empty((num_devices, n, len(CATEGORIES)), dtype=np.uint8)
    start = 0
    for j, count in enumerate(CATEGORIES):
        x[:, :, j] = start + rng.integers(0, count, (num_devices, n), dtype=np.uint8)
        start += count
    y = np.where(rng.random((num_devices, n)) < 0.5, np.float32(1), np.float32(-1))
    return Workload(x=x, y=y, dim=start, loss="logistic", batch=batch, rounds=rounds)


def dense(num_devices: int, n: int, dim: int, batch: int, rounds: int) -> Workload:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_devices, n, dim), dtype=np.float32)
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    y = np.where(rng.random((num_devices, n)) < 0.5, np.float32(1), np.float32(-1))
    return Workload(x=x, y=y, dim=dim, loss="hinge", batch=batch, rounds=rounds)


def seconds(task: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a task that has run once before."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def threads(count: int) -> None:
    import numba

    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    numba.set_num_threads(min(count, most))


def peers(work: Workload, repeats: int, names: str = "numpy jax") -> dict[str, float]:
    """Return the time of each installed peer."""
    times = {}
    x = work.x.astype(np.int32) if work.loss == "logistic" else work.x
    if "numpy" in names:
        numpy_rounds(x[:2], work.y[:2], **{**work.peer_settings(), "rounds": 1})
        times["NumPy"] = seconds(
            lambda: numpy_rounds(x, work.y, **work.peer_settings()), repeats
        )
    if HAVE_JAX and "jax" in names:
        run = jax_rounds(x, work.y, **work.peer_settings())
        run(0)
        times["JAX"] = seconds(lambda: run(1), repeats)
    return times


def kernel_times(work: Workload, repeats: int) -> dict[int, float]:
    """Return the kernels' time with one thread and with two."""
    packed, plan, theta = work.packed(), work.plan(), np.zeros(work.dim)

    def run() -> None:
        run_rounds(packed, theta, plan, rounds=work.rounds, seed=1)

    times = {}
    for count in (1, 2):
        threads(count)
        run()
        times[count] = seconds(run, repeats)
    return times


def show(title: str, others: dict[str, float], ours: dict[int, float]) -> None:
    print(f"\n{title}")
    for name, taken in others.items():
        ratios = ", ".join(
            f"{taken / t:.1f}x ({count} core{'s' * (count > 1)})"
            for count, t in ours.items()
        )
        print(f"  {name:8s} {1e3 * taken:10.2f} ms   kernels faster by {ratios}")
    for count, taken in ours.items():
        print(f"  kernels  {1e3 * taken:10.2f} ms   {count} core{'s' * (count > 1)}")


def section_w(work: Workload, title: str) -> None:
    others = peers(work, 3)
    ours = kernel_times(work, 11)
    show(title, others, ours)


def section_uploads() -> None:
    """Noise per step against noise per upload: the same batches, and those of sums."""
    many = "2,000 devices x 13 one-hot rows, all rows, tau 10"
    works = {
        "W": one_hot(16, 1628, 256, 50),
        "W2": dense(23, 1519, 100, 256, 20),
        many: one_hot(2000, 13, 13, 20),
    }
    threads(1)
    for title, work in works.items():
        packed, theta, plan = work.packed(), np.zeros(work.dim), work.plan()
        shared = replace(plan, noise_std=0.0, upload_noise=NOISE_STD)
        plans = {
            "noise per step, batches drawn": plan,
            "noise per upload, the same batches": shared,
            "noise per upload, batches in turn": replace(shared, sampling="cyclic"),
        }
        if work.batch == work.x.shape[1]:
            plans["noise per upload, all rows"] = replace(shared, sampling="full")
        times = alternating(
            {
                name: partial(
                    run_rounds, packed, theta, each, rounds=work.rounds, seed=1
                )
                for name, each in plans.items()
            },
            repeats=21,
        )
        steps = len(work.x) * TAU * work.rounds
        print(f"\n{title}, one core, per step of a device")
        first = next(iter(times.values()))
        for name, taken in times.items():
            print(f"  {name:36s} {1e6 * taken / steps:8.3f} us   {first / taken:.2f}x")


def alternating(tasks: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median time of each task; they take turns, after one run each."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            # Of this thread alone: other processes on the machine do not count.
            start = time.thread_time()
            task()
            if repeat > 0:
                times[name].append(time.thread_time() - start)
    return {name: float(np.median(each)) for name, each in times.items()}


def section_sweep() -> None:
    work = one_hot(16, 1628, 256, 50)
    best = min(peers(work, 3, "numpy").values())
    packed, theta = work.packed(), np.zeros(work.dim)
    plans = [work.plan(rate) for rate in np.linspace(0.1, 1.6, 64)]
    for title, candidates, seeds in (
        ("64 plans, common random numbers", plans, [1]),
        ("16 seeds of one plan", plans[:1], list(range(16))),
    ):
        num_runs = len(candidates) * len(seeds)
        ours = {}
        for count in (1, 2):
            threads(count)

            def run(candidates: Any = candidates, seeds: Any = seeds) -> None:
                rounds = [work.rounds] * len(candidates)
                sweep_runs(packed, theta, candidates, rounds=rounds, seeds=seeds)

            run()
            ours[count] = seconds(run, 5) / num_runs
        show(f"W, sweep, per run: {title}", {"NumPy": best}, ours)


def section_many() -> None:
    """100,000 devices: time and peak memory, each in a process of its own."""
    names = ["ours"] + ["jax"] * HAVE_JAX
    results = {name: in_own_process(f"many-{name}") for name in names}
    print("\n100,000 devices x 64 one-hot rows, batch 16, one round of 10 steps")
    for name, figures in results.items():
        print(f"  {name:8s} {figures}")
    if HAVE_JAX:
        time_ratio = results["jax"]["seconds"] / results["ours"]["seconds, 2 cores"]
        memory = results["jax"]["peak GB"] / results["ours"]["peak GB"]
        print(f"  time {time_ratio:.1f}x (2 cores), memory {memory:.1f}x")


def many_ours() -> dict[str, float]:
    work = one_hot(100_000, 64, 16, 1)
    times = kernel_times(work, 5)
    return {
        "seconds, 1 core": times[1],
        "seconds, 2 cores": times[2],
        "peak GB": peak_gb(),
    }


def many_jax() -> dict[str, float]:
    times = peers(one_hot(100_000, 64, 16, 1), 2, "jax")
    return {"seconds": times["JAX"], "peak GB": peak_gb()}


def million() -> dict[str, float]:
    work = one_hot(1_000_000, 64, 16, 1)
    times = kernel_times(work, 1)
    return {"seconds, 2 cores": times[2], "peak GB": peak_gb()}


def section_million() -> None:
    result = in_own_process("million-ours")
    print(f"\n1,000,000 devices x 64 one-hot rows, one round: {result}")


def peak_gb() -> float:
    """Return this process's peak memory (getrusage would count its parent's, too)."""
    with open("/proc/self/status") as lines:
        peak = next(line for line in lines if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1e6


def in_own_process(name: str) -> dict[str, float]:
    command = [sys.executable, __file__, name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def section_growth() -> None:
    print("\nGrowth: 64 one-hot rows per device, batch 16, 10 steps a round")
    for num_devices, rounds in ((16, 500), (1000, 10), (10_000, 1), (100_000, 1)):
        times = kernel_times(one_hot(num_devices, 64, 16, rounds), 5)
        steps = num_devices * rounds * TAU
        each = ", ".join(f"{1e9 * t / steps:.0f} ns ({c})" for c, t in times.items())
        print(f"  {num_devices:7d} devices: per device and step {each}")


def section_limit() -> None:
    """Compare with the sum of the elementary operations at this machine's rates."""
    from limits import rates

    rate = rates()
    print(
        "\nThis machine, one core: "
        + ", ".join(f"{name} {1e9 * cost:.3f} ns" for name, cost in rate.items())
    )
    for title, work in (
        ("W", one_hot(16, 1628, 256, 50)),
        ("W2", dense(23, 1519, 100, 256, 50)),
        ("100,000 devices", one_hot(100_000, 64, 16, 1)),
    ):
        steps = len(work.x) * work.rounds * TAU
        rows = steps * work.batch
        parts = {"normals": steps * work.dim * rate["normal"]}
        if work.loss == "logistic":
            looked_up = rows * len(CATEGORIES)
            if work.batch >= MERGED_BATCH:
                looked_up //= 2  # merged in pairs
            parts["random reads"] = looked_up * rate["table read"]
            parts["random adds"] = looked_up * rate["table add"]
            parts["row reads"] = rows * rate["row read (L1)"]
        else:
            # A row that comes again in the same round is still in the second cache.
            n = work.x.shape[1]
            distinct = n * (1 - (1 - work.batch / n) ** TAU) / (TAU * work.batch)
            memory = rows * distinct * work.dim * rate["float read (rows)"]
            flops = rows * 2 * work.dim * rate["multiply-add"]
            parts["memory (flops beside it)"] = max(memory, flops)
        parts["batches"] = rows * rate["random word"]
        limit = sum(parts.values())
        ours = kernel_times(work, 11)[1]
        listed = ", ".join(f"{name} {1e3 * t:.2f}" for name, t in parts.items())
        print(
            f"  {title}: limit {1e3 * limit:.2f} ms ({listed}); kernels "
            f"{1e3 * ours:.2f} ms on one core: {100 * limit / ours:.0f} % of it"
        )


def section_compile() -> None:
    """Time the first call with an empty cache, in a process of its own."""
    import tempfile

    with tempfile.TemporaryDirectory() as cache:
        code = (
            "import time; t = time.perf_counter(); import numpy as np;"
            "import kernels; work = kernels.one_hot(4, 300, 256, 1);"
            "kernels.kernel_times(work, 1);"
            "print(time.perf_counter() - t)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**__import__("os").environ, "NUMBA_CACHE_DIR": cache},
            cwd=__file__.rsplit("/", 1)[0] or ".",
        )
        print(f"\nFirst call, nothing compiled yet: {float(done.stdout):.1f} s")


def section_wide() -> None:
    for dim, num_devices in ((1_000, 16), (10_000, 4)):
        work = dense(num_devices, 512, dim, 64, 2)
        title = (
            f"Dense rows: {num_devices} devices x 512 rows x {dim} columns, batch 64"
        )
        section_w(work, title)


SECTIONS: dict[str, Callable[[], Any]] = {
    "w": lambda: section_w(
        one_hot(16, 1628, 256, 50),
        "W: 16 devices x 1,628 one-hot rows, logistic, batch 256, tau 10, K 500",
    ),
    "w2": lambda: section_w(
        dense(23, 1519, 100, 256, 50),
        "W2: 23 devices x 1,519 dense rows x 100, hinge, batch 256, tau 10, K 500",
    ),
    "uploads": section_uploads,
    "sweep": section_sweep,
    "wide": section_wide,
    "many": section_many,
    "growth": section_growth,
    "million": section_million,
    "limit": section_limit,
    "compile": section_compile,
}
OWN_PROCESS = {"many-ours": many_ours, "many-jax": many_jax, "million-ours": million}


def main(names: list[str]) -> None:
    if names and names[0] in OWN_PROCESS:
        print(json.dumps({k: round(v, 3) for k, v in OWN_PROCESS[names[0]]().items()}))
        return
    if not HAVE_JAX:
        print("JAX IS NOT INSTALLED: only NumPy is compared. pip install jax")
    for name in names or SECTIONS:
        SECTIONS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
