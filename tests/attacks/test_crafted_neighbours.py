"""Attack: neighbouring data that move a device's noiseless local steps the furthest.

The privacy of noise per upload rests on one number, the sensitivity. Here neighbours
are searched at random and crafted by hand. None may move an upload by more than the
stated bound; the crafted ones come as close to it as one likes, so it is not too small
by any factor.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedbudget.algorithm import Batch, local_steps
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Hinge, Huber, Logistic, Loss, SmoothHinge, Softmax
from fedbudget.privacy import LocalSteps

LOSSES: list[Loss] = [
    Logistic(),
    Softmax(num_classes=3),
    Huber(threshold=0.7),
    SmoothHinge(),
    SmoothHinge(width=0.5),
    Logistic(l2=0.02),
    Softmax(num_classes=2, l2=0.3),
    SmoothHinge(l2=0.1),
]
# Learning rates as shares of the largest, 2 / L.
RATES = (0.05, 0.5, 0.9, 1.0)
TAUS = (1, 3, 17, 39)
PAIRS = 60  # for each loss, rate, tau and number of batches: thousands in all


def bound_of(loss: Loss, eta: float, tau: int, size: int, blocks: int) -> LocalSteps:
    return LocalSteps(
        lipschitz=loss.lipschitz,
        curvature=loss.curvature,
        l2=loss.l2,
        learning_rate=eta,
        tau=tau,
        batch_size=size,
        blocks=blocks,
    )


def moved(
    loss: Loss,
    theta: np.ndarray,
    data: tuple[np.ndarray, np.ndarray],
    *,
    eta: float,
    tau: int,
    size: int | None = None,
    first_step: int = 0,
) -> np.ndarray:
    """Return theta after noiseless steps, on all rows or on blocks in turn."""
    x, y = data
    return local_steps(
        theta,
        x,
        y,
        loss=loss,
        tau=tau,
        learning_rate=eta,
        noise_std=0.0,
        batch=Batch() if size is None else Batch(sampling="cyclic", size=size),
        rng=np.random.default_rng(0),
        first_step=first_step,
        permutation=np.arange(len(y)),
    )


def random_rows(
    loss: Loss, rng: np.random.Generator, count: int, dim: int
) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(count, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(max(2, loss.num_outputs), size=count)
    return x, (2.0 * y - 1 if loss.name == "huber" else y)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_no_random_pair_exceeds_the_bound(loss: Loss, blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    closest = 0.0
    for share in RATES:
        for tau in TAUS:
            eta = share * 2 / loss.smoothness
            for _ in range(PAIRS):
                size, dim = int(rng.integers(1, 4)), int(rng.integers(1, 4))
                x, y = random_rows(loss, rng, size * blocks, dim)
                other, label = random_rows(loss, rng, 1, dim)
                changed, labels = x.copy(), y.copy()
                row = rng.integers(len(y))
                changed[row], labels[row] = other[0], label[0]
                theta = rng.exponential(20) * rng.normal(size=loss.num_params(dim))
                run = partial(
                    moved,
                    loss,
                    theta,
                    eta=eta,
                    tau=tau,
                    size=size,
                    first_step=int(rng.integers(blocks)),
                )
                first, second = run((x, y)), run((changed, labels))
                distance = float(np.linalg.norm(first - second))
                bound = float(bound_of(loss, eta, tau, size, blocks).sensitivity)
                assert distance <= bound * (1 + 1e-9), (share, tau, size, dim)
                closest = max(closest, distance / bound)
    # The search is not idle: it comes close without an L2 term, which always contracts.
    assert closest > (0.8 if loss.l2 == 0 else 0.5)


def crafted(
    loss: Loss, rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a model far on the wrong side of all rows, and two opposite rows.

    The slopes are at their bound, and stay there: no step contracts. All rows have a
    small common component, on whose wrong side the model is.
    """
    small = 1e-3
    x = np.array([[np.sqrt(1 - small**2), small]] * rows)
    changed = x.copy()
    changed[0, 0] *= -1
    if loss.num_outputs > 1:
        theta = np.zeros((loss.num_outputs, 2))
        theta[0, 1], theta[1, 1] = 1e6, -1e6  # class 0 is certain
        return theta.reshape(-1), x, changed, np.ones(rows, dtype=int)
    return np.array([0.0, 1e6]), x, changed, np.zeros(rows, dtype=int)


