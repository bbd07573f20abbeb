"""Memory of a device's process, and the duration of a round on it.

    python benchmarks/fleet/device_memory.py

Real processes on this machine: a broker with mutual TLS, and `fedbudget device` with
Adult's largest share by education (10,501 rows, 102 columns) as a CSV file. This
program is the coordinator: 20 rounds of 10 steps. Needs Linux, and the extra `fleet`.
"""

import csv
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedbudget.data.adult import SCHEMA
from fedbudget.fleet.demo import HeldPort, listens
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import identity_of, make_certificates
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import Reply, RoundOrder, RunOffer, theta_to_bytes
from fedbudget.fleet.wire.signing import Signer

ROUNDS, TAU, DIM = 20, 10, 102

POLICY = """
device = "hs-grad"
[data]
file = "rows.csv"
schema = "schema.json"
[budget]
epsilon = 4.0
delta = 1e-4
cost = 10000
[prices]
communication = 100
computation = 1
[orders]
trusted = ["{key}"]
[broker]
host = "127.0.0.1"
port = {port}
ca = "certs/ca.pem"
certificate = "certs/devices/hs-grad.pem"
key = "certs/devices/hs-grad.key"
"""


def write_files(folder: Path, port: int) -> int:
    """Write what a device needs; return the number of its rows."""
    make_certificates(folder / "certs", ["hs-grad"])
    packed = files("fedbudget.data") / "files" / "adult.csv.gz"
    with packed.open("rb") as raw, gzip.open(raw, "rt", newline="") as text:
        header, *rows = csv.reader(text)
    own = [row for row in rows if row[header.index("education")] == "HS-grad"]
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *own])
    (folder / "schema.json").write_text(json.dumps(SCHEMA.to_dict()))
    key = (folder / "certs" / "coordinator.pub").read_text().strip()
    (folder / "policy.toml").write_text(POLICY.format(key=key, port=port))
    return len(own)


def memory(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Return the process's memory in MB (of 1,000,000 bytes)."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {n: int(fields[n].split()[0]) * 1.024e-3 for n in ("VmRSS", "VmHWM")}


def drive(folder: Path, port: int, num_rows: int) -> list[float]:
    """Run the rounds; return their seconds."""
    signer = Signer.read(folder / "certs" / "coordinator.sign")
    broker = BrokerAddress(
        port=port, identity=identity_of(folder / "certs", "coordinator")
    )
    run, seconds = os.urandom(16), []
    offer = RunOffer(
        run=run,
        name="memory",
        device="hs-grad",
        tau=TAU,
        rounds=ROUNDS,
        learning_rate=4.0,
        sampling="full",
        num_samples=num_rows,
        batch_size=num_rows,
        noise_std=100 / num_rows,
        loss="logistic",
        num_classes=1,
        l2=0.0,
        dim=DIM,
        precision="float32",
        drift_momentum=0.5,
    )
    with Connection(
        broker, name="coordinator", topics=topics.coordinator_reads()
    ) as connection:

        def reply(number: int) -> Reply:
            while (message := connection.receive(30)) is not None:
                connection.acknowledge(message)
                if "/reply/" in message.topic:
                    body, _ = decode(message.payload)  # signed
                    answer = Reply.from_bytes(body)
                    if answer.round == number:
                        return answer
            raise TimeoutError(f"no reply to round {number}")

        connection.publish(topics.offer("hs-grad"), signer.sign(offer), retain=True)
        assert reply(0).code == "accepted"
        theta = theta_to_bytes(np.zeros(DIM), "float32")
        for number in range(1, ROUNDS + 1):
            order = RoundOrder(run=run, round=number, theta=theta)
            started = time.perf_counter()
            connection.publish(topics.order(run), signer.sign(order), retain=True)
            answer = reply(number)
            seconds.append(time.perf_counter() - started)
            assert answer.theta is not None, answer.reason
            theta = answer.theta
    return seconds


def main() -> None:
    command, held = [sys.executable, "-m", "fedbudget"], HeldPort()
    port = held.number
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_rows = write_files(folder, port)
        certs = str(folder / "certs")
        broker = subprocess.Popen(
            [*command, "fleet", "broker", "--certs", certs, "--port", str(port)],
            stdout=subprocess.DEVNULL,
        )
        while not listens(port):
            time.sleep(0.1)
        device = subprocess.Popen([*command, "device", str(folder / "policy.toml")])
        try:
            seconds = drive(folder, port, num_rows)
            used = memory(device)
        finally:
            device.terminate()
            device.wait()
            broker.terminate()
            broker.wait()
    print(f"rows      {num_rows} of {DIM} columns, from a CSV file")
    print(f"memory    {used['VmRSS']:.1f} MB RSS after {ROUNDS} rounds over TLS")
    print(f"peak      {used['VmHWM']:.1f} MB RSS, while the file was read")
    median = 1000 * statistics.median(seconds)
    print(f"round     {median:.0f} ms (median), {TAU} steps, charge and answer")


if __name__ == "__main__":
    main()
