"""Other answers to the same question, side by side: `python benchmarks/comparison.py`.

Every method gets the same epsilon, delta and cost (1000 units; a round costs 100, a
step 1), the same rows and the same seeds; a seed changes the split, the noise and the
batches. Figures are test accuracies in percent, means over the devices' own test sets,
then over seeds, with the standard error of that mean.

    ours                the default plan
    ours, personal      the same model, adapted on every device; nothing sent
    DP-SGD              one step per round, momentum and rate planned, weights uniform
    paper               the paper's planner, its noise and rounding corrected
    bound, leaking      local iterations from a convergence bound whose constants are
                        measured on the private rows without noise, as ALI-DPFL's are:
                        NOT private, and shown to be compared with
    DP-FedAvg           noise on every round's clipped update: 10 steps, clipping at 1
    one shot            local fits, perturbed, averaged once
    alone               nothing is sent, so no privacy is lost
    centralised DP      all rows in one place, the same epsilon: an upper reference
    diffprivlib         the same with diffprivlib's LogisticRegression (two classes);
                        its epsilon is pure: no delta
    centralised         all rows in one place, no privacy

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
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import CASES as PAPER, DELTA, PRICES, UNSEEN, planned
from personal import IID_MANY

import fedbudget as fb
from fedbudget import baselines
from fedbudget.devices.measuring import means, measure_devices
from fedbudget.devices.personal import adapt_all
from fedbudget.privacy import GDP

COST = 1000
NAMES = ("Adult-1", "Adult-2", "Vehicle-1", "Vehicle-2", "digits", "cancer")
CASES = dict(zip(NAMES, (*PAPER, *UNSEEN), strict=True)) | {"Adult/200": IID_MANY}
MOST_SEEDS = {"Adult/200": 10}  # 200 devices adapt: that takes long


class Question:
    """One case, split by a seed, and one epsilon; what methods share is kept."""

    def __init__(self, case: str, epsilon: float, seed: int) -> None:
        self.loss, self.epsilon, self.seed = CASES[case].loss, epsilon, seed
        self.data = CASES[case].load(seed)
        self.problem = self.data.problem(loss=self.loss)
        self.budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)

    @cached_property
    def ours(self) -> Any:
        """The model of the default plan."""
        return self.run(planned(self.data, self.loss, self.epsilon, COST))

    def run(self, plan: fb.Plan) -> Any:
        """Return the model that a plan releases."""
        return fb.sweep(self.data, [plan], seeds=[self.seed]).theta[0, 0]

    def accuracy(self, theta: Any) -> float:
        """Measure one model for all, or one each."""
        found = measure_devices(self.data, self.problem.model, theta)
        return means(found)["test_accuracy"]


def personal(asked: Question) -> Any:
    adapted = adapt_all(asked.data, asked.problem.model, asked.ours)
    return np.array([own.theta for own in adapted])


def dp_sgd(asked: Question) -> Any:
    # One step per round: a step costs what a round with one costs, an upload nothing.
    single = fb.Prices(communication=0, computation=101)
    plan = fb.plan(
        asked.problem, asked.budget, single, weights="uniform", drift_control=False
    )
    return asked.run(replace(plan, tau=1, rounds=plan.steps))


def paper(asked: Question) -> Any:
    return asked.run(fb.plan(asked.problem, asked.budget, PRICES, planner="paper"))


def bound_leaking(asked: Question) -> Any:
    train = asked.data.train
    rows = train.x if isinstance(train.x, np.ndarray) else train.x[:4000]
    # They are not public.
    leaking = asked.problem.with_public_sample(rows, train.y[: rows.shape[0]])
    return asked.run(fb.plan(leaking, asked.budget, PRICES, planner="bound"))


def fedavg(asked: Question) -> Any:
    """DP-FedAvg for single samples: local steps without noise, noise on the update.

    Replacing a sample moves an update by at most twice its clipping norm, and by at
    most tau eta 2 G / N: steps of a convex, smooth loss do not spread. The less counts.
    """
    data, model = asked.data, asked.problem.model
    tau, eta, clip = 10, 2.0, 1.0
    rounds, sizes = COST // (100 + tau), data.num_samples
    smooth = np.isfinite(model.smoothness)
    moves = np.full(len(sizes), 2 * clip)
    if smooth:
        moves = np.minimum(moves, tau * eta * 2 * model.lipschitz / sizes)
    std = moves * rounds**0.5 / float(GDP.mu_from_epsilon(asked.epsilon, DELTA))
    rng = np.random.default_rng(asked.seed)
    theta = np.zeros(model.num_params(data.dim))
    for _ in range(rounds):
        total = np.zeros_like(theta)
        for m in range(data.num_devices):
            x, y = data.train.device(m)
            local = theta.copy()
            for _ in range(tau):
                local -= eta * model.gradient(local, x, y)
            update = local - theta
            update *= min(1.0, clip / max(float(np.linalg.norm(update)), 1e-12))
            noise = std[m] * rng.standard_normal(len(theta))
            total += sizes[m] / sizes.sum() * (update + noise)
        theta = theta + total
    return theta


def one_shot(asked: Question) -> Any:
    given = {"epsilon": asked.epsilon, "delta": DELTA, "loss": asked.loss}
    return baselines.one_shot(asked.data, **given, seed=asked.seed).theta


def centralised_private(asked: Question) -> Any:
    given = {"epsilon": asked.epsilon, "delta": DELTA, "loss": asked.loss}
    found = baselines.centralised_private(asked.data, **given, seeds=[asked.seed])
    return found[0].theta


def diffprivlib(asked: Question) -> Any:
    """All rows in one place, by diffprivlib; None for more than two classes."""
    from diffprivlib.models import LogisticRegression

    train = asked.data.train
    if asked.data.num_classes != 2:
        return None
    x = train.x if isinstance(train.x, np.ndarray) else train.x.toarray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(
            epsilon=asked.epsilon,
            data_norm=1.0,
            fit_intercept=False,
            random_state=asked.seed,
        ).fit(x.astype(np.float64), train.y)
    return np.asarray(model.coef_).reshape(-1)


METHODS: dict[str, Callable[[Question], Any]] = {
    "ours": lambda asked: asked.ours,
    "ours, personal": personal,
    "DP-SGD": dp_sgd,
    "paper": paper,
    "bound, leaking": bound_leaking,
    "DP-FedAvg": fedavg,
    "one shot": one_shot,
    "alone": lambda asked: baselines.local_only(asked.data, loss=asked.loss).theta,
    "centralised DP": centralised_private,
    "diffprivlib": diffprivlib,
    "centralised": lambda asked: (
        baselines.centralised(asked.data, loss=asked.loss, target="uniform").theta
    ),
}
FEDERATED = ("ours", "DP-SGD", "paper", "bound, leaking", "DP-FedAvg", "one shot")
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


def show(results: dict[str, dict[str, list[float]]], epsilon: float) -> None:
    """Print a Markdown table, and where ours is not ahead of every federated answer."""
    print(f"\nepsilon {epsilon:g}\n\n| | {' | '.join(results)} |")
    print("|---" * (len(results) + 1) + "|")
    for method in METHODS:
        cells = [_cell(found.get(method)) for found in results.values()]
        if set(cells) != {"-"}:
            print(f"| {method} | {' | '.join(cells)} |")
    print()
    for case, found in results.items():
        for other in FEDERATED[1:]:
            if not found.get("ours") or not found.get(other):
                continue
            gap = 100 * (np.array(found["ours"]) - np.array(found[other]))
            error = gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else np.inf
            if gap.mean() <= 2 * error:  # seeds are shared: errors of the difference
                ours = f"ours less theirs {gap.mean():+.2f} +- {error:.2f}"
                print(f"- not ahead of {other} on {case}: {ours}")


def _cell(values: list[float] | None) -> str:
    if not values:
        return "-"
    array = 100 * np.array(values)
    if len(array) == 1:
        return f"{array[0]:.1f}"
    return f"{array.mean():.1f} +- {array.std(ddof=1) / len(array) ** 0.5:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 seeds, 2 cases")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epsilons", default="1,4,10")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--methods", default=";".join(METHODS), help="split by ;")
    parser.add_argument("--json", type=Path, help="keep figures here, and reuse them")
    parser.add_argument("--replan", action="store_true", help=f"anew: {PLANNED}")
    asked = parser.parse_args()
    if asked.quick:
        asked.seeds, asked.epsilons, asked.cases = 2, "4", "Adult-1,cancer"
    cases, methods = asked.cases.split(","), asked.methods.split(";")
    epsilons = [float(epsilon) for epsilon in asked.epsilons.split(",")]
    seeds = {case: range(min(asked.seeds, MOST_SEEDS.get(case, 99))) for case in cases}
    known: Known = {}
    if asked.json and asked.json.exists():
        known = json.loads(asked.json.read_text())
    if asked.replan:
        known = {k: v for k, v in known.items() if k.split(" | ")[-1] not in PLANNED}
    try:
        from diffprivlib.models import LogisticRegression  # noqa: F401
    except ImportError as error:
        print(
            f"diffprivlib is NOT usable, nothing new from it: {error}", file=sys.stderr
        )
        methods = [method for method in methods if method != "diffprivlib"]
    started = time.perf_counter()
    for case in cases:
        for seed in seeds[case]:
            for epsilon in epsilons:
                answer(known, case, epsilon, seed, methods)
        if asked.json:
            asked.json.write_text(json.dumps(known, indent=0) + "\n")
        print(f"{case}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    for epsilon in epsilons:
        show({c: figures(known, c, epsilon, seeds[c]) for c in cases}, epsilon)


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
