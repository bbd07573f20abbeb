"""Exact noise: distribution, source, and scale."""

import ast
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedbudget.errors import DataError, InvalidInputError
from fedbudget.fleet.device import (
    exact_noise as noise_module,
    exact_steps as steps_module,
)
from fedbudget.fleet.device.exact_noise import ExactNormals, Words, system_words
from fedbudget.fleet.device.exact_steps import (
    ROW_BITS,
    ExactRows,
    NoiseGrid,
    gradient_sum,
    noisy_gradient,
    noisy_steps,
    slope_bits,
)
from fedbudget.losses import Loss, loss_named

LOSSES = ["logistic", "hinge", "smooth_hinge", "huber", "softmax"]


def rounded_pmf(scale: float, largest: int) -> list[float]:
    """P(round(scale N) = k) for k = -largest .. largest, and both tails."""

    def below(value: float) -> float:
        return 0.5 * math.erfc(-value / scale / math.sqrt(2))

    inner = [below(k + 0.5) - below(k - 0.5) for k in range(-largest, largest + 1)]
    return [below(-largest - 0.5), *inner, 1 - below(largest + 0.5)]


@pytest.mark.parametrize("bits, scale_bits", [(62, 0), (62, 3), (1, 0), (2, 1), (4, 3)])
def test_draws_follow_the_exact_distribution(bits: int, scale_bits: int) -> None:
    # With words of 1 or 2 bits nearly every comparison is a tie and needs further bits.
    count, scale = 60_000 if bits > 2 else 10_000, 2**scale_bits
    largest = (3 if bits > 2 else 2) * scale
    drawn = ExactNormals(bits=bits).draw(count, scale_bits=scale_bits)
    expected = count * np.array(rounded_pmf(scale, largest))
    assert expected.min() > 10  # fewer would not be nearly normal, and often none
    cells = np.clip(drawn, -largest - 1, largest + 1) + largest + 1
    counts = np.bincount(cells, minlength=len(expected))
    chi_squared = float(np.sum((counts - expected) ** 2 / expected))
    freedom = len(expected) - 1
    # Wilson and Hilferty: above this once in 10^9 times.
    bound = freedom * (1 - 2 / (9 * freedom) + 6 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_squared < bound


def test_moments_and_tails_of_a_fine_grid() -> None:
    drawn = ExactNormals().draw(100_000, scale_bits=30) / 2.0**30
    root = math.sqrt(100_000)  # standard errors; powers of a normal have long tails
    assert abs(drawn.mean()) < 6 / root
    assert abs(np.mean(drawn**2) - 1) < 6.5 * math.sqrt(2) / root
    assert abs(np.mean(drawn**3)) < 7 * math.sqrt(15) / root
    assert abs(np.mean(drawn**4) - 3) < 8 * math.sqrt(96) / root
    beyond = np.mean(np.abs(drawn) > 3)
    assert abs(beyond - 0.0026998) < 7 * math.sqrt(0.0027) / root
    assert np.abs(drawn).max() > 3.5
    # All bits of the grid are in use: noise has no gaps.
    assert set(np.unique((drawn * 2**30).astype(np.int64) & 7)) == set(range(8))


def test_no_two_draws_are_the_same() -> None:
    one, other = (ExactNormals().draw(50, scale_bits=30) for _ in range(2))
    assert not np.array_equal(one, other)


def test_the_system_is_the_only_source(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def urandom(count: int) -> bytes:
        requests.append(count)
        raise RuntimeError("no entropy")

    monkeypatch.setattr("os.urandom", urandom)
    with pytest.raises(RuntimeError, match="no entropy"):
        ExactNormals().draw(1, scale_bits=30)
    with pytest.raises(RuntimeError, match="no entropy"):
        system_words(3)
    assert len(requests) == 2


@pytest.mark.parametrize("module", [noise_module, steps_module])
def test_no_generator_with_a_seed_is_in_the_code(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imports = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not {"random", "default_rng", "Generator", "seed"} & (names | imports)


def test_words_decide_everything() -> None:
    # The same words give the same draws: no other randomness is hidden inside.
    def recorded(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)

        def words(count: int) -> Words:
            return rng.integers(0, 2**64, count, dtype=np.uint64)

        return list(ExactNormals(words).draw(100, scale_bits=20))

    assert recorded(1) == recorded(1) != recorded(2)


def some_rows(loss: Loss, count: int = 700, dim: int = 6) -> ExactRows:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(count, dim))
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    if loss.name == "huber":
        return ExactRows.rounded(x, rng.uniform(-1, 1, count))
    return ExactRows.rounded(x, rng.integers(0, max(2, loss.num_outputs), count))


def a_loss(name: str) -> Loss:
    return loss_named(name, num_classes=3 if name == "softmax" else None)


@pytest.mark.parametrize("name", LOSSES)
def test_sums_of_gradients_are_correct(name: str) -> None:
    loss = a_loss(name)
    rows = some_rows(loss)
    theta = np.random.default_rng(1).normal(size=loss.num_params(6))
    unit = 2.0 ** -(ROW_BITS + slope_bits(len(rows), loss.lipschitz))
    mean = gradient_sum(loss, theta, rows) * unit / len(rows)
    expected = loss.gradient(theta, rows.x.astype(np.float64), rows.y)
    assert mean == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e29])
