"""Our secure sums beside Flower's SecAgg+: `python benchmarks/fleet/secagg_plus.py`.

Needs an environment with Flower (`pip install '.[lab,flower]'`) and mosquitto. Both
have the same machine, devices and number of parameters, and one table.

    --processes 16 100   Every device is a process, on loopback. Seconds are the
                         server's, for a round. Bytes are those on the connection of one
                         device, counted by a relay: ours with mutual TLS, Flower's
                         without. Memory is the largest resident set of a device: ours
                         with its rows, Flower's a SuperNode and its ClientApp.
    --one-process 1000   No network: seconds of all devices and the server together,
                         on one core; bytes of messages; memory of the whole process.

Everybody shares with everybody up to 100 devices; above, each device shares with as
many neighbours as ours needs. Nobody drops out. Our devices train on Adult's rows and
write a ledger; Flower's return zeros, and check no signatures and no lists.
"""

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedbudget.fleet.demo import Child, HeldPort, listens, wait_until
from fedbudget.fleet.secure.rehearsal import SumRound

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
import rounds as our_rounds
import secure_sum
from tests.fleet.flower_trial import flower_program
from tests.fleet.relay import Relay

MOST_SECONDS = 1800  # for Flower's rounds; after that, inf is printed
PARAMS = 102  # as Adult has columns, which our devices train on
APP = Path(__file__).parent / "secagg_plus_app"
sys.path.insert(0, str(APP))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a round costs: of the server's clock, and of one device."""

    seconds: float
    sent: float  # bytes
    received: float  # bytes
    memory: float  # bytes

    def cells(self) -> str:
        """Return them as columns of the table."""
        return (
            f"{self.seconds:9.2f}  {self.sent / 1e3:8.1f}  {self.received / 1e3:10.1f}"
            f"  {self.memory / 1e6:7.0f}"
        )

    def beats(self, other: "Cost") -> bool:
        """Return whether nothing costs more than that of another, where known."""
        return not (
            self.seconds > other.seconds
            or self.sent > other.sent
            or self.received > other.received
            or self.memory > other.memory
        )


def own_memory() -> int:
    """Return the largest resident set of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux: in kB


class MemoryGrid:
    """A Flower grid whose nodes are in this process, and which counts bytes."""

    def __init__(self, devices: int) -> None:
        from flwr.app import Context, RecordDict

        self.contexts = {
            n: Context(1, n, {}, RecordDict(), {}) for n in range(1, devices + 1)
        }
        self.run = SimpleNamespace(run_id=1)
        self.down = self.up = 0

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
            reply = client(own, self.contexts[node])
            self.up += size_of(reply)
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        return replies


def size_of(message: Any) -> int:
    """Return the bytes of a message's content, as Flower sends it."""
    from flwr.common.serde import recorddict_to_proto

    return int(recorddict_to_proto(message.content).ByteSize())


def flower_in_one_process(devices: int) -> Cost:
    """Return the cost of one round, whose nodes are in this process."""
    from flwr.common import Context, RecordDict, ndarrays_to_parameters
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow
    from flwr.supercore.task_identity import TaskIdentity
    from secagg_plus_app.apps import workflow_of

    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)  # as in a ServerApp's process
    neighbours = SumRound(devices, 1).peers.neighbourhood.degree
    grid, workflow = MemoryGrid(devices), workflow_of(neighbours + 1)
    legacy = LegacyContext(
        context=Context(1, 0, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=1),
        strategy=FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=devices,
            min_available_clients=devices,
            initial_parameters=ndarrays_to_parameters([np.zeros(PARAMS, np.float32)]),
        ),
    )
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    (seconds,) = workflow.seconds
    return Cost(
        seconds=seconds,
        sent=grid.up / devices,
        received=grid.down / devices,
        memory=own_memory(),
    )


def ours_in_one_process(devices: int) -> Cost:
    """Return the cost of one round of ours, whose devices are in this process."""
    row = secure_sum.measured(
        devices, PARAMS, colluders=0, dropouts=devices // 5, missing=0
    )
    if not row["exact"]:
        sys.exit(f"the sum of {devices} devices is not exact")
    received, sent = SumRound(devices, PARAMS).sizes
    return Cost(
        seconds=devices * row["device"] + row["server"],
        sent=sent,
        received=received,
        memory=own_memory(),
    )


