"""What the coordinator can say about spending: at most this much, by what was declared.

A device that was asked counts as having paid, also if its answer came late or not at
all: it may have been charged. Only a refusal that comes before any charge, such as of a
budget, counts as free. Only the device knows exactly.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.fleet.coordinator.checkpoints import (
    MAY_BE_CHARGED,
    Checkpoints,
    Outcome,
    StoredReply,
)
from fedbudget.fleet.wire.messages import Declaration
from fedbudget.planning import Plan
from fedbudget.privacy import GDP, ZCDP
from fedbudget.training import Replies

_MOST_ROUNDS = 500  # whose seconds the status tells; a chart has no room for more


class Tally:
    """Counts per device, for the loop and for the status page."""

    def __init__(
        self, plan: Plan, declared: Sequence[Declaration], checkpoints: Checkpoints
    ) -> None:
        self.plan, self.declared = plan, tuple(declared)
        self._checkpoints = checkpoints
        self.names = tuple(told.device for told in declared)
        self.dropped = {n: times for n, (times, _) in checkpoints.dropped().items()}
        self.answers = dict(checkpoints.rounds_with(Outcome.ANSWERED))
        self.lates = dict(checkpoints.rounds_with(Outcome.LATE))
        self.refusals = dict(checkpoints.rounds_with(Outcome.REFUSED))
        self.round, self.rounds_closed = 0, checkpoints.rounds_closed()
        # Rounds and their seconds since the coordinator's start, the last so many.
        self.seconds: deque[tuple[int, float]] = deque(maxlen=_MOST_ROUNDS)
        self.current: dict[str, str] = {}  # outcome in the open round
        self._paid = self._paid_rounds(self.rounds_closed)

    def begin(self, round: int, replies: Mapping[str, StoredReply]) -> None:
        """A round is open; some replies may be known already."""
        self.round = round
        self._paid = self._paid_rounds(round)  # devices charge before they answer
        self.current = {name: reply.outcome for name, reply in replies.items()}

    def note(self, reply: StoredReply) -> None:
        """A reply to the open round has come in."""
        self.current[reply.device] = reply.outcome

    def late(self, device: str, *, was_refused: bool) -> None:
        """An answer to a round that is over has come in."""
        self.lates[device] = self.lates.get(device, 0) + 1
        if was_refused:
            self.refusals[device] -= 1

    def close(
        self, round: int, replies: Mapping[str, StoredReply], seconds: float
    ) -> None:
        """A round is over."""
        self.rounds_closed = round
        self.seconds.append((round, seconds))
        for name, reply in replies.items():
            counts = (
                self.answers if reply.outcome == Outcome.ANSWERED else self.refusals
            )
            counts[name] = counts.get(name, 0) + 1
        self._paid = self._paid_rounds(round)

    def replies(self, round: int, theta: Array) -> Replies:
        """Return what a closed round has brought and cost."""
        found = self._checkpoints.replies(round)
        outcome = {name: reply.outcome for name, reply in found.items()}
        paid = self._paid_rounds(round)
        return Replies(
            theta=theta,
            answered=np.array([outcome.get(n) == Outcome.ANSWERED for n in self.names]),
            epsilon=self.epsilon(paid),
            cost=self.cost(paid),
            refused={
                index: found[name].reason
                for index, name in enumerate(self.names)
                if outcome.get(name) == Outcome.REFUSED
            },
        )

    def epsilon(self, paid: Array) -> Array:
        """Return what each device has spent at most, at the plan's delta.

        Should it have declared a smaller one, at that: then the epsilon is larger.
        """
        plan = self.plan
        kind = ZCDP if plan.accountant == "zcdp" else GDP
        with np.errstate(divide="ignore", invalid="ignore"):
            mu_sq = np.where(
                paid > 0, 4.0 * plan.tau * paid / plan.noise_multiplier**2, 0.0
            )
        mu = np.sqrt(mu_sq + plan.prior_mu**2)
        spent = np.where(np.isinf(mu), np.inf, 0.0)
        some = (mu > 0) & np.isfinite(mu)
        declared = np.array([told.delta for told in self.declared])
        delta = np.minimum(plan.delta, declared)
        if some.any():
            spent[some] = kind.epsilon_from_mu(mu[some], delta[some])
        return spent

    def cost(self, paid: Array) -> Array:
        """Return what each device has spent at most, by its own prices."""
        one = [
            told.communication_price + told.computation_price * self.plan.tau
            for told in self.declared
        ]
        return np.asarray(paid * np.array(one))

    def _paid_rounds(self, rounds: int) -> Array:
        """Return how many rounds each device may have been charged for."""
        unpaid = self._checkpoints.rounds_refused(rounds, except_for=MAY_BE_CHARGED)
        asked = np.minimum(self.plan.device_rounds, rounds)
        free = [unpaid.get(name, 0) for name in self.names]
        return np.asarray(asked - np.array(free), dtype=np.float64)

    def summary(self, online: Mapping[str, bool]) -> dict[str, Any]:
        """Return the state of the run as plain values, for people and machines."""
        plan, rounds = self.plan, self.rounds_closed
        epsilon, cost = self.epsilon(self._paid), self.cost(self._paid)
        asked = plan.takes_part(max(1, self.round))
        waiting = ["waiting" if there else "not asked" for there in asked]
        seconds = list(self.seconds)
        devices = [
            {
                "name": name,
                "online": online.get(name),
                "this_round": self.current.get(name, waiting[m]),
                "answered": self.answers.get(name, 0),
                "late": self.lates.get(name, 0),
                "refused": self.refusals.get(name, 0),
                "dropped": self.dropped.get(name, 0),
                "epsilon": float(epsilon[m]) if np.isfinite(epsilon[m]) else None,
                "cost": float(cost[m]),
            }
            for m, name in enumerate(self.names)
        ]
        return {
            "round": self.round,
            "rounds_closed": rounds,
            "rounds": plan.rounds,
            "last_round_seconds": seconds[-1][1] if seconds else None,
            "round_seconds": seconds,
            "dropped_unknown": self.dropped.get("(unknown)", 0),
            "devices": devices,
        }