def test_replacing_a_row_moves_the_sum_by_at_most_2g(name: str, size: float) -> None:
    # In whole numbers, so without a tolerance; for any model that may be sent.
    loss = a_loss(name)
    rows, rng = some_rows(loss), np.random.default_rng(2)
    bits = slope_bits(len(rows), loss.lipschitz)
    for _ in range(20):
        theta = rng.normal(size=loss.num_params(6)) * size
        x, y = rows.x.copy(), rows.y.copy()
        index, direction = rng.integers(len(y)), rng.normal(size=6)
        pair = ExactRows.rounded(
            np.stack([direction, -direction]) / np.linalg.norm(direction) * (1 - 1e-9),
            np.array([y[index], y[index]]),
        )
        sums = []
        for row in range(2):
            x[index] = pair.x[row]
            y[index] = (y[index] + 1) % 2 if loss.name != "huber" else -y[index]
            sums.append(gradient_sum(loss, theta, ExactRows(x=x.copy(), y=y.copy())))
        moved = [int(v) for v in sums[0] - sums[1]]
        bound = 2 * loss.lipschitz * 2.0 ** (ROW_BITS + bits)
        assert sum(v * v for v in moved) <= int(bound * bound)


def test_the_order_of_rows_does_not_matter() -> None:
    loss = a_loss("logistic")
    rows = some_rows(loss)
    theta = np.random.default_rng(4).normal(size=6)
    # Scores are computed row by row; the order changes nothing in whole numbers.
    mixed = np.random.default_rng(5).permutation(len(rows))
    one = gradient_sum(loss, theta, rows)
    other = gradient_sum(loss, theta, rows, batch=mixed)
    assert np.abs(one - other).max() <= 2**ROW_BITS * 4  # a score's last bit, at most


@pytest.mark.parametrize("noise_std", [1e-6, 0.01, 0.2, 3.0])
@pytest.mark.parametrize("batch_size", [1, 100, 8400])
def test_a_grid_spends_no_more_than_its_noise_says(
    noise_std: float, batch_size: int
) -> None:
    lipschitz, num_params = math.sqrt(2), 306
    grid = NoiseGrid.of(
        noise_std=noise_std,
        batch_size=batch_size,
        lipschitz=lipschitz,
        num_params=num_params,
    )
    moves = 2 * lipschitz / grid.step + 2 * math.sqrt(num_params)  # grid steps
    assert moves / 2**grid.scale_bits <= 2 * lipschitz / (batch_size * noise_std)
    assert 0 < grid.raised < 1e-3
    largest = batch_size * lipschitz / grid.step
    assert largest < 2**49  # float64 holds every sum, and its noise, as whole numbers


def test_rounding_to_the_grid_moves_less_than_the_grid_allows_for() -> None:
    grid = NoiseGrid.of(noise_std=1e-6, batch_size=40, lipschitz=1.0, num_params=3)
    rng, none = np.random.default_rng(0), np.zeros(3, dtype=np.int64)
    for _ in range(300):
        one = rng.uniform(-40, 40, 3)
        other = one + rng.uniform(-1, 1, 3)
        moved = (grid.noisy(one, none) - grid.noisy(other, none)) / grid.step
        exact = (one - other) / grid.step
        assert np.linalg.norm(moved) <= np.linalg.norm(exact) + 2 * math.sqrt(3)


