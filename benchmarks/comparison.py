"""Other answers to the same question, side by side: `python benchmarks/comparison.py`.

Every method gets the same epsilon, delta and cost (1000 units; a round costs 100, a
step 1), the same rows and the same seeds; a seed changes the split, the noise and the
batches. Figures are test accuracies in percent, means over the devices' own test sets,
then over seeds, with the standard error of that mean.

    ours                the default plan
    ours, personal      the same model, adapted on every device; nothing sent
    DP-SGD              one step per round; momentum, rate and weights planned
    DP-SGD, tuned       rate, momentum, weights and rounds picked on validation rows
    paper               the paper's planner, its noise and rounding corrected; its rate
                        follows from its own step-size condition, and learns little
    paper, tuned        the same with its rate picked on validation rows
    ALI-DPFL            local iterations computed anew after every round, from constants
                        measured on private rows; rate and noise picked as above
    DP-FedAvg           noise on every round's clipped update: 10 steps, clipping at 1
    one shot            local fits, perturbed, averaged once
    alone               nothing is sent, so no privacy is lost
    centralised DP      all rows in one place, our own noisy gradient descent at the
                        same epsilon and delta: the upper reference
    diffprivlib         all rows in one place, diffprivlib's LogisticRegression (two
                        classes): objective perturbation, of pure epsilon, no delta
    centralised         all rows in one place, no privacy

What is picked or measured on private rows (benchmarks/leaking.py) is marked LEAKS: it
is not private at any epsilon, and shown to be compared with.

`--json FILE` keeps every figure, and only those not yet in the file are computed;
`--replan` computes anew what follows from the default planner. diffprivlib 0.6 needs
scikit-learn below 1.8: an environment of its own may fill its line,

    pip install ".[lab]" pandas diffprivlib "scikit-learn<1.8"
    python benchmarks/comparison.py --methods diffprivlib --json FILE
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import leaking
import methods
import numpy as np
from methods import CASES, Question
from tables import add_option, difference, header, row, show, standard_error

from fedbudget.paper.results import Estimate, mean_interval

METHODS: dict[str, Callable[[Question], Any]] = {
    "ours": methods.ours,
    "ours, personal": methods.personal,
    "DP-SGD": methods.dp_sgd,
    "DP-SGD, tuned": leaking.tuned(leaking.tuned_sgd, leaking.SINGLE),
    "paper": methods.paper,
    "paper, tuned": leaking.tuned(leaking.tuned_paper, leaking.RATES),
    "ALI-DPFL": leaking.tuned(leaking.ali_dpfl, leaking.ADAPTIVE),
    "DP-FedAvg": methods.fedavg,
    "one shot": methods.one_shot,
    "alone": methods.alone,
    "centralised DP": methods.centralised_private,
    "diffprivlib": methods.diffprivlib,
    "centralised": methods.centralised,
}
LEAKS = ("DP-SGD, tuned", "paper, tuned", "ALI-DPFL")
FEDERATED = ("ours", "DP-SGD", "paper", "DP-FedAvg", "one shot", *LEAKS)
PLANNED = ("ours", "ours, personal", "DP-SGD", "centralised DP")
ANY_EPSILON = ("alone", "centralised")  # the same at every epsilon

Known = dict[str, float | None]  # accuracies by `key`


def key(case: str, epsilon: float, seed: int, method: str) -> str:
    shown = "any" if method in ANY_EPSILON else f"{epsilon:g}"
    return f"{case} | {shown} | {seed} | {method}"


def answer(
    known: Known, case: str, epsilon: float, seed: int, methods: list[str]
) -> None:
    """Add the test accuracies that are not yet known, on one split with one seed."""
    missing = [m for m in methods if key(case, epsilon, seed, m) not in known]
    if not missing:
        return
    asked = Question(case, epsilon, seed)
    for method in missing:
        theta = METHODS[method](asked)
        known[key(case, epsilon, seed, method)] = (
            None if theta is None else asked.accuracy(theta)
        )


def table(results: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    """Yield a Markdown table, and where ours is not ahead of a federated answer.

    Ahead is what lies above zero with its 95% interval (Student's t) of the difference:
    methods share their seeds.
    """
    yield from header(["", *results])
    for method in METHODS:
        cells = [_cell(found.get(method)) for found in results.values()]
        if set(cells) != {"-"}:
            yield row([_name(method), *cells])
    yield ""
    for case, found in results.items():
        for other in FEDERATED[1:]:
            if not found.get("ours") or not found.get(other):
                continue
            gap = mean_interval(
                100 * (np.array(found["ours"]) - np.array(found[other]))
            )
            if not gap.low > 0:
                word = "behind" if gap.high < 0 else "not ahead of"
                yield f"- {word} {_name(other)} on {case}: {_told(gap)}"


def _told(gap: Estimate) -> str:
    if gap.low == gap.high == 0:
        return "the same plans"
    return f"ours less theirs {difference(gap)}"


def _name(method: str) -> str:
    return f"{method} (LEAKS)" if method in LEAKS else method


def _cell(values: list[float] | None) -> str:
    if not values:
        return "-"
    array = 100 * np.array(values)
    if len(array) == 1:
        return f"{array[0]:.1f}"
    return f"{array.mean():.1f} +- {standard_error(array):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 seeds, 2 cases")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilons", default="1,4,10")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--methods", default=";".join(METHODS), help="split by ;")
    parser.add_argument("--json", type=Path, help="keep figures here, and reuse them")
    parser.add_argument("--replan", action="store_true", help=f"anew: {PLANNED}")
    add_option(parser)
    asked = parser.parse_args()
    if asked.quick:
        asked.seeds, asked.epsilons, asked.cases = 2, "4", "Adult-1,cancer"
    cases, chosen = asked.cases.split(","), _usable(asked.methods.split(";"))
    epsilons = [float(epsilon) for epsilon in asked.epsilons.split(",")]
    known: Known = {}
    if asked.json and asked.json.exists():
        known = json.loads(asked.json.read_text())
    if asked.replan:
        known = {k: v for k, v in known.items() if k.split(" | ")[-1] not in PLANNED}
    started = time.perf_counter()
    for case in cases:
        for seed in range(asked.seeds):
            for epsilon in epsilons:
                answer(known, case, epsilon, seed, chosen)
            if asked.json:  # an interrupted run goes on from here
                asked.json.write_text(json.dumps(known, indent=0) + "\n")
        print(f"{case}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    for epsilon in epsilons:
        print(f"epsilon {epsilon:g}\n")
        found = {c: figures(known, c, epsilon, range(asked.seeds)) for c in cases}
        show(f"comparison-{epsilon:g}", table(found), asked.tables)


def _usable(chosen: list[str]) -> list[str]:
    """Return the methods without diffprivlib where that is not installed."""
    try:
        from diffprivlib.models import LogisticRegression  # noqa: F401
    except ImportError as error:
        print(
            f"diffprivlib is NOT usable, nothing new from it: {error}", file=sys.stderr
        )
        return [method for method in chosen if method != "diffprivlib"]
    return chosen


def figures(
    known: Known, case: str, epsilon: float, seeds: range
) -> dict[str, list[float]]:
    """Return the accuracies of every method that has answered for all seeds."""
    found: dict[str, list[float]] = {}
    for method in METHODS:
        values = [known.get(key(case, epsilon, seed, method)) for seed in seeds]
        answered = [value for value in values if value is not None]
        if len(answered) == len(values):
            found[method] = answered
    return found


if __name__ == "__main__":
    main()
