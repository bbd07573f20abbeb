"""A small device on disk, its owner's policy, and a coordinator that it trusts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.fleet.guard import Guard
from fedbudget.fleet.messages import RoundOrder, RunOffer
from fedbudget.fleet.policy import Policy, read_policy
from fedbudget.fleet.signing import Signer
from tests.fleet.examples import offer, order

SIGNER = Signer.generate()
NUM_ROWS, DIM = 100, 4

POLICY = """
device = "sensor-1"

[data]
file = "rows.npz"
loss = "logistic"
lineage = "roof"

[budget]
epsilon = {epsilon}
delta = 1e-4
cost = {cost}

[prices]
communication = 100
computation = 1

[orders]
trusted = ["{key}"]
runs = ["alarms*"]
least_noise_multiplier = 5.0
most_tau = 50
most_rounds = 100
most_learning_rate = 20.0
most_l2 = 0.1

[broker]
host = "localhost"
port = {port}
"""


def rows(count: int = NUM_ROWS, dim: int = DIM) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, dim))
    x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32), (x[:, 0] > 0).astype(np.int64)


def write_device(
    folder: Path, *, epsilon: float = 4.0, cost: float = 1000.0, port: int = 8883
) -> Path:
    """Write rows and a policy; return the policy's path."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = rows()
    np.savez(folder / "rows.npz", x=x, y=y)
    path = folder / "policy.toml"
    path.write_text(
        POLICY.format(epsilon=epsilon, cost=cost, key=SIGNER.public_key, port=port)
    )
    return path


@dataclass
class Site:
    """A device's folder, and its guard while it is awake."""

    folder: Path
    policy: Policy
    guard: Guard

    def restart(self) -> None:
        self.guard.close()
        self.policy = read_policy(self.folder / "policy.toml")
        self.guard = Guard(self.policy)

    def offer(self, **changes: Any) -> Any:
        """Send an offer; return the reply's code."""
        (reply, *_) = self.guard.answer_offer(SIGNER.sign(offer(**changes)))
        return reply

    def order(self, **changes: Any) -> Any:
        (reply,) = self.guard.answer_order(SIGNER.sign(order(**changes)))
        return reply

    @property
    def spent(self) -> tuple[float, float]:
        ledger = self.guard._accounts.spent
        return float(ledger.epsilon[0]), float(ledger.cost[0])


def new_site(folder: Path, **budget: float) -> Site:
    policy = read_policy(write_device(folder, **budget))  # type: ignore[arg-type]
    return Site(folder=folder, policy=policy, guard=Guard(policy))


__all__ = ["SIGNER", "RoundOrder", "RunOffer", "Site", "new_site", "rows"]
