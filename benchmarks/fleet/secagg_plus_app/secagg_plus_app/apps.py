"""A ServerApp with the SecAgg+ workflow, and a ClientApp with its mod.

Clients return their parameters unchanged: only the aggregation is measured. Everybody
shares with everybody, as our devices do up to 100 of them, and the threshold is ours.
"""

# Flower is not installed where types are checked: its classes are of any type there.
# mypy: disable-error-code="misc, untyped-decorator"

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow


class Unchanged(NumPyClient):
    """Trains nothing."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Return what came."""
        return parameters, 1, {}


client = ClientApp(
    client_fn=lambda context: Unchanged().to_client(), mods=[secaggplus_mod]
)
server = ServerApp()


class Timed(SecAggPlusWorkflow):
    """The workflow, with a clock around every round."""

    seconds: list[float]
    out: Path | None = None  # has them after every round

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run one round."""
        began = time.monotonic()
        super().__call__(grid, context)
        self.seconds.append(time.monotonic() - began)
        if self.out is not None:
            new = self.out.with_suffix(".new")
            new.write_text(json.dumps(self.seconds))
            new.replace(self.out)


def workflow_of(shares: int) -> Timed:
    """Return the workflow, in which each device has so many shares of its own."""
    workflow = Timed(num_shares=shares, reconstruction_threshold=shares // 2 + 1)
    workflow.seconds = []
    return workflow


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and write how long each took."""
    config = context.run_config
    devices, rounds = int(config["devices"]), int(config["rounds"])
    start = ndarrays_to_parameters([np.zeros(int(config["params"]), np.float32)])
    legacy = LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=rounds),
        strategy=FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=devices,
            min_available_clients=devices,
            initial_parameters=start,
        ),
    )
    workflow = workflow_of(devices)
    workflow.out = Path(str(config["out"]))
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
