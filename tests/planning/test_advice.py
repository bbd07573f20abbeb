"""Advice on when not to federate, before and after a run."""

from dataclasses import replace

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.planning.advice import Forecast, advise, local_only_loss
from fedbudget.planning.spectral import Spectrum
from fedbudget.training import Run
from tests.examples import round_of

PRICES = fb.Prices(communication=100, computation=1)


def planned(epsilon: float, rows: int, devices: int, dissimilarity: str) -> fb.Plan:
    problem = fb.Problem(
        num_samples=[rows] * devices, dim=102, dissimilarity=dissimilarity
    )
    return fb.plan(problem, fb.Budget(epsilon=epsilon, cost=1000), PRICES)


def test_federating_pays_for_few_iid_rows_and_not_for_many_heterogeneous_ones() -> None:
    assert planned(10, 130, 200, "iid").advice == ""
    many = planned(1, 20_000, 16, "strong")
    assert "local-only training" in many.advice and many.advice in many.reasons
    assert many.to_dict()["advice"] == many.advice
    noisy = planned(0.05, 1, 4, "iid")
    assert "a constant guess" in noisy.advice


def test_the_local_only_loss_falls_to_0_with_more_rows() -> None:
    problem = fb.Problem(num_samples=[10], dim=50)
    loss = local_only_loss(Spectrum.of(problem), np.array([10, 100, 1000, 10**9, 100]))
    assert (np.diff(loss[:4]) < 0).all() and loss[4] == loss[1]
    assert loss[3] < 1e-4


def test_the_local_only_loss_has_its_large_sample_limit() -> None:
    # By hand: without shrinking, d parameters cost d / (2 N) for a likelihood.
    problem = fb.Problem(num_samples=[10], dim=3)
    loss = float(local_only_loss(Spectrum.of(problem), np.array([10**6]))[0])
    assert loss == pytest.approx(3 / 2e6, rel=0.05)


def test_residuals_are_what_local_fits_to_a_regression_suffer_from() -> None:
    # By hand: without shrinking, d parameters cost d sigma^2 / (2 N) for squares.
    problem = fb.Problem(num_samples=[10], dim=3, loss="huber")
    spectrum = Spectrum.of(problem)
    loss = local_only_loss(spectrum, np.array([10**6]), dispersion=0.04)
    assert float(loss[0]) == pytest.approx(0.04 * 3 / 2e6, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("rows", [5, 100, 20_000])
@pytest.mark.parametrize("dissimilarity", ["iid", "strong"])
def test_the_advice_is_never_silent_where_local_only_is_predicted_to_win(
    epsilon: float, rows: int, dissimilarity: str
) -> None:
    plan = planned(epsilon, rows, 16, dissimilarity)
    problem = fb.Problem(num_samples=[rows] * 16, dim=102, dissimilarity=dissimilarity)
    forecast = advise(problem, plan.predicted_loss)
    assert bool(plan.advice) or forecast.federated < forecast.local_only


def test_a_constant_is_advised_only_where_local_only_is_no_better() -> None:
    assert "constant" in Forecast(federated=1.0, local_only=1.0, constant=1.0).text
    assert "local-only" in Forecast(federated=1.0, local_only=0.5, constant=1.0).text
    assert Forecast(federated=0.3, local_only=0.5, constant=1.0).text == ""


def test_dissimilarity_raises_the_federated_loss() -> None:
    federated = [
        advise(fb.Problem(num_samples=[99], dim=9, dissimilarity=d), 0.01).federated
        for d in ("iid", "mild", "strong")
    ]
    assert federated == sorted(federated) and federated[0] > 0.01


@pytest.mark.parametrize(
    ("personal", "local_only", "constant", "text"),
    [
        (0.82, 0.79, 0.76, ""),
        (0.82, 0.81, 0.76, "only with personal models"),
        (0.81, 0.82, 0.76, "no better than local-only"),
        (0.82, 0.79, 0.80, "no better than a constant"),
    ],
)
@pytest.mark.parametrize("metric", ["test_accuracy", "test_loss"])
def test_the_advice_of_a_run_is_by_its_measurements(
    personal: float, local_only: float, constant: float, text: str, metric: str
) -> None:
    values = np.array([0.80, personal, local_only, constant])
    if metric == "test_loss":
        values = 1 - values
    names = ("", "personal_", "alone_", "constant_")
    measured = {f"{n}{metric}": float(v) for n, v in zip(names, values, strict=True)}
    plan = replace(planned(4, 100, 4, "iid"), advice="as planned")
    run = Run(theta=np.zeros(2), rounds=[round_of(measured=measured)], plan=plan)
    assert (text in run.advice) if text else run.advice == ""
    unmeasured = Run(theta=np.zeros(2), rounds=[round_of()], plan=plan)
    assert unmeasured.advice == "as planned"
