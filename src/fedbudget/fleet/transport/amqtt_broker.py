"""The embedded broker (amqtt), for demonstrations and tests: nothing to install.

It requires a certificate of the fleet from every client. A device may publish only
under its own name and read only orders. The broker stores no state on disk; a permanent
fleet runs mosquitto or RabbitMQ (`deploy/`) under the same rules.

amqtt is optional. This module imports without it; `amqtt_subclasses` does not.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

from fedbudget.checks import whole
from fedbudget.errors import MessageError, TrainingError, needed
from fedbudget.fleet.transport.address import HOST, TLS_PORT
from fedbudget.fleet.transport.certificates import COORDINATOR, MEASURE, Identity
from fedbudget.fleet.wire import topics

# As in pyproject.toml: the releases whose source was reviewed, see amqtt_subclasses.
SUPPORTED_AMQTT = ">=0.12.1,<0.13"

# Kinds of topics to which a device may publish under its own name.
_DEVICE_PUBLISHES = ("declare", "status", "reply")
# The coordinator publishes to the last two only to clear retained messages.
_COORDINATOR_PUBLISHES = ("offer", "order", "declare", "status")


def may_publish(name: str, topic: str) -> bool:
    """Return whether the holder of a certificate may publish to a topic.

    >>> may_publish("oven", "fedbudget/1/reply/oven")
    True
    >>> may_publish("oven", "fedbudget/1/reply/fridge")
    False
    """
    try:
        kind, owner = topics.parse(topic)
    except MessageError:
        return False
    if name == COORDINATOR:
        return kind in _COORDINATOR_PUBLISHES
    if name == MEASURE:
        return kind == "measure"
    return owner == name and kind in _DEVICE_PUBLISHES


def may_read(name: str, topic: str) -> bool:
    """Return whether the holder of a certificate may read or subscribe to a topic.

    >>> may_read("oven", "fedbudget/1/order/#"), may_read("oven", "fedbudget/1/#")
    (True, False)
    """
    try:
        kind, owner = topics.parse(topic)
    except MessageError:
        return False
    if name == COORDINATOR:
        return True
    if name == MEASURE:
        return kind == "measure"
    return kind == "order" or (kind == "offer" and owner == name)


def run_broker(
    identity: Identity,
    *,
    host: str = HOST,
    port: int = TLS_PORT,
    on_ready: Callable[[int], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        identity: The broker's certificate, and the fleet's certificate authority.
        host: Address to listen on.
        port: Port to listen on; 0 selects a free one.
        on_ready: Called with the port, once the broker listens.

    Raises:
        TrainingError: It cannot listen there, or this amqtt cannot enforce the rules.
    """
    whole("port", port, least=0, most=65535)
    asyncio.run(_serve(identity, f"{host}:{port}", on_ready))


async def _serve(
    identity: Identity, bind: str, on_ready: Callable[[int], None] | None
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    broker = _new_broker(identity, bind)
    await _start(broker, bind)
    if on_ready is not None:
        on_ready(broker.port)
    await stop.wait()
    await broker.shutdown()


async def _start(broker: Any, bind: str) -> None:
    from amqtt.errors import BrokerError

    try:
        await broker.start()
    except BrokerError as error:
        raise TrainingError(
            f"the broker cannot listen on {bind} ({error}): choose another --port"
        ) from None


def _new_broker(identity: Identity, bind: str) -> Any:
    with needed("the embedded broker", "amqtt", "fleet"):
        import amqtt
    try:
        from fedbudget.fleet.transport import amqtt_subclasses
    except ImportError as error:
        raise TrainingError(
            f"amqtt {amqtt.__version__} lacks what the embedded broker needs ({error}):"
            f" pip install 'amqtt{SUPPORTED_AMQTT}', or run mosquitto "
            "(deploy/mosquitto)"
        ) from None
    logging.getLogger("amqtt").setLevel(logging.ERROR)
    logging.getLogger("transitions").setLevel(logging.ERROR)
    return amqtt_subclasses.FleetBroker(
        {
            "type": "tcp",
            "bind": bind,
            "ssl": True,
            "cafile": str(identity.ca),
            "certfile": str(identity.certificate),
            "keyfile": str(identity.key),
        }
    )
