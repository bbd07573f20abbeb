"""Fleets on one machine over mosquitto, for benchmarks; see `fleet.demo`."""

from pathlib import Path

from fedbudget.fleet.demo import TrialFleet
from fedbudget.fleet.trial import MOSQUITTO, Child, mosquitto

SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto"


class MosquittoFleet(TrialFleet):
    """The processes of a fleet; its broker is the embedded one without mosquitto."""

    def _broker(self) -> Child:
        if MOSQUITTO is None:
            return super()._broker()
        return mosquitto(
            shipped=SHIPPED,
            certs=self.certs,
            folder=self.folder / "broker",
            port=self.port,
        )
