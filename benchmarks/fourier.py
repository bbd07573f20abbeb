"""Random Fourier features: accuracy on the watches, memory and time on a device.

Prints two Markdown tables. The first: test accuracy of linear and of Fourier features,
without privacy (centralised) and with each device's own noise, means over the seeds.
The second: what encoding the rows of a device costs, in the blocks that it reads.
"""

import argparse
import time
import tracemalloc

import numpy as np
from tables import header, row

import fedbudget as fb
from fedbudget.data.fourier import Fourier
from fedbudget.reporting.baselines import centralised

STEPS = ("linear", "fourier:200", "fourier:500")
ROWS = 500  # that a device encodes at a time


def accuracies(epsilons: list[float], seeds: int, cost: float) -> None:
    """Print the test accuracy of every feature step."""
    print(
        *header(["features", "no privacy", *(f"epsilon {e:g}" for e in epsilons)]),
        sep="\n",
    )
    prices = fb.Prices(communication=100, computation=1)
    for step in STEPS:
        data = fb.load("wisdm", features=step)
        central = centralised(data).measured["test_accuracy"]
        cells = [f"{central:.3f}"]
        for epsilon in epsilons:
            budget = fb.Budget(epsilon=epsilon, delta=1e-5, cost=cost)
            plan = fb.plan(data.problem(), budget, prices)
            swept = fb.sweep(data, [plan], seeds=list(range(seeds)))
            cells.append(f"{swept.measured['test_accuracy'].mean():.3f}")
        print(row([step, *cells]), flush=True)


def device_costs() -> None:
    """Print memory and time of encoding one block of rows."""
    names = ("columns", "features", "first block (ms)", "next (ms)", "peak (MiB)")
    print(*header(names), sep="\n")
    for columns, count in ((51, 500), (51, 5000), (1000, 500), (1000, 5000)):
        z = np.random.default_rng(0).uniform(-1, 1, (ROWS, columns))
        step = Fourier(count=count, scale=2.0, seed=columns + count)
        started = time.perf_counter()
        step.encode(z)
        first = time.perf_counter() - started
        started = time.perf_counter()
        step.encode(z)
        later = time.perf_counter() - started
        tracemalloc.start()
        step.encode(z)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        numbers = (f"{1000 * first:.0f}", f"{1000 * later:.0f}", f"{peak / 2**20:.1f}")
        print(row([columns, count, *numbers]), flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilons", default="1,4,10")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--cost", type=float, default=5000)
    options = parser.parse_args()
    epsilons = [float(text) for text in options.epsilons.split(",")]
    accuracies(epsilons, options.seeds, options.cost)
    print()
    device_costs()


if __name__ == "__main__":
    main()
