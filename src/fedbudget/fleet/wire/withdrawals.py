"""Withdrawals: signed messages that take something back. They travel as orders do.

    RunEnd       coordinator -> all devices: a run is over; none of its orders is
                 carried out any more, also if somebody replays one
    Revocation   anyone -> all devices: a coordinator's key is withdrawn for ever

A revocation is signed with the withdrawn key itself, or with a recovery key that the
owner lists. Whoever has stolen a key can thus withdraw it, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedbudget.fleet.wire.messages import RUN_BYTES, TEXT, Check, Message, bytes_field


@dataclass(frozen=True, kw_only=True)
class RunEnd(Message):
    """A run is over."""

    run: bytes
    reason: str  # for people: finished, or why it was cancelled

    kind: ClassVar[str] = "end"
    checks: ClassVar[Mapping[str, Check]] = {
        "run": bytes_field(least=RUN_BYTES, most=RUN_BYTES),
        "reason": TEXT,
    }


@dataclass(frozen=True, kw_only=True)
class Revocation(Message):
    """A coordinator's signing key is withdrawn."""

    key: str  # public key, as a policy lists it

    kind: ClassVar[str] = "revocation"
    checks: ClassVar[Mapping[str, Check]] = {"key": TEXT}
