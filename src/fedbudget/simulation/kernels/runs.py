"""Fast simulation of many devices and of many runs: the compiled local steps.

    run_rounds      one run over many devices, in parallel over devices
    simulate        the same, with all that a server and its devices keep
    device_replies  one round, every device's own model
    sweep_runs      many plans and seeds, in parallel over runs

The steps are those of `algorithm`; the tests compare them. Random numbers depend on
(seed, device, step) only: neither the number of threads nor the order of work changes
a result. Numba compiles on first use, once per layout of the rows, and caches the
machine code on disk.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.algorithm import SAMPLINGS, Sampling
from fedbudget.checks import number, one_of, per_device, whole, within
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Floats, Huber, Loss, SmoothHinge
from fedbudget.simulation.kernels.layouts import RUN, DenseRows, OneHotRows, PackedRows

if TYPE_CHECKING:
    from types import ModuleType

FloatT = TypeVar("FloatT", bound=np.floating[Any])

LOSS_CODES = {"logistic": 0, "hinge": 1, "huber": 2, "softmax": 3, "smooth_hinge": 4}
_PER_RUN = (
    "l2",
    "learning_rate",
    "momentum",
    "server_rate",
    "batch_size",
    "noise_std",
    "noise_decay",
    "weights",
    "takes_part",
    "smallest",
    "largest",
    "noisy",
    "upload_noise",
    "clip",
)
# Threads meet at the end of every round: shorter rounds are faster on a single thread.
_WORTH_THREADS = 0.02e-3  # seconds of a round on one core
_WORTH_HELP = 0.2e-3  # seconds of all rounds: a helper takes a while to come
# A thread looks at an unfinished block of another one for this many times as long as a
# block should take, before it does the block again; a look takes about a nanosecond.
_PATIENCE, _MIN_LOOKS = 3, 1000
_MAX_SHIFTS = 1 << 26  # bytes of the devices' shifts that are held at a time
# Up to this many plans run faster one by one than side by side: in general, with full
# batches, and with full batches of dense rows.
_FEW_PLANS, _FEW_FULL, _FEW_DENSE = 3, 6, 12


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """One round of every device; values may be common or per device."""

    tau: int
    learning_rate: float
    batch_size: ArrayLike  # X_m; not read for full batches
    noise_std: ArrayLike  # sigma_m, in the first round of a run
    weights: ArrayLike  # p_m; a device with weight 0 does not take part
    sampling: Sampling = "fixed"
    momentum: float = 0.0  # of the server's update, between rounds
    server_rate: float = 1.0  # a factor of that update
    drift_correction: bool = False  # see `algorithm.next_shift`
    noise_decay: float = 1.0  # the noise of a round over that of the round before
    # Noise once per upload (`algorithm.noisy_upload`), drawn once, for the mean:
    # its std there. Local steps have none then.
    upload_noise: float = 0.0
    clip: float | None = None  # largest norm of a device's move


def loss_constant(loss: Loss) -> np.float32:
    """Return what the kernels know of a loss besides its code.

    Where Huber's loss becomes linear, or the curvature of the smooth hinge.
    """
    if isinstance(loss, SmoothHinge):
        return np.float32(loss.curvature)
    return np.float32(loss.threshold if isinstance(loss, Huber) else 0.0)


def _check_plan(plan: RoundPlan, packed: PackedRows) -> None:
    """Refuse invalid plans: the kernels themselves check nothing."""
    one_of("sampling", plan.sampling, SAMPLINGS)
    number("momentum", plan.momentum, least=0, below=1)
    number("server_rate", plan.server_rate, above=0)
    number("noise_decay", plan.noise_decay, above=0, most=1)
    number("learning_rate", plan.learning_rate)
    whole("tau", plan.tau)
    sizes = per_device("batch_size", plan.batch_size, packed.num_devices)
    invalid = (sizes < 1) | (sizes > packed.num_samples)
    if plan.sampling != "full" and invalid.any():
        m = int(np.flatnonzero(invalid)[0])
        raise InvalidInputError(
            f"batch_size of device {m} must be 1 .. {packed.num_samples[m]}, its "
            f"number of rows, got {sizes[m]:g}"
        )
    for name in ("noise_std", "weights"):
        values = within(name, getattr(plan, name), least=0)
        per_device(name, values, packed.num_devices)
    number("upload_noise", plan.upload_noise, least=0)
    if plan.clip is not None:
        number("clip", plan.clip, above=0)
    if plan.upload_noise > 0 and (plan.drift_correction or np.any(plan.noise_std)):
        raise InvalidInputError(
            f"upload_noise {plan.upload_noise:g} is drawn once per round: set "
            "noise_std to 0 and drift_correction to False"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulated:
    """Consecutive rounds; entry r of each array is after the r-th of them."""

    averages: NDArray[np.float64]  # shape (rounds, num_params): means of the replies
    models: NDArray[np.float64]  # shape (rounds, num_params): with the momentum
    velocities: NDArray[np.float64]  # shape (rounds, num_params): the server's
    shifts: NDArray[np.float32]  # shape (rounds, M, P): as `no_shifts`, the devices'


def run_rounds(
    packed: PackedRows,
    theta: Floats,
    plan: RoundPlan,
    *,
    rounds: int,
    seed: int,
    first_step: int = 0,
    first_round: int = 0,
    velocity: Floats | None = None,
    shifts: NDArray[np.float32] | None = None,
) -> NDArray[np.float64]:
    """Return the server's model after each round, shape (rounds, num_params).

    To continue a run, set `first_step` and `first_round` to the numbers of steps and
    rounds already taken and pass the server's velocity and the devices' `shifts`: the
    models are those of an uninterrupted run. `shifts` (from `no_shifts`) are changed in
    place.
    """
    if shifts is None:
        shifts = no_shifts(packed, plan)
    models = [np.empty((0, packed.num_params))]
    for part in in_parts(
        packed,
        theta,
        plan,
        rounds=rounds,
        seed=seed,
        first_step=first_step,
        first_round=first_round,
        velocity=velocity,
        shifts=shifts,
    ):
        models.append(part.models)
        shifts[:] = part.shifts[-1]
    return np.concatenate(models)


def in_parts(
    packed: PackedRows,
    theta: Floats,
    plan: RoundPlan,
    *,
    rounds: int,
    seed: int,
    first_step: int = 0,
    first_round: int = 0,
    velocity: Floats | None = None,
    shifts: NDArray[np.float32],
) -> Iterator[Simulated]:
    """Simulate rounds, as many at a time as there is memory for their shifts."""
    at_once = max(1, _MAX_SHIFTS // max(1, shifts.nbytes))
    for done in range(0, rounds, at_once):
        part = simulate(
            packed,
            theta,
            plan,
            rounds=min(at_once, rounds - done),
            seed=seed,
            first_step=first_step + done * plan.tau,
            first_round=first_round + done,
            velocity=velocity,
            shifts=shifts,
        )
        theta, velocity = part.models[-1], part.velocities[-1]
        shifts = part.shifts[-1]
        yield part


def simulate(
    packed: PackedRows,
    theta: Floats,
    plan: RoundPlan,
    *,
    rounds: int,
    seed: int,
    first_step: int = 0,
    first_round: int = 0,
    velocity: Floats | None = None,
    shifts: NDArray[np.float32] | None = None,
) -> Simulated:
    """Run rounds from a server's model and velocity, and the devices' shifts."""
    from fedbudget.simulation.kernels.sharing import compiled_here, shared

    work = _work([plan], packed)
    before = no_shifts(packed, plan) if shifts is None else shifts
    workers, seconds = num_threads(), _round_time(packed, plan)
    if seconds < _WORTH_THREADS or rounds * seconds < _WORTH_HELP:
        workers = 1
    memory = _memory(packed, work, workers)
    layout, work = _in_batches(packed, work, seed)
    start = _to_lanes(theta, packed, work)
    pushed = np.zeros_like(start)
    if velocity is not None:
        pushed = _to_lanes(velocity, packed, work)
    run = _rounds(packed, work, (start, pushed, before), rounds, workers)
    block_time = seconds / run.done.shape[1]
    patience = _MIN_LOOKS + int(_PATIENCE * 1e9 * block_time)

    def task(worker: int, run: Any = run) -> None:
        key = np.uint64(seed), first_step, first_round, worker
        _compiled().work_on_rounds(layout, key, work, memory, run, patience)

    compiled_here(
        (layout_key(layout), type(work)),
        lambda: task(0, run._replace(done=run.done[:0])),
    )
    shared(task, min(workers, run.done.shape[1]))
    # Into new memory: a late helper may still write to that of the run.
    after = np.empty_like(run.shifts[1:])
    if work.drift_corrected:
        _compiled().complete_shifts(run.shifts[1:], run.means[1:], work, after)
    averages, models, velocities = (
        _from_lanes(values[1:].copy(), packed, work)[:, 0]
        for values in (run.means, run.models, run.velocities)
    )
    return Simulated(
        averages=averages, models=models, velocities=velocities, shifts=after
    )


def _rounds(
    packed: PackedRows,
    work: Any,
    start: tuple[Floats, Floats, NDArray[np.float32]],
    rounds: int,
    workers: int,
) -> Any:
    """Return the arrays of a run, from the server's state and the devices' shifts."""
    theta, velocity, before = start
    compiled = _compiled()
    blocks = min(packed.num_devices, compiled.BLOCKS)
    means, models, velocities = np.zeros((3, rounds + 1, len(theta)))
    models[0], velocities[0] = theta, velocity
    shifts = np.empty((rounds + 1, *before.shape), dtype=np.float32)
    shifts[:] = before  # also of devices that do not take part
    return compiled.Rounds(
        means=means,
        models=models,
        velocities=velocities,
        shifts=shifts,
        partial=np.empty((workers, blocks + 2, len(theta))),
        claims=np.zeros(rounds, dtype=np.int64),
        done=np.zeros((rounds, blocks), dtype=np.int64),
        rounds_done=np.zeros(1, dtype=np.int64),
    )


def no_shifts(packed: PackedRows, plan: RoundPlan) -> NDArray[np.float32]:
    """Return the devices' shifts before the first round: one row each, all zero."""
    lanes = len(_work([plan], packed).learning_rate)
    num_rows = packed.num_devices if plan.drift_correction else 0
    return np.zeros((num_rows, packed.dim * lanes), dtype=np.float32)


