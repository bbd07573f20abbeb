"""What a user's call costs: `fb.train` and `fb.sweep` against the kernels alone.

    python benchmarks/calls.py               W, W2 and 100,000 devices
    python benchmarks/calls.py w --busy      beside a busy process as well

`fb.train` measures the model after every round, charges the ledgers and converts to
epsilon; `fb.sweep` of one run measures the last model. Each is a multiple of the
kernels (`run_rounds`) on the same rows. Calls take turns; times are medians after a
first call, which compiles and packs the rows. The last column compares two threads
with one; with --busy, also beside a process that keeps one core busy.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from kernels import Workload, dense, one_hot, threads
from scipy.sparse import csr_array

import fedbudget as fb
from fedbudget.data.dataset import split_rows
from fedbudget.privacy import GDP
from fedbudget.simulation.devices import round_plan
from fedbudget.simulation.kernels.runs import run_rounds
from fedbudget.simulation.packing import packed_rows

# Rows of a device to train, of 10 / 8 as many: a tenth each is for validation and test.
WORKLOADS: dict[str, tuple[Callable[[], Workload], int]] = {
    "w": (lambda: one_hot(16, 2036, 256, 50), 21),
    "w2": (lambda: dense(23, 1900, 100, 256, 50), 11),
    "many": (lambda: one_hot(100_000, 80, 16, 1), 3),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Calls:
    """The three ways to run one plan on the same rows."""

    data: fb.Dataset
    plan: fb.Plan

    def kernels(self) -> Any:
        """Run the compiled rounds alone."""
        rows = packed_rows(self.data.train, self.plan.model)
        plan = round_plan(self.plan, self.plan.weights)
        start = np.zeros(self.plan.dim)
        return run_rounds(rows, start, plan, rounds=self.plan.rounds, seed=1)

    def sweep(self) -> Any:
        """Run the plan once, and measure the last model."""
        return fb.sweep(self.data, [self.plan], seeds=[1])

    def train(self) -> Any:
        """Run the plan, and measure every round."""
        return fb.train(self.plan, fb.SimulatedDevices(self.data, seed=1))


def calls_of(work: Workload) -> Calls:
    """Return a workload as a data set and a plan."""
    data = dataset(work)
    budget = fb.Budget(epsilon=8.0, delta=1e-5, cost=1e9)
    prices = fb.Prices(communication=100, computation=1)
    settings = work.plan()
    plan = replace(
        fb.plan(data.problem(loss=work.loss), budget, prices),
        tau=settings.tau,
        rounds=work.rounds,
        learning_rate=settings.learning_rate,
        momentum=0.0,
        sampling="fixed",
        batch_size=np.full(data.num_devices, work.batch),
        noise_std=np.full(data.num_devices, float(np.max(settings.noise_std))),
        last_round=None,
        drift_correction=False,
    )
    epsilon = GDP.epsilon(plan.gradients, delta=plan.delta)
    return Calls(data=data, plan=replace(plan, epsilon=epsilon, accountant="gdp"))


def dataset(work: Workload) -> fb.Dataset:
    """Return the rows of a workload as a data set: 80 % are for training."""
    num_devices, n, width = work.x.shape
    x: Any = work.x.reshape(-1, width)
    if work.loss == "logistic":
        values = np.full(x.size, width**-0.5, dtype=np.float32)
        starts = np.arange(len(x) + 1) * width
        columns = x.reshape(-1).astype(np.int32)
        x = csr_array((values, columns, starts), shape=(len(x), work.dim))
    else:
        x = x / np.float32(1.0001)  # inside the unit ball, whatever the rounding
    y = (work.y.reshape(-1) > 0).astype(np.int64)
    train, validation, test = split_rows(x, y, np.repeat(np.arange(num_devices), n))
    return fb.Dataset(
        name="benchmark",
        train=train,
        validation=validation,
        test=test,
        device_names=tuple(map(str, range(num_devices))),
        feature_names=tuple(map(str, range(work.dim))),
        classes=("0", "1"),
        dissimilarity="iid",
    )


def medians(calls: Calls, repeats: int) -> dict[tuple[str, int], float]:
    """Return the median seconds of each call on one thread and on two, in turns."""
    tasks = {
        (name, count): getattr(calls, name)
        for name in ("kernels", "sweep", "train")
        for count in (1, 2)
    }
    times: dict[tuple[str, int], list[float]] = {task: [] for task in tasks}
    for turn in range(repeats + 1):
        for (name, count), task in tasks.items():
            threads(count)
            start = time.perf_counter()
            task()
            if turn > 0:  # the first compiles and packs
                times[name, count].append(time.perf_counter() - start)
    return {task: median(taken) for task, taken in times.items()}


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Keep one core busy with another process."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def show(name: str, calls: Calls, repeats: int, *, busy: bool) -> None:
    """Print the times of a workload, and how they compare."""
    times = medians(calls, repeats)
    beside = "beside a busy process" if busy else "quiet"
    for call in ("kernels", "sweep", "train"):
        one, two = times[call, 1], times[call, 2]
        print(
            f"  {name:5s} {call:8s} {1e3 * two:9.2f} ms, "
            f"{two / times['kernels', 2]:5.2f} times the kernels; one thread "
            f"{1e3 * one:9.2f} ms: two are {one / two:.2f} times as fast ({beside})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="a user's calls against the kernels")
    names = ", ".join(WORKLOADS)
    parser.add_argument("workloads", nargs="*", help=f"of {names}; default: all")
    parser.add_argument("--busy", action="store_true", help="with a busy process too")
    options = parser.parse_args()
    for name in options.workloads or WORKLOADS:
        make, repeats = WORKLOADS[name]
        calls = calls_of(make())
        show(name, calls, repeats, busy=False)
        if options.busy:
            with busy_neighbour():
                show(name, calls, repeats, busy=True)


if __name__ == "__main__":
    main()
