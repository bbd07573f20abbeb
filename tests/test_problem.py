"""The problem: constants, their sources, and the privacy cost of measuring them."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import fedbudget as fb
from fedbudget.losses import loss_named
from fedbudget.privacy import GDP, epsilon_from_mu

PRICES = fb.Prices(communication=100, computation=1)


def small(**changes: object) -> fb.Problem:
    values: dict[str, object] = {"num_samples": [100, 200], "dim": 5, **changes}
    return fb.Problem(**values)  # type: ignore[arg-type]


def test_every_constant_has_a_source() -> None:
    for loss in ("logistic", "softmax", "hinge", "huber"):
        for name, constant in small(loss=loss).constants.items():
            assert constant.source in ("analytic", "assumed"), name
            assert np.isfinite(constant.value), name
            assert constant.note, name


def test_guesses_have_the_source_assumed() -> None:
    constants = small(loss="hinge").constants
    assert constants["smoothness"].source == "assumed"
    assert constants["dissimilarity"].source == "assumed"
    assert small(l2=0.1).constants["strong_convexity"].source == "analytic"
    assert small().constants["strong_convexity"].source == "assumed"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_samples": []}, "num_samples"),
        ({"num_samples": [10, 0]}, "device 1 is 0: a device without samples"),
        ({"num_samples": [10, 1.5]}, "device 1 is 1.5: must be a whole number"),
        ({"num_samples": [np.nan]}, "num_samples"),
        ({"num_samples": "many"}, "num_samples"),
        ({"dim": 0}, "dim must be a whole number of at least 1, got 0"),
        ({"dim": 2.5}, "dim"),
        ({"loss": "square"}, "'square' is not known"),
        ({"l2": -1}, "l2"),
        ({"dissimilarity": "very"}, "choose one of iid, mild, strong"),
        ({"dim": 10**20}, "dim must be at most"),
        ({"loss": "softmax", "num_classes": 2.5}, "num_classes must be a whole"),
        ({"loss": None}, "loss must be a name or a Loss"),
        ({"dissimilarity": [0.1, 0.2]}, "dissimilarity must be one number"),
        ({"dissimilarity": 1e300}, "at most 1000"),
        ({"loss": loss_named("hinge"), "l2": 0.5}, "go with the name of a loss"),
        ({"dissimilarity": -0.1}, "dissimilarity must be at least 0"),
    ],
)
def test_a_problem_refuses(changes: dict[str, object], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        small(**changes)


def test_privacy_constants_cannot_be_overridden() -> None:
    loose = fb.Constant(value=0.1, source="assumed")
    with pytest.raises(fb.InvalidInputError, match="privacy rests on lipschitz"):
        small().with_constants(lipschitz=loose)
    with pytest.raises(fb.InvalidInputError, match="'smothness' cannot be given"):
        small().with_constants(smothness=loose)


def test_nothing_is_measured_on_private_rows_for_free() -> None:
    with pytest.raises(fb.InvalidInputError, match="costs every device a positive mu"):
        fb.Constant(value=0.1, source="measured privately")
    with pytest.raises(fb.InvalidInputError, match="any other costs none"):
        fb.Constant(value=0.1, source="assumed", mu=[0.0, 1.0])
    with pytest.raises(fb.InvalidInputError, match="any other costs none"):
        fb.Constant(value=0.1, source="public sample", mu=0.1)
    with pytest.raises(fb.InvalidInputError, match="'felt' is not known"):
        fb.Constant(value=0.1, source="felt")
    for source, release in (("measured privately", ""), ("assumed", "first query")):
        with pytest.raises(fb.InvalidInputError, match=f"release='{release}'"):
            mu = 0.1 if release == "" else 0.0
            fb.Constant(value=0.1, source=source, release=release, mu=mu)


def test_a_private_measurement_is_charged_before_the_run() -> None:
    measured = fb.Constant(value=0.1, source="measured privately", release="q", mu=0.2)
    budget = fb.Budget(epsilon=1.0, delta=1e-4, cost=1000)
    free = fb.plan(small(), budget, PRICES)
    charged = fb.plan(small().with_constants(smoothness=measured), budget, PRICES)
    per_step = charged.noise_std / np.sqrt(charged.steps)
    assert (per_step > free.noise_std / np.sqrt(free.steps)).all()
    # What is left of the budget, by hand: mu^2 adds up.
    together = epsilon_from_mu(np.hypot(float(charged.gradients.mu[0]), 0.2), 1e-4)
    assert 0.999 <= float(together) <= 1.0
    assert charged.epsilon[0] == pytest.approx(float(together))


def test_a_measurement_that_spent_everything_leaves_no_plan() -> None:
    mu = float(GDP.mu_from_epsilon(1.0, 1e-4)) * 1.01
    measured = fb.Constant(value=0.1, source="measured privately", release="q", mu=mu)
    with pytest.raises(fb.InfeasibleBudgetError, match="device 0 has no privacy left"):
        fb.plan(
            small().with_constants(smoothness=measured),
            fb.Budget(epsilon=1.0, delta=1e-4, cost=1000),
            PRICES,
        )


def test_a_public_sample_gives_the_constants_of_its_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 5)) * np.array([4, 2, 1, 0.5, 0.25])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(2, size=500)
    problem = small().with_public_sample(x, y)
    top = np.linalg.eigvalsh(x.T @ x / 500)[-1]
    assert problem["smoothness"] == pytest.approx(top / 4)
    assert problem["spike_share"] == pytest.approx(top)  # the rows have norm 1
    assert problem.modes is not None
    assert problem.modes.eigenvalue.sum() == pytest.approx(1)
    # At theta = 0 every gradient is half a row, and the rows have norm 1.
    mean = np.linalg.norm((np.where(y == 1, -0.5, 0.5)[:, None] * x).mean(axis=0))
    assert problem["gradient_variance"] == pytest.approx(0.25 - mean**2)
    assert problem.constants["smoothness"].source == "public sample"
    assert (problem.prior_mu == 0).all()


def test_labels_without_a_relation_have_no_gap() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    modes = small().with_public_sample(x, rng.integers(2, size=400)).modes
    assert modes is not None
    # By hand: sampling noise alone would give 1 / (2 n) a mode.
    assert modes.gap.sum() < 5 / 800


@pytest.mark.parametrize("loss", ["logistic", "softmax", "hinge", "huber"])
def test_the_gap_of_a_mode_is_what_a_step_along_it_gains(loss: str) -> None:
    # One mode, many rows: the quadratic at zero, by its finite differences.
    rng = np.random.default_rng(2)
    x = np.full((4000, 1), 0.5)
    y = (rng.random(4000) < 0.6).astype(int) if loss != "huber" else np.full(4000, 0.3)
    classes = 2 if loss == "softmax" else None
    problem = fb.Problem(num_samples=[9], dim=1, loss=loss, num_classes=classes)
    modes = problem.with_public_sample(x, y).modes
    assert modes is not None
    model, zero = problem.model, np.zeros(problem.num_params)
    gradient = model.gradient(zero, x, y)
    step = 1e-3 * gradient / np.linalg.norm(gradient)
    change = model.gradient(step, x, y) - model.gradient(-step, x, y)
    curvature = float(change @ step / (2 * step @ step))
    if loss == "hinge":  # flat at zero: its mean curvature is assumed
        curvature = 0.43 * 0.25
    expected = float(gradient @ gradient) / (2 * curvature)
    assert modes.gap[0] == pytest.approx(expected, rel=0.02)


def test_the_spread_of_labels_gives_the_gap_of_a_regression() -> None:
    assumed = small(loss="huber")
    assert assumed.constants["initial_gap"].source == "assumed"
    stated = assumed.with_constants(
        label_spread=fb.Constant(value=0.4, source="stated")
    )
    assert stated["initial_gap"] == pytest.approx(0.08)  # 0.4^2 / 2
    assert stated.constants["initial_gap"].source == "stated"
    y = np.array([0.2, -0.2, 0.2, 0.2, -0.2])
    measured = assumed.with_public_sample(np.eye(5), y)
    assert measured["label_spread"] == pytest.approx(0.2)
    assert measured.constants["initial_gap"].source == "public sample"
    with pytest.raises(fb.InvalidInputError, match="at least 0 and at most 1"):
        assumed.with_constants(label_spread=fb.Constant(value=2, source="stated"))


def test_decays_that_modes_replace_say_so_and_change_no_plan() -> None:
    steep = small().with_constants(
        spectrum_decay=fb.Constant(value=3.0, source="stated"),
        gap_decay=fb.Constant(value=3.0, source="stated"),
    )
    budget, prices = (
        fb.Budget(epsilon=4.0, cost=1000),
        fb.Prices(communication=100, computation=1),
    )
    y = np.array([0, 1, 0, 1, 1])
    samples = [each.with_public_sample(np.eye(5), y) for each in (small(), steep)]
    assert "not used" in samples[1].constants["spectrum_decay"].note
    assert samples[1]["gap_decay"] == small()["gap_decay"]
    first, second = (fb.plan(each, budget, prices) for each in samples)
    assert first.predicted_loss == second.predicted_loss


def test_modes_stay_when_constants_are_replaced() -> None:
    problem = small().with_public_sample(np.eye(5), np.array([0, 1, 0, 1, 1]))
    again = problem.with_constants(
        dissimilarity=fb.Constant(value=0.3, source="stated")
    )
    assert again.modes is problem.modes is not None


def test_a_public_sample_must_be_in_the_unit_ball() -> None:
    with pytest.raises(fb.InvalidInputError, match="has norm 2, not above 0"):
        small().with_public_sample(2 * np.eye(5), np.zeros(5))


@pytest.mark.parametrize(
    "rows, labels, message",
    [
        (np.eye(5)[:1], np.zeros(1), "at least 2 rows"),
        (np.eye(5), np.zeros(3), "one label each"),
        (np.zeros((5, 5)), np.zeros(5), "norm 0"),
        (np.eye(3), np.zeros(3), "the problem has 5 columns"),
        (np.eye(5), np.full(5, 7), "labels of the public sample must be 0 .. 1"),
    ],
)
def test_a_bad_public_sample_is_refused(
    rows: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        small().with_public_sample(rows, labels)


def test_a_public_sample_may_be_sparse() -> None:
    rows = np.eye(5)
    dense = small().with_public_sample(rows, np.zeros(5))
    thin = small().with_public_sample(sparse.csr_array(rows), np.zeros(5))
    assert dense["smoothness"] == thin["smoothness"]


def test_replacing_a_private_measurement_does_not_refund_it() -> None:
    measured = fb.Constant(
        value=0.2, source="measured privately", release="q", mu=[0.5, 0.1]
    )
    assumed = fb.Constant(value=0.25, source="assumed")
    problem = small().with_constants(smoothness=measured)
    again = problem.with_constants(smoothness=assumed)
    assert again.prior_mu.tolist() == problem.prior_mu.tolist() == [0.5, 0.1]
    twice = again.with_constants(hessian_trace=measured)
    assert twice.prior_mu[0] == pytest.approx(0.5 * 2**0.5)
    assert again.prior_releases == {"q"}  # nor is it forgotten


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("smoothness", 0.0, "smoothness must be above 0"),
        ("hessian_trace", -1.0, "hessian_trace must be above 0"),
        ("initial_gap", -1.0, "initial_gap must be above 0"),
        ("gradient_variance", -1.0, "gradient_variance must be at least 0"),
        ("strong_convexity", 1.0, "strong_convexity 1 is above smoothness 0.25"),
    ],
)
def test_impossible_constants_are_refused(
    name: str, value: float, message: str
) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        small().with_constants(**{name: fb.Constant(value=value, source="assumed")})


@pytest.mark.parametrize("value", [np.nan, np.inf, [1.0, 2.0], "x"])
def test_a_constant_is_one_finite_number(value: Any) -> None:
    with pytest.raises(fb.InvalidInputError, match="value must be"):
        fb.Constant(value=value, source="assumed")
