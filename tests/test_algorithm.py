import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.sparse import csr_array

from fedbudget.algorithm import (
    Batch,
    local_steps,
    model_of_sum,
    noisy_upload,
    weighted_mean,
)
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Logistic, Softmax

X = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]])
Y = np.array([1, 0, 1])


def test_one_full_step_by_hand() -> None:
    # At theta = 0 every slope is -s/2: the sum is (-1/2) X0 + (1/2) X1 - (1/2) X2.
    theta = local_steps(
        np.zeros(2),
        X,
        Y,
        loss=Logistic(),
        tau=1,
        learning_rate=3.0,
        noise_std=0.0,
        batch=Batch(),
        rng=np.random.default_rng(0),
    )
    assert theta == pytest.approx([0.2, -0.9])


@pytest.mark.parametrize("loss", [Logistic(l2=0.3), Softmax(num_classes=2, l2=0.3)])
def test_sparse_rows_give_the_same_steps_as_dense_ones(loss: Logistic) -> None:
    def steps(x: np.ndarray | csr_array) -> np.ndarray:
        return local_steps(
            np.ones(loss.num_params(2)),
            x,
            Y,
            loss=loss,
            tau=5,
            learning_rate=0.5,
            noise_std=0.1,
            batch=Batch(sampling="fixed", size=2),
            rng=np.random.default_rng(3),
        )

    assert steps(csr_array(X)) == pytest.approx(steps(X))


def test_poisson_divides_by_the_public_size_not_by_the_count_drawn() -> None:
    x, y = np.ones((400, 1)), np.ones(400, dtype=int)
    rng = np.random.default_rng(4)
    steps = np.array(
        [
            local_steps(
                np.zeros(1),
                x,
                y,
                loss=Logistic(),
                tau=1,
                learning_rate=1.0,
                noise_std=0.0,
                batch=Batch(sampling="poisson", size=20),
                rng=rng,
            )[0]
            for _ in range(2000)
        ]
    )
    # Each drawn row moves theta by 0.5 / 20; Binomial(400, 1/20) rows are drawn.
    counts = steps * 20 / 0.5
    assert counts == pytest.approx(np.round(counts))
    assert counts.mean() == pytest.approx(20, abs=5 * (19 / 2000) ** 0.5)
    assert counts.var() == pytest.approx(19, rel=0.15)


def test_fixed_batches_hold_distinct_rows() -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        drawn = Batch(sampling="fixed", size=7).draw(9, rng)
        assert len(set(drawn)) == 7
        assert set(drawn) <= set(range(9))


def test_weighted_mean() -> None:
    thetas = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert weighted_mean(thetas, np.array([0.25, 0.75])) == pytest.approx([2.5, 3.5])


@pytest.mark.parametrize("batch", [{"sampling": "half"}, {"sampling": "fixed"}])
def test_a_batch_that_makes_no_sense_is_refused(batch: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        Batch(**batch)  # type: ignore[arg-type]


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="4 is above the device's 3 rows"):
        Batch(sampling="fixed", size=4).divisor(3)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100))
def test_without_noise_the_model_of_a_sum_is_the_weighted_mean(
    seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    theta, replies = rng.normal(size=5), rng.normal(size=(4, 5))
    weights = rng.dirichlet(np.ones(4))
    uploads = [
        noisy_upload(theta, reply, weight=scale * weight, noise_std=0.0, rng=rng)
        for reply, weight in zip(replies, weights, strict=True)
    ]
    # Only the ratio of the weights of those who answered counts.
    model = model_of_sum(theta, uploads, scale * weights)
    assert model == pytest.approx(weighted_mean(replies, weights), abs=1e-9)
    some = weights[1:] / weights[1:].sum()
    model = model_of_sum(theta, uploads[1:], scale * weights[1:])
    assert model == pytest.approx(weighted_mean(replies[1:], some), abs=1e-9)


@given(seed=st.integers(0, 10_000), clip=st.floats(1e-6, 1e6))
def test_clipping_limits_a_move_and_keeps_its_direction(seed: int, clip: float) -> None:
    rng = np.random.default_rng(seed)
    theta, reply = rng.normal(size=(2, 5)) * rng.exponential()
    upload = noisy_upload(theta, reply, weight=2.0, noise_std=0.0, rng=rng, clip=clip)
    move = reply - theta
    length = float(np.linalg.norm(move))
    assert np.linalg.norm(upload) == pytest.approx(2 * min(clip, length))
    assert upload @ move == pytest.approx(np.linalg.norm(upload) * length)


def test_the_noise_of_a_sum_is_that_of_its_answers() -> None:
    rng, theta = np.random.default_rng(0), np.zeros(20_000)
    uploads = [
        noisy_upload(theta, theta, weight=0.1, noise_std=0.3, rng=rng) for _ in range(7)
    ]
    model = model_of_sum(theta, uploads, np.full(7, 0.1))
    # The std of 20,000 normals has a standard error of 0.5 %: five times that.
    assert np.std(model) == pytest.approx(np.sqrt(7) * 0.3 / 0.7, rel=0.025)
