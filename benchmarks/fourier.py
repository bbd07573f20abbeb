"""Random Fourier features: accuracy on the watches, memory and time on a device.

Prints Markdown tables. The first: test accuracy of linear and of Fourier features,
without privacy (centralised) and with each device's own noise, means over the seeds.
With `--others FOLDER`, which holds `vehicle_sample.npz` and `beijing_air.npz` (they are
not part of the project), a table of these without privacy: 5 and 3 seeds, centralised.
The last: what encoding the rows of a device costs, in the blocks that it reads.
"""

import argparse
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from tables import header, row

import fedbudget as fb
from fedbudget.data.beijing import SCHEMA
from fedbudget.data.fourier import FeatureStep, Fourier
from fedbudget.data.wisdm import SCHEMA as WATCHES
from fedbudget.reporting.baselines import centralised

STEPS: dict[str, FeatureStep] = {
    "linear": "linear",
    "fourier:200": "fourier:200",
    "fourier:500": "fourier:500",
    "fourier:500, 1.5 times the scale": Fourier(
        count=500, scale=1.5 * WATCHES.encoding.usual_scale
    ),
}
ROWS = 500  # that a device encodes at a time


def accuracies(epsilons: list[float], seeds: int, cost: float) -> None:
    """Print the test accuracy of every feature step."""
    print(
        *header(["features", "no privacy", *(f"epsilon {e:g}" for e in epsilons)]),
        sep="\n",
    )
    prices = fb.Prices(communication=100, computation=1)
    for name, step in STEPS.items():
        data = fb.load("wisdm", features=step)
        central = centralised(data).measured["test_accuracy"]
        cells = [f"{central:.3f}"]
        for epsilon in epsilons:
            budget = fb.Budget(epsilon=epsilon, delta=1e-5, cost=cost)
            plan = fb.plan(data.problem(), budget, prices)
            swept = fb.sweep(data, [plan], seeds=list(range(seeds)))
            cells.append(f"{swept.measured['test_accuracy'].mean():.3f}")
        print(row([name, *cells]), flush=True)


def vehicle(folder: Path, seed: int, step: FeatureStep) -> fb.Dataset:
    """Return the real sample of Vehicle, whose columns are z-scored."""
    file = np.load(folder / "vehicle_sample.npz")
    names = [f"x{j}" for j in range(file["X"].shape[1])]
    columns = dict(zip(names, file["X"].T.astype(float), strict=True))
    table = columns | {
        "y": np.where(file["y"] > 0, "yes", "no"),
        "sensor": file["sensor"],
    }
    schema = fb.Schema(
        features=dict.fromkeys(names, fb.Numeric(-3, 3)),
        label="y",
        target=fb.Categorical(("no", "yes")),
    )
    return fb.from_table(
        table, label="y", device="sensor", schema=schema, seed=seed, features=step
    )


def beijing(folder: Path, seed: int, step: FeatureStep) -> fb.Dataset:
    """Return 4,000 hours of each station."""
    file, rng = np.load(folder / "beijing_air.npz"), np.random.default_rng(seed)
    station = file["device"]
    rows = np.concatenate(
        [
            rng.choice(np.flatnonzero(station == m), 4000, replace=False)
            for m in range(12)
        ]
    )
    table: dict[str, Any] = {
        str(name): file["x"][rows, j].astype(float)
        for j, name in enumerate(file["x_names"])
    }
    for name, period in (("hour", 24), ("month", 12)):
        angle = 2 * np.pi * file[name][rows] / period
        table |= {f"{name}_sin": np.sin(angle), f"{name}_cos": np.cos(angle)}
    table["wd"] = file["wind_names"][file["wind"][rows]]
    table[SCHEMA.label] = np.where(file["y"][rows] > 0, "yes", "no")
    table["station"] = station[rows]
    return fb.from_table(
        table,
        label=SCHEMA.label,
        device="station",
        schema=SCHEMA,
        seed=seed,
        features=step,
    )


def others(folder: Path) -> None:
    """Print the accuracies of two sets of data that are not part of the project."""
    print(*header(["data", "linear", "usual scale", "1.5 times"]), sep="\n")
    for load, seeds in ((vehicle, 5), (beijing, 3)):
        schema = load(folder, 0, "linear").schema
        assert schema is not None  # given there
        usual = schema.encoding.usual_scale
        steps: list[FeatureStep] = ["linear"]
        steps += [Fourier(count=500, scale=factor * usual) for factor in (1, 1.5)]
        cells = []
        for step in steps:
            scores = [
                centralised(load(folder, seed, step)).measured["test_accuracy"]
                for seed in range(seeds)
            ]
            cells.append(f"{np.mean(scores):.3f}")
        print(row([load.__name__, *cells]), flush=True)


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
    parser.add_argument("--others", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    epsilons = [float(text) for text in options.epsilons.split(",")]
    if options.others is not None:
        others(options.others)
        return
    accuracies(epsilons, options.seeds, options.cost)
    print()
    device_costs()


if __name__ == "__main__":
    main()
