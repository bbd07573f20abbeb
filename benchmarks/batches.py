"""What a way to draw batches buys where samples have a price.

`python benchmarks/batches.py [--splits 20]` prints a Markdown table: test accuracy on
Adult-2 (dealt out evenly), mean over devices' own test rows, over splits with one run
each; its standard error in the last digits. Every plan is `joint`'s best for its way,
within the same epsilon, delta and cost:

    full     all rows in every step
    fixed    drawn anew in every step, every row counted into all of them
    cyclic   dealt once into disjoint batches, taken in turn, counted by the pass
    poisson  every row drawn on its own, amplified by sampling (accountant pld)
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from tables import add_option, header, row, show, standard_error

import fedbudget as fb

EPSILONS, PER_SAMPLE, COST, DELTA = (1, 4, 10), (0.03, 0.1), 1000, 1e-4
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "fixed": {"sampling": "fixed"},
    "cyclic": {"sampling": "cyclic"},
    "poisson": {"accountant": "pld"},
}


def plans(problem: fb.Problem, per_sample: float, epsilon: float) -> list[fb.Plan]:
    """Return the best plan of every way."""
    prices = fb.Prices(
        communication=20, computation=0, computation_per_sample=per_sample
    )
    budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
    given: dict[str, dict[str, Any]] = {"full": {"batch_size": problem.num_samples}}
    return [
        fb.plan(problem, budget, prices, **WAYS[way], **given.get(way, {}))
        for way in WAYS
    ]


def shape(plan: fb.Plan) -> str:
    """Describe a plan in a few signs: batch, and steps."""
    batch = "all" if plan.sampling == "full" else f"{int(np.median(plan.batch_size))}"
    return f"{batch}; {plan.tau}x{plan.rounds}"


def table(splits: int) -> Iterator[str]:
    """Yield a line per price and epsilon."""
    every = [fb.load("adult", split="iid", seed=seed) for seed in range(splits)]
    yield from header(["price of a sample", "epsilon", *WAYS])
    for per_sample in PER_SAMPLE:
        for epsilon in EPSILONS:
            # The plans know the sizes alone: they are the same for every split.
            chosen = plans(every[0].problem(), per_sample, epsilon)
            found = np.array(
                [
                    fb.sweep(data, chosen, seeds=[seed]).measured["test_accuracy"][:, 0]
                    for seed, data in enumerate(every)
                ]
            )
            cells = [
                f"{100 * m:.1f} +- {100 * e:.1f} ({shape(plan)})"
                for m, e, plan in zip(
                    found.mean(0), standard_error(found), chosen, strict=True
                )
            ]
            yield row([per_sample, epsilon, *cells])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=20)
    add_option(parser)
    asked = parser.parse_args()
    show("batches", table(asked.splits), asked.tables)


if __name__ == "__main__":
    main()
