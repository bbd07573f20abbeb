"""A hostile coordinator; `hostile_orders.py` runs it against a guard."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from fedbudget.errors import MessageError
from fedbudget.fleet.wire.codec import decode, encode
from fedbudget.fleet.wire.signing import _PURPOSE, Signer

DIM, NUM_ROWS = 4, 60
# The target's policy.
LEAST_MULTIPLIER, MOST_TAU, MOST_ROUNDS, MOST_RATE, MOST_L2 = 2.0, 8, 40, 10.0, 1.0


class Coordinator:
    """Makes messages: valid ones, invalid ones, and random bytes."""

    def __init__(self, rng: random.Random, signer: Signer) -> None:
        self._rng, self._signer = rng, signer
        self._stranger = Signer.generate()
        self.offers: list[dict[str, Any]] = []
        self.sent: list[tuple[str, bytes]] = []

    def message(self) -> tuple[str, str, bytes]:
        """Return the kind of attack, "offer" or "order", and the bytes."""
        kinds: dict[str, tuple[float, Callable[[], tuple[str, bytes]]]] = {
            "valid offer": (4, lambda: ("offer", self._sign(self._valid_offer()))),
            "invalid offer": (10, lambda: ("offer", self._sign(self._invalid_offer()))),
            "valid order": (14, lambda: ("order", self._sign(self._order()))),
            "any round": (10, lambda: ("order", self._sign(self._any_round()))),
            "bad model": (10, lambda: ("order", self._sign(self._bad_model()))),
            "invalid field": (8, self._invalid_field),
            "replayed": (12, self._replayed),
            "forged": (10, self._forged),
            "damaged": (14, self._damaged),
            "random bytes": (8, self._random_bytes),
        }
        weights = [weight for weight, _ in kinds.values()]
        (name,) = self._rng.choices(list(kinds), weights)
        topic, data = kinds[name][1]()
        self.sent.append((topic, data))
        del self.sent[:-200]
        return name, topic, data

    def _sign(self, plain: dict[str, Any]) -> bytes:
        body = encode(plain)
        return encode([body, self._signer._key.sign(_PURPOSE + body)])

    def _valid_offer(self) -> dict[str, Any]:
        rng = self._rng
        batch = rng.choice([NUM_ROWS, NUM_ROWS, rng.randint(5, NUM_ROWS)])
        offer: dict[str, Any] = {
            "kind": "offer",
            "v": 1,
            "run": rng.randbytes(16),
            "name": "good run",
            "device": "target",
            "tau": rng.choice([1, 1, 2, MOST_TAU]),
            "rounds": rng.randint(1, MOST_ROUNDS),
            "learning_rate": rng.choice([0.1, 1.0, MOST_RATE]),
            "sampling": "full" if batch == NUM_ROWS else "fixed",
            "num_samples": NUM_ROWS,
            "batch_size": batch,
            "noise_std": LEAST_MULTIPLIER / batch * rng.uniform(1.0001, 30),
            "loss": "logistic",
            "num_classes": 1,
            "l2": rng.choice([0.0, 0.01, MOST_L2]),
            "dim": DIM,
            "precision": rng.choice(["float32", "float64"]),
        }
        if rng.random() < 0.5:
            offer["drift_momentum"] = rng.choice([0.0, 0.5, 0.9])
        if rng.random() < 0.5:
            offer["noise_decay"] = rng.uniform(0.5, 0.999)
            offer["noise_std"] /= offer["noise_decay"] ** (offer["rounds"] - 1)
        self.offers.append(offer)
        del self.offers[:-6]
        return offer

    def _invalid_offer(self) -> dict[str, Any]:
        rng, offer = self._rng, dict(self._valid_offer())
        self.offers.pop()
        least = LEAST_MULTIPLIER / offer["batch_size"]
        changes: list[tuple[str, Any]] = [
            ("noise_std", least * rng.choice([0.0, 1e-9, 0.5, 0.9999, 1e-300])),
            ("noise_std", rng.choice([1e300, 1e-300, 1e12])),
            ("tau", rng.choice([MOST_TAU + 1, 1000, 1 << 20])),
            ("rounds", rng.choice([MOST_ROUNDS + 1, 1 << 30])),
            ("learning_rate", rng.choice([MOST_RATE * 1.001, 1e300])),
            ("l2", rng.choice([MOST_L2 * 1.01, 1e300])),
            ("batch_size", rng.choice([NUM_ROWS + 1, 1 << 40])),
            ("num_samples", rng.choice([NUM_ROWS + 1, 1 << 40])),
            ("dim", rng.choice([DIM + 1, 1, 1 << 26])),
            ("loss", rng.choice(["hinge", "huber", "softmax"])),
            ("num_classes", rng.choice([2, 1 << 16])),
            ("device", rng.choice(["other", "target2"])),
            ("name", rng.choice(["bad run", "", "Good"])),
            ("noise_decay", rng.choice([0.0, -0.5, 1.0, 1e-9, 1e-300, math.nan, "1"])),
            ("drift_momentum", rng.choice([-0.1, 1.1, 1e300, math.nan, "0", True])),
        ]
        name, value = rng.choice(changes)
        if rng.random() < 0.3 and self.offers:  # the same run, offered differently
            offer["run"] = rng.choice(self.offers)["run"]
        return offer | {name: value}

    def _order(self) -> dict[str, Any]:
        if not self.offers:
            return self._valid_offer()
        offer = self._rng.choice(self.offers)
        number = offer.get("next", 1)
        offer["next"] = min(number + 1, offer["rounds"])
        return {
            "kind": "order",
            "v": 1,
            "run": offer["run"],
            "round": number,
            "theta": self._theta(offer),
        }

    def _round(
        self, offer: dict[str, Any], number: int, theta: bytes
    ) -> dict[str, Any]:
        return {
            "kind": "order",
            "v": 1,
            "run": offer["run"],
            "round": number,
            "theta": theta,
        }

    def _theta(self, offer: dict[str, Any], count: int = DIM) -> bytes:
        size = self._rng.choice([0.0, 1.0, 1e3, 1e20])
        values = [self._rng.uniform(-size, size) for _ in range(count)]
        return np.array(values).astype(_type(offer)).tobytes()

    def _any_round(self) -> dict[str, Any]:
        order = self._order()
        if order["kind"] == "order":
            order["round"] = self._rng.choice(
                [1, 2, self._rng.randint(1, 60), 1 << 30, order["round"] + 1]
            )
        return order

    def _bad_model(self) -> dict[str, Any]:
        order = self._order()
        if order["kind"] != "order":
            return order
        offer = next(o for o in self.offers if o["run"] == order["run"])
        model = np.frombuffer(order["theta"], _type(offer)).copy()
        model[0] = self._rng.choice([np.nan, np.inf, -np.inf, 3e30])
        order["theta"] = self._rng.choice(
            [
                model.tobytes(),
                order["theta"][:-1],
                order["theta"] * 2,
                self._theta(offer, DIM + 1),
                bytes(self._rng.choice([4, 1 << 10, 1 << 16])),
            ]
        )
        return order

    def _invalid_field(self) -> tuple[str, bytes]:
        """Change one field to any value, and sign the result."""
        rng = self._rng
        plain = dict(rng.choice([self._order, self._valid_offer])())
        plain.pop("next", None)
        anything: list[Any] = [None, True, -1, 0, 2, 1 << 63, 1.5, math.nan, math.inf]
        anything += ["", "x" * 300, b"", bytes(16), [], [[[]]], {}, {"v": 1}, "café\n"]
        choice = rng.random()
        if choice < 0.6:
            plain[rng.choice(list(plain))] = rng.choice(anything)
        elif choice < 0.8:
            plain.pop(rng.choice(list(plain)))
        else:
            plain[rng.choice(["epsilon", "code", "sigma", "command"])] = 1
        kind = rng.choice(["offer", "order"])
        return kind, self._sign(plain)

    def _replayed(self) -> tuple[str, bytes]:
        return self._rng.choice(self.sent) if self.sent else self._random_bytes()

    def _forged(self) -> tuple[str, bytes]:
        """Sign with an untrusted key, or change the body under a valid signature."""
        topic, data = self._replayed()
        try:
            body, signature = decode(data)
        except (MessageError, ValueError, TypeError):
            return topic, data
        rng = self._rng
        if not isinstance(body, bytes) or not isinstance(signature, bytes) or not body:
            return topic, data
        if rng.random() < 0.5:
            return topic, encode([body, self._stranger._key.sign(_PURPOSE + body)])
        changed = bytearray(body)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return topic, encode([bytes(changed), signature])

    def _damaged(self) -> tuple[str, bytes]:
        topic, data = self._replayed()
        rng, changed = self._rng, bytearray(data)
        choice = rng.random()
        if choice < 0.4 and changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        elif choice < 0.7:
            del changed[rng.randrange(len(changed) + 1) :]
        else:
            index = rng.randrange(len(changed) + 1)
            changed[index:index] = rng.randbytes(rng.choice([1, 8, 500]))
        return topic, bytes(changed)

    def _random_bytes(self) -> tuple[str, bytes]:
        size = self._rng.choice([0, 1, 3, 40, 400, 1 << 14])
        return self._rng.choice(["offer", "order"]), self._rng.randbytes(size)


def _type(offer: dict[str, Any]) -> str:
    return "<f4" if offer["precision"] == "float32" else "<f8"
