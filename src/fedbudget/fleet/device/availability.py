"""When a device works: the owner's pause, hours of the day, and mains power.

A device that is not available is offline for its coordinator. Orders stay at the broker
and are neither answered nor charged; when it is available again, it carries out the
newest one. So this is a matter of comfort, not of privacy: a wrong clock makes a device
work at another time, within the same budgets.
"""

import datetime
import re
from dataclasses import dataclass
from pathlib import Path

from fedbudget.errors import InvalidInputError

_HOURS = re.compile(r"([01]?\d|2[0-4])(?::([0-5]\d))?")
_SUPPLIES = Path("/sys/class/power_supply")
_DAY = 24 * 60  # minutes


@dataclass(frozen=True, kw_only=True)
class Availability:
    """The owner's conditions; all of them must hold."""

    hours: tuple[int, int] | None = None  # minutes of the day; None: all day
    on_mains: bool = False  # only while not on battery
    pause_file: Path | None = None  # while it exists, the device is paused

    def obstacle(
        self, now: datetime.datetime | None = None, *, supplies: Path = _SUPPLIES
    ) -> str:
        """Return why the device does not work now; empty if it does.

        Args:
            now: Local time; by default, the system's.
            supplies: The folder in which Linux describes power supplies.
        """
        if self.pause_file is not None and self.pause_file.exists():
            return f"paused by {self.pause_file}"
        if self.hours is not None and not self._in_hours(now):
            return f"outside the hours {hours_text(self.hours)}"
        if self.on_mains and not on_mains(supplies):
            return "on battery"
        return ""

    def _in_hours(self, now: datetime.datetime | None) -> bool:
        assert self.hours is not None
        time = datetime.datetime.now() if now is None else now
        minute, (start, stop) = time.hour * 60 + time.minute, self.hours
        if start < stop:
            return start <= minute < stop
        return minute >= start or minute < stop  # over midnight


ALWAYS = Availability()


def parse_hours(text: str) -> tuple[int, int]:
    """Read a time window, in minutes of the day.

    >>> parse_hours("1-5"), parse_hours("22:30-05:00")
    ((60, 300), (1350, 300))

    Raises:
        InvalidInputError: It is not FROM-TO.
    """
    ends = [_HOURS.fullmatch(part.strip()) for part in text.split("-")]
    if len(ends) == 2 and all(ends):
        start, stop = (int(e[1]) * 60 + int(e[2] or 0) for e in ends if e is not None)
        if start != stop and max(start, stop) <= _DAY:
            return start % _DAY, stop
    raise InvalidInputError(
        f"must be a time window such as 01:00-05:00, of local time, got {text!r}"
    )


def hours_text(hours: tuple[int, int]) -> str:
    """Return a time window as `parse_hours` reads it.

    >>> hours_text((60, 300))
    '01:00-05:00'
    """
    return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in hours)


def on_mains(supplies: Path = _SUPPLIES) -> bool:
    """Return whether the machine has mains power; one without a battery always has."""
    batteries = charging = False
    for supply in sorted(supplies.glob("*")):
        kind = _read(supply / "type")
        if kind in ("Mains", "USB") and _read(supply / "online") == "1":
            return True
        if kind == "Battery" and _read(supply / "scope") != "Device":
            batteries = True  # not the battery of a mouse
            charging = charging or _read(supply / "status") in ("Charging", "Full")
    return charging or not batteries


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
