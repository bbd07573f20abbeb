"""Part (d): whole runs on two neighbouring tables, thousands of times.

In a run, a device releases K noisy sums of gradients. At the canaries' model
(`canaries`), every sum is the same whole-number vector in each step, whatever was
released before: a table decides only one vector, and the noise of all steps and
coordinates is independent. So two facts hold, for both tables alike:

- coordinates in which the two vectors agree have the same law, independent of the
  others: they carry no information, and no noise needs to be drawn for them;
- what remains is normal with known directions: the projection on the difference of the
  two vectors, added up over the steps with equal weights, is a sufficient statistic.

That number is the trial, in standard deviations as claimed: T = sum_k <S_k, w> /
(X sigma sqrt(K)). Under the claim, its means differ by mu = 2 G sqrt(K) / (X sigma).

For uploads to a sum, S_k is the sum of a round, and its noise that of the honest
devices. The server chooses the model that a round starts from, so every round starts
from the canaries' model.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.auditing.bounds import Trials
from fedbudget.auditing.canaries import Pair
from fedbudget.auditing.mechanisms import AnyClaim, ExactSum, Mechanism
from fedbudget.auditing.settings import Audited, Claim
from fedbudget.checks import Array

AT_ONCE = 1 << 16  # draws: more are not faster, and need memory
_FEWEST = 10  # trials on each table
_FEWEST_IN_TIME = 3  # however short the time is: a run may take seconds
_MOST_THREADS = 8

# Returns the numbers of `count` trials on the first (0) or the second (1) table.
Trial: TypeAlias = Callable[[int, int], Array]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to go on: for some seconds, or for a number of trials."""

    seconds: float | None = None
    trials: int | None = None  # on each table

    def part(self, *, seconds: float, trials: float) -> "Effort":
        """Return a share of the seconds, or of the trials."""
        if self.trials is not None:
            return Effort(trials=max(_FEWEST, int(trials * self.trials)))
        return Effort(seconds=seconds * (self.seconds or 0.0))

    def chunks(self, total: int, at_once: int) -> Iterator[int]:
        """Yield sizes up to `at_once`: of `total`, or until the time is over."""
        if self.trials is None:
            end = time.monotonic() + (self.seconds or 0.0)
            yield at_once
            while time.monotonic() < end:
                yield at_once
            return
        for start in range(0, total, at_once):
            yield min(at_once, total - start)


def collect(trial: Trial, effort: Effort, *, at_once: int, threads: int = 1) -> Trials:
    """Carry out trials on both tables, equally often.

    A number of trials is carried out in this thread, so that the same random words give
    the same numbers; for a time, `threads` threads are used.
    """
    if effort.trials is not None:
        count = max(effort.trials, _FEWEST)
        sides = [
            [trial(side, size) for size in effort.chunks(count, at_once)]
            for side in (0, 1)
        ]
        return Trials(first=np.concatenate(sides[0]), second=np.concatenate(sides[1]))
    return _collect_for(trial, effort.seconds or 0.0, at_once, threads)


def _collect_for(trial: Trial, seconds: float, at_once: int, threads: int) -> Trials:
    end, stop = time.monotonic() + seconds, threading.Event()

    def work(_: int) -> tuple[list[Array], list[Array]]:
        done: tuple[list[Array], list[Array]] = ([], [])
        while not stop.is_set():
            for side in (0, 1):
                done[side].append(trial(side, at_once))
            enough = len(done[0]) * at_once >= _FEWEST_IN_TIME
            if enough and time.monotonic() >= end:
                break
        return done

    with ThreadPoolExecutor(threads) as pool:
        try:
            results = list(pool.map(work, range(threads)))
        finally:
            stop.set()  # after Ctrl-C, too: threads end after their current trials
    first, second = ([x for done in results for x in done[side]] for side in (0, 1))
    return Trials(first=np.concatenate(first), second=np.concatenate(second))


def cores() -> int:
    """Return how many threads to use."""
    return max(1, min(_MOST_THREADS, cpu_count() or 1))


def steps_trials(
    mechanism: Mechanism[AnyClaim], claim: AnyClaim, pair: Pair, effort: Effort
) -> Trials:
    """Carry out runs step by step, many trials at once."""
    signal = Signal.of(mechanism, claim, pair)
    grid, steps = mechanism.grid(claim), claim.steps

    def trial(side: int, count: int) -> Array:
        shape = (count * steps, len(signal.index))
        noise = _noise(mechanism, claim, shape[0] * shape[1], grid.scale_bits)
        released = mechanism.release(grid, signal.sums[side], noise.reshape(shape))
        along = (released - signal.middle) @ signal.direction
        return signal.scaled(along.reshape(count, steps).sum(axis=1), claim)

    at_once = max(1, AT_ONCE // (steps * len(signal.index) * claim.shares))
    return collect(trial, effort, at_once=at_once, threads=cores())


def _noise(
    mechanism: Mechanism[AnyClaim], claim: AnyClaim, count: int, scale_bits: int
) -> NDArray[np.int64]:
    """Return the noise of released sums: each the sum of several draws."""
    drawn = mechanism.draw(count * claim.shares, scale_bits=scale_bits)
    return np.asarray(drawn.reshape(claim.shares, count).sum(axis=0))


def run_trials(
    mechanism: Mechanism[AnyClaim], claim: AnyClaim, effort: Effort
) -> Trials:
    """Carry out runs through the mechanism's own loop.

    The table is small, at the noise multiplier of the claim.
    """
    small = claim.small()
    pair = small.canaries()
    signal = Signal.of(mechanism, small, pair)

    def trial(side: int, count: int) -> Array:
        totals = mechanism.runs(small, pair.tables[side], pair.theta, count)
        return signal.of_totals(totals[:, signal.index], small)

    at_once = max(1, mechanism.steps_at_once // small.steps)
    return collect(trial, effort, at_once=at_once)


@dataclass(frozen=True, kw_only=True, eq=False)
class Signal:
    """Where, and along which direction, the sums of two tables differ."""

    index: NDArray[np.intp]
    sums: tuple[ExactSum, ExactSum]  # at the index
    direction: Array  # of length 1
    middle: Array

    @classmethod
    def of(
        cls, mechanism: Mechanism[AnyClaim], claim: AnyClaim, pair: Pair
    ) -> "Signal":
        """Compare the sums of both tables of a pair."""
        first, second = (
            mechanism.exact_sum(claim, pair.theta, table) for table in pair.tables
        )
        index = np.flatnonzero(first.numbers != second.numbers)
        first, second = first.at(index), second.at(index)
        difference = first.floats - second.floats
        return cls(
            index=index,
            sums=(first, second),
            direction=difference / np.linalg.norm(difference),
            middle=(first.floats + second.floats) / 2,
        )

    def scaled(self, along: Array, claim: Audited) -> Array:
        """Return added projections in standard deviations, as claimed."""
        return np.asarray(along / (claim.deviation * math.sqrt(claim.steps)))

    def of_totals(self, totals: Array, claim: Audited) -> Array:
        """Return the trials of whole runs, from their sums over all releases."""
        centred = totals - claim.steps * self.middle
        return self.scaled(centred @ self.direction, claim)

    def of_models(self, moved: Array, claim: Claim, learning_rate: float) -> Array:
        """Return the trials of whole runs, from how far their models moved."""
        return self.of_totals(moved * (claim.batch_size / learning_rate), claim)
