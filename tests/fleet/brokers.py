"""Real brokers in separate processes, for tests and benchmarks."""

from pathlib import Path

from fedbudget.fleet.demo import (
    MOSQUITTO,
    Child,
    HeldPort,
    MosquittoFleet,
    TrialFleet,
    listens,
    mosquitto,
    wait_until,
)

SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto"
FLEETS = {"amqtt": TrialFleet, "mosquitto": MosquittoFleet}
USUAL = "amqtt" if MOSQUITTO is None else "mosquitto"  # default of a benchmark


class BrokerProcess:
    """A broker that can be killed and started again, on the same port."""

    def __init__(self, kind: str, certs: Path, folder: Path) -> None:
        self.certs, self._held = certs, HeldPort()
        self.port = self._held.number
        if kind == "mosquitto":
            self._child = mosquitto(
                shipped=SHIPPED, certs=certs, folder=folder, port=self.port
            )
        else:
            options = ("--certs", str(certs), "--port", str(self.port))
            self._child = Child(("fleet", "broker", *options), folder / "broker.log")

    def start(self) -> "BrokerProcess":
        """Start, and wait until it listens."""
        self._child.start()
        wait_until(lambda: listens(self.port), "the broker", child=self._child)
        return self

    @property
    def pid(self) -> int:
        """The process identifier, once it was started."""
        assert self._child.pid is not None
        return self._child.pid

    def kill(self) -> None:
        """Kill it without warning, like a power failure."""
        self._child.kill()

    def __enter__(self) -> "BrokerProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._held.release()
