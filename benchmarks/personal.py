"""What adaptation on the device adds: `python benchmarks/personal.py [--quick]`.

Prints one Markdown table of test accuracies in percent, means over devices' own test
rows, then over splits.

    global     the released model of the default plan
    alone      what every device makes of its own rows, without that model
    personal   the released model, adapted by every device; nothing is sent
    gain       personal less the better of the two, and the standard error of its mean

A gain is "better" if its 95% interval (Student's t) lies above zero, "worse" if below;
else "as good" if the interval lies above -0.2 points, and "undecided" if it does not.
New devices had no part in training: they get the released model, and adapt it.
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
TOLERATED = 0.2  # points: what is not worse by more is as good
WORDS = ("better", "as good", "undecided", "worse")
FIRST = 100  # seeds below chose the constants of `fedbudget.simulation.personal`


def adult_on_many(seed: int) -> fb.Dataset:
    return fb.load("adult", split="iid", seed=seed, num_devices=MANY)


IID_MANY = Case(name=f"Adult, i.i.d. on {MANY}", load=adult_on_many, loss="logistic")
IID = Case(name="Adult-2", load=adult("iid"), loss="logistic")
# What a case is, and how many of its devices are new; 0: all train, all adapt.
CASES = (
    *((case, 0) for case in (*PAPER, *UNSEEN, IID_MANY)),
    (replace(IID, name="Adult-2, 4 of 16 new"), 4),
    (replace(IID_MANY, name=f"Adult, 40 of {MANY} new"), 40),
)


def accuracies(case: Case, new: int, seed: int) -> np.ndarray:
    """Return accuracies of one split; shape (budgets, 3): global, alone, personal."""
    data = case.load(seed)
    there, here = fb.hold_out(data, count=new, seed=seed) if new else (data, data)
    plans = [planned(there, case.loss, epsilon, cost) for epsilon, cost in BUDGETS]
    released = fb.sweep(there, plans, seeds=[seed]).theta[:, 0]
    model = here.problem(loss=case.loss).model

    def accuracy(theta: np.ndarray) -> float:
        return 100 * means(measure_devices(here, model, theta))["test_accuracy"]

    found = []
    adapted = adapt_each(here, model, list(released))
    for theta, devices in zip(released, adapted, strict=True):
        own = np.array([device.own for device in devices])
        personal = np.array([device.theta for device in devices])
        found.append([accuracy(theta), accuracy(own), accuracy(personal)])
    return np.array(found)


def verdict(found: np.ndarray) -> tuple[float, float, str]:
    """Return the gain, its standard error and a word; found has shape (splits, 3)."""
    better = found[:, np.argmax(found.mean(0)[:2])]
    gain = found[:, 2] - better
    interval = mean_interval(gain)
    word = "as good" if interval.low > -TOLERATED else "undecided"
    if interval.sign:
        word = "better" if interval.sign > 0 else "worse"
    return interval.mean, float(standard_error(gain)), word


def table(most: int, *, quick: bool) -> Iterator[str]:
    """Yield a line per case and budget, and a count of the verdicts."""
    words = Counter[str]()
    measured = ["global", "alone", "personal", "gain", "verdict"]
    yield from header(["case", "rows", "epsilon", "cost", *measured])
    for case, new in CASES:
        many = case.load is adult_on_many
        if quick and (many or case.loss == "hinge"):
            continue
        # 200 devices take long, and differ less by split: half as many will do.
        splits = 2 if quick else most // 2 if many else most
        seeds = range(FIRST, FIRST + splits)
        found = np.array([accuracies(case, new, seed) for seed in seeds])
        sizes = case.load(FIRST).num_samples
        rows = f"{sizes.min()} to {sizes.max()}" if np.ptp(sizes) else f"{sizes[0]}"
        for (epsilon, cost), each in zip(BUDGETS, found.swapaxes(0, 1), strict=True):
            gain, error, word = verdict(each)
            words[word] += 1
            cells = [f"{mean:.1f}" for mean in each.mean(0)]
            told = f"{gain:+.2f} +- {error:.2f}"
            yield row([case.name, rows, epsilon, cost, *cells, told, word])
    yield ""
    yield ", ".join(f"{words[word]} {word}" for word in WORDS) + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 splits, small cases")
    parser.add_argument("--splits", type=int, default=20)
    add_option(parser)
    asked = parser.parse_args()
    started = time.perf_counter()
    show("personal", table(asked.splits, quick=asked.quick), asked.tables)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
