"""Part (b): the noise, and faults that each of its tests must see."""

import numpy as np
import pytest

from fedbudget.auditing.noise import NoiseTest, measure_noise
from fedbudget.fleet.device.exact_noise import Integers
from tests.auditing.examples import CoarseNoise, HalfNoise, SeededPath

BITS = 30


def noise_test(path: SeededPath, *, draws: int = 120_000) -> NoiseTest:
    return measure_noise(
        lambda count: path.draw(count, scale_bits=BITS),
        scale_bits=BITS,
        chunks=[draws // 2, draws // 2],
        error=1e-3,
    )


def test_exact_noise_passes() -> None:
    result = noise_test(SeededPath(1))
    assert result.holds and result.draws == 120_000
    low, high = result.interval
    assert low < 1 < high and high - low < 0.02
    # P(|N| > 2) is 0.0455, P(|N| > 3) 0.0027, P(|N| > 4) 6.33e-5.
    assert result.expected == pytest.approx((5460.0, 323.976, 7.601), rel=1e-3)


@pytest.mark.parametrize("fault", [HalfNoise, CoarseNoise])
def test_faulty_noise_is_seen(fault: type[SeededPath]) -> None:
    assert not noise_test(fault(1)).holds


def test_cut_tails_are_seen() -> None:
    class Cut(SeededPath):
        def draw(self, count: int, *, scale_bits: int) -> Integers:
            drawn = super().draw(2 * count, scale_bits=scale_bits)
            return np.asarray(drawn[np.abs(drawn) < 3 * 2**scale_bits][:count])

    result = noise_test(Cut(1))
    assert not result.holds and result.beyond[1] == 0


def test_a_small_shortfall_of_the_variance_is_seen() -> None:
    class Shrunk(SeededPath):
        def draw(self, count: int, *, scale_bits: int) -> Integers:
            drawn = super().draw(count, scale_bits=scale_bits) * 0.98
            return np.asarray(np.rint(drawn), dtype=np.int64)

    result = noise_test(Shrunk(1))
    assert not result.holds and result.interval[1] < 1
