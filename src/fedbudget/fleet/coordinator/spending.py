"""Upper bounds on what each device has spent, from its declaration and its replies.

An asked device counts as charged, even if its answer was late or never arrived. Only
a refusal that a device sends before any charge, such as for its budget, counts as free.
The exact numbers are in the device's own ledger.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbudget.checks import Array
from fedbudget.fleet.coordinator.checkpoints import (
    MAY_BE_CHARGED,
    Checkpoints,
    Outcome,
    StoredReply,
    unpack_bits,
)
from fedbudget.fleet.wire.messages import Declaration
from fedbudget.planning import Plan
from fedbudget.privacy import GDP, ZCDP
from fedbudget.training import Replies

_MAX_ROUNDS = 500  # whose durations the status reports; enough for a chart


class _Paid(NamedTuple):
    """The rounds for which each device may have been charged; shape (M,)."""

    rounds: Array
    at_constant_noise: Array  # rounds that cost as much privacy, or more


class Tally:
    """Counts per device, for the training loop and for the status page."""

    def __init__(
        self, plan: Plan, declarations: Sequence[Declaration], checkpoints: Checkpoints
    ) -> None:
        self.plan, self.declarations = plan, tuple(declarations)
        self._checkpoints = checkpoints
        self.names = tuple(declaration.device for declaration in declarations)
        self.dropped = {n: times for n, (times, _) in checkpoints.dropped().items()}
        self.answers = dict(checkpoints.rounds_with(Outcome.ANSWERED))
        self.lates = dict(checkpoints.rounds_with(Outcome.LATE))
        self.refusals = dict(checkpoints.rounds_with(Outcome.REFUSED))
        self.last_answers = checkpoints.last_answers()  # round by device
        self.round, self.rounds_closed = 0, checkpoints.rounds_closed()
        # The last rounds since the coordinator's start, with their durations.
        self.seconds: deque[tuple[int, float]] = deque(maxlen=_MAX_ROUNDS)
        self.current: dict[str, str] = {}  # outcome in the open round
        self._paid = self._paid_rounds(self.rounds_closed)

    def begin(self, round: int, replies: Mapping[str, StoredReply]) -> None:
        """Open a round; some of its replies may be stored already."""
        self.round = round
        self._paid = self._paid_rounds(round)  # devices charge before they answer
        self.current = {name: reply.outcome for name, reply in replies.items()}

    def note(self, reply: StoredReply) -> None:
        """Count a reply to the open round."""
        self.current[reply.device] = reply.outcome
        if reply.outcome == Outcome.ANSWERED:
            self.last_answers[reply.device] = reply.round

    def late(self, device: str, *, was_refused: bool) -> None:
        """Count an answer to a closed round."""
        self.lates[device] = self.lates.get(device, 0) + 1
        if was_refused:
            self.refusals[device] -= 1

    def close(
        self, round: int, replies: Mapping[str, StoredReply], seconds: float
    ) -> None:
        """Close a round and count its replies."""
        self.rounds_closed = round
        self.seconds.append((round, seconds))
        for name, reply in replies.items():
            counts = (
                self.answers if reply.outcome == Outcome.ANSWERED else self.refusals
            )
            counts[name] = counts.get(name, 0) + 1
        self._paid = self._paid_rounds(round)

    def replies(self, round: int, theta: Array) -> Replies:
        """Return the result and the spending of a closed round."""
        replies = self._checkpoints.replies(round)
        outcome = {name: reply.outcome for name, reply in replies.items()}
        paid = self._paid_rounds(round)
        return Replies(
            theta=theta,
            answered=np.array([outcome.get(n) == Outcome.ANSWERED for n in self.names]),
            epsilon=self.epsilon(paid.at_constant_noise),
            cost=self.cost(paid.rounds),
            refused={
                index: replies[name].reason
                for index, name in enumerate(self.names)
                if outcome.get(name) == Outcome.REFUSED
            },
        )

    def epsilon(self, paid: Array) -> Array:
        """Return the most that each device has spent, at the plan's delta.

        If a device declared a smaller delta, that one holds: the epsilon is larger.
        """
        plan = self.plan
        kind = ZCDP if plan.accountant == "zcdp" else GDP
        # With noise once per upload, a round is one release, not tau.
        releases = paid * (1 if plan.trust == "sum" else plan.tau)
        with np.errstate(divide="ignore", invalid="ignore"):
            mu_sq = np.where(paid > 0, 4.0 * releases / plan.noise_multiplier**2, 0.0)
        mu = np.sqrt(mu_sq + plan.prior_mu**2)
        spent = np.where(np.isinf(mu), np.inf, 0.0)
        mask = (mu > 0) & np.isfinite(mu)
        declared_delta = np.array([d.delta for d in self.declarations])
        delta = np.minimum(plan.delta, declared_delta)
        if mask.any():
            spent[mask] = kind.epsilon_from_mu(mu[mask], delta[mask])
        return spent

    def cost(self, paid: Array) -> Array:
        """Return the most that each device has spent, by its own prices."""
        round_prices = [
            declaration.round_price(self.plan.trust)
            + declaration.computation_price * self.plan.tau
            for declaration in self.declarations
        ]
        return np.asarray(paid * np.array(round_prices))

    def _paid_rounds(self, rounds: int) -> _Paid:
        """Return the rounds for which each device may have been charged, so far.

        If noise falls, later rounds cost more: of the rounds so far, the paid ones are
        taken to be the last ones.
        """
        refused = self._checkpoints.rounds_refused(rounds, except_for=MAY_BE_CHARGED)
        selected = np.minimum(self.plan.device_rounds, rounds)
        free = np.array([refused.get(name, 0) for name in self.names])
        for number, asked in self._checkpoints.asked(rounds):
            free += self.plan.takes_part(number) & ~unpack_bits(asked, len(free))
        paid = np.asarray(selected - free, dtype=np.float64)
        if self.plan.noise_decay == 1:
            return _Paid(paid, paid)
        costs = np.cumsum([0.0, *self.plan.noise_factors**-2])
        return _Paid(paid, costs[selected] - costs[free])

    def summary(self, online: Mapping[str, bool]) -> dict[str, Any]:
        """Return the state of the run as plain values, for people and machines."""
        plan, rounds = self.plan, self.rounds_closed
        epsilon = self.epsilon(self._paid.at_constant_noise)
        cost = self.cost(self._paid.rounds)
        selected = plan.takes_part(max(1, self.round))
        waiting = ["waiting" if flag else "not selected" for flag in selected]
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
