"""Flower: its simulation engine, federated averaging, and a client in NumPy.

Timed inside the server app, so that starting Ray and its workers does not count. Every
core has a worker; a worker makes the rows once and keeps them.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator, misc"

import os
from functools import lru_cache
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import flwr
import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from local_numpy import dense_steps
from measuring import Measuring
from workloads import Workload, load


@lru_cache(maxsize=1)
def rows_of(name: str, small: bool) -> tuple[Workload, Any]:
    work = load(name, small=small)
    return work, work.dense()


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    # Imported here: a worker must find its own copy, not one that was sent along.
    import flower_peer

    work, x = flower_peer.rows_of(config["workload"], config["small"])
    device = int(context.node_config["partition-id"])
    rng = np.random.default_rng((config["seed"], config["server-round"], device))
    theta = message.content["arrays"].to_numpy_ndarrays()[0]
    noise_std = config["noise-std"]
    theta = dense_steps(theta, x[device], work.y[device], rng, noise_std, work)
    reply = RecordDict(
        {
            "arrays": ArrayRecord([theta]),
            "metrics": MetricRecord({"num-examples": len(work.y[device])}),
        }
    )
    return Message(content=reply, reply_to=message)


def main() -> None:
    measuring = Measuring("flower", flwr.__version__)
    work, small = measuring.work, measuring.options.small
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        del context

        def run(rounds: int, noise_std: float, seed: int) -> Any:
            strategy = FedAvg(
                fraction_evaluate=0.0,
                min_train_nodes=work.num_devices,
                min_available_nodes=work.num_devices,
            )
            result = strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord([np.zeros(work.dim, dtype=np.float32)]),
                num_rounds=rounds,
                train_config=ConfigRecord(
                    {
                        "workload": work.name,
                        "small": small,
                        "noise-std": float(noise_std),
                        "seed": seed,
                    }
                ),
            )
            return result.arrays.to_numpy_ndarrays()[0]

        measuring.run(
            {"dense rows": run}, "the same local steps as the NumPy loop; Ray workers"
        )

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=work.num_devices,
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
