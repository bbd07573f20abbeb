"""Sweeps: many plans times many seeds at once, the fast path of the simulator.

By default a sweep runs in one process on all cores, with plans side by side in SIMD
lanes. For more than one machine, joblib distributes the plans over a Ray or Dask
cluster. A sweep compares plans: every run is a simulation, without ledgers or records.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from fedbudget.checks import Array, one_of, seed_number
from fedbudget.data import Dataset
from fedbudget.errors import InvalidInputError, needed
from fedbudget.planning import Plan
from fedbudget.simulation.devices import check_plan, round_plan
from fedbudget.simulation.kernels.layouts import PackedRows
from fedbudget.simulation.kernels.runs import in_parts, no_shifts, sweep_runs
from fedbudget.simulation.measuring import measure_all, measure_details
from fedbudget.simulation.packing import packed_rows

BACKENDS = ("here", "ray", "dask")
_FEW_MODELS = 3  # up to this many are measured faster one by one


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """The models of plans x seeds and their measurements: simulations, not private."""

    plans: tuple[Plan, ...]
    seeds: tuple[int, ...]
    theta: Array  # shape (plans, seeds, num_params)
    measured: dict[str, Array]  # name -> shape (plans, seeds)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row of plain values per plan and seed."""
        for p, plan in enumerate(self.plans):
            for s, seed in enumerate(self.seeds):
                yield {
                    "kind": "simulation",
                    "plan": p,
                    "seed": seed,
                    "tau": plan.tau,
                    "rounds": plan.rounds,
                    "learning_rate": plan.learning_rate,
                    "momentum": plan.momentum,
                    "server_rate": plan.server_rate,
                    "epsilon": float(plan.epsilon.max()),
                    "cost": float(plan.cost.max()),
                    **{name: float(v[p, s]) for name, v in self.measured.items()},
                }


def sweep(
    data: Dataset,
    plans: Sequence[Plan],
    *,
    seeds: Sequence[int] = range(5),
    backend: str = "here",
    address: str | None = None,
    details: bool = False,
) -> Sweep:
    """Run every plan with every seed and measure the released models.

    Plans share the random numbers of a seed, so that their differences are less noisy
    than their values; seeds are independent.

    Args:
        data: The rows of every device.
        plans: Plans for these data, all for the same loss.
        seeds: Seeds of the noise and the batches.
        backend: `here`, or `ray` or `dask` for a cluster.
        address: Address of the cluster; without one, a local cluster is started.
        details: Also measure AUC, recall, errors in the label's unit and so on, model
            by model: slower.
    """
    one_of("backend", backend, BACKENDS)
    all_plans, all_seeds = tuple(plans), tuple(map(seed_number, seeds))
    if not all_plans or not all_seeds:
        raise InvalidInputError(
            f"a sweep needs plans and seeds, got {len(all_plans)} and {len(all_seeds)}"
        )
    if len({(p.loss, p.num_classes, p.l2) for p in all_plans}) > 1:
        raise InvalidInputError(
            "the plans are for different losses: run one sweep per loss"
        )
    for plan in all_plans:
        check_plan(plan, data)
    if backend == "here":
        theta = _models(data, all_plans, all_seeds)
    else:
        theta = _on_cluster(data, all_plans, all_seeds, backend, address)
    return Sweep(
        plans=all_plans,
        seeds=all_seeds,
        theta=theta,
        measured=_measure(data, all_plans, theta, details=details),
    )


def _models(data: Dataset, plans: Sequence[Plan], seeds: Sequence[int]) -> Array:
    packed = packed_rows(data.train, plans[0].model)
    theta = np.empty((len(plans), len(seeds), packed.num_params))
    steady = [
        p
        for p, plan in enumerate(plans)
        if np.array_equal(plan.takes_part(1), plan.takes_part(plan.rounds))
    ]
    if steady:
        theta[steady] = sweep_runs(
            packed,
            np.zeros(packed.num_params),
            [round_plan(plans[p], plans[p].weights) for p in steady],
            rounds=[plans[p].rounds for p in steady],
            seeds=seeds,
        )
    for p in sorted(set(range(len(plans))) - set(steady)):
        theta[p] = [_in_stages(packed, plans[p], seed) for seed in seeds]
    return theta


def _in_stages(packed: PackedRows, plan: Plan, seed: int) -> Array:
    """Run a plan in which devices stop early: a stage has the same devices."""
    theta, velocity = np.zeros((2, packed.num_params))
    shifts = no_shifts(packed, round_plan(plan, plan.weights))
    done = 0
    ends = np.unique(plan.device_rounds[plan.device_rounds > 0])
    for end in ends.tolist():
        weights = np.where(plan.takes_part(end), plan.weights, 0.0)
        for part in in_parts(
            packed,
            theta,
            round_plan(plan, weights),
            rounds=end - done,
            seed=seed,
            first_step=done * plan.tau,
            first_round=done,
            velocity=velocity,
            shifts=shifts,
        ):
            theta, velocity = part.models[-1], part.velocities[-1]
            shifts = part.shifts[-1]
        done = end
    return theta


def _on_cluster(
    data: Dataset,
    plans: Sequence[Plan],
    seeds: Sequence[int],
    backend: str,
    address: str | None,
) -> Array:
    """Distribute the plans over a cluster's workers, consecutive plans to each."""
    with needed(f"backend {backend!r}", "joblib", backend):
        import joblib
    with _cluster(backend, address) as workers:
        shares = np.array_split(np.arange(len(plans)), min(workers, len(plans)))
        models = joblib.Parallel(n_jobs=len(shares))(
            joblib.delayed(_models)(data, [plans[p] for p in share], seeds)
            for share in shares
        )
    return np.concatenate(models)


@contextmanager
def _cluster(backend: str, address: str | None) -> Iterator[int]:
    """Connect joblib to a cluster and yield the number of its workers."""
    import joblib

    with needed(f"backend {backend!r}", backend, backend):
        if backend == "ray":
            cluster = import_module("ray")
            import_module("ray.util.joblib").register_ray()
        else:
            cluster = import_module("distributed")
    if backend == "ray":
        started = not cluster.is_initialized()
        if started:
            cluster.init(address=address, include_dashboard=False, log_to_driver=False)
        try:
            with joblib.parallel_config(backend="ray"):
                yield max(1, int(cluster.cluster_resources().get("CPU", 1)))
        finally:
            if started:
                cluster.shutdown()
    else:
        local = {} if address else {"dashboard_address": None, "host": "127.0.0.1"}
        with cluster.Client(address, **local) as client:
            with joblib.parallel_config(backend="dask"):
                yield max(1, sum(client.ncores().values()))


def _measure(
    data: Dataset, all_plans: Sequence[Plan], theta: Array, *, details: bool
) -> dict[str, Array]:
    """Measure every model."""
    plans, seeds, params = theta.shape
    loss = all_plans[0].model
    thetas = theta.reshape(plans * seeds, params)
    many = len(thetas) > _FEW_MODELS
    measured = measure_all(data, loss, thetas, side_by_side=many)
    if details:
        thresholds = np.repeat([plan.threshold for plan in all_plans], seeds)
        models = [
            measure_details(data, loss, model, threshold=float(threshold))
            for model, threshold in zip(thetas, thresholds, strict=True)
        ]
        for name in models[0]:
            measured[name] = np.array([each[name] for each in models])
    return {name: values.reshape(plans, seeds) for name, values in measured.items()}
