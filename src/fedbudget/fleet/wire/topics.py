"""The topic of each message; the brokers' access rules follow these names.

    topic                     published by    read by        retained
    fedbudget/1/declare/ID    device ID       coordinator    yes
    fedbudget/1/status/ID     device ID       coordinator    yes   online | offline
    fedbudget/1/offer/ID      coordinator     device ID      yes
    fedbudget/1/offer/ID/order  coordinator   device ID      no    an order repeated
    fedbudget/1/offer/ID/notice  coordinator  device ID      no
    fedbudget/1/order/RUN     coordinator     all devices    yes
    fedbudget/1/order/RUN-peers  coordinator  all devices    yes   of secure sums
    fedbudget/1/reply/ID      device ID       coordinator    no
    fedbudget/1/measure/KIND  measure         measure        order only

RUN is the run's identity in hex. A chunk's number follows the topic: ``.../3``.
An order goes to all devices at once. It is repeated to those alone that have not
answered, below their offers, which no other device may read.
KIND is an order or a reply of `fedbudget measure`, which no device and no coordinator
reads.
"""

from fedbudget.errors import MessageError

PREFIX = "fedbudget/1"
_REPLIES = f"{PREFIX}/reply/"
ONLINE, OFFLINE = b"online", b"offline"
_ORDER, _NOTICE = _BELOW_OFFERS = ("order", "notice")


def declare(device: str) -> str:
    """Return the topic of a device's declaration."""
    return f"{PREFIX}/declare/{device}"


def status(device: str) -> str:
    """Return the topic on which a device, or the broker for it, reports its status."""
    return f"{PREFIX}/status/{device}"


def offer(device: str) -> str:
    """Return the topic of a device's offers."""
    return f"{PREFIX}/offer/{device}"


def order(run: bytes) -> str:
    """Return the topic of a run's orders."""
    return f"{PREFIX}/order/{run.hex()}"


def peers(run: bytes) -> str:
    """Return the topic of the list of peers, in a run of secure sums."""
    return f"{order(run)}-peers"


def order_again(device: str) -> str:
    """Return the topic on which an order is repeated to one device."""
    return f"{offer(device)}/{_ORDER}"


def notice(device: str) -> str:
    """Return the topic of notices to a device."""
    return f"{offer(device)}/{_NOTICE}"


def content(topic: str) -> str:
    """Return what a topic has: the kind of its topic, or what is below an offer's.

    >>> content(order(bytes(16))), content(f"{order_again('oven')}/2")
    ('order', 'order')
    >>> content(offer("oven")), content(offer("order")), content(notice("oven"))
    ('offer', 'offer', 'notice')
    """
    kind, _, *rest = topic.removeprefix(f"{PREFIX}/").split("/")
    below_offer = kind == "offer" and rest and rest[0] in _BELOW_OFFERS
    return rest[0] if below_offer else kind


def reply(device: str) -> str:
    """Return the topic of a device's replies."""
    return _REPLIES + device


def reply_owner(topic: str) -> str:
    """Return the device of a topic of replies; empty if it is another topic.

    >>> reply_owner(reply("oven")), reply_owner(status("oven"))
    ('oven', '')
    """
    return topic.removeprefix(_REPLIES) if topic.startswith(_REPLIES) else ""


def measure(kind: str) -> str:
    """Return the topic of an order or a reply whose price is measured."""
    return f"{PREFIX}/measure/{kind}"


def device_reads(device: str) -> tuple[str, ...]:
    """Return a device's subscriptions; ``#`` matches chunks too."""
    return (f"{offer(device)}/#", f"{PREFIX}/order/#")


def coordinator_reads() -> tuple[str, ...]:
    """Return the coordinator's subscriptions."""
    return (f"{PREFIX}/declare/+", f"{PREFIX}/status/+", f"{PREFIX}/reply/#")


def parse(topic: str) -> tuple[str, str]:
    """Return the kind of a topic and its owner, without a chunk's number.

    >>> parse("fedbudget/1/reply/sensor-7/2"), parse(order_again("oven"))
    (('reply', 'sensor-7'), ('offer', 'oven'))

    Raises:
        MessageError: It is not a topic of this fleet.
    """
    first, version, kind, owner, *rest = [*topic.split("/"), "", "", "", ""]
    if kind == "offer" and rest[0] in _BELOW_OFFERS:
        del rest[0]
    if f"{first}/{version}" != PREFIX or not kind or not owner or any(rest[1:]):
        raise MessageError(f"{topic[:80]!r} is not a topic of this fleet")
    return kind, owner
