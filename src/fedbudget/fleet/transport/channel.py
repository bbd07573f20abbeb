"""The interface of a transport: `mqtt.Connection` and `flower.FlowerChannel`.

Both carry the same messages under the same topics (`wire.topics`), so coordinator and
guard do not depend on the transport.
"""

from typing import NamedTuple, Protocol


class Message(NamedTuple):
    """A received message."""

    topic: str
    payload: bytes
    receiver: str  # name of the connection that received it
    handle: int = 0  # for the acknowledgement; 0: it needs none


class Channel(Protocol):
    """Carries offers and orders to devices, and their messages back."""

    @property
    def retained(self) -> dict[str, bytes]:
        """Messages retained for devices that connect later, by topic."""
        ...

    @property
    def trouble(self) -> str:
        """Why no message can arrive, as text; empty if the transport works."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send at least once, now or when there is a connection again."""

    def keep(self, topic: str, payload: bytes) -> None:
        """Publish, and publish again when a receiver may lack it."""

    def withdraw(self, topic: str) -> None:
        """Remove a retained message."""

    def clear_at_death(self, topic: str) -> None:
        """Let the transport remove a retained message if this process dies."""

    def reconnect(self) -> None:
        """Replace a connection over which nothing arrives; it may be broken."""

    def flush(self, seconds: float) -> bool:
        """Wait until everything published is sent; return whether it was in time."""
        ...

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message; none if there is none in time."""
        ...

    def acknowledge(self, *messages: Message) -> None:
        """Confirm messages: they are not delivered again."""
