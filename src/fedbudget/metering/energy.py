"""Joules: from the processor's own counters (RAPL) where they can be read."""

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class Rapl:
    """The energy counters of all processor packages; they count what is idle too.

    Linux gives them under powercap, and by default to root alone.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        # Packages are intel-rapl:0, :1, ...; intel-rapl:0:0 is a part of the first.
        found = sorted(root.glob("intel-rapl:*")) if root.is_dir() else []
        self._zones = [zone for zone in found if zone.name.count(":") == 1]

    @property
    def readable(self) -> bool:
        """Whether there is a counter that this process may read."""
        try:
            return bool(self.read())
        except (OSError, ValueError):
            return False

    def read(self) -> list[int]:
        """Return every package's counter, in microjoules."""
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]

    def joules_since(self, before: list[int]) -> float:
        """Return what was used since an earlier reading; a counter may wrap once."""
        total = 0
        for zone, old, new in zip(self._zones, before, self.read(), strict=True):
            if new < old:
                new += int((zone / "max_energy_range_uj").read_text())
            total += new - old
        return total / 1e6