@pytest.mark.parametrize("loss", LOSSES[:5], ids=repr)
@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("size, blocks", [(1, 1), (4, 1), (2, 3)])
def test_a_crafted_pair_attains_the_bound(
    loss: Loss, tau: int, size: int, blocks: int
) -> None:
    theta, x, changed, y = crafted(loss, size * blocks)
    for share in RATES:
        eta = share * 2 / loss.smoothness
        run = partial(moved, loss, theta, eta=eta, tau=tau, size=size)
        first, second = run((x, y)), run((changed, y))
        bound = float(bound_of(loss, eta, tau, size, blocks).sensitivity)
        assert 0.999 * bound < np.linalg.norm(first - second) <= bound * (1 + 1e-9)


def test_with_an_l2_term_the_geometric_series_is_attained() -> None:
    loss, tau, eta = Logistic(l2=0.05), 12, 2.0
    theta, x, changed, y = crafted(loss, 3)
    first = moved(loss, theta, (x, y), eta=eta, tau=tau)
    second = moved(loss, theta, (changed, y), eta=eta, tau=tau)
    bound = float(bound_of(loss, eta, tau, 3, 1).sensitivity)
    assert 0.999 * bound < np.linalg.norm(first - second) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_no_pair_of_devices_exceeds_the_bound_of_a_device(loss: Loss) -> None:
    rng = np.random.default_rng(1)
    for tau in TAUS:
        eta = 1.7 / loss.smoothness
        steps = replace(bound_of(loss, eta, tau, 4, 1), unit="device")
        bound = float(steps.sensitivity)
        for _ in range(PAIRS):
            theta = rng.exponential(20) * rng.normal(size=loss.num_params(3))
            first = moved(loss, theta, random_rows(loss, rng, 4, 3), eta=eta, tau=tau)
            second = moved(loss, theta, random_rows(loss, rng, 6, 3), eta=eta, tau=tau)
            assert np.linalg.norm(first - second) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("loss", LOSSES[:5], ids=repr)
def test_crafted_devices_attain_the_bound_of_a_device(loss: Loss) -> None:
    theta, x, changed, y = crafted(loss, 1)
    eta, tau = 1.0 / loss.smoothness, 9
    first = moved(loss, theta, (np.tile(x, (5, 1)), np.tile(y, 5)), eta=eta, tau=tau)
    second = moved(
        loss, theta, (np.tile(changed, (5, 1)), np.tile(y, 5)), eta=eta, tau=tau
    )
    steps = replace(bound_of(loss, eta, tau, 5, 1), unit="device")
    bound = float(steps.sensitivity)
    assert 0.999 * bound < np.linalg.norm(first - second) <= bound * (1 + 1e-9)


def test_a_kink_breaks_the_bound() -> None:
    """Ten rows at hinge's kink: that is why `LocalSteps` refuses it."""
    loss, eta, tau, rows = Hinge(), 1.0, 2, 10
    x, y = np.ones((rows, 1)), np.ones(rows, dtype=int)
    changed = np.array([0] + [1] * (rows - 1))
    theta = np.ones(1)
    distance = abs(
        moved(loss, theta, (x, y), eta=eta, tau=tau)
        - moved(loss, theta, (x, changed), eta=eta, tau=tau)
    )
    assert distance > 1.5 * 2 * loss.lipschitz * eta * tau / rows
    with pytest.raises(InvalidInputError, match="use loss 'smooth_hinge'"):
        bound_of(loss, eta, tau, rows, 1)


def test_a_rate_above_two_over_smoothness_breaks_the_bound() -> None:
    """Steps above 2 / L amplify a row: that is why `LocalSteps` refuses them."""
    loss, eta, tau, rows = Huber(), 2.2, 39, 1000
    x, y = np.ones((rows, 1)), np.zeros(rows)
    changed = np.array([1.0] + [0.0] * (rows - 1))
    theta = np.zeros(1)
    distance = abs(
        moved(loss, theta, (x, y), eta=eta, tau=tau)
        - moved(loss, theta, (x, changed), eta=eta, tau=tau)
    )
    assert distance > 5 * 2 * loss.lipschitz * eta * tau / rows
    with pytest.raises(InvalidInputError, match=r"learning_rate 2\.2 is above 2"):
        bound_of(loss, eta, tau, rows, 1)
