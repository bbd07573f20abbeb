"""Fixtures of the fleet's tests."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedbudget.fleet.demo import MOSQUITTO
from fedbudget.fleet.transport.certificates import make_certificates
from tests.fleet.brokers import FLEETS, BrokerProcess

NAMES = tuple(f"device-{number}" for number in range(16))


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of a small fleet."""
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, NAMES)
    return folder


def need_broker(kind: str) -> None:
    """Skip if a broker is not installed."""
    if kind == "mosquitto" and MOSQUITTO is None:
        pytest.skip("mosquitto is not installed: apt-get install mosquitto")
    if kind == "amqtt" and find_spec("amqtt") is None:
        pytest.skip("amqtt is not installed: pip install 'fedbudget[fleet]'")


def new_broker(kind: str, certs: Path, folder: Path) -> BrokerProcess:
    """Return a broker that is not started yet; skip if it is not installed."""
    need_broker(kind)
    return BrokerProcess(kind, certs, folder)


@pytest.fixture(scope="module", params=sorted(FLEETS))
def broker(
    request: pytest.FixtureRequest,
    certs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[BrokerProcess]:
    """A running broker of each kind."""
    folder = tmp_path_factory.mktemp(request.param)
    with new_broker(request.param, certs, folder) as running:
        yield running


@pytest.fixture(scope="module")
def embedded(
    certs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """The running embedded broker, for tests that need any one broker."""
    with BrokerProcess("amqtt", certs, tmp_path_factory.mktemp("amqtt")) as running:
        yield running