def in_new_process(measure: Callable[[int], Cost], devices: int) -> Cost:
    """Return a cost that is measured in a process of its own, for its memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, devices).result()


def resident_bytes(pids: list[int]) -> int:
    """Return the resident sets of processes and their children (Linux)."""
    total = 0
    for pid in pids:
        try:
            total += our_rounds.resident_bytes(pid)
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except (OSError, AssertionError):
            continue  # it has ended
        total += resident_bytes([int(child) for child in children])
    return total


def flower_in_processes(devices: int, rounds: int) -> Cost:
    """Return the cost of a round with a SuperLink and SuperNodes."""
    folder = Path(tempfile.mkdtemp(prefix="fedbudget-secagg-"))
    home, out = folder / "flwr", folder / "seconds.json"
    home.mkdir()
    link, ports = HeldPort(), [HeldPort() for _ in range(devices)]
    relay = Relay(link.number)
    address = f'address = "127.0.0.1:{link.number}"'
    (home / "config.toml").write_text(
        f"[superlink.trial]\n{address}\ninsecure = true\n"
    )

    def program(log: str, name: str, *arguments: str) -> Child:
        return flower_program(folder / f"{log}.log", home, name, *arguments)

    marks, most = {}, 0  # bytes so far, by the number of rounds done
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
            to = link.number if m else relay.port  # the first one is watched
            node = program(
                f"node-{m}",
                *("flower-supernode", "--insecure", "--port", str(port.number)),
                *("--superlink", f"127.0.0.1:{to}"),
            )
            stack.callback(node.start().stop)
            nodes.append(node)
        values = f'devices={devices} params={PARAMS} rounds={rounds} out="{out}"'
        run = program(
            "run", "flwr", "run", str(APP), "trial", "--stream", "--run-config", values
        )
        stack.callback(run.start().stop)
        end = time.monotonic() + MOST_SECONDS
        while run.code is None and time.monotonic() < end:
            most = max(most, resident_bytes([pid for pid in [nodes[0].pid] if pid]))
            if out.exists():
                done = len(json.loads(out.read_text()))
                marks[done] = (relay.sent, relay.received)
            run.wait(0.2)
    if not marks and run.code is not None:
        sys.exit(f"the run has failed: see {folder}")
    seconds, sent, received = math.inf, math.nan, math.nan
    if marks:
        seconds = float(np.median(json.loads(out.read_text())))
    if len(marks) > 1:  # the first round also has what is sent once
        first, last = min(marks), max(marks)
        sent, received = np.subtract(marks[last], marks[first]) / (last - first)
    return Cost(seconds=seconds, sent=sent, received=received, memory=most)


def ours_in_processes(devices: int) -> Cost:
    """Return the cost of a round of ours, all ledgers on one disk."""
    measured = our_rounds.measure(None, "sum", devices)
    return Cost(
        seconds=float(np.median(measured.seconds)),
        sent=measured.sent,
        received=measured.received,
        memory=measured.memory,
    )


def shown(devices: str, whose: str, cost: Cost) -> Cost:
    """Print a line of the table."""
    print(f"{devices:20}  {whose:6}  {cost.cells()}", flush=True)
    return cost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="*", default=[16, 100])
    parser.add_argument("--one-process", type=int, nargs="*", default=[1000])
    parser.add_argument("--rounds", type=int, default=3, help="Of Flower's processes.")
    options = parser.parse_args()
    print(f"{'devices':20}  {'whose':6}  s a round   kB sent  kB received       MB")
    ahead = []
    for count in options.one_process:
        title = f"{count} in one process"
        ours = shown(title, "ours", in_new_process(ours_in_one_process, count))
        theirs = shown(title, "Flower", in_new_process(flower_in_one_process, count))
        ahead.append(ours.beats(theirs))
    for count in options.processes:
        title = f"{count} processes"
        ours = shown(title, "ours", ours_in_processes(count))
        theirs = shown(title, "Flower", flower_in_processes(count, options.rounds))
        ahead.append(ours.beats(theirs))
    print(f"ours is ahead on every line: {'yes' if all(ahead) else 'NO'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
