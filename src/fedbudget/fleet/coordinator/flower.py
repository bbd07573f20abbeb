"""Flower as a transport: a coordinator inside a ServerApp, guards behind SuperNodes.

Flower sends a request to a SuperNode, and the node replies. Each node has at most one
open request: a parcel of all messages that the node lacks. Its reply is a parcel of the
guard's messages. The ClientApp (deploy/flower) only forwards bytes between Flower and
the guard's socket. It makes no decisions, because a SuperNode runs any code that its
server sends.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbudget.checks import whole, within
from fedbudget.data.schema import read_schema_file
from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.coordinator.process import Settings, run_server
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import MAX_BYTES
from fedbudget.fleet.wire.framing import pack, unpack
from fedbudget.record import Round

if TYPE_CHECKING:
    from flwr.app import Context, Message as FlowerMessage
    from flwr.serverapp import Grid

_log = logging.getLogger(__name__)

PARCEL = "parcel"  # name of the record in a message, and of its only value
_POLL = 0.5  # seconds between two requests for replies
_LOOK = 3.0  # seconds between two requests for the connected nodes
_RETRY = 10.0  # seconds before a failed node is tried again


@dataclass
class _Node:
    """One SuperNode: its device, and the messages for it."""

    number: int
    name: str = ""  # of the device; empty until it has declared itself
    outbox: dict[str, bytes] = field(default_factory=dict)  # by topic: newest only
    requested: bool = False  # its declaration
    sent: str = ""  # identity of the open request
    carried: dict[str, bytes] = field(default_factory=dict)  # its messages, by topic
    expires: float = 0.0  # monotonic time at which it is given up
    not_before: float = 0.0  # monotonic time of the next request


class FlowerChannel:
    """A coordinator's channel over a Flower grid; see `channel.Channel`.

    While it is connected, a node speaks only for the device that it declares first.
    Messages of a second node with the same name are dropped.

    Args:
        grid: As Flower passes it to a ServerApp.
        ttl: Seconds after which an undelivered message expires: a device that was
            offline receives the newest order, and is not charged for missed ones.
        poll: Seconds between two requests for replies.
    """

    def __init__(self, grid: "Grid", *, ttl: float, poll: float = _POLL) -> None:
        within("ttl", ttl, above=0)
        within("poll", poll, above=0)
        self._grid, self._ttl, self._poll = grid, float(ttl), float(poll)
        self.retained: dict[str, bytes] = {}
        self._offered: set[str] = set()  # devices with an offer
        self._nodes: dict[int, _Node] = {}
        self._inbox: deque[Message] = deque()
        self._look_at = 0.0

    def __enter__(self) -> "FlowerChannel":
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: Flower closes the grid."""

    @property
    def trouble(self) -> str:
        """Why messages may be missing, for people; empty if all is well."""
        silent = sum(not node.name for node in self._nodes.values())
        if not self._nodes:
            return "no SuperNode is connected"
        return f"SuperNodes without a guard: {silent}" if silent else ""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Add a message to the next parcel of each node that it is for."""
        for node in self._nodes.values():
            # An order is repeated under a topic of its own, with the same bytes.
            in_transit = node.sent and payload in node.carried.values()
            if self._is_for(topic, node) and not in_transit:
                node.outbox[topic] = payload

    def keep(self, topic: str, payload: bytes) -> None:
        """Publish now, and again to nodes that connect later or fail."""
        self.retained[topic] = payload
        kind, device = topics.parse(topic)
        if kind == "offer":
            self._offered.add(device)
        self.publish(topic, payload)

    def withdraw(self, topic: str) -> None:
        """Stop sending a message."""
        self.retained.pop(topic, None)
        kind, device = topics.parse(topic)
        if kind == "offer":
            self._offered.discard(device)
        for node in self._nodes.values():
            node.outbox.pop(topic, None)

    def clear_at_death(self, topic: str) -> None:
        """Do nothing: a message to a SuperNode expires after the deadline."""

    def reconnect(self) -> None:
        """Do nothing: every request to Flower is a call of its own."""

    def flush(self, seconds: float) -> bool:
        """Return at once: withdrawn messages are not sent, and none is pending here."""
        return True

    def acknowledge(self, *messages: Message) -> None:
        """Do nothing: a lost reply is requested again."""

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message, or None if none arrives in time."""
        end = time.monotonic() + (float("inf") if seconds is None else seconds)
        while not self._inbox and time.monotonic() < end:
            self._look()
            self._send()
            self._collect()
            if not self._inbox:
                time.sleep(max(0.0, min(self._poll, end - time.monotonic())))
        return self._inbox.popleft() if self._inbox else None

    def _is_for(self, topic: str, node: _Node) -> bool:
        """Return whether a node needs a message: its offer, or then any order."""
        kind, device = topics.parse(topic)
        if kind == "offer":
            return device == node.name
        return node.name in self._offered

    def _look(self) -> None:
        """Update the list of connected nodes."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK
        connected = set(self._grid.get_node_ids())
        for number in connected - set(self._nodes):
            self._nodes[number] = _Node(number)
        for number in set(self._nodes) - connected:
            self._report_offline(self._nodes.pop(number))

    def _send(self) -> None:
        """Push one parcel to each node that has no open request and lacks a message."""
        from flwr.app import ConfigRecord, Message as FlowerMessage, RecordDict

        now, outgoing = time.monotonic(), []
        for node in self._nodes.values():
            if (
                node.sent
                or now < node.not_before
                or (node.requested and not node.outbox)
            ):
                continue
            record = ConfigRecord({PARCEL: pack(node.outbox.items())})
            parcel = FlowerMessage(
                RecordDict({PARCEL: record}),
                dst_node_id=node.number,
                message_type="query",
                ttl=self._ttl,
            )
            node.carried, node.outbox = node.outbox, {}
            node.requested, node.expires = True, now + self._ttl
            outgoing.append((node, parcel))
        pushed = set(self._grid.push_messages([p for _, p in outgoing]))
        for node, parcel in outgoing:
            node.sent = parcel.metadata.message_id  # set while it was pushed
            if node.sent not in pushed:
                self._failed(node, "Flower did not take the message")

    def _collect(self) -> None:
        """Pull the available replies, and give up expired requests."""
        waiting = {node.sent: node for node in self._nodes.values() if node.sent}
        if waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    self._open(node, reply)
        for node in waiting.values():
            if time.monotonic() >= node.expires:
                self._failed(node, f"no reply in {self._ttl:g} s")

    def _open(self, node: _Node, reply: "FlowerMessage") -> None:
        """Read a node's reply, which is untrusted."""
        node.sent = ""
        if reply.has_error():
            self._failed(node, reply.error.reason)
            return
        try:
            for topic, payload in unpack(_bytes_of(reply), limit=MAX_BYTES):
                self._accept(node, topic, payload)
        except MessageError as error:
            self._failed(node, str(error))

    def _accept(self, node: _Node, topic: str, payload: bytes) -> None:
        kind, device = topics.parse(topic)
        if kind == "declare" and not node.name:
            self._name(node, device)
        if device != node.name:
            raise MessageError(f"it sends for {device!r}, not for {node.name!r}")
        self._inbox.append(Message(topic=topic, payload=payload, receiver="flower"))

    def _name(self, node: _Node, name: str) -> None:
        """Assign a device to a node, and queue all messages for that device."""
        if any(other.name == name for other in self._nodes.values()):
            raise MessageError(f"another node sends for {name!r} already")
        node.name = name
        self._renew(node)

    def _renew(self, node: _Node) -> None:
        node.outbox = {t: p for t, p in self.retained.items() if self._is_for(t, node)}

    def _failed(self, node: _Node, reason: str) -> None:
        """Try a node again later, with all messages that it may lack."""
        _log.warning(
            "node %d, %s: %s", node.number, node.name or "no name yet", reason[:300]
        )
        node.sent, node.requested = "", False
        node.not_before = time.monotonic() + _RETRY
        self._renew(node)
        self._report_offline(node)

    def _report_offline(self, node: _Node) -> None:
        if node.name:
            topic = topics.status(node.name)
            offline = Message(topic=topic, payload=topics.OFFLINE, receiver="flower")
            self._inbox.append(offline)


