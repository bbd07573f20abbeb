"""Attack: a model so long that a device's rounding errors betray a row.

Next to a weight of 2^54, a step of less than 1 is lost and one of more than 1 becomes
2: a single row, which moves the step by a hundredth, decides which. The bound on what
one row moves does not hold for such arithmetic. A device refuses models that long.
"""

import numpy as np
import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.exact_uploads import UploadGrid, exact_upload, quiet_steps
from fedbudget.losses import Logistic
from fedbudget.privacy import LocalSteps, NoisyUploads

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