def device_replies(
    packed: PackedRows,
    theta: Floats,
    plan: RoundPlan,
    *,
    seed: int,
    first_step: int = 0,
    first_round: int = 0,
) -> NDArray[np.float32]:
    """Return every device's own model after one round, shape (M, num_params).

    Each device adds its own noise to its last step, as a real one does. Rows of devices
    with weight 0 are NaN.
    """
    from fedbudget.simulation.kernels.sharing import distributed

    if plan.upload_noise > 0 or plan.clip is not None:
        raise InvalidInputError(
            "upload_noise and clip are for the mean of all devices: use run_rounds"
        )
    work, workers = _work([plan], packed), num_threads()
    layout, memory = _layout(packed, work), _memory(packed, work, workers)
    start = _to_lanes(theta, packed, work)
    replies = np.full((packed.num_devices, len(start)), np.nan, dtype=np.float32)
    claims = np.zeros(1, dtype=np.int64)

    def task(worker: int) -> None:
        key = np.uint64(seed), first_step, first_round, worker
        _compiled().worker_replies(layout, start, key, work, memory, replies, claims)

    distributed(task, workers)
    return _from_lanes(replies, packed, work)[:, 0]


def sweep_runs(
    packed: PackedRows,
    theta: Floats,
    plans: Sequence[RoundPlan],
    *,
    rounds: Sequence[int],
    seeds: Sequence[int],
) -> NDArray[np.float64]:
    """Return the final models, shape (plans, seeds, num_params).

    Plans share the random numbers of a seed, so that their differences are less noisy
    than their values; seeds are independent of each other.
    """
    finals = np.empty((len(plans), len(seeds), packed.num_params))
    order = sorted(
        range(len(plans)), key=lambda p: (_group_key(plans[p], packed), rounds[p])
    )
    per_group = max(1, RUN // packed.loss.num_outputs)
    for _, members in groupby(order, key=lambda p: _group_key(plans[p], packed)):
        similar = list(members)
        few = _few_plans(packed, plans[similar[0]])
        # Full groups run side by side; so does the remainder, unless it is small.
        remainder = len(similar) % per_group
        cut = len(similar) - (remainder if remainder <= few else 0)
        for part, size in ((similar[:cut], per_group), (similar[cut:], 1)):
            # The last group may be short: it is padded with its last plan.
            groups = [
                (part[i : i + size] + [part[-1]] * size)[:size]
                for i in range(0, len(part), size)
            ]
            if not groups:
                continue
            if size == 1 and len(groups) * len(seeds) < num_threads():
                for p in part:
                    for s, seed in enumerate(seeds):
                        finals[p, s] = _last(packed, theta, plans[p], rounds[p], seed)
                continue
            models = _run_groups(packed, theta, plans, groups, rounds, seeds)
            for group, by_seed in zip(groups, models, strict=True):
                for lane, p in enumerate(group):
                    finals[p] = by_seed[:, lane]
    return finals


def _last(
    packed: PackedRows, theta: Floats, plan: RoundPlan, rounds: int, seed: int
) -> NDArray[np.float64]:
    """Return the last model of a run that has all threads for itself."""
    models = run_rounds(packed, theta, plan, rounds=rounds, seed=seed)
    return np.asarray(models[-1] if rounds else theta)


def _few_plans(packed: PackedRows, plan: RoundPlan) -> int:
    """Return the number of plans up to which one by one is faster than side by side.

    Plans side by side share the drawing of batches and the look-up of rows. Full
    batches need no drawing, and dense rows no look-up.
    """
    if plan.sampling != "full":
        return _FEW_PLANS
    return _FEW_DENSE if isinstance(packed.rows, DenseRows) else _FEW_FULL


def _run_groups(
    packed: PackedRows,
    theta: Floats,
    plans: Sequence[RoundPlan],
    groups: list[list[int]],
    rounds: Sequence[int],
    seeds: Sequence[int],
) -> NDArray[np.float64]:
    """Run groups of plans side by side; shape (groups, seeds, plans, num_params)."""
    from fedbudget.simulation.kernels.sharing import distributed

    works = [_work([plans[p] for p in group], packed) for group in groups]
    work, lanes = works[0], len(works[0].learning_rate)
    outputs = packed.loss.num_outputs
    lane_rounds = [_spread([rounds[p] for p in g], outputs, lanes) for g in groups]
    keys = (
        np.tile(np.asarray(seeds, dtype=np.uint64), len(groups)),
        np.repeat(np.array(lane_rounds, dtype=np.int64), len(seeds), axis=0),
    )
    workers = min(num_threads(), len(keys[0]))
    layout, memory = _layout(packed, work), _memory(packed, work, workers)
    start = _to_lanes(theta, packed, work)
    stacked = _stacked(works, len(seeds))
    models = np.zeros((len(keys[0]), 3, len(start)))
    models[:, 0] = models[:, 2] = start
    num_rows = packed.num_devices if work.drift_corrected else 0
    shifts = np.empty((workers, num_rows, len(start)), dtype=np.float32)
    own = np.empty((workers, 3, len(start))), shifts
    claims = np.zeros(1, dtype=np.int64)
    distributed(
        lambda worker: _compiled().worker_runs(
            layout, models, worker, keys, stacked, memory, own, claims
        ),
        workers,
    )
    by_group = _from_lanes(models[:, 2], packed, work)[:, : len(groups[0])]
    return by_group.reshape(len(groups), len(seeds), len(groups[0]), -1)


def _compiled() -> "ModuleType":
    """Import Numba and the kernels lazily: a real device needs neither."""
    from fedbudget.simulation.kernels import rounds

    return rounds


def rounds_within(seconds: float, packed: PackedRows, plan: RoundPlan) -> int:
    """Return about how many rounds one core simulates in a time; at least 1.

    With drift correction, at most as many as their shifts leave memory for.
    """
    count = int(seconds / _round_time(packed, plan))
    if plan.drift_correction:
        # Softmax has lanes to spare, so that this may be too many by a factor of 16.
        count = min(count, _MAX_SHIFTS // (4 * packed.num_devices * packed.num_params))
    return max(1, count)


def _round_time(packed: PackedRows, plan: RoundPlan) -> float:
    """Estimate the seconds of one round on one core, within a factor of two."""
    rows = packed.rows
    if isinstance(rows, DenseRows):
        per_row = 0.08e-9 * rows.width
    elif isinstance(rows, OneHotRows):
        per_row = 0.4e-9 * 4 * rows.width  # four codes in a word
    else:
        per_row = 1e-9 * len(rows.values) / max(1, len(rows.y))
    sizes = packed.num_samples if plan.sampling == "full" else plan.batch_size
    batch = float(np.mean(np.asarray(sizes)))
    step = 0.1e-6 + batch * per_row + 1.5e-9 * packed.num_params
    return float(packed.num_devices * plan.tau * step)


def num_threads() -> int:
    """Return Numba's number of threads, which a user may have set."""
    import numba

    return int(numba.get_num_threads())


def _group_key(
    plan: RoundPlan, packed: PackedRows
) -> tuple[int, bool, bool, str, bytes]:
    """Return a key; plans with the same key may run side by side."""
    # Here a smaller batch is not a subset of a larger one: sizes must be equal.
    sizes = b""
    if plan.sampling in ("poisson", "cyclic"):
        sizes = per_device("batch_size", plan.batch_size, packed.num_devices).tobytes()
    falls = plan.noise_decay < 1
    return plan.tau, plan.drift_correction, falls, plan.sampling, sizes


def _work(plans: Sequence[RoundPlan], packed: PackedRows) -> Any:
    """Return plans that run side by side as the arrays of one `Work`."""
    from fedbudget.simulation.kernels.arrays import LaneWork, Work

    outputs = packed.loss.num_outputs
    used = len(plans) * outputs
    lanes = 1 if used == 1 else -(-used // RUN) * RUN
    for plan in plans:
        _check_plan(plan, packed)

    def columns(name: str) -> Floats:
        values = [
            per_device(name, getattr(plan, name), packed.num_devices) for plan in plans
        ]
        return _spread(values, outputs, lanes).T

    loss = packed.loss
    rates = _spread([plan.learning_rate for plan in plans], outputs, lanes)
    sizes = columns("batch_size")
    if plans[0].sampling == "full":
        sizes = np.repeat(packed.num_samples[:, None], lanes, axis=1)
    noise_std, weights = columns("noise_std"), columns("weights")
    return (LaneWork if lanes > 1 else Work)(
        loss=LOSS_CODES[loss.name],
        threshold=loss_constant(loss),
        sampling=SAMPLINGS.index(plans[0].sampling),
        tau=plans[0].tau,
        dim=packed.dim,
        num_outputs=outputs,
        l2=np.full(lanes, loss.l2, dtype=np.float32),
        learning_rate=rates.astype(np.float32),
        momentum=_spread([plan.momentum for plan in plans], outputs, lanes),
        server_rate=_spread([plan.server_rate for plan in plans], outputs, lanes),
        batch_size=np.ascontiguousarray(sizes, dtype=np.int64),
        noise_std=_rounded_up(noise_std),
        noise_decay=_spread([plan.noise_decay for plan in plans], outputs, lanes),
        weights=np.ascontiguousarray(weights, dtype=np.float64),
        takes_part=weights.any(axis=1),
        smallest=sizes.min(axis=1).astype(np.int64),
        largest=sizes.max(axis=1).astype(np.int64),
        noisy=noise_std.any(axis=1),
        upload_noise=_spread([plan.upload_noise for plan in plans], outputs, lanes),
        clip=_spread([plan.clip or np.inf for plan in plans], outputs, lanes),
        drift_corrected=plans[0].drift_correction,
        noise_falls=any(plan.noise_decay < 1 for plan in plans),
    )


def _rounded_up(noise_std: Floats) -> Floats:
    """Return noise in single precision, rounded up: never less than accounted for."""
    single = np.ascontiguousarray(noise_std, dtype=np.float32)
    return np.where(
        single < noise_std, np.nextafter(single, np.float32(np.inf)), single
    )


def _spread(values: Sequence[Any], outputs: int, lanes: int) -> Floats:
    """Repeat each plan's value for its outputs; spare lanes take the last plan's."""
    repeated = np.repeat(np.asarray(values), outputs, axis=0)
    spare = np.repeat(repeated[-1:], lanes - len(repeated), axis=0)
    return np.concatenate([repeated, spare])


def _layout(packed: PackedRows, work: Any) -> Any:
    """Return the fastest layout of the rows for this work."""
    if len(work.learning_rate) > 1:
        return packed.rows  # lanes already share each look-up
    return packed.layout_for(float(np.mean(work.batch_size)))


def _in_batches(packed: PackedRows, work: Any, seed: int) -> tuple[Any, Any]:
    """Return the rows of one run, dealt if batches are cyclic, and the work on them."""
    from fedbudget.simulation.kernels.arrays import CYCLIC, DEALT

    layout = _layout(packed, work)
    cyclic = work.sampling == CYCLIC and len(work.learning_rate) == 1
    dealt = packed.dealt(layout, seed) if cyclic else None
    return (layout, work) if dealt is None else (dealt, work._replace(sampling=DEALT))


def layout_key(layout: Any) -> Hashable:
    """Return the same key for layouts that kernels are compiled for once."""
    return type(layout), getattr(getattr(layout, "words", None), "dtype", None)


def _memory(packed: PackedRows, work: Any, workers: int) -> Any:
    """Return working memory for every thread."""
    from fedbudget.simulation.kernels.arrays import new_memory

    table_size = int(getattr(_layout(packed, work), "table_size", 1))
    longest = int(packed.num_samples.max())
    lanes = len(work.learning_rate)
    return new_memory(packed.dim, longest, lanes, table_size, workers)


def _to_lanes(theta: Floats, packed: PackedRows, work: Any) -> NDArray[np.float64]:
    """Return theta in every plan's lanes: parameter i of lane l at i * L + l."""
    theta = np.asarray(theta)
    if theta.shape != (packed.num_params,):
        raise InvalidInputError(
            f"theta must have shape ({packed.num_params},), got {theta.shape}"
        )
    outputs, lanes = packed.loss.num_outputs, len(work.learning_rate)
    by_output = theta.astype(np.float64).reshape(outputs, packed.dim)
    repeats = -(-lanes // outputs)
    start: NDArray[np.float64] = np.tile(by_output, (repeats, 1))[:lanes].T
    return start.reshape(-1)


def _from_lanes(
    models: NDArray[FloatT], packed: PackedRows, work: Any
) -> NDArray[FloatT]:
    """Return the models of all plans in the lanes, shape (n, plans, num_params)."""
    outputs, lanes = packed.loss.num_outputs, len(work.learning_rate)
    plans = lanes // outputs
    split = models.reshape(len(models), packed.dim, lanes)[:, :, : plans * outputs]
    by_output = split.swapaxes(1, 2)
    return by_output.reshape(len(models), plans, outputs * packed.dim)


def _stacked(works: list[Any], num_seeds: int) -> Any:
    """Return the works of a sweep as one, with a first axis over groups and seeds."""
    stacked = {
        name: np.repeat(
            np.stack([getattr(work, name) for work in works]), num_seeds, axis=0
        )
        for name in _PER_RUN
    }
    taus = np.repeat([work.tau for work in works], num_seeds)
    return works[0]._replace(tau=taus, **stacked)