def _bytes_of(reply: "FlowerMessage") -> bytes:
    """Return the parcel in a reply.

    Raises:
        MessageError: There is none, or it is empty: the ClientApp found no guard.
    """
    record: Any = reply.content.get(PARCEL)
    try:
        parcel = record[PARCEL]
    except (KeyError, TypeError):
        raise MessageError("the reply has no parcel") from None
    if not isinstance(parcel, bytes) or not parcel:
        raise MessageError("its ClientApp found no guard")
    return parcel


def serve_app(grid: "Grid", context: "Context") -> None:
    """Run the coordinator as the main function of a ServerApp.

    The options of `fedbudget server` come from Flower's run config, under the same
    names; deploy/flower/pyproject.toml lists them.
    """
    settings = settings_of(context.run_config)
    # Not the root logger: Flower sends its records, and logs that it has sent them.
    logger = logging.getLogger("fedbudget")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    channel = FlowerChannel(grid, ttl=settings.deadline)
    run_server(settings, channel=channel, on_round=_log_round)


def _log_round(latest: Round) -> None:
    numbers = latest.number, latest.answered, len(latest.refused)
    _log.info("round %d: %d answers, %d refusals", *numbers)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Return a coordinator's settings from Flower's run config.

    >>> config = {"out": "runs/a", "signing-key": "a.sign", "devices": 4, "wait": 9.0}
    >>> settings_of(config).devices
    4

    Raises:
        InvalidInputError: A key is unknown, or a value is missing or invalid.
    """
    keys = [item.name.replace("_", "-") for item in fields(Settings)]
    keys.remove("broker")  # Flower is the connection to the devices
    for key in config:
        if key not in keys:
            raise InvalidInputError(
                f"{key} in the run config is unknown: use only {', '.join(keys)}"
            )
    values = {key.replace("-", "_"): value for key, value in config.items()}
    for key in ("out", "signing_key"):
        if not values.get(key):
            name = key.replace("_", "-")
            raise InvalidInputError(
                f"{name} is missing in the run config: use --run-config "
                f"'{name}=\"...\"'"
            )
        values[key] = Path(str(values[key]))
    # Flower's config has no null: 0 devices means all that declare themselves, 0 least
    # answers all of them, port -1 no status page, and an empty path none.
    schema, authority = values.get("schema"), values.get("authority")
    values["schema"] = read_schema_file(str(schema)) if schema else None
    values["authority"] = Path(str(authority)) if authority else None
    for key in ("devices", "least_answers"):
        values[key] = values.get(key) or None
    port = whole("status-port", values.get("status_port", -1), least=-1, most=65535)
    values["status_port"] = None if port < 0 else port
    return Settings(**values)
