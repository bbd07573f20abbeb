"""Accuracy by sampling method where samples have a price.

`python benchmarks/batches.py [--splits 20]` prints a Markdown table: test accuracy on
Adult-2 (even shares), mean over devices' own test rows, over splits with one run each,
and its standard error. Every plan is `joint`'s best for its sampling, within the same
epsilon, delta and cost:

    full     all rows in every step
    fixed    drawn again in every step, every row charged in all of them
    cyclic   partitioned once into disjoint batches, used in turn, charged by pass
    poisson  every row drawn independently, amplified by sampling (accountant pld)
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from tables import add_option, header, row, show, standard_error

import fedbudget as fb

EPSILONS, PER_SAMPLE, COST, DELTA = (1, 4, 10), (0.03, 0.1), 1000, 1e-4
SAMPLINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "fixed": {"sampling": "fixed"},
    "cyclic": {"sampling": "cyclic"},
    "poisson": {"accountant": "pld"},
}


def plans(problem: fb.Problem, per_sample: float, epsilon: float) -> list[fb.Plan]:
    """Return the best plan of every sampling."""
    prices = fb.Prices(
        communication=20, computation=0, computation_per_sample=per_sample
    )
    budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
    extra: dict[str, dict[str, Any]] = {"full": {"batch_size": problem.num_samples}}
    return [
        fb.plan(
            problem, budget, prices, **SAMPLINGS[sampling], **extra.get(sampling, {})
        )
        for sampling in SAMPLINGS
    ]


def shape(plan: fb.Plan) -> str:
    """Describe a plan briefly: batch, and steps."""
    batch = "all" if plan.sampling == "full" else f"{int(np.median(plan.batch_size))}"
    return f"{batch}; {plan.tau}x{plan.rounds}"


def table(splits: int) -> Iterator[str]:
    """Yield a line per price and epsilon."""
    splits_data = [fb.load("adult", split="iid", seed=seed) for seed in range(splits)]
    yield from header(["price of a sample", "epsilon", *SAMPLINGS])
    for per_sample in PER_SAMPLE:
        for epsilon in EPSILONS:
            # The plans depend on the sizes only, which are the same for every split.
            candidates = plans(splits_data[0].problem(), per_sample, epsilon)
            accuracies = np.array(
                [
                    fb.sweep(data, candidates, seeds=[seed]).measured["test_accuracy"][
                        :, 0
                    ]
                    for seed, data in enumerate(splits_data)
                ]
            )
            cells = [
                f"{100 * m:.1f} +- {100 * e:.1f} ({shape(plan)})"
                for m, e, plan in zip(
                    accuracies.mean(0),
                    standard_error(accuracies),
                    candidates,
                    strict=True,
                )
            ]
            yield row([per_sample, epsilon, *cells])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=20)
    add_option(parser)
    options = parser.parse_args()
    show("batches", table(options.splits), options.tables)


if __name__ == "__main__":
    main()
