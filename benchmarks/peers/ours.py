"""Ours: fedbudget's compiled local steps, on all cores or on one, or `fb.train`.

python ours.py w               the kernels
python ours.py w --one-core    the kernels on one core
python ours.py w --train       what a user calls, with measuring in every round
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
from measuring import Measuring, Run
from workloads import Workload

import fedbudget as fb
from fedbudget.data import Part
from fedbudget.losses import Hinge, Logistic
from fedbudget.privacy import GDP
from fedbudget.simulation.kernels.layouts import pack_one_hot, pack_rows
from fedbudget.simulation.kernels.runs import RoundPlan, run_rounds

BUDGET = fb.Budget(epsilon=8.0, delta=1e-5, cost=1e9)
PRICES = fb.Prices(communication=100, computation=1)


def kernels(work: Workload) -> Run:
    """Return the compiled rounds."""
    num_devices, n = work.y.shape
    offsets, y = np.arange(num_devices + 1) * n, work.y.reshape(-1) > 0
    x = work.x.reshape(num_devices * n, -1)
    loss = Logistic() if work.loss == "logistic" else Hinge()
    if work.one_hot:
        packed = pack_one_hot(x, y, offsets, dim=work.dim, loss=loss)
    else:
        packed = pack_rows(x, y, offsets, loss=loss)

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        plan = RoundPlan(
            tau=work.tau,
            learning_rate=work.learning_rate,
            batch_size=work.batch,
            noise_std=noise_std,
            weights=1 / num_devices,
        )
        theta = np.zeros(work.dim)
        return run_rounds(packed, theta, plan, rounds=rounds, seed=seed)[-1]

    return run


def through_train(work: Workload) -> Run:
    """Return `fb.train`; a plan is made when it is first run."""
    data = dataset(work)
    plans: dict[tuple[int, float], fb.Plan] = {}

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        if (rounds, noise_std) not in plans:
            plans[rounds, noise_std] = plan_of(work, data, rounds, noise_std)
        devices = fb.SimulatedDevices(data, seed=seed)
        return fb.train(plans[rounds, noise_std], devices).theta

    return run


def dataset(work: Workload) -> fb.Dataset:
    """Return the rows as a data set, an eighth of them also as rows to test on."""
    num_devices, n = work.y.shape
    x: Any = work.x.reshape(num_devices * n, -1)
    if work.one_hot:
        from scipy.sparse import csr_array

        values = np.full(x.size, work.value, dtype=np.float32)
        starts = np.arange(len(x) + 1) * x.shape[1]
        x = csr_array(
            (values, x.reshape(-1).astype(np.int32), starts), shape=(len(x), work.dim)
        )
    else:
        x = x / np.float32(1.0001)  # inside the unit ball, whatever the rounding
    y = (work.y.reshape(-1) > 0).astype(np.int64)
    eighth = np.flatnonzero(np.tile(np.arange(n) < n // 8, num_devices))
    test = Part(x=x[eighth], y=y[eighth], offsets=np.arange(num_devices + 1) * (n // 8))
    return fb.Dataset(
        name=work.name,
        train=Part(x=x, y=y, offsets=np.arange(num_devices + 1) * n),
        validation=test,
        test=test,
        device_names=tuple(map(str, range(num_devices))),
        feature_names=tuple(map(str, range(work.dim))),
        classes=("0", "1"),
        dissimilarity="iid",
    )


def plan_of(work: Workload, data: fb.Dataset, rounds: int, noise_std: float) -> fb.Plan:
    """Return the workload's settings as a plan, with the epsilon that they spend."""
    plan = replace(
        fb.plan(data.problem(loss=work.loss), BUDGET, PRICES),
        tau=work.tau,
        rounds=rounds,
        learning_rate=work.learning_rate,
        momentum=0.0,
        sampling="fixed",
        batch_size=np.full(work.num_devices, work.batch),
        noise_std=np.full(work.num_devices, noise_std or 1.0),
        weights=np.full(work.num_devices, 1 / work.num_devices),
        last_round=None,
        drift_correction=False,
    )
    if noise_std == 0:
        return plan.without_privacy()
    return replace(plan, epsilon=GDP.epsilon(plan.gradients, delta=plan.delta))


def main() -> None:
    selected = [name for name in ("--one-core", "--train") if name in sys.argv]
    for name in selected:
        sys.argv.remove(name)
    if "--one-core" in selected:
        import numba

        numba.set_num_threads(1)
    measuring = Measuring(", ".join(["ours", *selected]), fb.__version__)
    if "--train" in selected:
        measuring.run({"fb.train": through_train(measuring.work)})
    else:
        measuring.run({"kernels": kernels(measuring.work)})


if __name__ == "__main__":
    main()
