"""Duration of planning: `python benchmarks/planning.py`.

Prints seconds after import, and the peak memory of the process, for a small fleet and
for a million devices that differ in size, budget and price. Each fleet is planned in a
process of its own, so that its peak is its own.
"""

import multiprocessing
import resource
import sys
import time

import numpy as np

import fedbudget as fb

FLEETS = ("16 equal", "16 of Adult's sizes", "1,000,000 equal", "1,000,000 different")
ADULT = [8400, 5832, 4284, 1378, 1105, 940, 853, 746, 516, 460, 411, 346, 330, 266]


def question(fleet: str) -> tuple[fb.Problem, fb.Budget, fb.Prices]:
    rng = np.random.default_rng(0)
    prices = fb.Prices(communication=100, computation=1)
    budget = fb.Budget(epsilon=4.0, delta=1e-4, cost=1000)
    match fleet:
        case "16 equal":
            sizes = np.full(16, 1628)
        case "16 of Adult's sizes":
            sizes = np.array([*ADULT, 134, 40])
        case "1,000,000 equal":
            sizes = np.full(1_000_000, 64)
        case _:
            many = 1_000_000
            sizes = rng.integers(10, 10_000, many)
            budget = fb.Budget(
                epsilon=rng.uniform(0.5, 10, many),
                delta=10 ** rng.uniform(-7, -4, many),
                cost=rng.uniform(500, 2000, many),
            )
            prices = fb.Prices(
                communication=rng.uniform(50, 150, many),
                computation=rng.uniform(0.5, 2, many),
            )
    return fb.Problem(num_samples=sizes, dim=102), budget, prices


def measure(fleet: str) -> str:
    problem, budget, prices = question(fleet)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        plan = fb.plan(problem, budget, prices)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return (
        f"{fleet:>22}  {seconds[0]:8.3f} s first  {np.median(seconds):8.3f} s median"
        f"  {peak:5.2f} GB peak  tau {plan.tau}, rounds {plan.rounds}"
    )


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for fleet in sys.argv[1:] or FLEETS:
            print(pool.apply(measure, (fleet,)), flush=True)
