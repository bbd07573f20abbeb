"""Rounds of a release: random words from a stream, then the compiled steps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import shake_256
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedbudget.algorithm import SAMPLINGS, Sampling
from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_noise import Integers
from fedbudget.fleet.device.exact_steps import ROW_BITS, NoiseGrid, slope_bits
from fedbudget.planning import Plan
from fedbudget.simulation.kernels.layouts import PackedRows
from fedbudget.simulation.kernels.runs import LOSS_CODES, loss_constant, num_threads

if TYPE_CHECKING:
    from types import ModuleType

AT_ONCE = 1 << 18  # random numbers of one call of the compiled steps: a few megabytes


def noise_grids(plan: Plan, number: int = 1) -> dict[int, NoiseGrid]:
    """Return the grid of every device that takes part, in a round counted from 1.

    Raises:
        InvalidInputError: A device has no noise, or noise that cannot be drawn exactly.
    """
    devices = np.flatnonzero(plan.takes_part(1))
    if not plan.noise_std[devices].all():
        m = int(devices[np.argmin(plan.noise_std[devices])])
        raise InvalidInputError(
            f"the plan has no noise on device {m}, so its model may not be released: "
            "simulate the devices, or plan with a budget"
        )
    noise_std = plan.noise_std_of(number)
    return {
        int(m): NoiseGrid.of(
            noise_std=float(noise_std[m]),
            batch_size=int(plan.batch_size[m]),
            lipschitz=plan.lipschitz,
            num_params=plan.model.num_params(plan.dim),
            most_rows=int(plan.num_samples[m]),
        )
        for m in devices
    }


class _Part(NamedTuple):
    """Devices and steps whose random numbers are drawn at once."""

    members: slice  # of the devices that take part
    steps: range


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseRounds:
    """A plan's local steps on these rows, ready to run."""

    plan: Plan
    packed: PackedRows
    scale_bits: Integers  # shape (M,): of the noise; -1 if a device takes no part
    batch_words: Integers  # shape (M,): random words of a step's batch
    rows: Any
    work: Any
    memory: Any

    @classmethod
    def of(cls, plan: Plan, packed: PackedRows) -> "ReleaseRounds":
        """Prepare the steps.

        Raises:
            InvalidInputError: The plan's noise cannot be drawn exactly.
        """
        grids = noise_grids(plan)
        sizes = plan.batch_size
        words = {"fixed": sizes, "poisson": (plan.num_samples + 1) // 2}
        none = np.zeros(plan.num_devices, dtype=np.int64)
        rows = packed.layout_for(float(np.mean(sizes)))
        table_size = int(getattr(rows, "table_size", 1))
        return cls(
            plan=plan,
            packed=packed,
            scale_bits=_scale_bits(plan, grids),
            batch_words=np.asarray(words.get(plan.sampling, none), dtype=np.int64),
            rows=rows,
            work=_work(plan, grids),
            memory=_sums().new_memory(packed, table_size, num_threads()),
        )

    def in_round(self, number: int) -> "ReleaseRounds":
        """Return the steps of a round, counted from 1: its noise has its own grid.

        Raises:
            InvalidInputError: The round's noise cannot be drawn exactly.
        """
        if self.plan.noise_decay == 1:
            return self
        grids = noise_grids(self.plan, number)
        grid_step = _grid_step(self.plan, grids)
        return replace(
            self,
            scale_bits=_scale_bits(self.plan, grids),
            work=self.work._replace(grid_step=grid_step),
        )

    def replies(
        self,
        theta: Array,
        devices: Integers,
        *,
        first_step: int,
        shifts: Array | None,
        deal: NDArray[np.uint32],
    ) -> Array:
        """Return the devices' models after tau noisy steps, shape (devices, params).

        Args:
            theta: The model to start from.
            devices: That take part.
            first_step: The number of steps before this round.
            shifts: Added in every step, one row per device; None: nothing.
            deal: The order of cyclic batches over all rows, from `dealt_rows`.
        """
        from fedbudget.release.normals import FastNormals, Stream

        stream = Stream()  # a new key for every round
        normals = FastNormals(stream)
        models = np.tile(np.asarray(theta, dtype=np.float64), (len(devices), 1))
        if shifts is None:
            shifts = np.zeros_like(models)
        for members, steps in self._parts(devices):
            own = devices[members]
            ends = np.cumsum(self.batch_words[own] * len(steps))
            arguments = (
                np.zeros(1, dtype=np.int64),  # claims
                own,
                first_step + steps.start,
                models[members],
                shifts[members],
                self._noise(normals, own, len(steps)),
                stream(int(ends[-1])),
                np.concatenate([[0], ends]),
                deal,
            )
            self._take_steps(arguments)
        return models

    def _take_steps(self, arguments: tuple[Any, ...]) -> None:
        """Take the steps on all threads, in place."""
        from fedbudget.simulation.kernels.sharing import distributed

        distributed(
            lambda worker: _steps().worker_steps(
                self.rows, worker, *arguments, self.work, self.memory
            ),
            len(self.memory.theta),
        )

    def _parts(self, devices: Integers) -> Iterator[_Part]:
        """Split a round such that each part needs about AT_ONCE random numbers.

        A part has whole rounds of several devices, or some steps of one.
        """
        tau, num_params = self.plan.tau, self.packed.num_params
        per_step = num_params + self.batch_words[devices]
        ends = np.cumsum(per_step * tau)
        first = 0
        while first < len(devices):
            most = AT_ONCE + (ends[first - 1] if first else 0)
            stop = max(first + 1, int(np.searchsorted(ends, most, side="right")))
            alone = stop == first + 1
            at_once = max(1, AT_ONCE // int(per_step[first])) if alone else tau
            for start in range(0, tau, at_once):
                steps = range(start, min(start + at_once, tau))
                yield _Part(slice(first, stop), steps)
            first = stop

    def _noise(self, normals: Any, devices: Integers, steps: int) -> Integers:
        """Return exact noise in grid steps, shape (devices, steps, params)."""
        shape = len(devices), steps, self.packed.num_params
        noise = np.empty(shape, dtype=np.int64)
        scale_bits = self.scale_bits[devices]
        for bits in np.unique(scale_bits):
            same = scale_bits == bits
            count = int(same.sum()) * steps * shape[2]
            drawn = normals.draw(count, scale_bits=int(bits))
            noise[same] = drawn.reshape(-1, *shape[1:])
        return noise


def _sums() -> "ModuleType":
    """Import Numba and the kernels lazily, as `simulation.kernels.runs` does."""
    from fedbudget.release import sums

    return sums


def _steps() -> "ModuleType":
    from fedbudget.release import steps

    return steps


def _work(plan: Plan, grids: dict[int, NoiseGrid]) -> Any:
    """Return the plan's numbers for the compiled steps."""
    loss = plan.model
    bits = np.array([slope_bits(int(n), loss.lipschitz) for n in plan.num_samples])
    inclusion = [
        (int(size) << 32) // int(n)  # rounded down: never above the accounted one
        for size, n in zip(plan.batch_size, plan.num_samples, strict=True)
    ]
    return _sums().Work(
        loss=LOSS_CODES[loss.name],
        threshold=loss_constant(loss),
        sampling=SAMPLINGS.index(cast(Sampling, plan.sampling)),
        dim=plan.dim,
        num_outputs=loss.num_outputs,
        l2=float(loss.l2),
        learning_rate=float(plan.learning_rate),
        batch_size=np.asarray(plan.batch_size, dtype=np.int64),
        inclusion=np.array(inclusion, dtype=np.uint64),
        slope_scale=2.0**bits,
        slope_bound=np.floor(loss.lipschitz * 2.0**bits),
        unit=2.0 ** -(ROW_BITS + bits),
        grid_step=_grid_step(plan, grids),
    )


def _scale_bits(plan: Plan, grids: dict[int, NoiseGrid]) -> Integers:
    bits = np.full(plan.num_devices, -1)  # no noise can be drawn for others
    for m, grid in grids.items():
        bits[m] = grid.scale_bits
    return bits


def _grid_step(plan: Plan, grids: dict[int, NoiseGrid]) -> Array:
    step = np.full(plan.num_devices, np.nan)
    for m, grid in grids.items():
        step[m] = grid.step
    return step


def dealt_rows(stream: int, offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return each device's rows in the order of its cyclic batches; shape (N,).

    The order is a function of the stream's number alone, and may be public: a pass over
    disjoint batches costs one step for every partition that does not depend on the
    rows' values. So a resumed run takes the batches that its ledgers were charged for.
    """
    bits = shake_256(stream.to_bytes(8, "little")).digest(8 * int(offsets[-1]))
    words = np.frombuffer(bits, dtype="<u8")
    device = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((words, device)) - offsets[device]
    return order.astype(np.uint32)
