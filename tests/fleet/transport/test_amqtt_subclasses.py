"""The embedded broker does not start with an amqtt that cannot enforce its rules."""

import asyncio
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedbudget.errors import MissingExtraError, TrainingError
from fedbudget.fleet import transport
from fedbudget.fleet.transport.amqtt_broker import SUPPORTED_AMQTT, run_broker
from fedbudget.fleet.transport.certificates import identity_of

amqtt = pytest.importorskip("amqtt", reason="the embedded broker is amqtt")

from amqtt.broker import Broker  # noqa: E402
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler  # noqa: E402
from amqtt.plugins.manager import PluginManager  # noqa: E402

from fedbudget.fleet.transport import amqtt_subclasses  # noqa: E402
from fedbudget.fleet.transport.amqtt_subclasses import (  # noqa: E402
    REQUIRED_METHODS,
    FleetBroker,
    FleetHandler,
)

ROOT = Path(__file__).parents[3]
METHODS = [
    (owner, name) for owner, methods in REQUIRED_METHODS.items() for name in methods
]


def refused(certs: Path) -> str:
    """Start a broker, which must refuse before it listens; return the error."""
    ready: list[int] = []
    with pytest.raises(TrainingError) as caught:
        run_broker(identity_of(certs, "broker"), port=0, on_ready=ready.append)
    assert ready == []
    text = str(caught.value)
    assert amqtt.__version__ in text and f"pip install 'amqtt{SUPPORTED_AMQTT}'" in text
    return text


@pytest.mark.parametrize("owner, name", METHODS)
def test_a_method_that_is_gone_is_named(
    owner: type, name: str, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in owner.__mro__:
        if name in vars(base):
            monkeypatch.delattr(base, name)
    assert f"has no {owner.__name__}.{name}(" in refused(certs)


@pytest.mark.parametrize("owner, name", METHODS)
def test_a_method_with_other_parameters_is_named(
    owner: type, name: str, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def other(self: Any, context: Any) -> None:
        raise AssertionError("it is not called")

    monkeypatch.setattr(owner, name, other)
    assert f"has no {owner.__name__}.{name}(" in refused(certs)


@pytest.mark.parametrize("version", ["0.11.3", "0.12.0", "0.13.0", "1.0"])
def test_another_release_is_refused(
    version: str, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqtt, "__version__", version)
    refused(certs)


@pytest.mark.parametrize("name", amqtt_subclasses.PLUGINS)
def test_a_plugin_that_is_not_loaded_is_named(
    name: str, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = PluginManager._load_str_plugins

    def load_others(self: Any, plugins_info: dict[str, Any]) -> None:
        others = {k: v for k, v in plugins_info.items() if not k.endswith(name)}
        load(self, others)

    monkeypatch.setattr(PluginManager, "_load_str_plugins", load_others)
    assert f"not loaded the plugin {name}" in refused(certs)


@pytest.mark.parametrize("name", amqtt_subclasses.PLUGINS)
def test_a_plugin_that_cannot_be_loaded_is_named(
    name: str, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(amqtt_subclasses, name)
    assert name in refused(certs)


def test_plugins_that_are_not_called_are_noticed(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PluginManager, "is_topic_filtering_enabled", lambda self: False)
    assert "does not call the plugin TopicRule" in refused(certs)


def test_a_module_without_what_we_import_is_refused(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(transport, "amqtt_subclasses")
    monkeypatch.setitem(sys.modules, amqtt_subclasses.__name__, None)
    assert "lacks what the embedded broker needs" in refused(certs)


def test_without_amqtt_the_extra_is_named(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "amqtt", None)
    with pytest.raises(MissingExtraError, match="fleet"):
        run_broker(identity_of(certs, "broker"), port=0)


@pytest.mark.parametrize(
    "ours, theirs",
    [(FleetBroker, Broker), (FleetHandler, BrokerProtocolHandler)],
)
def test_every_method_that_we_override_is_checked(ours: type, theirs: type) -> None:
    overridden = {name for name in vars(ours) if hasattr(theirs, name)}
    assert {n for n in overridden if not n.startswith("__")} <= set(
        REQUIRED_METHODS[theirs]
    )


def test_the_project_requires_the_releases_that_the_broker_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in ("fleet", "dev"):
        assert f"amqtt{SUPPORTED_AMQTT}" in project["optional-dependencies"][extra]


def test_a_long_backlog_is_sent_as_it_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Over connections that break early, a backlog sent at once would never get shorter.
    monkeypatch.setattr(amqtt_subclasses, "_WINDOW_SECONDS", 3600.0)
    sent: list[int] = []

    async def note(self: Any, message: Any) -> None:
        sent.append(message.packet_id)

    async def settle() -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    async def scenario() -> None:
        handler = FleetHandler(Mock(), Mock(), Mock())
        messages = {number: Mock(packet_id=number) for number in range(1, 51)}
        handler.session = Mock(inflight_out=messages)
        sending = asyncio.create_task(handler._retry_deliveries())
        await settle()
        assert sent == list(range(1, 21))
        for number in range(1, 6):
            await handler.handle_puback(Mock(variable_header=Mock(packet_id=number)))
            await settle()
        assert sent == list(range(1, 26))
        handler.abort()  # nothing waits for a client that is gone
        await asyncio.wait_for(sending, 60)

    monkeypatch.setattr(FleetHandler, "_send", note)
    asyncio.run(scenario())
