"""Answers that look at private rows to choose: NOT private, shown to be compared with.

Two are tuned: the settings that do best on the validation rows of five splits, with
noise that no score uses, are taken for all splits. Those rows are other splits' test
rows: what tuning gains here is at least what it would gain in earnest.

ALI-DPFL (Ling, Fu, Wang, Liu and Chen 2023, arXiv 2308.10457) computes the number of
local iterations anew after every round, from a strong convexity mu and an unlikeness
Gamma of the devices that they measure on their rows without noise:

    tau* = sqrt(1 + (4 / mu^2 + 3 G^2 + 2 Gamma T mu + V) / ((2 + 2 / T) (G^2 + V)))

T is how many iterations there will be, V the noise d sigma^2 of the smallest device.
This is the rule of its authors' code (github.com/cheng-t/ALI-DPFL), which also says
how mu and Gamma are read off. What differs: rounds end when the cost is used up, for
there is no number of rounds given; G bounds gradients already, so that nothing is
clipped; all rows are in a batch, and noise is accounted for exactly. The paper is given
its noise (so many iterations in all) and its rate: here they are tuned like the others.
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
from fedbudget.simulation.devices import packed_rows, round_plan
from fedbudget.simulation.kernels.runs import device_replies
from fedbudget.simulation.measuring import measure_all

PICKING = 10_000  # first noise seed of picking; scores have the seed of their split
SPLITS = 5  # that settings are picked on

RATES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SINGLE = list(itertools.product(RATES, (0.0, 0.5, 0.8), (0.0, 0.5, 1.0), (3, 6, 9)))
ADAPTIVE = list(itertools.product((10, 30, 90, 270), (1.0, 4.0, 16.0, 64.0)))
_LONGEST = 100  # the largest tau that ALI-DPFL's code allows

Setting = Any  # an entry of one of the lists above


def tuned_sgd(asked: Question, seed: int, settings: Sequence[Setting]) -> Any:
    """Return a model per setting: one step per round."""
    maker = Maker(asked.problem, "gdp")
    plans = [
        maker.plan(
            Point(
                epsilon=asked.epsilon,
                tau=1,
                rounds=rounds,
                learning_rate=rate,
                momentum=momentum,
                power=power,
            )
        )
        for rate, momentum, power, rounds in settings
    ]
    return fb.sweep(asked.data, plans, seeds=[seed]).theta[:, 0]


def tuned_paper(asked: Question, seed: int, settings: Sequence[Setting]) -> Any:
    """Return a model per learning rate: the paper's planner, told that rate.

    It assumes that its rate keeps its step-size condition; with the analytic smoothness
    only rates that learn nothing do, so the smoothness is what it has to be.
    """
    plans = [
        fb.plan(
            with_assumed_smoothness(asked.problem, rate),
            asked.budget,
            PRICES,
            planner="paper",
            learning_rate=rate,
        )
        for rate in settings
    ]
    return fb.sweep(asked.data, plans, seeds=[seed]).theta[:, 0]


def ali_dpfl(asked: Question, seed: int, settings: Sequence[Setting]) -> Any:
    """Return a model per setting: tau adapted from round to round."""
    return np.array([adaptive_run(asked, seed, *setting) for setting in settings])


def adaptive_run(asked: Question, seed: int, most: int, rate: float) -> Any:
    """Run ALI-DPFL with noise for at most so many iterations, within the cost."""
    data, model = asked.data, asked.problem.model
    whole = Maker(asked.problem, "gdp").plan(
        Point(epsilon=asked.epsilon, tau=most, rounds=1, learning_rate=rate, power=1.0)
    )
    weights = power_weights(data.num_samples, 1.0)
    noise = asked.problem.num_params * float(whole.noise_std.max()) ** 2
    packed = packed_rows(data.train, model)
    theta = np.zeros(asked.problem.num_params)
    steps, cost, tau = 0, 0, 1
    while (now := min(tau, most - steps, COST - cost - 100)) > 0:
        order = round_plan(replace(whole, tau=now), weights)
        replies = device_replies(packed, theta, order, seed=seed, first_step=steps)
        theta = weights @ replies.astype(np.float64)
        steps, cost = steps + now, cost + 100 + now
        mu, gamma = read_off(asked, replies, theta, weights)
        horizon = min(tau * (COST // (100 + tau)), most)
        tau = local_iterations(
            mu=mu, gamma=gamma, horizon=horizon, lipschitz=model.lipschitz, noise=noise
        )
    return theta


def read_off(asked: Question, replies: Any, theta: Any, weights: Any) -> Any:
    """Return mu and Gamma, measured on private rows without noise: this leaks."""
    model, mu, gamma = asked.problem.model, 0.0, 0.0
    for m, (own, weight) in enumerate(zip(replies, weights, strict=True)):
        x, y = asked.data.train.device(m)
        turned = model.gradient(own, x, y) - model.gradient(theta, x, y)
        apart = np.linalg.norm(own - theta)
        mu += weight * np.linalg.norm(turned) / (apart + 1e-6)
        gamma += weight * (model.value(own, x, y) - model.value(theta, x, y))
    return float(mu), abs(float(gamma))


def local_iterations(
    *, mu: float, gamma: float, horizon: int, lipschitz: float, noise: float
) -> int:
    """Return tau*, a whole number from 1 to 100."""
    square = lipschitz**2
    above = 4 / max(mu, 1e-9) ** 2 + 3 * square + 2 * gamma * horizon * mu + noise
    below = (2 + 2 / horizon) * (square + noise)
    return int(np.clip(np.floor(np.sqrt(1 + above / below) + 0.5), 1, _LONGEST))


def tuned(
    models: Callable[[Question, int, Sequence[Setting]], Any],
    settings: Sequence[Setting],
) -> Callable[[Question], Any]:
    """Return a method: the setting that is best on validation rows, run once more."""

    @cache
    def best(case: str, epsilon: float) -> Setting:
        total = np.zeros(len(settings))
        for split in range(SPLITS):
            asked = Question(case, epsilon, split)
            total += validation(asked, models(asked, PICKING + split, settings))
        return settings[int(np.argmax(total))]

    def method(asked: Question) -> Any:
        chosen = best(asked.case, asked.epsilon)
        return models(asked, asked.seed, [chosen])[0]

    return method


def validation(asked: Question, thetas: Any) -> Any:
    """Return the accuracies of models on the devices' validation rows."""
    found = measure_all(asked.data, asked.problem.model, np.asarray(thetas))
    return found["validation_accuracy"]
