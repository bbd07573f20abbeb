"""A campaign of a hostile coordinator against one guard, with checks of the guard.

Half of the messages come from a coordinator that the owner *trusts*, which is the worst
case; the others are forged, damaged or random. After each one, the replies and the
ledger are compared with a simple model of the permitted behaviour:

- no message makes the guard fail;
- each round that is answered for the first time (or whose model exceeded the limit
  after noise was added) is charged exactly once, with the noise of its offer;
- an offer with too little noise, or outside the policy, is never accepted;
- a repeated round gives the same bytes, and both budgets hold;
- every answer has noise, with the right standard deviation;
- with drift correction, the shift follows from the messages only.

Devices are restarted from time to time, during runs. The seed determines the messages,
except for keys.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.algorithm import Batch, local_steps
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import (
    REFUSALS,
    Reply,
    RoundOrder,
    RunOffer,
    theta_from_bytes,
)
from fedbudget.fleet.wire.signing import Signer
from fedbudget.losses import loss_named
from fedbudget.privacy import GDP
from tests.fleet.device.hostile_coordinator import (
    DIM,
    LEAST_MULTIPLIER,
    MOST_L2,
    MOST_RATE,
    MOST_ROUNDS,
    MOST_TAU,
    NUM_ROWS,
    Coordinator,
)

COMMUNICATION, COMPUTATION, DELTA = 10.0, 1.0, 1e-4
LIFE = 1500  # messages to one device, before the next device

POLICY = """
device = "target"
[data]
file = "rows.npz"
[budget]
epsilon = {epsilon!r}
delta = 1e-4
cost = {cost!r}
[prices]
communication = 10.0
computation = 1.0
[orders]
trusted = ["{key}"]
runs = ["good*"]
least_noise_multiplier = 2.0
most_tau = 8
most_rounds = 40
most_learning_rate = 10.0
most_l2 = 1.0
[broker]
host = "localhost"
"""


def noise_of(offer: RunOffer, number: int) -> float:
    """Return the noise of a round by its definition."""
    noise = offer.noise_std
    for _ in range(number - 1):
        noise *= 1.0 if offer.noise_decay is None else offer.noise_decay
    return noise


@dataclass
class PlainDrift:
    """Reference of drift correction by its definition, from messages only.

    It stores all orders and answers of a run, and the shift that follows from them.
    """

    offer: RunOffer
    models: dict[int, Any] = field(default_factory=dict)  # of answered orders
    shift: Any = 0.0
    last: int = 0  # last answered round
    answer: Any = None  # to that round

    def shift_for(self, order: RoundOrder) -> Any:
        """Return the shift that the guard must add in each step of this round."""
        momentum, number = self.offer.drift_momentum, order.round
        self.models[number] = self._read(order.theta)
        if momentum is None or self.last != number - 1 or self.last == 0:
            return self.shift
        average = self.models[number]
        if momentum > 0:
            # The server has no momentum before the first round.
            before = self.models[1] if self.last == 1 else self.models.get(number - 2)
            if before is None:
                return self.shift
            average = average - momentum * (self.models[self.last] - before)
        return self.shift + (average - self.answer) / self.offer.tau

    def answered(self, order: RoundOrder, theta: bytes) -> None:
        """Record a new answer."""
        self.shift = self.shift_for(order)
        self.last, self.answer = order.round, self._read(theta)

    def _read(self, theta: bytes) -> Any:
        offer = self.offer
        return np.asarray(theta_from_bytes(theta, offer.precision, offer.num_params))


class Campaign:
    """A guard under attack, and a simple model of its permitted behaviour."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self._signer = Signer.generate()
        self.breaches: list[str] = []
        self.attacks: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.fresh = self.charged = self.restarts = self.lives = 0
        self.shifted = 0  # compared answers with a shift
        self.squares: list[float] = []  # of noise over its standard deviation
        self._new_life()

    def _new_life(self) -> None:
        rng, self.lives = self._rng, self.lives + 1
        home = self._folder / str(self.lives)
        home.mkdir()
        data = np.random.default_rng(rng.randrange(1 << 30))
        x = data.normal(size=(NUM_ROWS, DIM))
        self._x = (x / 1.001 / np.linalg.norm(x, axis=1, keepdims=True)).astype("f4")
        self._y = (x[:, 0] > 0).astype(np.int64)
        np.savez(home / "rows.npz", x=self._x, y=self._y)
        self.epsilon, self.cost = (
            rng.choice([2.0, 20.0, 200.0]),
            rng.choice([300.0, 1e5]),
        )
        policy = POLICY.format(
            epsilon=self.epsilon, cost=self.cost, key=self._signer.public_key
        )
        (home / "policy.toml").write_text(policy)
        self._policy = read_policy(home / "policy.toml")
        self._guard = Guard(self._policy)
        self._coordinator = Coordinator(rng, self._signer)
        self._accepted: dict[bytes, RunOffer] = {}
        self._paid: dict[tuple[bytes, int], bytes | None] = {}
        self._drifts: dict[bytes, PlainDrift] = {}
        self._spent_cost = self._spent_mu = 0.0

    def run(self, orders: int, on_order: Callable[[int], None]) -> None:
        """Send this many messages."""
        for number in range(1, orders + 1):
            name, topic, data = self._coordinator.message()
            self.attacks[name] += 1
            before = self._ledger()
            try:
                answer = {
                    "offer": self._guard.answer_offer,
                    "order": self._guard.answer_order,
                }[topic]
                replies = answer(data)
            except Exception as error:  # any failure is a breach
                self._breach(f"{name}: the guard failed: {error!r}")
                self._restart()
                continue
            self._compare(name, data, replies, before)
            if number % LIFE == 0:
                self._end_of_life()
                self._new_life()
            elif self._rng.random() < 0.003:
                self._restart()
            on_order(number)
        self._end_of_life()

    def _ledger(self) -> tuple[float, float]:
        spent = self._guard._ledger.spent
        return float(spent.cost[0]), float(spent._released.mu_sq[0])

    def _compare(
        self, name: str, data: bytes, replies: list[Reply], before: tuple[float, float]
    ) -> None:
        cost, mu_squared = 0.0, 0.0
        for reply in replies:
            self.answers[reply.code] += 1
            if reply.code == "accepted":
                self._check_acceptance(data, reply)
            elif reply.code == "answered" or (
                reply.code == "bad-model" and "steps" in (reply.reason or "")
            ):
                charge = self._check_answer(reply)
                cost, mu_squared = cost + charge[0], mu_squared + charge[1]
            elif reply.code not in REFUSALS:
                self._breach(f"{name}: a reply of code {reply.code}")
        after = self._ledger()
        expected = (before[0] + cost, before[1] + mu_squared)
        if not np.allclose(after, expected, rtol=1e-12, atol=1e-15):
            self._breach(f"{name}: {before} became {after}, not {expected}")

    def _check_acceptance(self, data: bytes, reply: Reply) -> None:
        offer = RunOffer.from_bytes(decode(data)[0])
        multiplier = noise_of(offer, offer.rounds) * offer.batch_size
        permitted = (
            multiplier >= LEAST_MULTIPLIER
            and 0 < (offer.noise_decay or 1) <= 1
            and offer.tau <= MOST_TAU
            and offer.rounds <= MOST_ROUNDS
            and offer.learning_rate <= MOST_RATE
            and offer.l2 <= MOST_L2
            and offer.batch_size <= offer.num_samples <= NUM_ROWS
            and (offer.dim, offer.loss, offer.num_classes) == (DIM, "logistic", 1)
            and offer.device == "target"
            and offer.name.startswith("good")
            and 0 <= (offer.drift_momentum or 0) <= 1
            and self._accepted.get(reply.run, offer) == offer
        )
        if not permitted:
            self._breach(f"an offer outside the policy was accepted: {offer}")
        self._accepted[reply.run] = offer

    def _check_answer(self, reply: Reply) -> tuple[float, float]:
        """Return the expected cost and mu^2: zero, if it was answered before."""
        key, offer = (reply.run, reply.round), self._accepted.get(reply.run)
        if offer is None:
            self._breach("a round of a run that was not accepted was answered")
            return 0.0, 0.0
        if key in self._paid:
            if self._paid[key] != reply.to_bytes():
                self._breach("a repeated round was answered differently")
            return 0.0, 0.0
        self._paid[key] = reply.to_bytes() if reply.theta is not None else None
        self.charged += 1
        if reply.theta is not None:
            self.fresh += 1
            self._check_noise(offer, reply.theta)
        multiplier = noise_of(offer, reply.round) * offer.batch_size
        mu_squared = 4 * offer.tau / multiplier**2
        cost = COMMUNICATION + COMPUTATION * offer.tau
        self._spent_cost += cost
        self._spent_mu += mu_squared
        return cost, mu_squared

    def _check_noise(self, offer: RunOffer, answer: bytes) -> None:
        """Compare one full-batch step with the same step without noise."""
        order = self._last_order(offer)
        if order is None:
            self._breach("an answer without an order")
            return
        drift = self._drifts.setdefault(offer.run, PlainDrift(offer))
        drift.answered(order, answer)
        if np.abs(drift.shift).max() > 1e30:
            self._breach("a shift above the limit was not refused")
        if offer.sampling != "full" or offer.tau != 1:
            return
        theta = theta_from_bytes(order.theta, offer.precision, DIM)
        largest = max(np.abs(theta).max(), np.abs(drift.shift).max())
        if largest > 1e4 or offer.precision == "float32":
            return  # the rounding of such a large model hides the noise
        bare = local_steps(
            theta,
            self._x.astype(np.float64),
            self._y,
            loss=loss_named("logistic", l2=offer.l2),
            tau=1,
            learning_rate=offer.learning_rate,
            noise_std=0.0,
            batch=Batch(),
            rng=np.random.default_rng(0),
            shift=drift.shift,
        )
        self.shifted += bool(np.any(drift.shift))
        noise = theta_from_bytes(answer, offer.precision, DIM) - bare
        scaled = noise / (offer.learning_rate * noise_of(offer, order.round))
        if np.abs(scaled).min() < 1e-7:
            self._breach("an answer has no noise in one of its numbers")
        if np.abs(scaled).max() > 7:  # once in 4e11 normals
            self._breach("an answer does not follow from its steps and their shift")
        self.squares += list(scaled**2)

    def _last_order(self, offer: RunOffer) -> RoundOrder | None:
        for topic, data in reversed(self._coordinator.sent):
            if topic == "order":
                order = RoundOrder.from_bytes(decode(data)[0])
                return order if order.run == offer.run else None
        return None

    def _restart(self) -> None:
        self.restarts += 1
        self._guard.close()
        self._guard = Guard(self._policy)

    def _end_of_life(self) -> None:
        self._guard.close()
        statement = read_statement(self._policy.ledger)
        if not math.isclose(statement.cost, self._spent_cost, abs_tol=1e-9):
            self._breach(
                f"the ledger has cost {statement.cost}, not {self._spent_cost}"
            )
        if not math.isclose(
            statement.mu**2, self._spent_mu, abs_tol=1e-12, rel_tol=1e-9
        ):
            self._breach(f"the ledger has mu^2 {statement.mu**2}, not {self._spent_mu}")
        limit = float(GDP.mu_from_epsilon(self.epsilon, DELTA)) ** 2
        if self._spent_mu > limit * (1 + 1e-9) or self._spent_cost > self.cost + 1e-9:
            self._breach("a budget was overdrawn")

    def _breach(self, text: str) -> None:
        self.breaches.append(text)
