"""Which devices a round asks; a device that is not asked is not charged.

Asked are the devices that the plan has in the round, but for

- those outside the round's share, if only a share of the devices is asked: the shares
  go round, in a random order, so that every device is asked equally often, give or take
  one round. No amplification of privacy is claimed: every answer is charged in full;
- those that were late: after the first late round a device is not asked for 1 round,
  after the next for 2, then 4, up to 64. An answer in time, or a new connection, ends
  that. A device that is offline is asked always: it is charged only if it comes back
  and answers;
- those that are refused, because there seem to be two of them.
"""

import random
from collections.abc import Container, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import TrainingError
from fedbudget.planning.plans import share_size

_LONGEST_PAUSE = 64  # rounds


class Participation:
    """The choice of devices for every round of a run.

    Args:
        names: Of the devices, in the order of the plan.
        run: The run's identity: the same run has the same shares.
        share: Of the devices that a round asks.
    """

    def __init__(self, names: Sequence[str], *, run: bytes, share: float = 1.0) -> None:
        self._names, self._share = tuple(names), share
        turns = list(range(len(names)))
        random.Random(run).shuffle(turns)  # balance, not privacy, depends on it
        self._turns = np.array(turns)
        self._lates: dict[str, int] = {}  # late rounds in a row
        self._pauses: dict[str, int] = {}  # last round that the device is not asked in

    def asked(
        self, round: int, planned: NDArray[np.bool_], refused: Container[str]
    ) -> NDArray[np.bool_]:
        """Return whom a round asks, of the devices that the plan has in it.

        Raises:
            TrainingError: All of them are refused.
        """
        allowed = planned & ~np.array([name in refused for name in self._names])
        if not allowed.any():
            raise TrainingError(
                f"round {round} has no device to ask: all of the plan's are refused, "
                "since two processes use the certificate of each; see the log"
            )
        asked = allowed & self._has_turn(round)
        paused = {name for name, last in self._pauses.items() if round <= last}
        on_time = asked & ~np.array([name in paused for name in self._names])
        for candidates in (on_time, asked):
            if candidates.any():
                return np.asarray(candidates)
        return np.asarray(allowed)

    def _has_turn(self, round: int) -> NDArray[np.bool_]:
        count = len(self._names)
        size = share_size(self._share, count)
        return np.asarray((self._turns - (round - 1) * size) % count < size)

    def closed(
        self, round: int, *, late: Iterable[str], answered: Iterable[str]
    ) -> None:
        """Learn who was late in a round."""
        for name in answered:
            self._lates.pop(name, None)
        for name in late:
            lates = self._lates[name] = self._lates.get(name, 0) + 1
            self._pauses[name] = round + min(2 ** (lates - 1), _LONGEST_PAUSE)

    def returned(self, names: Iterable[str]) -> None:
        """Ask devices again that have connected anew."""
        for name in names:
            self._pauses.pop(name, None)
