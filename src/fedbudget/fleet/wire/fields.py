"""Checks of the fields of messages: types and ranges of what came from a network."""

import math
import re
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from fedbudget.errors import MessageError

MAX_TEXT = 200
MAX_COUNT = 1 << 40
# What an owner may declare at most: far above any use, and far below where the numbers
# of a plan for the whole fleet would end.
MOST_DECLARED = 1e12  # epsilon, as in `Budget`; cost, prices, noise multiplier
MOST_DELTA = 0.5
_MOST_FLOAT = sys.float_info.max

_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")

Check: TypeAlias = Callable[[str, Any], Any]


def count(least: int = 1, most: int = MAX_COUNT) -> Check:
    """Return a check for whole numbers."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise MessageError(
                f"{name} must be a whole number from {least} to {most}, "
                f"got {shown(value)}"
            )
        return value

    return check


def number(least: float = -math.inf, most: float = math.inf) -> Check:
    """Return a check for finite numbers."""

    def check(name: str, value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:
            raise MessageError(
                f"{name} must be a number from {least:g} to {most:g}, "
                f"got {shown(value)}"
            )
        if not abs(value) <= _MOST_FLOAT:  # also an int that no float can hold
            raise MessageError(f"{name} must be finite, got {shown(value)}")
        return float(value)

    return check


def binary(least: int, most: int) -> Check:
    """Return a check for bytes of some length."""

    def check(name: str, value: Any) -> bytes:
        if type(value) is not bytes or not least <= len(value) <= most:
            raise MessageError(f"{name} must be {least} to {most} bytes")
        return value

    return check


def text(name: str, value: Any) -> str:
    """Check a short text."""
    if type(value) is not str or len(value) > MAX_TEXT or not value.isprintable():
        raise MessageError(
            f"{name} must be a printable text of at most {MAX_TEXT} characters"
        )
    return value


def identity(name: str, value: Any) -> str:
    """Check a device's name: it becomes part of topics and file names."""
    if type(value) is not str or not _IDENTITY.match(value):
        raise MessageError(
            f"{name} must be 1 to 64 letters, digits, '.', '_' or '-', "
            f"got {shown(value)}"
        )
    return value


def one_of(*options: str) -> Check:
    """Return a check for one of a few words."""

    def check(name: str, value: Any) -> str:
        if type(value) is not str or value not in options:
            raise MessageError(
                f"{name} must be one of {', '.join(options)}, got {shown(value)}"
            )
        return value

    return check


def maybe(check: Check) -> Check:
    """Return a check that lets a missing field pass."""
    return lambda name, value: None if value is None else check(name, value)


def shown(value: Any) -> str:
    """Return a value for a message, cut short."""
    text = repr(value[:40] if isinstance(value, bytes | str | list) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."
