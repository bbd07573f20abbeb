"""Flower as a transport: a coordinator inside a ServerApp, guards behind SuperNodes.

Flower asks, and a SuperNode answers: there is one message to a node at a time, a parcel
of all that the node has not been sent yet, and its reply is a parcel of all that the
guard said. The ClientApp (deploy/flower) hands bytes to the guard's socket and back; it
decides nothing, for a SuperNode runs whatever code its server sends.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbudget.checks import whole, within
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
_POLL = 0.5  # seconds between two questions whether a reply is there
_LOOK = 3.0  # seconds between two questions who is connected
_AGAIN = 10.0  # seconds before a node that failed is tried again


@dataclass
class _Node:
    """One SuperNode: which device it speaks for, and what it is to be sent."""

    number: int
    name: str = ""  # of the device; empty until it has declared itself
    outbox: dict[str, bytes] = field(default_factory=dict)  # by topic: newest only
    asked: bool = False  # for its declaration
    sent: str = ""  # the message that is not answered yet
    carried: dict[str, bytes] = field(default_factory=dict)  # what that holds
    expires: float = 0.0  # when that is given up
    not_before: float = 0.0  # the next one


class FlowerChannel:
    """A coordinator's channel over a Flower grid; see `channel.Channel`.

    A node speaks for the device that it declares first, for as long as it is connected,
    and for no other; a second node of the same name is not heard.

    Args:
        grid: As Flower gives it to a ServerApp.
        ttl: Seconds after which an undelivered message is void: a device that was away
            is sent the newest order, and not charged for those that it missed.
        poll: Seconds between two questions whether a reply is there.
    """

    def __init__(self, grid: "Grid", *, ttl: float, poll: float = _POLL) -> None:
        within("ttl", ttl, above=0)
        within("poll", poll, above=0)
        self._grid, self._ttl, self._poll = grid, float(ttl), float(poll)
        self.kept: dict[str, bytes] = {}
        self._offered: set[str] = set()  # the devices of the run
        self._nodes: dict[int, _Node] = {}
        self._inbox: deque[Message] = deque()
        self._look_at = 0.0

    def __enter__(self) -> "FlowerChannel":
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the grid is Flower's to close."""

    @property
    def trouble(self) -> str:
        """Why nobody may be heard, in words; empty if all is well."""
        silent = sum(not node.name for node in self._nodes.values())
        if not self._nodes:
            return "no SuperNode is connected"
        return f"SuperNodes without a guard: {silent}" if silent else ""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Put a message into the next parcel of every node that it is for."""
        for node in self._nodes.values():
            on_its_way = node.sent and node.carried.get(topic) == payload
            if self._is_for(topic, node) and not on_its_way:
                node.outbox[topic] = payload

    def keep(self, topic: str, payload: bytes) -> None:
        """Publish, and again to nodes that come or fail."""
        self.kept[topic] = payload
        kind, who = topics.parse(topic)
        if kind == "offer":
            self._offered.add(who)
        self.publish(topic, payload)

    def withdraw(self, topic: str) -> None:
        """Send a message no more."""
        self.kept.pop(topic, None)
        kind, who = topics.parse(topic)
        if kind == "offer":
            self._offered.discard(who)
        for node in self._nodes.values():
            node.outbox.pop(topic, None)

    def flush(self, seconds: float) -> bool:
        """Return at once: what was withdrawn is not sent, and a parcel needs no end."""
        return True

    def acknowledge(self, message: Message) -> None:
        """Do nothing: a reply that gets lost is asked for again."""

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message, or none if there is none in time."""
        end = time.monotonic() + (float("inf") if seconds is None else seconds)
        while not self._inbox and time.monotonic() < end:
            self._look()
            self._send()
            self._collect()
            if not self._inbox:
                time.sleep(max(0.0, min(self._poll, end - time.monotonic())))
        return self._inbox.popleft() if self._inbox else None

    def _is_for(self, topic: str, node: _Node) -> bool:
        """Offers go to their device, orders to every device that has an offer."""
        kind, who = topics.parse(topic)
        if kind == "offer":
            return who == node.name
        return node.name in self._offered

    def _look(self) -> None:
        """See which nodes have come and gone."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK
        there = set(self._grid.get_node_ids())
        for number in there - set(self._nodes):
            self._nodes[number] = _Node(number)
        for number in set(self._nodes) - there:
            self._tell_gone(self._nodes.pop(number))

    def _send(self) -> None:
        """Push one parcel to every node that is free and lacks something."""
        from flwr.app import ConfigRecord, Message as FlowerMessage, RecordDict

        now, outgoing = time.monotonic(), []
        for node in self._nodes.values():
            if node.sent or now < node.not_before or (node.asked and not node.outbox):
                continue
            record = ConfigRecord({PARCEL: pack(node.outbox.items())})
            parcel = FlowerMessage(
                RecordDict({PARCEL: record}),
                dst_node_id=node.number,
                message_type="query",
                ttl=self._ttl,
            )
            node.carried, node.outbox = node.outbox, {}
            node.asked, node.expires = True, now + self._ttl
            outgoing.append((node, parcel))
        pushed = set(self._grid.push_messages([p for _, p in outgoing]))
        for node, parcel in outgoing:
            node.sent = parcel.metadata.message_id  # set while it was pushed
            if node.sent not in pushed:
                self._failed(node, "Flower did not take the message")

    def _collect(self) -> None:
        """Pull the replies that are there, and give up what has expired."""
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
        """Take in a node's reply, which is untrusted."""
        node.sent = ""
        if reply.has_error():
            self._failed(node, reply.error.reason)
            return
        try:
            said = unpack(_bytes_of(reply), limit=MAX_BYTES)
            for topic, payload in said:
                self._hear(node, topic, payload)
        except MessageError as error:
            self._failed(node, str(error))

    def _hear(self, node: _Node, topic: str, payload: bytes) -> None:
        kind, who = topics.parse(topic)
        if kind == "declare" and not node.name:
            self._name(node, who)
        if who != node.name:
            raise MessageError(f"it speaks for {who!r}, not for {node.name!r}")
        self._inbox.append(Message(topic=topic, payload=payload, receiver="flower"))

    def _name(self, node: _Node, name: str) -> None:
        """Let a node speak for a device, and send it all that is kept for that."""
        if any(other.name == name for other in self._nodes.values()):
            raise MessageError(f"another node speaks for {name!r} already")
        node.name = name
        self._renew(node)

    def _renew(self, node: _Node) -> None:
        node.outbox = {t: p for t, p in self.kept.items() if self._is_for(t, node)}

    def _failed(self, node: _Node, reason: str) -> None:
        """Try a node again later, with all that it may lack."""
        _log.warning(
            "node %d, %s: %s", node.number, node.name or "no name yet", reason[:300]
        )
        node.sent, node.asked = "", False
        node.not_before = time.monotonic() + _AGAIN
        self._renew(node)
        self._tell_gone(node)

    def _tell_gone(self, node: _Node) -> None:
        if node.name:
            topic = topics.status(node.name)
            gone = Message(topic=topic, payload=topics.OFFLINE, receiver="flower")
            self._inbox.append(gone)


