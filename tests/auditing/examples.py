"""Claims, and mechanisms with and without faults, for tests of the audit.

Random words are seeded: a test always sees the same trials, and cannot fail by chance.
"""

import math
from fractions import Fraction

import numpy as np

from fedbudget.auditing.canaries import Table
from fedbudget.auditing.mechanisms import DevicePath, ExactSum
from fedbudget.auditing.settings import Claim
from fedbudget.checks import Array
from fedbudget.fleet.device.exact_noise import ExactNormals, Integers, Words
from fedbudget.fleet.device.exact_steps import NoiseGrid
from fedbudget.losses import loss_named
from fedbudget.privacy import mu_from_epsilon

LOSSES = ["logistic", "hinge", "smooth_hinge", "huber", "softmax"]


def claim(
    epsilon: float = 4.0,
    *,
    delta: float = 1e-5,
    steps: int = 2,
    loss: str = "logistic",
    batch_size: int = 50,
) -> Claim:
    """Return a claim whose noise spends its epsilon exactly."""
    classes = 3 if loss == "softmax" else 1
    lipschitz = loss_named(loss, num_classes=classes if classes > 1 else None).lipschitz
    multiplier = 2 * math.sqrt(steps) / float(mu_from_epsilon(epsilon, delta))
    return Claim(
        name="one device",
        loss=loss,
        num_classes=classes,
        dim=6,
        num_samples=batch_size,
        batch_size=batch_size,
        noise_std=multiplier * lipschitz / batch_size,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
    )


class SeededPath(DevicePath):
    """The device's path, with words from a seed for the noise of single steps."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def _words(self, count: int) -> Words:
        return self._rng.integers(0, 2**64, count, dtype=np.uint64)

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        return ExactNormals(self._words).draw(count, scale_bits=scale_bits)


class HalfNoise(SeededPath):
    """Draws half of the noise."""

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        return super().draw(count, scale_bits=scale_bits - 1)


class CoarseNoise(SeededPath):
    """Draws noise whose low bits are always zero."""

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        return super().draw(count, scale_bits=scale_bits - 4) << 4


class SmallGrid(SeededPath):
    """Scales the grid down, and the noise with it."""

    def grid(self, claim: Claim) -> NoiseGrid:
        return super().grid(claim.with_noise(0.5))


class FloatSums(SeededPath):
    """Adds gradients in float32, one row after the other."""

    def exact_sum(self, claim: Claim, theta: Array, table: Table) -> ExactSum:
        loss = claim.model
        gradients = loss.sample_gradients(theta, table.x, table.y).astype(np.float32)
        total = np.add.accumulate(gradients, axis=0)[-1]
        unit = Fraction(1, 2**30)
        return ExactSum(numbers=(total * 2.0**30).astype(np.int64), unit=unit)


class FloatNoise(SeededPath):
    """Adds noise in floating point to sums that are on no grid."""

    def release(self, grid: NoiseGrid, total: ExactSum, noise: Integers) -> Array:
        scale = np.float32(grid.step * 2.0**grid.scale_bits)
        normal = (noise / 2.0**grid.scale_bits).astype(np.float32)
        return np.asarray(total.floats + (scale * normal).astype(np.float64))
