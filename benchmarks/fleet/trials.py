"""Fleets on one machine over mosquitto, for benchmarks and tests; see `fleet.demo`."""

import getpass
import os
import shutil
from pathlib import Path

from fedbudget.fleet.demo import TrialFleet
from fedbudget.fleet.trial import Child

DEPLOY = Path(__file__).parents[2] / "deploy"
MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class MosquittoFleet(TrialFleet):
    """The processes of a fleet; its broker is the embedded one without mosquitto."""

    def _broker(self) -> Child:
        if MOSQUITTO is None:
            return super()._broker()
        return mosquitto(
            certs=self.certs, folder=self.folder / "broker", port=self.port
        )


def mosquitto(*, certs: Path, folder: Path, port: int) -> Child:
    """Return mosquitto, which must be installed, with the configuration we ship."""
    assert MOSQUITTO is not None
    folder.mkdir(parents=True, exist_ok=True)
    text = (DEPLOY / "mosquitto" / "fedbudget.conf").read_text()
    for shipped, ours in (
        ("/etc/mosquitto/certs", certs.resolve()),
        ("/etc/mosquitto/fedbudget.acl", DEPLOY / "mosquitto" / "fedbudget.acl"),
        ("/var/lib/mosquitto/", f"{folder.resolve()}/"),
        ("listener 8883", f"listener {port} 127.0.0.1"),
    ):
        text = text.replace(shipped, str(ours))
    # Started by root it would become a user who cannot read the trial's keys.
    config = folder / "mosquitto.conf"
    config.write_text(f"user {getpass.getuser()}\n{text}")
    return Child(("-c", str(config)), folder / "broker.log", command=(MOSQUITTO,))
