"""Uploads as whole numbers: rounding errors, the grid, sums of rounded normals."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from fedbudget.algorithm import Batch, local_steps, model_of_sum, noisy_upload
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_noise import ExactNormals
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.exact_uploads import (
    UploadGrid,
    exact_upload,
    log_sum_error,
    quiet_steps,
    rounding_error,
)
from fedbudget.losses import Huber, Logistic, Loss, SmoothHinge, Softmax
from fedbudget.privacy import GDP, LocalSteps, NoisyUploads

LOSSES: list[Loss] = [
    Logistic(l2=0.1),
    Softmax(num_classes=3),
    Huber(threshold=0.5),
    SmoothHinge(width=0.5, l2=0.05),
]


def rows_of(loss: Loss, seed: int, count: int = 5, dim: int = 3) -> ExactRows:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, dim))
    x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(max(2, loss.num_outputs), size=count)
    return ExactRows.rounded(x, 2.0 * y - 1 if loss.name == "huber" else y)


def steps_of(loss: Loss, rows: ExactRows, tau: int, share: float = 0.9) -> LocalSteps:
    return LocalSteps(
        lipschitz=loss.lipschitz,
        curvature=loss.curvature,
        l2=loss.l2,
        learning_rate=share * 2 / loss.smoothness,
        tau=tau,
        batch_size=len(rows),
    )


def exact_slopes(loss: Loss, scores: list[Any], y: Any) -> list[Any]:
    """Return the slopes of one row without rounding (with 60 digits, for exp)."""
    if isinstance(loss, Softmax):
        odds = [mpmath.exp(score) for score in scores]
        return [o / sum(odds) - (c == int(y)) for c, o in enumerate(odds)]
    score = scores[0]
    if isinstance(loss, Huber):
        limit = Fraction(loss.threshold)
        return [min(max(score - Fraction(float(y)), -limit), limit)]
    sign = 1 if y > 0 else -1
    if isinstance(loss, SmoothHinge):
        return [-sign * min(max((1 - sign * score) / Fraction(loss.width), 0), 1)]
    return [-sign / (1 + mpmath.exp(sign * score))]


def exact_move(
    loss: Loss, theta: np.ndarray, rows: ExactRows, steps: LocalSteps
) -> np.ndarray:
    """Return Delta_m without rounding errors, at last as floats."""
    number: Callable[[Any], Any] = Fraction
    if isinstance(loss, Logistic | Softmax):
        number = mpmath.mpf
    eta, l2 = number(steps.learning_rate), number(loss.l2)
    x = [[number(float(v)) for v in row] for row in rows.x]
    start = [number(float(v)) for v in theta]
    model, dim = list(start), rows.x.shape[1]
    for _ in range(steps.tau):
        total = [number(0)] * len(model)
        for row, y in zip(x, rows.y, strict=True):
            scores = [
                sum(model[c * dim + j] * row[j] for j in range(dim))
                for c in range(loss.num_outputs)
            ]
            for c, slope in enumerate(exact_slopes(loss, scores, y)):
                for j in range(dim):
                    total[c * dim + j] += slope * row[j]
        model = [
            value - eta * (part / len(rows) + l2 * value)
            for value, part in zip(model, total, strict=True)
        ]
    return np.array([float(b - a) for a, b in zip(start, model, strict=True)])


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_rounding_errors_are_within_their_bound(loss: Loss, scale: float) -> None:
    rng = np.random.default_rng(int(scale))
    with mpmath.workdps(60):
        for seed in range(8):
            rows = rows_of(loss, seed)
            steps = steps_of(loss, rows, tau=6)
            theta = scale * rng.normal(size=loss.num_params(3))
            move = quiet_steps(
                theta, rows, loss=loss, tau=6, learning_rate=steps.learning_rate
            )
            exact = exact_move(loss, theta, rows, steps)
            norm = float(np.linalg.norm(theta))
            bound = float(rounding_error(loss, steps, start_norm=norm, dim=3))
            # The exact move is rounded once itself, to be compared.
            error = np.linalg.norm(move - exact) - 1e-16 * np.linalg.norm(exact)
            assert error <= bound
            assert bound < 1e-4 * float(steps.sensitivity)


def test_slopes_are_far_more_accurate_than_assumed() -> None:
    """The constant 2^-40 of `rounding_error`, against 60 digits."""
    rng = np.random.default_rng(0)
    with mpmath.workdps(60):
        for loss in LOSSES:
            outputs = loss.num_outputs
            scores = rng.normal(size=(300, outputs)) * rng.exponential(8, (300, 1))
            y = rng.integers(max(2, outputs), size=300)
            slopes = loss.slopes(scores if outputs > 1 else scores[:, 0], y)
            for row in range(300):
                number = (
                    Fraction if isinstance(loss, Huber | SmoothHinge) else mpmath.mpf
                )
                exact = exact_slopes(
                    loss, [number(float(s)) for s in scores[row]], y[row]
                )
                mine = np.atleast_1d(slopes[row])
                errors = [
                    float(a - number(float(b)))
                    for a, b in zip(exact, mine, strict=True)
                ]
                assert np.linalg.norm(errors) < 2.0**-48


def uploads_of(
    loss: Loss, rows: ExactRows, *, tau: int = 4, **values: Any
) -> NoisyUploads:
    steps = steps_of(loss, rows, tau)
    usual: dict[str, Any] = {
        "weights": 0.25,
        "rounds": 10,
        "noise_std": float(steps.sensitivity),
        "least_answers": 3,
        "colluders": 1,
    }
    return NoisyUploads(steps=steps, **(usual | values))


def four(uploads: NoisyUploads) -> NoisyUploads:
    """Return the uploads of four such devices."""
    return replace(uploads, weights=np.full(4, 0.25))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_grid_keeps_the_planned_mu_and_hardly_raises_the_noise(loss: Loss) -> None:
    rows = rows_of(loss, 1, count=200)
    uploads = uploads_of(loss, rows)
    grid = UploadGrid.of(four(uploads), loss, dim=3)
    assert grid.covers(uploads, loss, dim=3)
    moved = float(grid.most_moved(uploads, loss, dim=3))
    honest = math.sqrt(uploads.least_answers - uploads.colluders) * 2**grid.scale_bits
    planned = float(uploads.mu) / math.sqrt(10)  # of one round
    assert 0.998 * planned < moved / honest <= planned
    raised = 2**grid.scale_bits * grid.step / uploads.noise_std
    assert 1 < raised < 1.001
    # No sum wraps around: the longest moves, and 12 standard deviations of noise.
    eta, tau = uploads.steps.learning_rate, uploads.steps.tau
    longest = (
        eta * tau * (loss.lipschitz + loss.l2 * (1e3 + eta * tau * loss.lipschitz))
    )
    assert longest / grid.step + 4 + 24 * 2**grid.scale_bits < 2**31
    # A finer grid covers, too; it would not fit the ring.
    finer = replace(grid, step=grid.step / 2, scale_bits=grid.scale_bits + 1)
    assert finer.covers(uploads, loss, dim=3)
    # Coarser or with less noise, it no longer covers.
    assert not replace(grid, step=grid.step / 1.01).covers(uploads, loss, dim=3)
    assert not grid.covers(
        replace(uploads, noise_std=1.01 * uploads.noise_std), loss, dim=3
    )


def test_a_ring_that_is_too_small_is_refused() -> None:
    loss = Logistic()
    uploads = four(uploads_of(loss, rows_of(loss, 1, count=200)))
    assert UploadGrid.of(uploads, loss, dim=3, ring_bits=24).scale_bits < (
        UploadGrid.of(uploads, loss, dim=3).scale_bits
    )
    with pytest.raises(InvalidInputError, match="use more ring_bits"):
        UploadGrid.of(uploads, loss, dim=3, ring_bits=16)
    with pytest.raises(InvalidInputError, match="scale_bits must be 4 to 30, got 3"):
        UploadGrid(step=1.0, scale_bits=3, ring_bits=32, largest_norm=1.0)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_no_pair_of_neighbours_moves_the_whole_numbers_further(loss: Loss) -> None:
    rng = np.random.default_rng(3)
    for seed in range(100):
        rows = rows_of(loss, seed)
        uploads = uploads_of(loss, rows, tau=7)
        grid = UploadGrid.of(four(uploads), loss, dim=3, ring_bits=28)
        other = rows_of(loss, seed + 1000, count=1)
        x, y = rows.x.copy(), rows.y.copy()
        x[0], y[0] = other.x[0], other.y[0]
        theta = 30 * rng.normal(size=loss.num_params(3))
        whole = [
            np.rint(
                0.25
                * quiet_steps(
                    theta,
                    data,
                    loss=loss,
                    tau=7,
                    learning_rate=uploads.steps.learning_rate,
                )
                / grid.step
            )
            for data in (rows, ExactRows(x=x, y=y))
        ]
        distance = float(np.linalg.norm(whole[0] - whole[1]))
        assert distance <= float(grid.most_moved(uploads, loss, dim=3))


def rounded_normal(scale: int, reach: int) -> list[Any]:
    """P(round(scale N) = k) for |k| <= reach, with many digits."""

    def below(value: Any) -> Any:
        return mpmath.erfc(-value / (scale * mpmath.sqrt(2))) / 2

    half = mpmath.mpf(1) / 2
    return [below(k + half) - below(k - half) for k in range(-reach, reach + 1)]


def convolved(pmf: list[Any], count: int) -> list[Any]:
    total = pmf
    for _ in range(count - 1):
        total = [
            mpmath.fsum(
                total[i] * pmf[k - i]
                for i in range(max(0, k - len(pmf) + 1), min(k, len(total) - 1) + 1)
            )
            for k in range(len(total) + len(pmf) - 1)
        ]
    return total


def rounded_sum(scale: int, count: int, reach: int) -> list[Any]:
    """P(round(scale sqrt(count) N + W) = k), by its characteristic function."""
    step = mpmath.mpf(1) / 40
    grid = [i * step for i in range(1, int(12 / (scale * float(step))) * 2)]
    values = [
        mpmath.exp(-count * (scale * w) ** 2 / 2)
        * (mpmath.sin(w / 2) / (w / 2)) ** count
        for w in grid
    ]
    return [
        step
        / mpmath.pi
        * (
            mpmath.mpf(1) / 2
            + mpmath.fsum(
                v * mpmath.cos(w * k) for w, v in zip(grid, values, strict=True)
            )
        )
        for k in range(-reach, reach + 1)
    ]


@pytest.mark.parametrize("scale, count", [(1, 2), (1, 4), (2, 3)])
def test_a_sum_of_rounded_normals_is_a_rounded_normal(scale: int, count: int) -> None:
    with mpmath.workdps(40):
        reach = 9 * scale
        mine = convolved(rounded_normal(scale, reach), count)
        ideal = rounded_sum(scale, count, reach * count)
        distances = [abs(a - b) for a, b in zip(mine, ideal, strict=True)]
        aliases = 2.1 * math.exp(-((math.pi * scale) ** 2) / 2)
        most = (count + 1) * aliases * (1 + aliases) ** count
        # Beyond nine standard deviations is less than 1e-18.
        assert float(max(distances)) <= most + 1e-18
        total = float(sum(distances)) / 2
        bits = int(math.log2(scale))
        error = math.exp(log_sum_error(scale_bits=bits, answers=count))
        assert total <= error + 1e-17
        if scale == 1:  # the bound is about something
            assert total > 1e-8


def test_the_error_of_sums_is_nothing_on_every_allowed_grid() -> None:
    for answers in (2, 1000, 10**6):
        assert log_sum_error(scale_bits=4, answers=answers) < math.log(1e-300)
    # Delta at 1e-5 is rounded up by more than that.
    mu = float(GDP.mu_from_epsilon(1.0, 1e-5))
    assert 1e-300 * 1e6 * 1e6 * (1 + math.e) < 1e-15 * 1e-5
    assert mu > 0


def test_dp_accounting_agrees_about_a_sum_of_shares() -> None:
    """Three rounded shares of std 4, moved by 3: the law itself, not its normal."""
    scale, count, moved, delta = 4, 3, 3, 1e-4
    with mpmath.workdps(30):
        pmf = [float(p) for p in convolved(rounded_normal(scale, 40), count)]
    reach = 40 * count
    lower = {k - reach: math.log(p) for k, p in enumerate(pmf) if p > 0}
    upper = {k + moved: log for k, log in lower.items()}
    law = privacy_loss_distribution.from_two_probability_mass_functions(
        lower, upper, pessimistic_estimate=True
    )
    measured = law.get_epsilon_for_delta(delta)
    claimed = float(GDP.epsilon_from_mu(moved / (scale * math.sqrt(count)), delta))
    assert 0.97 * claimed < measured <= claimed * (1 + 1e-3)


@pytest.mark.parametrize("ring", [8, 16, 64])
def test_sums_that_wrap_around_cost_no_more(ring: int) -> None:
    """Reduction modulo the ring is post-processing, even if most sums wrap around."""
    scale, count, moved, delta = 4, 3, 3, 1e-4
    with mpmath.workdps(30):
        pmf = [float(p) for p in convolved(rounded_normal(scale, 40), count)]
    lower, upper = np.zeros(ring), np.zeros(ring)
    for k, p in enumerate(pmf):
        lower[k % ring] += p
        upper[(k + moved) % ring] += p
    law = privacy_loss_distribution.from_two_probability_mass_functions(
        {k: math.log(p) for k, p in enumerate(lower)},
        {k: math.log(p) for k, p in enumerate(upper)},
        pessimistic_estimate=True,
    )
    claimed = float(GDP.epsilon_from_mu(moved / (scale * math.sqrt(count)), delta))
    # The estimate itself is rounded up, to losses of 1e-4.
    assert 0 <= law.get_epsilon_for_delta(delta) <= claimed * (1 + 1e-3)


def test_a_discrete_gaussian_of_the_same_variance_is_no_more_private() -> None:
    """dp-accounting's own mechanism as a witness of the sum's epsilon."""
    scale, count, moved, delta = 4, 3, 3, 1e-4
    witness = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        scale * math.sqrt(count), sensitivity=moved
    )
    claimed = float(GDP.epsilon_from_mu(moved / (scale * math.sqrt(count)), delta))
    assert witness.get_epsilon_for_delta(delta) == pytest.approx(claimed, rel=0.02)


def sum_of_uploads(
    loss: Loss, theta: np.ndarray, devices: list[ExactRows], grid: UploadGrid
) -> np.ndarray:
    total = np.zeros(len(theta), dtype=np.int64)
    for rows in devices:
        uploads = uploads_of(loss, rows)
        total += exact_upload(theta, rows, loss=loss, uploads=uploads, grid=grid)
    return grid.decoded(total % (1 << grid.ring_bits))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_sum_is_the_references_up_to_its_noise(loss: Loss) -> None:
    rng = np.random.default_rng(5)
    theta = rng.normal(size=loss.num_params(3))
    devices = [rows_of(loss, seed, count=200) for seed in range(4)]
    uploads = uploads_of(loss, devices[0])
    grid = UploadGrid.of(four(uploads), loss, dim=3)
    expected = [
        noisy_upload(
            theta,
            local_steps(
                theta,
                rows.x.astype(np.float64),
                rows.y,
                loss=loss,
                tau=4,
                learning_rate=uploads.steps.learning_rate,
                noise_std=0.0,
                batch=Batch(),
                rng=rng,
            ),
            weight=0.25,
            noise_std=0.0,
            rng=rng,
        )
        for rows in devices
    ]
    clean = np.sum(expected, axis=0)
    draws = np.array([sum_of_uploads(loss, theta, devices, grid) for _ in range(60)])
    noise = (draws - clean) / (2 * uploads.noise_std)  # four shares
    # Seven standard errors, and the thousandth by which the grid raises the noise.
    assert np.std(noise) == pytest.approx(1, abs=7 / math.sqrt(2 * noise.size) + 1e-3)
    assert abs(np.mean(noise)) < 7 / math.sqrt(noise.size)
    model = model_of_sum(theta, draws[:1], np.ones(1))
    assert model == pytest.approx(theta + draws[0])


def test_sums_are_decoded_modulo_the_ring() -> None:
    grid = UploadGrid(step=0.5, scale_bits=8, ring_bits=10, largest_norm=1.0)
    total = np.array([511, -512, 3, -1])
    assert grid.decoded(total).tolist() == [255.5, -256.0, 1.5, -0.5]
    assert grid.decoded(total % 1024).tolist() == grid.decoded(total).tolist()


def test_batches_in_turn_and_clipping() -> None:
    loss = Logistic()
    rows = rows_of(loss, 2, count=12)
    batches = [np.arange(6), np.arange(6, 12)]
    steps = replace(steps_of(loss, rows, 4), batch_size=6, blocks=2, clip=0.05)
    uploads = replace(uploads_of(loss, rows), steps=steps)
    grid = UploadGrid.of(four(uploads), loss, dim=3)
    theta = np.zeros(3)
    draws = np.array(
        [
            exact_upload(
                theta, rows, loss=loss, uploads=uploads, grid=grid, batches=batches
            )
            for _ in range(200)
        ]
    )
    move = quiet_steps(
        theta,
        rows,
        loss=loss,
        tau=4,
        learning_rate=steps.learning_rate,
        batches=batches,
    )
    clipped = 0.25 * move * 0.05 / np.linalg.norm(move)
    error = 7 * uploads.noise_std / math.sqrt(200)
    assert draws.mean(axis=0) * grid.step == pytest.approx(clipped, abs=error)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"theta": np.full(3, 1e5)}, "the model has norm 173205, above 1000"),
        ({"theta": np.full(3, np.nan)}, "the model has norm nan"),
        ({"rows": rows_of(Logistic(), 1, count=9)}, "the plan is for 1 batches of 12"),
        ({"batches": [np.arange(12)] * 2}, "plan is for 1 batches of 12 rows, got 2"),
        ({"batches": [np.zeros(12, dtype=int)]}, "a row is in two batches"),
        ({"weights": 1e-4}, "does not keep this device's epsilon"),
    ],
)
def test_what_is_not_covered_is_refused(changes: dict[str, Any], message: str) -> None:
    loss = Logistic()
    rows = rows_of(loss, 2, count=12)
    uploads = uploads_of(loss, rows)
    grid = UploadGrid.of(four(uploads), loss, dim=3)
    order: dict[str, Any] = {"theta": np.zeros(3), "rows": rows, "batches": None}
    order |= {name: changes[name] for name in order if name in changes}
    if "weights" in changes:
        uploads = replace(uploads, weights=changes["weights"])
    with pytest.raises(InvalidInputError, match=message):
        exact_upload(
            order["theta"],
            order["rows"],
            loss=loss,
            uploads=uploads,
            grid=grid,
            batches=order["batches"],
        )


def test_too_many_outputs_are_refused() -> None:
    loss = Softmax(num_classes=5000)
    with pytest.raises(InvalidInputError, match="the loss has 5000 outputs"):
        rounding_error(
            loss, steps_of(loss, rows_of(LOSSES[0], 1), 1), start_norm=1.0, dim=3
        )


def test_shares_are_the_exact_normals_of_the_operating_system() -> None:
    drawn = ExactNormals().draw(4000, scale_bits=10)
    assert np.std(drawn) == pytest.approx(1024, rel=5 / math.sqrt(8000))
