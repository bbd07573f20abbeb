"""Ours: fedbudget's compiled local steps, on all cores or on one."""

import sys
from typing import Any

import numpy as np
from measuring import Measuring

import fedbudget
from fedbudget.losses import Hinge, Logistic
from fedbudget.simulation.kernels.layouts import pack_one_hot, pack_rows
from fedbudget.simulation.kernels.runs import RoundPlan, run_rounds


def main() -> None:
    one_core = "--one-core" in sys.argv
    if one_core:
        import numba

        sys.argv.remove("--one-core")
        numba.set_num_threads(1)
    name = "ours, one core" if one_core else "ours"
    measuring = Measuring(name, fedbudget.__version__)
    work = measuring.work
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

    measuring.run({"kernels": run})


if __name__ == "__main__":
    main()
