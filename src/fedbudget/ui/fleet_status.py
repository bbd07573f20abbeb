"""What a running coordinator says of itself, as JSON over HTTP on this machine."""

import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from fedbudget.errors import InvalidInputError
from fedbudget.privacy import rounded_up

_MOST_BYTES = 10_000_000  # 100,000 devices
_PATIENCE = 2.0  # seconds
_COUNTS = ("answered", "late", "refused", "dropped")

# Straight to the coordinator: a proxy has no business with loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_status(url: str) -> dict[str, Any] | None:
    """Return what the coordinator says; None where nobody answers.

    Raises:
        InvalidInputError: The address is none, or what answers is no coordinator.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise InvalidInputError(
            f"{url!r} is not an address: write http://127.0.0.1:8765/status"
        )
    try:
        with _opener.open(url, timeout=_PATIENCE) as answer:
            text = answer.read(_MOST_BYTES)
    except (OSError, ValueError):
        return None
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    if not isinstance(status, dict) or not isinstance(status.get("devices"), list):
        raise InvalidInputError(
            f"what answers at {url} is no coordinator: its answer names no devices"
        )
    return status


def shown_epsilon(value: float | None) -> float | None:
    """Return an epsilon for a table, rounded up to four digits; None has no bound."""
    return None if value is None else float(rounded_up(value))


def device_rows(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per device, for a table."""
    return [
        {
            "device": device["name"],
            "online": bool(device["online"]),
            "this round": device["this_round"],
            **{name: device[name] for name in _COUNTS},
            "epsilon": shown_epsilon(device["epsilon"]),
            "cost": device["cost"],
        }
        for device in status["devices"]
    ]


def round_rows(status: dict[str, Any]) -> list[dict[str, float]]:
    """Return how long each round took, as far back as the coordinator tells."""
    told = status.get("round_seconds", [])
    return [{"round": number, "seconds": seconds} for number, seconds in told]