def _bytes_of(reply: "FlowerMessage") -> bytes:
    """Return the parcel in a reply.

    Raises:
        MessageError: There is none, or it is empty: the ClientApp found no guard.
    """
    record: Any = reply.content.get(PARCEL)
    try:
        found = record[PARCEL]
    except (KeyError, TypeError):
        raise MessageError("the reply holds no parcel") from None
    if not isinstance(found, bytes) or not found:
        raise MessageError("its ClientApp found no guard")
    return found


def serve_app(grid: "Grid", context: "Context") -> None:
    """Be the main function of a ServerApp: plan, run the rounds, release.

    What `fedbudget server` takes as options comes from Flower's run config, under the
    same names; deploy/flower/pyproject.toml lists them.
    """
    settings = settings_of(context.run_config)
    # Not the root's: Flower sends what is logged, and logs that it has sent it.
    ours = logging.getLogger("fedbudget")
    ours.setLevel(logging.INFO)
    ours.addHandler(logging.StreamHandler())
    channel = FlowerChannel(grid, ttl=settings.deadline)
    run_server(settings, channel=channel, on_round=_tell)


def _tell(latest: Round) -> None:
    numbers = latest.number, latest.answered, len(latest.refused)
    _log.info("round %d: %d answers, %d refusals", *numbers)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Return a coordinator's settings from Flower's run config.

    >>> config = {"out": "runs/a", "signing-key": "a.sign", "devices": 4, "wait": 9.0}
    >>> settings_of(config).devices
    4

    Raises:
        InvalidInputError: A key is not known, or a value is missing or wrong.
    """
    known = [item.name.replace("_", "-") for item in fields(Settings)]
    known.remove("broker")  # Flower is the way to the devices
    for key in config:
        if key not in known:
            raise InvalidInputError(
                f"{key} in the run config is not known: use only {', '.join(known)}"
            )
    plain = {key.replace("-", "_"): value for key, value in config.items()}
    for key in ("out", "signing_key"):
        if not plain.get(key):
            name = key.replace("_", "-")
            raise InvalidInputError(
                f"{name} is missing in the run config: give --run-config "
                f"'{name}=\"...\"'"
            )
        plain[key] = Path(str(plain[key]))
    # Flower's config knows no none: 0 devices are all that come, port -1 is no page.
    plain["devices"] = plain.get("devices") or None
    port = whole("status-port", plain.get("status_port", -1), least=-1, most=65535)
    plain["status_port"] = None if port < 0 else port
    return Settings(**plain)
