"""The private methods that benchmarks/comparison.py compares.

Every method gets a `Question` and returns one model for all devices, or one each. The
methods that read private rows to select settings are in benchmarks/leaking.py.
"""

import warnings
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from accuracy import CASES as PAPER, DELTA, PRICES, UNSEEN, planned
from personal import IID_MANY

import fedbudget as fb
from fedbudget.privacy import GDP
from fedbudget.reporting import baselines
from fedbudget.simulation.measuring import means, measure_devices
from fedbudget.simulation.personal import adapt_all

COST = 1000
NAMES = ("Adult-1", "Adult-2", "Vehicle-1", "Vehicle-2", "digits", "cancer")
CASES = dict(zip(NAMES, (*PAPER, *UNSEEN), strict=True)) | {"Adult/200": IID_MANY}


@cache
def rows(case: str, seed: int) -> fb.Dataset:
    """Return one split of a case, loaded once."""
    return CASES[case].load(seed)


class Question:
    """One case, split by a seed, and one epsilon, with what the methods share."""

    def __init__(self, case: str, epsilon: float, seed: int) -> None:
        self.case, self.epsilon, self.seed = case, epsilon, seed
        self.loss, self.data = CASES[case].loss, rows(case, seed)
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
        """Measure one model for all devices, or one each."""
        measured = measure_devices(self.data, self.problem.model, theta)
        return means(measured)["test_accuracy"]


def ours(question: Question) -> Any:
    return question.ours


def personal(question: Question) -> Any:
    adapted = adapt_all(question.data, question.problem.model, question.ours)
    return np.array([own.theta for own in adapted])


def single_steps(problem: fb.Problem, budget: fb.Budget) -> fb.Plan:
    """Return the best plan of one step per round: rate, momentum, weights planned."""
    # A step costs as much as a round of one step, an upload costs nothing.
    single = fb.Prices(communication=0, computation=101)
    plan = fb.plan(problem, budget, single, drift_correction=False)
    decay = plan.noise_decay ** (1 / plan.tau)  # the same fall, in smaller parts
    return replace(plan, tau=1, rounds=plan.steps, noise_decay=decay)


def dp_sgd(question: Question) -> Any:
    return question.run(single_steps(question.problem, question.budget))


def paper(question: Question) -> Any:
    return question.run(
        fb.plan(question.problem, question.budget, PRICES, planner="paper")
    )


def fedavg(question: Question) -> Any:
    """DP-FedAvg for single samples: local steps without noise, noise on the update.

    Replacing a sample moves an update by at most twice its clipping norm, and by at
    most tau eta 2 G / N, as steps of a convex, smooth loss do not spread. The smaller
    bound is used.
    """
    data, model = question.data, question.problem.model
    tau, eta, clip = 10, 2.0, 1.0
    rounds, sizes = COST // (100 + tau), data.num_samples
    smooth = np.isfinite(model.smoothness)
    moves = np.full(len(sizes), 2 * clip)
    if smooth:
        moves = np.minimum(moves, tau * eta * 2 * model.lipschitz / sizes)
    std = moves * rounds**0.5 / float(GDP.mu_from_epsilon(question.epsilon, DELTA))
    rng = np.random.default_rng(question.seed)
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


def one_shot(question: Question) -> Any:
    fitted = baselines.one_shot(
        question.data,
        epsilon=question.epsilon,
        delta=DELTA,
        loss=question.loss,
        seed=question.seed,
    )
    return fitted.theta


def alone(question: Question) -> Any:
    return baselines.local_only(question.data, loss=question.loss).theta


def centralised_private(question: Question) -> Any:
    fitted = baselines.centralised_private(
        question.data,
        epsilon=question.epsilon,
        delta=DELTA,
        loss=question.loss,
        seeds=[question.seed],
    )
    return fitted[0].theta


def diffprivlib(question: Question) -> Any:
    """All rows in one place, by diffprivlib; None for more than two classes."""
    from diffprivlib.models import LogisticRegression

    train = question.data.train
    if question.data.num_classes != 2:
        return None
    x = train.x if isinstance(train.x, np.ndarray) else train.x.toarray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(
            epsilon=question.epsilon,
            data_norm=1.0,
            fit_intercept=False,
            random_state=question.seed,
        ).fit(x.astype(np.float64), train.y)
    return np.asarray(model.coef_).reshape(-1)


def centralised(question: Question) -> Any:
    return baselines.centralised(
        question.data, loss=question.loss, target="uniform"
    ).theta
