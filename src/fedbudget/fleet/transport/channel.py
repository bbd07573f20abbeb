"""What a coordinator needs of a transport: `mqtt.Connection`, `flower.FlowerChannel`.

Both carry the same messages under the same names (`topics`), so that one coordinator
and one guard serve them all.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message that came in."""

    topic: str
    payload: bytes
    receiver: str  # name of the connection that it came over
    handle: int = 0  # by which the broker knows it; 0 needs no acknowledgement


class Channel(Protocol):
    """Carries offers and orders to devices, and what they say back."""

    @property
    def kept(self) -> dict[str, bytes]:
        """What is kept for devices that come later, by topic."""
        ...

    @property
    def trouble(self) -> str:
        """Why nobody may be heard, in words; empty if all is well."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send at least once, now or when there is a connection again."""

    def keep(self, topic: str, payload: bytes) -> None:
        """Publish, and again to whoever may lack it."""

    def withdraw(self, topic: str) -> None:
        """Take back what was kept."""

    def flush(self, seconds: float) -> bool:
        """Wait until all that was published is on its way."""
        ...

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message, or none if there is none in time."""
        ...

    def acknowledge(self, message: Message) -> None:
        """Tell that a message need not be delivered again."""
