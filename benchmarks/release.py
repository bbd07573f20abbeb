"""A release against the simulator: exact sums and noise, and what they cost in time.

    python benchmarks/release.py               all sections
    python benchmarks/release.py adult noise   some of them

Both take the local steps of all rounds of the same plan, with noise, after compilation,
in turns; each time is a median. The simulator's are those of `run_rounds`, the
release's those of `ReleaseDevices` without ledgers. The NumPy steps of real devices are
timed in one round and multiplied.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fedbudget as fb
from fedbudget.algorithm import next_shift, weighted_mean
from fedbudget.data import Dataset, Part
from fedbudget.fleet.device.exact_noise import ExactNormals
from fedbudget.fleet.device.exact_steps import ExactRows, noisy_steps
from fedbudget.release.normals import FastNormals
from fedbudget.release.rounds import ReleaseRounds
from fedbudget.release.rows import exact_rows
from fedbudget.simulation.devices import round_plan
from fedbudget.simulation.kernels.runs import run_rounds
from fedbudget.simulation.packing import packed_rows

GOAL = 5.0  # times the simulator's time
REPEATS = 15
BUDGET = fb.Budget(epsilon=4, delta=1e-4, cost=1000)
PRICES = fb.Prices(communication=100, computation=1)
NO_DEAL = np.zeros(0, dtype=np.uint32)


def dense(num_devices: int, num_rows: int, dim: int) -> Dataset:
    """Return synthetic dense rows of norm 1, equally over devices."""
    rng = np.random.default_rng(0)

    def part(count: int) -> Part:
        x = rng.standard_normal((count * num_devices, dim), dtype=np.float32)
        x /= 1.000001 * np.linalg.norm(x, axis=1, keepdims=True)
        y = (x[:, 0] > 0.1 * rng.standard_normal(len(x))).astype(np.int64)
        return Part(x=x, y=y, offsets=np.arange(num_devices + 1) * count)

    return Dataset(
        name="dense",
        train=part(num_rows // num_devices),
        validation=part(2),
        test=part(2),
        device_names=tuple(f"device-{m}" for m in range(num_devices)),
        feature_names=tuple(f"x{i}" for i in range(dim)),
        classes=("0", "1"),
        dissimilarity="iid",
    )


def release(plan: fb.Plan, rounds: ReleaseRounds) -> None:
    """Take all rounds of a plan, as `ReleaseDevices` does."""
    theta = np.zeros(plan.model.num_params(plan.dim))
    shifts = np.zeros((plan.num_devices, len(theta)))
    devices = np.flatnonzero(plan.weights)
    weights = plan.weights[devices] / plan.weights.sum()
    for number in range(plan.rounds):
        own = shifts[devices] if plan.drift_correction else None
        first_step = number * plan.tau
        replies = rounds.replies(
            theta, devices, first_step=first_step, shifts=own, deal=NO_DEAL
        )
        theta = np.asarray(weighted_mean(replies, weights), dtype=np.float64)
        if own is not None:
            shifts[devices] = next_shift(own, replies, theta, tau=plan.tau)


def on_devices(plan: fb.Plan, data: Dataset) -> Callable[[], None]:
    """Return one round of the NumPy steps of real devices."""
    rows = []
    for m in range(data.num_devices):
        x, y = data.train.device(m)
        rows.append(
            ExactRows.rounded(x if isinstance(x, np.ndarray) else x.toarray(), y)
        )

    def run() -> None:
        for m, own in enumerate(rows):
            noisy_steps(
                np.zeros(plan.model.num_params(plan.dim)),
                own,
                loss=plan.model,
                tau=plan.tau,
                learning_rate=plan.learning_rate,
                noise_std=float(plan.noise_std[m]),
                batch_size=int(plan.batch_size[m]),
            )

    return run


def medians(*tasks: Callable[[], Any], repeats: int = REPEATS) -> list[float]:
    """Return the median seconds of tasks that take turns, after a first run each."""
    times: list[list[float]] = [[] for _ in tasks]
    for repeat in range(repeats + 1):
        for task, own in zip(tasks, times, strict=True):
            start = time.perf_counter()
            task()
            if repeat > 0:
                own.append(time.perf_counter() - start)
    return [float(np.median(own)) for own in times]


def compare(title: str, data: Dataset, **options: Any) -> None:
    """Print the times of one plan."""
    plan = fb.plan(data.problem(), BUDGET, PRICES, **options)
    packed = packed_rows(data.train, plan.model)
    rounds = ReleaseRounds.of(plan, exact_rows(data.train, plan.model))
    kernel_plan, theta = round_plan(plan, plan.weights), np.zeros(packed.num_params)
    simulated, released = medians(
        lambda: run_rounds(packed, theta, kernel_plan, rounds=plan.rounds, seed=0),
        lambda: release(plan, rounds),
    )
    (numpy_round,) = medians(on_devices(plan, data), repeats=1)
    in_numpy, ratio = numpy_round * plan.rounds, released / simulated
    print(
        f"| {title} | {plan.sampling}, {plan.rounds} x {plan.tau} "
        f"| {1e3 * simulated:.2f} | {1e3 * released:.2f} | {ratio:.2f} "
        f"| {'yes' if ratio <= GOAL else 'NO'} | {1e3 * in_numpy:.0f} "
        f"| {in_numpy / released:.0f} |"
    )


def table() -> None:
    print(
        "| rows | batches, rounds x tau | simulator, ms | release, ms | ratio "
        f"| at most {GOAL:g} | NumPy, ms | times faster |"
    )
    print("|---|---|---|---|---|---|---|---|")


def adult() -> None:
    """Adult, in both splits."""
    table()
    for split in ("iid", "by-education"):
        compare(f"Adult, {split}", fb.load("adult", split=split))


def dense_rows() -> None:
    """100,000 dense rows of 50 columns."""
    table()
    for num_devices in (1, 16):
        devices = "one device" if num_devices == 1 else f"{num_devices} devices"
        compare(f"100,000 x 50, {devices}", dense(num_devices, 100_000, 50))


def batches() -> None:
    """Batches of 256 rows on Adult, drawn in every step."""
    table()
    for options in ({"sampling": "fixed"}, {"accountant": "pld"}):
        data = fb.load("adult", split="iid")
        compare("Adult, iid", data, batch_size=256, **options)


def noise() -> None:
    """Exact normals."""
    count = 1 << 17
    normals, reference = FastNormals(), ExactNormals()
    fast, slow = medians(
        lambda: normals.draw(count, scale_bits=30),
        lambda: reference.draw(count, scale_bits=30),
        repeats=5,
    )
    print(
        f"an exact normal: {1e9 * fast / count:.1f} ns compiled, "
        f"{1e9 * slow / count:.0f} ns in NumPy"
    )


SECTIONS = {"adult": adult, "dense": dense_rows, "batches": batches, "noise": noise}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        print(f"\n{section}")
        SECTIONS[section]()
