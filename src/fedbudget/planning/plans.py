"""The plan: what every device will do, before any of them does it."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array, whole, within
from fedbudget.errors import InvalidInputError
from fedbudget.models import Loss, loss_named
from fedbudget.privacy import NoisyGradients, PrivacyStatement

NOT_PRIVATE = "none"  # the accountant of a plan without noise

_ARRAYS = ("batch_size", "noise_std", "weights", "epsilon", "delta", "cost")


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How often devices talk, how long they train, and what it will cost them.

    Arrays have one entry per device. A plan is a value: it holds no data, and `train`
    and the devices take everything they do from it.
    """

    tau: int  # local steps between two uploads
    rounds: int  # uploads per device
    learning_rate: float  # eta
    momentum: float  # of the server's averaged update; 0 is the paper's
    sampling: str  # full | fixed (without replacement) | poisson
    batch_size: NDArray[np.int64]  # X_m
    noise_std: Array  # sigma_m, per coordinate of a mean gradient
    weights: Array  # p_m, in the average; they sum to 1
    epsilon: Array  # spent by the whole run
    delta: Array
    cost: Array  # spent by the whole run
    loss: str
    num_classes: int  # scores per row; 1 for logistic, hinge and huber
    l2: float
    dim: int  # columns of a row
    lipschitz: float  # G, by which noise_std turns into epsilon
    planner: str
    accountant: str
    predicted_loss: float  # above the best model's, by the planner's own model
    epsilon_price: float  # predicted loss that one more unit of epsilon would save
    cost_price: float  # predicted loss that one more unit of cost would save
    binding: tuple[str, ...]  # which of "privacy" and "cost" holds the loss up
    reasons: tuple[str, ...]  # why this plan, in words

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", whole("tau", self.tau))
        object.__setattr__(self, "rounds", whole("rounds", self.rounds))
        within("learning_rate", self.learning_rate, above=0)
        within("momentum", self.momentum, least=0, below=1)
        within("batch_size", self.batch_size, least=1)
        for name in ("noise_std", "weights", "delta", "cost"):
            within(name, getattr(self, name), least=0)
        if self.accountant != NOT_PRIVATE:
            within("noise_std", self.noise_std, above=0)
            within("epsilon", self.epsilon, least=0)
        for name in _ARRAYS:
            kind = np.int64 if name == "batch_size" else np.float64
            array = np.array(getattr(self, name), dtype=kind)
            if array.shape != (len(self.weights),):
                raise InvalidInputError(
                    f"{name} has shape {array.shape}, but there are "
                    f"{len(self.weights)} weights: give one entry per device"
                )
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def steps(self) -> int:
        """K: local steps in all, a multiple of tau by construction."""
        return self.tau * self.rounds

    @property
    def num_devices(self) -> int:
        """M."""
        return len(self.weights)

    @property
    def model(self) -> Loss:
        """The loss that the plan is for."""
        classes = self.num_classes if self.loss == "softmax" else None
        return loss_named(self.loss, num_classes=classes, l2=self.l2)

    @property
    def noise_multiplier(self) -> Array:
        """Noise over one sample's share G / X_m; shape (M,)."""
        return self.noise_std * self.batch_size / self.lipschitz

    def without_privacy(self) -> "Plan":
        """Return the same plan without noise, and without any promise: a baseline."""
        return replace(
            self,
            noise_std=np.zeros(self.num_devices),
            epsilon=np.full(self.num_devices, np.inf),
            accountant=NOT_PRIVATE,
        )

    @property
    def privacy(self) -> PrivacyStatement:
        """What the epsilons of this plan promise."""
        return PrivacyStatement(
            epsilon=float(self.epsilon.max()),
            delta=float(self.delta.max()),
            accountant=self.accountant,
        )

    def gradients(self, device: int, *, num_samples: int) -> NoisyGradients:
        """Return what one device releases, for an accountant of your own."""
        poisson = self.sampling == "poisson"
        return NoisyGradients(
            lipschitz=self.lipschitz,
            batch_size=float(self.batch_size[device]),
            noise_std=float(self.noise_std[device]),
            steps=self.steps,
            sampling_probability=self.batch_size[device] / num_samples
            if poisson
            else 1.0,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain numbers, strings and lists."""
        plain: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                # JSON has no infinity: None is an epsilon that nothing bounds.
                value = [x if np.isfinite(x) else None for x in value.tolist()]
            plain[item.name] = list(value) if isinstance(value, tuple) else value
        return plain | {"steps": self.steps, "privacy": str(self.privacy)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Plan":
        """Return the plan that `to_dict` described."""
        names = {item.name for item in fields(cls)}
        derived = {"steps", "privacy"}
        if set(plain) - derived != names:
            wrong = sorted((set(plain) - derived) ^ names)
            raise InvalidInputError(
                f"this is not a plan: keys missing or unknown: {', '.join(wrong)}"
            )
        values = {name: plain[name] for name in names}
        for name in ("binding", "reasons"):
            values[name] = tuple(values[name])
        values["epsilon"] = [np.inf if x is None else x for x in values["epsilon"]]
        return cls(**values)