@pytest.mark.parametrize("noise_std", [0.0, -1.0, 1e-12, 1e300, math.nan])
def test_noise_that_cannot_be_drawn_exactly_is_refused(noise_std: float) -> None:
    with pytest.raises(InvalidInputError, match="noise_std"):
        NoiseGrid.of(noise_std=noise_std, batch_size=9, lipschitz=1.0, num_params=4)


@pytest.mark.parametrize("batch_size", [700, 60])
def test_steps_are_those_of_the_reference(batch_size: int) -> None:
    from fedbudget.algorithm import Batch, local_steps

    loss = loss_named("logistic", l2=0.01)
    rows = some_rows(loss)
    settings: dict[str, Any] = {"loss": loss, "tau": 4, "learning_rate": 0.5}
    theta = noisy_steps(
        np.ones(6), rows, noise_std=1e-7, batch_size=batch_size, **settings
    )
    expected = local_steps(
        np.ones(6),
        rows.x.astype(np.float64),
        rows.y,
        noise_std=0.0,
        batch=Batch(),
        rng=np.random.default_rng(0),
        **settings,
    )
    tolerance = 1e-5 if batch_size == 700 else 0.3  # other rows take part in a batch
    assert theta == pytest.approx(expected, abs=tolerance)


def test_steps_have_the_requested_noise() -> None:
    loss = loss_named("logistic")
    rows = some_rows(loss)
    settings: dict[str, Any] = {
        "loss": loss,
        "tau": 1,
        "learning_rate": 2.0,
        "batch_size": 700,
    }
    quiet = noisy_steps(np.zeros(6), rows, noise_std=1e-7, **settings)
    assert quiet is not None
    draws = []
    for _ in range(100):
        theta = noisy_steps(np.zeros(6), rows, noise_std=0.3, **settings)
        assert theta is not None
        draws.append(theta - quiet)
    # 600 normals: their mean square is outside of this once in 10^9 times.
    low, high = stats.chi2.ppf(np.array([5e-10, 1 - 5e-10]), 600)
    assert low < np.sum(np.square(draws)) / 0.6**2 < high


@pytest.mark.parametrize("name", ["logistic", "hinge", "softmax"])
def test_a_noisy_gradient_is_a_step_from_zero(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy.sparse import csr_array

    def same_noise(steps: int, num_params: int, scale_bits: int) -> Any:
        rng = np.random.default_rng([steps, num_params])
        yield (rng.standard_normal(num_params) * 2**scale_bits).astype(np.int64)

    monkeypatch.setattr(steps_module, "_noise", same_noise)
    loss = loss_named(name, num_classes=3 if name == "softmax" else None)
    rows = some_rows(loss)
    step = noisy_steps(
        np.zeros(loss.num_params(6)),
        rows,
        loss=loss,
        tau=1,
        learning_rate=1.0,
        noise_std=0.01,
        batch_size=len(rows),
    )
    assert step is not None
    for x in (rows.x, csr_array(rows.x)):
        gradient = noisy_gradient(loss, x, rows.y, noise_std=0.01)
        assert gradient is not None and (gradient == -step).all()
    with pytest.raises(DataError, match="there are 0 rows"):
        noisy_gradient(loss, rows.x[:0], rows.y[:0], noise_std=0.01)


def test_rows_outside_the_unit_ball_are_refused() -> None:
    label = np.array([1])
    for row in ([1.0, 0.1], [2.0, 0.0], [np.nan, 0.0], [0.8, 0.6001]):
        with pytest.raises(DataError, match="row"):
            ExactRows.rounded(np.array([row]), label)
    with pytest.raises(DataError, match="0 rows"):
        ExactRows.rounded(np.zeros((0, 2)), label[:0])


def test_rows_on_the_sphere_are_rounded_into_it() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(2000, 9))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    rows = ExactRows.rounded(x.astype(np.float32), np.zeros(2000, dtype=np.int64))
    whole = (rows.x.astype(np.float64) * 2**ROW_BITS).astype(np.int64)
    assert (whole / 2.0**ROW_BITS == rows.x).all()
    assert int((whole**2).sum(axis=1).max()) <= 4**ROW_BITS
    assert rows.x == pytest.approx(x, abs=1e-6)
