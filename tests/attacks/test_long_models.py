"""Attack: a model so long that a device's rounding errors betray a row.

Next to a weight of 2^54, a step of less than 1 is lost and one of more than 1 becomes
2: a single row, which moves the step by a hundredth, decides which. The bound on what
one row moves does not hold for such arithmetic. A device refuses models that long.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.exact_uploads import UploadGrid, exact_upload, quiet_steps
from fedbudget.fleet.wire.messages import Reply
from fedbudget.losses import Logistic
from fedbudget.privacy import LocalSteps, NoisyUploads
from tests.fleet.sums import DIM, Hostile

ROWS, RATE = 100, 2.0
LONG = np.array([2.0**54, 0.0])


def neighbours() -> tuple[ExactRows, ExactRows]:
    """Return rows whose mean step is just below 1, and just above it."""
    x = np.zeros((ROWS, 2))
    x[:, 0] = 0.5 - 2.0**-10
    changed = x.copy()
    changed[0, 0] = 0.9
    y = np.zeros(ROWS, dtype=np.int64)
    return ExactRows.rounded(x, y), ExactRows.rounded(changed, y)


UPLOADS = NoisyUploads(
    steps=LocalSteps(
        lipschitz=1, curvature=0.25, learning_rate=RATE, tau=1, batch_size=ROWS
    ),
    weights=1.0,
    rounds=1,
    noise_std=0.1,
    least_answers=1,
)


def test_unguarded_steps_from_a_long_model_betray_a_row() -> None:
    moves = [
        quiet_steps(LONG, rows, loss=Logistic(), tau=1, learning_rate=RATE)
        for rows in neighbours()
    ]
    distance = float(np.linalg.norm(moves[0] - moves[1]))
    assert distance > 10 * float(UPLOADS.steps.sensitivity)


def test_a_device_refuses_a_long_model() -> None:
    grid = UploadGrid.of(UPLOADS, Logistic(), dim=2)
    for rows in neighbours():
        with pytest.raises(InvalidInputError, match="rounding errors are not covered"):
            exact_upload(LONG, rows, loss=Logistic(), uploads=UPLOADS, grid=grid)


def test_a_coordinator_cannot_raise_the_limit() -> None:
    """A grid that allows longer models does not cover the device's epsilon."""
    grid = UploadGrid.of(UPLOADS, Logistic(), dim=2)
    lax = UploadGrid(
        step=grid.step,
        scale_bits=grid.scale_bits,
        ring_bits=grid.ring_bits,
        largest_norm=2.0**55,
    )
    with pytest.raises(InvalidInputError, match="does not keep this device's epsilon"):
        exact_upload(LONG, neighbours()[0], loss=Logistic(), uploads=UPLOADS, grid=lax)


def test_a_grid_so_fine_that_whole_numbers_overflow_is_refused() -> None:
    """With an L2 term a long model moves far: past 2^63, numbers have no defined value.

    The noise is that of an honest charge: without its own check, the grid is accepted.
    """
    loss = Logistic(l2=0.5)
    steps = replace(UPLOADS.steps, l2=loss.l2, learning_rate=1.0)
    grid = UploadGrid(
        step=1e12 * loss.l2 / 2.0**64, scale_bits=30, ring_bits=32, largest_norm=1e12
    )
    uploads = replace(UPLOADS, steps=steps)
    moved = float(grid.most_moved(uploads, loss, dim=2)) / 2.0**grid.scale_bits
    std = float(steps.sensitivity) / moved * (1 - 1e-9)
    uploads = replace(uploads, noise_std=std)
    assert float(uploads.noise_multiplier) > 100  # no owner forbids such noise
    assert not grid.covers(uploads, loss, dim=2).all()
    coarser = replace(grid, step=8 * grid.step)
    assert coarser.covers(uploads, loss, dim=2).all()


def test_a_process_refuses_it_before_a_charge(hostile: Hostile) -> None:
    for theta in (np.full(DIM, 1e6), np.full(DIM, 1e200)):
        reply = hostile.order("device-0", hostile.attempt(theta=theta))
        assert isinstance(reply, Reply) and reply.code == "bad-model"
    assert hostile.fleet.entries("device-0", "charge") == []
