"""Flower's SecAgg+ beside our secure sums: `python benchmarks/fleet/secagg_plus.py`.

Needs an environment with Flower (`pip install '.[lab,flower]'`), on the machine that
`rounds.py --trust sum` and `secure_sum.py` run on: the same number of devices and of
parameters.

    --processes 16     SuperLink and SuperNodes as processes on loopback: seconds per
                       round, and the memory of a SuperNode with its ClientApp
    --one-process 16 100 1000   workflow and mod with a queue in memory instead of a
                       SuperLink: seconds and bytes per device and round

Everybody shares with everybody up to 100 devices; of 1,000, each shares with as many
neighbours as ours do. Nobody drops out. Flower checks no signatures and no lists.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedbudget.fleet.demo import Child, HeldPort, listens, wait_until
from fedbudget.fleet.secure.graph import neighbourhood

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from tests.fleet.flower_trial import flower_program

APP = Path(__file__).parent / "secagg_plus_app"
sys.path.insert(0, str(APP))


class MemoryGrid:
    """A Flower grid whose nodes are in this process, and which counts bytes."""

    def __init__(self, devices: int) -> None:
        from flwr.app import Context, RecordDict

        self.contexts = {
            n: Context(1, n, {}, RecordDict(), {}) for n in range(1, devices + 1)
        }
        self.run = SimpleNamespace(run_id=1)
        self.down = self.up = 0
        self.devices = 0.0  # seconds in all ClientApps

    def get_node_ids(self) -> list[int]:
        """Return all nodes."""
        return list(self.contexts)

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> list[Any]:
        """Return the replies of the ClientApps, one after the other."""
        from secagg_plus_app.apps import client

        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.down += size_of(message)
            own = deepcopy(message)  # contents are shared, and the mod changes them
            began = time.perf_counter()
            reply = client(own, self.contexts[node])
            self.devices += time.perf_counter() - began
            self.up += size_of(reply)
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        return replies


def size_of(message: Any) -> int:
    """Return the bytes of a message's content, as Flower sends it."""
    from flwr.common.serde import recorddict_to_proto

    return int(recorddict_to_proto(message.content).ByteSize())


def in_one_process(devices: int, params: int) -> None:
    """Print seconds and bytes of one round, whose nodes are in this process."""
    from flwr.common import Context, RecordDict, ndarrays_to_parameters
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow
    from flwr.supercore.task_identity import TaskIdentity
    from secagg_plus_app.apps import workflow_of

    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)  # as in a ServerApp's process
    shares = None
    if devices > 100:
        shares = neighbourhood(devices, colluders=0, dropouts=devices // 5).degree + 1
    grid, workflow = MemoryGrid(devices), workflow_of(devices, shares)
    legacy = LegacyContext(
        context=Context(1, 0, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=1),
        strategy=FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=devices,
            min_available_clients=devices,
            initial_parameters=ndarrays_to_parameters([np.zeros(params, np.float32)]),
        ),
    )
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    (seconds,) = workflow.seconds
    print(
        f"{devices:7d}  {shares or devices:6d}  {1e3 * grid.devices / devices:13.1f}  "
        f"{seconds - grid.devices:8.2f}  {grid.up / devices / 1e3:5.1f}  "
        f"{grid.down / devices / 1e3:7.1f}",
        flush=True,
    )


def resident_bytes(pids: list[int]) -> int:
    """Return the resident sets of processes and their children (Linux)."""
    total = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status")
        if status.exists():
            line = next(
                (x for x in status.read_text().splitlines() if "VmRSS" in x), ""
            )
            total += 1024 * int(line.split()[1]) if line else 0
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            total += resident_bytes([int(child) for child in children])
    return total


def in_processes(devices: int, params: int, rounds: int) -> None:
    """Print seconds per round and memory, with a SuperLink and SuperNodes."""
    folder = Path(tempfile.mkdtemp(prefix="fedbudget-secagg-"))
    home, out = folder / "flwr", folder / "seconds.json"
    home.mkdir()
    link, ports = HeldPort(), [HeldPort() for _ in range(devices)]
    address = f'address = "127.0.0.1:{link.number}"'
    (home / "config.toml").write_text(
        f"[superlink.trial]\n{address}\ninsecure = true\n"
    )

    def program(log: str, name: str, *arguments: str) -> Child:
        return flower_program(folder / f"{log}.log", home, name, *arguments)

    with ExitStack() as stack:
        link.release()
        superlink = program(
            "superlink",
            *("flower-superlink", "--insecure", "--port", str(link.number)),
            "--disable-runtime-dependency-installation",
        )
        stack.callback(superlink.start().stop)
        wait_until(lambda: listens(link.number), "the SuperLink", child=superlink)
        nodes = []
        for m, port in enumerate(ports):
            port.release()
            node = program(
                f"node-{m}",
                *("flower-supernode", "--insecure", "--port", str(port.number)),
                *("--superlink", f"127.0.0.1:{link.number}"),
            )
            stack.callback(node.start().stop)
            nodes.append(node)
        values = f'devices={devices} params={params} rounds={rounds} out="{out}"'
        run = program(
            "run", "flwr", "run", str(APP), "trial", "--stream", "--run-config", values
        )
        stack.callback(run.start().stop)
        most = 0
        while run.code is None:
            pids = [nodes[0].pid] if nodes[0].pid is not None else []
            most = max(most, resident_bytes(pids))
            run.wait(0.2)
        if not out.exists():
            sys.exit(f"the run has failed: see {folder}")
    seconds = json.loads(out.read_text())
    print(f"{'devices, processes':30} {devices}")
    print(f"{'seconds per round, median':30} {np.median(seconds):.2f}")
    print(f"{'memory of a device':30} {most / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="*", default=[16])
    parser.add_argument("--one-process", type=int, nargs="*", default=[16, 100, 1000])
    parser.add_argument("--params", type=int, default=102)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.one_process:
        print("devices  shares  ms per device  server s  kB up  kB down")
    for devices in options.one_process:
        in_one_process(devices, options.params)
    for devices in options.processes:
        in_processes(devices, options.params, options.rounds)


if __name__ == "__main__":
    main()
