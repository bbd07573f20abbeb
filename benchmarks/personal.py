"""The gain of adaptation on the device: `python benchmarks/personal.py [--quick]`.

Prints one Markdown table of test accuracies in percent, means over devices' own test
rows, then over splits.

    global     the released model of the default plan
    local only a model of every device's own rows, without the released model
    personal   the released model, adapted by every device; nothing is sent
    gain       personal minus the better of the two, and the standard error of its mean

A gain is "better" if its 95% interval (Student's t) lies above zero, "worse" if below;
else "as good" if the interval lies above -0.2 points, and "undecided" if it does not.
New devices take no part in training: they get the released model, and adapt it.
"""

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from accuracy import CASES as PAPER, UNSEEN, Case, adult, planned
from tables import add_option, header, row, show, standard_error

import fedbudget as fb
from fedbudget.paper.results import mean_interval
from fedbudget.simulation.measuring import means, measure_devices
from fedbudget.simulation.personal import adapt_each

BUDGETS = tuple(itertools.product((1, 4, 10), (1000, 500)))  # epsilon, cost
MANY = 200
TOLERATED = 0.2  # points: a smaller loss counts as good
WORDS = ("better", "as good", "undecided", "worse")
FIRST = (
    100  # seeds below were used to fit the constants of `fedbudget.simulation.personal`
)


def adult_on_many(seed: int) -> fb.Dataset:
    return fb.load("adult", split="iid", seed=seed, num_devices=MANY)


IID_MANY = Case(name=f"Adult, i.i.d. on {MANY}", load=adult_on_many, loss="logistic")
IID = Case(name="Adult-2", load=adult("iid"), loss="logistic")
# Cases, and how many of their devices are new; 0: all devices train and adapt.
CASES = (
    *((case, 0) for case in (*PAPER, *UNSEEN, IID_MANY)),
    (replace(IID, name="Adult-2, 4 of 16 new"), 4),
    (replace(IID_MANY, name=f"Adult, 40 of {MANY} new"), 40),
)


def accuracies(case: Case, new: int, seed: int) -> np.ndarray:
    """Return accuracies of one split; shape (budgets, 3): global, local, personal."""
    data = case.load(seed)
    training, new_data = (
        fb.hold_out(data, count=new, seed=seed) if new else (data, data)
    )
    plans = [planned(training, case.loss, epsilon, cost) for epsilon, cost in BUDGETS]
    released = fb.sweep(training, plans, seeds=[seed]).theta[:, 0]
    model = new_data.problem(loss=case.loss).model

    def accuracy(theta: np.ndarray) -> float:
        return 100 * means(measure_devices(new_data, model, theta))["test_accuracy"]

    by_budget = []
    adapted = adapt_each(new_data, model, list(released))
    for theta, devices in zip(released, adapted, strict=True):
        own = np.array([device.own for device in devices])
        personal = np.array([device.theta for device in devices])
        by_budget.append([accuracy(theta), accuracy(own), accuracy(personal)])
    return np.array(by_budget)


def verdict(accuracies: np.ndarray) -> tuple[float, float, str]:
    """Return the gain, its standard error and a word, from shape (splits, 3)."""
    better = accuracies[:, np.argmax(accuracies.mean(0)[:2])]
    gain = accuracies[:, 2] - better
    interval = mean_interval(gain)
    word = "as good" if interval.low > -TOLERATED else "undecided"
    if interval.sign:
        word = "better" if interval.sign > 0 else "worse"
    return interval.mean, float(standard_error(gain)), word


def table(max_splits: int, *, quick: bool) -> Iterator[str]:
    """Yield a line per case and budget, and a count of the verdicts."""
    words = Counter[str]()
    measured = ["global", "local only", "personal", "gain", "verdict"]
    yield from header(["case", "rows", "epsilon", "cost", *measured])
    for case, new in CASES:
        many = case.load is adult_on_many
        if quick and (many or case.loss == "hinge"):
            continue
        # 200 devices take long and differ less by split: half as many splits.
        splits = 2 if quick else max_splits // 2 if many else max_splits
        seeds = range(FIRST, FIRST + splits)
        values = np.array([accuracies(case, new, seed) for seed in seeds])
        sizes = case.load(FIRST).num_samples
        rows = f"{sizes.min()} to {sizes.max()}" if np.ptp(sizes) else f"{sizes[0]}"
        for (epsilon, cost), each in zip(BUDGETS, values.swapaxes(0, 1), strict=True):
            gain, error, word = verdict(each)
            words[word] += 1
            cells = [f"{mean:.1f}" for mean in each.mean(0)]
            gain_cell = f"{gain:+.2f} +- {error:.2f}"
            yield row([case.name, rows, epsilon, cost, *cells, gain_cell, word])
    yield ""
    yield ", ".join(f"{words[word]} {word}" for word in WORDS) + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 splits, small cases")
    parser.add_argument("--splits", type=int, default=20)
    add_option(parser)
    options = parser.parse_args()
    started = time.perf_counter()
    show("personal", table(options.splits, quick=options.quick), options.tables)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
