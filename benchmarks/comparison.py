"""A comparison with other methods: `python benchmarks/comparison.py`.

Every method gets the same epsilon, delta and cost (1000 units; a round costs 100, a
step 1), the same rows and the same seeds; a seed changes the split, the noise and the
batches. Figures are test accuracies in percent, means over the devices' own test sets,
then over seeds, with the standard error of that mean.

    ours                the default plan
    ours, personal      the same model, adapted on every device; nothing sent
    DP-SGD              one step per round; momentum, rate and weights planned
    DP-SGD, tuned       rate, momentum, weights and rounds selected on validation rows
    paper               the paper's planner, its noise and rounding corrected; its rate
                        follows from its own step-size condition, and learns little
    paper, tuned        the same with its rate selected on validation rows
    ALI-DPFL            local iterations computed after every round from constants
                        measured on private rows; rate and noise selected as above
    DP-FedAvg           noise on every round's clipped update: 10 steps, clipping at 1
    one shot            local fits, perturbed, averaged once
    local only          nothing is sent, so no privacy is lost
    centralised DP      all rows in one place, our own noisy gradient descent at the
                        same epsilon and delta: the upper reference
    diffprivlib         all rows in one place, diffprivlib's LogisticRegression (two
                        classes): objective perturbation, of pure epsilon, no delta
    centralised         all rows in one place, no privacy

Methods that select or measure on private rows (benchmarks/leaking.py) are marked LEAKS:
they are not private at any epsilon, and are shown for comparison only.

`--json FILE` stores every result, and only missing results are computed; `--replan`
computes again what depends on the default planner. diffprivlib 0.6 needs
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
LABELS = {"alone": "local only"}  # in tables; files have the names above

Results = dict[str, float | None]  # accuracies by `key`


def key(case: str, epsilon: float, seed: int, method: str) -> str:
    shown = "any" if method in ANY_EPSILON else f"{epsilon:g}"
    return f"{case} | {shown} | {seed} | {method}"


def answer(
    results: Results, case: str, epsilon: float, seed: int, methods: list[str]
) -> None:
    """Add the missing test accuracies, on one split with one seed."""
    missing = [m for m in methods if key(case, epsilon, seed, m) not in results]
    if not missing:
        return
    question = Question(case, epsilon, seed)
    for method in missing:
        theta = METHODS[method](question)
        results[key(case, epsilon, seed, method)] = (
            None if theta is None else question.accuracy(theta)
        )


def table(accuracies: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    """Yield a Markdown table, and where ours is not ahead of a federated method.

    Ahead: the 95% interval (Student's t) of the paired difference is above zero.
    """
    yield from header(["", *accuracies])
    for method in METHODS:
        cells = [_cell(by_method.get(method)) for by_method in accuracies.values()]
        if set(cells) != {"-"}:
            yield row([_name(method), *cells])
    yield ""
    for case, by_method in accuracies.items():
        for other in FEDERATED[1:]:
            if not by_method.get("ours") or not by_method.get(other):
                continue
            gap = mean_interval(
                100 * (np.array(by_method["ours"]) - np.array(by_method[other]))
            )
            if not gap.low > 0:
                word = "behind" if gap.high < 0 else "not ahead of"
                yield f"- {word} {_name(other)} on {case}: {_gap_text(gap)}"


def _gap_text(gap: Estimate) -> str:
    if gap.low == gap.high == 0:
        return "the same plans"
    return f"ours less theirs {difference(gap)}"


def _name(method: str) -> str:
    label = LABELS.get(method, method)
    return f"{label} (LEAKS)" if method in LEAKS else label


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
    parser.add_argument("--json", type=Path, help="store results here, and reuse them")
    parser.add_argument(
        "--replan", action="store_true", help=f"compute again: {PLANNED}"
    )
    add_option(parser)
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.epsilons, options.cases = 2, "4", "Adult-1,cancer"
    cases, selected = options.cases.split(","), _usable(options.methods.split(";"))
    epsilons = [float(epsilon) for epsilon in options.epsilons.split(",")]
    results: Results = {}
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text())
    if options.replan:
        results = {
            k: v for k, v in results.items() if k.split(" | ")[-1] not in PLANNED
        }
    started = time.perf_counter()
    for case in cases:
        for seed in range(options.seeds):
            for epsilon in epsilons:
                answer(results, case, epsilon, seed, selected)
            if options.json:  # an interrupted run continues from here
                options.json.write_text(json.dumps(results, indent=0) + "\n")
        print(f"{case}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    for epsilon in epsilons:
        print(f"epsilon {epsilon:g}\n")
        accuracies = {
            c: figures(results, c, epsilon, range(options.seeds)) for c in cases
        }
        show(f"comparison-{epsilon:g}", table(accuracies), options.tables)


def _usable(names: list[str]) -> list[str]:
    """Return the methods, without diffprivlib if that is not installed."""
    try:
        from diffprivlib.models import LogisticRegression  # noqa: F401
    except ImportError as error:
        print(
            f"diffprivlib is NOT usable, nothing new from it: {error}", file=sys.stderr
        )
        return [name for name in names if name != "diffprivlib"]
    return names


def figures(
    results: Results, case: str, epsilon: float, seeds: range
) -> dict[str, list[float]]:
    """Return the accuracies of every method that has results for all seeds."""
    complete: dict[str, list[float]] = {}
    for method in METHODS:
        values = [results.get(key(case, epsilon, seed, method)) for seed in seeds]
        answered = [value for value in values if value is not None]
        if len(answered) == len(values):
            complete[method] = answered
    return complete


if __name__ == "__main__":
    main()
