"""Real brokers in processes of their own, for tests."""

from pathlib import Path

from benchmarks.fleet.trials import mosquitto

from fedbudget.fleet.trial import Child, free_port, listens, wait_until


class BrokerProcess:
    """A broker that can be killed and started again."""

    def __init__(self, kind: str, certs: Path, folder: Path) -> None:
        self.certs, self.port = certs, free_port()
        where = ("--certs", str(certs), "--port", str(self.port))
        self._child = Child(("fleet", "broker", *where), folder / "broker.log")
        if kind == "mosquitto":
            self._child = mosquitto(certs=certs, folder=folder, port=self.port)

    def start(self) -> "BrokerProcess":
        """Start, and wait until it listens."""
        self._child.start()
        wait_until(lambda: listens(self.port), "the broker", child=self._child)
        return self

    def kill(self) -> None:
        """Stop it as a power cut would."""
        self._child.kill()

    def __enter__(self) -> "BrokerProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
