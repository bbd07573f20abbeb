"""Methods that read private rows to select settings: NOT private, for comparison only.

Two are tuned: all splits use the settings that are best on the validation rows of five
splits, with noise that no score uses. These rows are test rows of other splits, so
tuning gains here at least what it would gain in practice.

ALI-DPFL (Ling, Fu, Wang, Liu and Chen 2023, arXiv 2308.10457) computes the number of
local iterations again after every round, from a strong convexity mu and a dissimilarity
Gamma of the devices that they measure on their rows without noise:

    tau* = sqrt(1 + (4 / mu^2 + 3 G^2 + 2 Gamma T mu + V) / ((2 + 2 / T) (G^2 + V)))

T is how many iterations there will be, V the noise d sigma^2 of the smallest device.
This is the rule of its authors' code (github.com/cheng-t/ALI-DPFL), which also says
how mu and Gamma are measured. Differences: rounds end when the cost is used up, because
no number of rounds is given; G already bounds the gradients, so nothing is clipped; a
batch has all rows, and accounting is exact. Its paper sets the noise (the number of
iterations) and the rate; here they are tuned like the others.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from accuracy import PRICES
from methods import COST, Question

import fedbudget as fb
from fedbudget.paper.cases import Maker, Point, power_weights
from fedbudget.paper.planners import with_assumed_smoothness
from fedbudget.simulation.devices import round_plan
from fedbudget.simulation.kernels.runs import device_replies
from fedbudget.simulation.measuring import measure_all
from fedbudget.simulation.packing import packed_rows

PICKING = 10_000  # first noise seed of the selection; scores use their split's seed
SPLITS = 5  # that settings are selected on

RATES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SINGLE = list(itertools.product(RATES, (0.0, 0.5, 0.8), (0.0, 0.5, 1.0), (3, 6, 9)))
ADAPTIVE = list(itertools.product((10, 30, 90, 270), (1.0, 4.0, 16.0, 64.0)))
_LONGEST = 100  # the largest tau that ALI-DPFL's code allows

Setting = Any  # an entry of one of the lists above


def tuned_sgd(question: Question, seed: int, settings: Sequence[Setting]) -> Any:
    """Return a model per setting: one step per round."""
    maker = Maker(question.problem, "gdp")
    plans = [
        maker.plan(
            Point(
                epsilon=question.epsilon,
                tau=1,
                rounds=rounds,
                learning_rate=rate,
                momentum=momentum,
                power=power,
            )
        )
        for rate, momentum, power, rounds in settings
    ]
    return fb.sweep(question.data, plans, seeds=[seed]).theta[:, 0]


def tuned_paper(question: Question, seed: int, settings: Sequence[Setting]) -> Any:
    """Return a model per learning rate: the paper's planner with that rate.

    It assumes that the rate satisfies the step-size condition. With the analytic
    smoothness only rates that learn nothing do, so the smoothness is assumed.
    """
    plans = [
        fb.plan(
            with_assumed_smoothness(question.problem, rate),
            question.budget,
            PRICES,
            planner="paper",
            learning_rate=rate,
        )
        for rate in settings
    ]
    return fb.sweep(question.data, plans, seeds=[seed]).theta[:, 0]


def ali_dpfl(question: Question, seed: int, settings: Sequence[Setting]) -> Any:
    """Return a model per setting: tau adapted from round to round."""
    return np.array([adaptive_run(question, seed, *setting) for setting in settings])


def adaptive_run(question: Question, seed: int, max_steps: int, rate: float) -> Any:
    """Run ALI-DPFL with noise for at most `max_steps` iterations, within the cost."""
    data, model = question.data, question.problem.model
    whole = Maker(question.problem, "gdp").plan(
        Point(
            epsilon=question.epsilon,
            tau=max_steps,
            rounds=1,
            learning_rate=rate,
            power=1.0,
        )
    )
    weights = power_weights(data.num_samples, 1.0)
    noise = question.problem.num_params * float(whole.noise_std.max()) ** 2
    packed = packed_rows(data.train, model)
    theta = np.zeros(question.problem.num_params)
    steps, cost, tau = 0, 0, 1
    while (now := min(tau, max_steps - steps, COST - cost - 100)) > 0:
        order = round_plan(replace(whole, tau=now), weights)
        replies = device_replies(packed, theta, order, seed=seed, first_step=steps)
        theta = weights @ replies.astype(np.float64)
        steps, cost = steps + now, cost + 100 + now
        mu, gamma = measure_constants(question, replies, theta, weights)
        horizon = min(tau * (COST // (100 + tau)), max_steps)
        tau = local_iterations(
            mu=mu, gamma=gamma, horizon=horizon, lipschitz=model.lipschitz, noise=noise
        )
    return theta


def measure_constants(
    question: Question, replies: Any, theta: Any, weights: Any
) -> Any:
    """Return mu and Gamma, measured on private rows without noise: this leaks."""
    model, mu, gamma = question.problem.model, 0.0, 0.0
    for m, (own, weight) in enumerate(zip(replies, weights, strict=True)):
        x, y = question.data.train.device(m)
        change = model.gradient(own, x, y) - model.gradient(theta, x, y)
        distance = np.linalg.norm(own - theta)
        mu += weight * np.linalg.norm(change) / (distance + 1e-6)
        gamma += weight * (model.value(own, x, y) - model.value(theta, x, y))
    return float(mu), abs(float(gamma))


def local_iterations(
    *, mu: float, gamma: float, horizon: int, lipschitz: float, noise: float
) -> int:
    """Return tau*, a whole number from 1 to 100."""
    square = lipschitz**2
    numerator = 4 / max(mu, 1e-9) ** 2 + 3 * square + 2 * gamma * horizon * mu + noise
    denominator = (2 + 2 / horizon) * (square + noise)
    return int(
        np.clip(np.floor(np.sqrt(1 + numerator / denominator) + 0.5), 1, _LONGEST)
    )


def tuned(
    models: Callable[[Question, int, Sequence[Setting]], Any],
    settings: Sequence[Setting],
) -> Callable[[Question], Any]:
    """Return a method: the setting that is best on validation rows, run once more."""

    @cache
    def best(case: str, epsilon: float) -> Setting:
        total = np.zeros(len(settings))
        for split in range(SPLITS):
            question = Question(case, epsilon, split)
            total += validation(question, models(question, PICKING + split, settings))
        return settings[int(np.argmax(total))]

    def method(question: Question) -> Any:
        setting = best(question.case, question.epsilon)
        return models(question, question.seed, [setting])[0]

    return method


def validation(question: Question, thetas: Any) -> Any:
    """Return the accuracies of models on the devices' validation rows."""
    measured = measure_all(question.data, question.problem.model, np.asarray(thetas))
    return measured["validation_accuracy"]
