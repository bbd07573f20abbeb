"""Where each message is published; the broker's access rules follow these names.

    topic                     who publishes   who reads      retained
    fedbudget/1/declare/ID    device ID       coordinator    yes
    fedbudget/1/status/ID     device ID       coordinator    yes   online | offline
    fedbudget/1/offer/ID      coordinator     device ID      yes
    fedbudget/1/order/RUN     coordinator     all devices    yes
    fedbudget/1/reply/ID      device ID       coordinator    no
    fedbudget/1/measure/WHAT  measure         measure        order only

RUN is the run's identity in hex. A chunk's number comes behind the topic: ``.../3``.
WHAT is an order or a reply of `fedbudget measure`, which no device and no coordinator
takes for one of theirs.
"""

from fedbudget.errors import MessageError

PREFIX = "fedbudget/1"
ONLINE, OFFLINE = b"online", b"offline"


def declare(device: str) -> str:
    """Return where a device makes public what a plan needs."""
    return f"{PREFIX}/declare/{device}"


def status(device: str) -> str:
    """Return where a device, or the broker in its name, says whether it is there."""
    return f"{PREFIX}/status/{device}"


def offer(device: str) -> str:
    """Return where a device finds its offer of a run."""
    return f"{PREFIX}/offer/{device}"


def order(run: bytes) -> str:
    """Return where the orders of a run are."""
    return f"{PREFIX}/order/{run.hex()}"


def reply(device: str) -> str:
    """Return where a device answers."""
    return f"{PREFIX}/reply/{device}"


def measure(what: str) -> str:
    """Return where an order or a reply is sent for the sake of its price."""
    return f"{PREFIX}/measure/{what}"


def device_reads(device: str) -> tuple[str, ...]:
    """Return what a device subscribes to; ``#`` matches chunks too."""
    return (f"{offer(device)}/#", f"{PREFIX}/order/#")


def coordinator_reads() -> tuple[str, ...]:
    """Return what the coordinator subscribes to."""
    return (f"{PREFIX}/declare/+", f"{PREFIX}/status/+", f"{PREFIX}/reply/#")


def parse(topic: str) -> tuple[str, str]:
    """Return the kind of a topic and whose it is, without a chunk's number.

    >>> parse("fedbudget/1/reply/sensor-7/2")
    ('reply', 'sensor-7')

    Raises:
        MessageError: It is no topic of this fleet.
    """
    first, version, kind, who, *rest = [*topic.split("/"), "", "", "", ""]
    if f"{first}/{version}" != PREFIX or not kind or not who or any(rest[1:]):
        raise MessageError(f"{topic[:80]!r} is no topic of this fleet")
    return kind, who
