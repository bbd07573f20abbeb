"""The problem: constants, their sources, and what may not be known for free."""

import numpy as np
import pytest

import fedbudget as fb
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


def test_what_is_guessed_is_called_a_guess() -> None:
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
        fb.Constant(value=0.1, source="public sample", mu=0.1)
    with pytest.raises(fb.InvalidInputError, match="'felt' is not known"):
        fb.Constant(value=0.1, source="felt")


def test_a_private_measurement_is_charged_before_the_run() -> None:
    measured = fb.Constant(value=0.1, source="measured privately", mu=0.2)
    budget = fb.Budget(epsilon=1.0, delta=1e-4, cost=1000)
    free = fb.plan(small(), budget, PRICES)
    charged = fb.plan(small().with_constants(smoothness=measured), budget, PRICES)
    per_step = charged.noise_std / np.sqrt(charged.steps)
    assert (per_step > free.noise_std / np.sqrt(free.steps)).all()
    # What is left of the budget, by hand: mu^2 adds up.
    run = charged.gradients(0, num_samples=100)
    together = epsilon_from_mu(np.hypot(float(run.mu), 0.2), 1e-4)
    assert 0.999 <= float(together) <= 1.0
    assert charged.epsilon[0] == pytest.approx(float(together))


def test_a_measurement_that_spent_everything_leaves_no_plan() -> None:
    mu = float(GDP.mu_from_epsilon(1.0, 1e-4)) * 1.01
    measured = fb.Constant(value=0.1, source="measured privately", mu=mu)
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
    assert problem["hessian_trace"] == pytest.approx(0.25)
    assert problem["spectrum_decay"] > 1
    # At theta = 0 every gradient is half a row, and the rows have norm 1.
    mean = np.linalg.norm((np.where(y == 1, -0.5, 0.5)[:, None] * x).mean(axis=0))
    assert problem["gradient_variance"] == pytest.approx(0.25 - mean**2)
    assert problem.constants["smoothness"].source == "public sample"
    assert (problem.prior_mu == 0).all()


def test_a_public_sample_must_be_in_the_unit_ball() -> None:
    with pytest.raises(fb.InvalidInputError, match="has norm 2, above 1"):
        small().with_public_sample(2 * np.eye(5), np.zeros(5))
    with pytest.raises(fb.InvalidInputError, match="at least 2 rows"):
        small().with_public_sample(np.eye(5)[:1], np.zeros(1))
