"""What the embedded broker needs of amqtt's insides; without it, it does not start.

Its rules replace methods that amqtt does not promise to keep. A release that renames
one of them, or calls it otherwise, would run without the rule, and nobody would see it.
"""

import inspect
import re
from typing import Any

import amqtt
from amqtt.broker import Broker
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler

from fedbudget.errors import TrainingError
from fedbudget.fleet.transport.amqtt_broker import SUPPORTED_AMQTT

_FIRST, _BEYOND = (0, 12, 1), (0, 13)  # the same in numbers

# Methods that we replace or call, with their parameters.
HOOKS: dict[type, dict[str, tuple[str, ...]]] = {
    Broker: {
        "start": ("self",),
        "stream_connected": ("self", "reader", "writer", "listener_name"),
        "add_subscription": ("self", "subscription", "session"),
        "_create_ssl_context": ("listener",),
        "_client_connected": ("self", "listener_name", "reader", "writer"),
        "_initialize_client_session": (
            *("self", "reader", "writer"),
            *("remote_address", "remote_port"),
        ),
        "_handle_client_session": (
            *("self", "reader", "writer", "client_session", "handler"),
            *("server", "listener_name"),
        ),
        "_handle_disconnect": (
            *("self", "client_session", "handler", "disconnect_waiter"),
        ),
        "_handle_message_delivery": (
            *("self", "client_session", "handler", "wait_deliver"),
        ),
        "_publish_retained_messages_for_subscription": (
            *("self", "subscription", "session"),
        ),
        "_topic_filtering": ("self", "session", "topic", "action"),
    },
    BrokerProtocolHandler: {
        "attach": ("self", "session", "reader", "writer"),
        "handle_connect": ("self", "connect"),
        "handle_disconnect": ("self", "disconnect"),
        "handle_puback": ("self", "puback"),
        "handle_read_timeout": ("self",),
        "wait_disconnect": ("self",),
        "_handle_qos1_message_flow": ("self", "app_message"),
        "_retry_deliveries": ("self",),
        "_send_packet": ("self", "packet"),
    },
}


def refusal(reason: str) -> TrainingError:
    """Return the error with which the broker does not start."""
    return TrainingError(
        f"amqtt {amqtt.__version__} {reason}, without which the embedded broker cannot "
        f"keep its rules: pip install 'amqtt{SUPPORTED_AMQTT}', or run mosquitto "
        "(deploy/mosquitto)"
    )


def check_amqtt() -> None:
    """Refuse an amqtt that is not the one whose insides we know.

    Raises:
        TrainingError: It is another release, or a method is not as it was.
    """
    for owner, methods in HOOKS.items():
        for name, parameters in methods.items():
            method = getattr(owner, name, None)
            if method is None or _parameters(method) != parameters:
                needed = f"{owner.__name__}.{name}({', '.join(parameters)})"
                raise refusal(f"has no {needed}")
    release = tuple(int(part) for part in re.findall(r"\d+", amqtt.__version__)[:3])
    if not _FIRST <= release < _BEYOND:
        raise refusal("may not call the methods that we replace")


def _parameters(method: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)
