"""Says when not to federate, before a run and after one."""

from dataclasses import replace

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.planning.advice import advise, loss_alone
from fedbudget.planning.spectral import Spectrum
from fedbudget.training import Run
from tests.examples import round_of

PRICES = fb.Prices(communication=100, computation=1)


def planned(epsilon: float, rows: int, devices: int, dissimilarity: str) -> fb.Plan:
    problem = fb.Problem(
        num_samples=[rows] * devices, dim=102, dissimilarity=dissimilarity
    )
    return fb.plan(problem, fb.Budget(epsilon=epsilon, cost=1000), PRICES)


def test_few_alike_rows_are_worth_federating_and_many_unlike_ones_are_not() -> None:
    assert planned(10, 130, 200, "iid").advice == ""
    many = planned(1, 20_000, 16, "strong")
    assert "train alone" in many.advice and many.advice in many.reasons
    assert many.to_dict()["advice"] == many.advice
    nothing = planned(0.05, 5, 4, "iid")
    assert "a constant guess" in nothing.advice


def test_a_fit_alone_gains_with_rows_and_ends_at_its_best() -> None:
    problem = fb.Problem(num_samples=[10], dim=50)
    found = loss_alone(Spectrum.of(problem), np.array([10, 100, 1000, 10**9, 100]))
    assert (np.diff(found[:4]) < 0).all() and found[4] == found[1]
    assert found[3] < 1e-4


def test_a_fit_alone_follows_the_law_of_large_samples() -> None:
    # By hand: without shrinking, d parameters cost d / (2 N) for a likelihood.
    problem = fb.Problem(num_samples=[10], dim=3)
    loss = float(loss_alone(Spectrum.of(problem), np.array([10**6]))[0])
    assert loss == pytest.approx(3 / 2e6, rel=0.05)


def test_more_dissimilarity_speaks_against_federating() -> None:
    federated = [
        advise(fb.Problem(num_samples=[99], dim=9, dissimilarity=d), 0.01).federated
        for d in ("iid", "mild", "strong")
    ]
    assert federated == sorted(federated) and federated[0] > 0.01


@pytest.mark.parametrize(
    ("personal", "alone", "constant", "words"),
    [
        (0.82, 0.79, 0.76, ""),
        (0.82, 0.81, 0.76, "only with personal models"),
        (0.81, 0.82, 0.76, "no better than devices alone"),
        (0.82, 0.79, 0.80, "no better than a constant"),
    ],
)
@pytest.mark.parametrize("what", ["test_accuracy", "test_loss"])
def test_a_finished_run_speaks_for_itself(
    personal: float, alone: float, constant: float, words: str, what: str
) -> None:
    values = np.array([0.80, personal, alone, constant])
    if what == "test_loss":
        values = 1 - values
    names = ("", "personal_", "alone_", "constant_")
    measured = {f"{n}{what}": float(v) for n, v in zip(names, values, strict=True)}
    plan = replace(planned(4, 100, 4, "iid"), advice="as planned")
    run = Run(theta=np.zeros(2), rounds=[round_of(measured=measured)], plan=plan)
    assert (words in run.advice) if words else run.advice == ""
    silent = Run(theta=np.zeros(2), rounds=[round_of()], plan=plan)
    assert silent.advice == "as planned"
