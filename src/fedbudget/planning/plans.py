"""The plan: what every device will do, and what it will spend."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array, number, numbers, one_of, whole, within
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Loss, loss_named
from fedbudget.privacy import (
    ACCOUNTANTS,
    NoisyGradients,
    PrivacyStatement,
    accountant_named,
)

NOT_PRIVATE = "none"  # the accountant of a plan without noise

_COUNTS = ("num_samples", "batch_size")
_REALS = ("noise_std", "weights", "epsilon", "delta", "prior_mu", "cost")
_SAMPLINGS = ("full", "fixed", "poisson", "cyclic")


# Keys that earlier states of this version wrote, and what they are called now.
_RENAMED_KEYS = {"drift_control": "drift_correction"}
_EXPLANATIONS = ("advice", "privacy", "reasons")  # texts for people


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The schedule, batches, noise, weights and spending of a run.

    Arrays have one entry per device. A plan is a value and holds no data. `train` and
    the devices follow it without further choices.
    """

    tau: int  # local steps between two uploads
    rounds: int  # uploads per device
    learning_rate: float  # eta
    momentum: float  # of the server; the paper uses 0
    sampling: str  # full | fixed (without replacement) | poisson | cyclic
    num_samples: NDArray[np.int64]  # N_m: training rows
    batch_size: NDArray[np.int64]  # X_m
    noise_std: Array  # sigma_m, per coordinate of a mean gradient
    weights: Array  # p_m, in the average; they sum to 1
    epsilon: Array  # spent by the whole run
    delta: Array
    prior_mu: Array  # spent before the run, as Gaussian DP; epsilon includes it
    cost: Array  # spent by the whole run
    loss: str
    num_classes: int  # scores per row; 1 for logistic, hinge and huber
    l2: float
    dim: int  # columns of a row
    lipschitz: float  # G, by which noise_std turns into epsilon
    planner: str
    accountant: str
    predicted_loss: float  # predicted excess loss over the best linear model
    # Dual prices: predicted loss saved per additional unit of budget, averaged over a
    # 10% larger budget. Cost grows by at least one round, since rounds are whole.
    epsilon_price: float
    cost_price: float
    binding: tuple[str, ...]  # which of "privacy" and "cost" limits the loss
    reasons: tuple[str, ...]  # explanations for users
    # The last round of each device; None: every device takes part to the end.
    last_round: NDArray[np.int64] | None = None
    advice: str = ""  # set if federating is not predicted to pay
    drift_correction: bool = False  # drift correction, for heterogeneous devices
    prior_releases: tuple[str, ...] = ()  # the measurements that cost `prior_mu`

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", whole("tau", self.tau))
        object.__setattr__(self, "rounds", whole("rounds", self.rounds))
        object.__setattr__(self, "dim", whole("dim", self.dim))
        object.__setattr__(self, "num_classes", whole("num_classes", self.num_classes))
        number("learning_rate", self.learning_rate, above=0)
        number("momentum", self.momentum, least=0, below=1)
        number("l2", self.l2, least=0)
        number("lipschitz", self.lipschitz, above=0)
        if not isinstance(self.drift_correction, bool | np.bool_):
            raise InvalidInputError(
                f"drift_correction must be true or false, got {self.drift_correction!r}"
            )
        for name in (*_COUNTS, *_REALS):
            kind = np.int64 if name in _COUNTS else np.float64
            object.__setattr__(self, name, _array(name, getattr(self, name), kind))
        if self.last_round is not None:
            last = _array("last_round", self.last_round, np.int64)
            object.__setattr__(self, "last_round", last)
        self._check()

    def _check(self) -> None:
        """Refuse values that contradict each other."""
        for name in (*_COUNTS, *_REALS):
            if len(getattr(self, name)) != len(self.weights):
                raise InvalidInputError(
                    f"{name} has {len(getattr(self, name))} entries, but there are "
                    f"{len(self.weights)} weights: give one entry per device"
                )
        within("num_samples", self.num_samples, least=1)
        within("batch_size", self.batch_size, least=1)
        within("delta", self.delta, above=0, below=1)
        for name in ("noise_std", "weights", "prior_mu", "cost"):
            within(name, getattr(self, name), least=0)
        one_of("sampling", self.sampling, _SAMPLINGS)
        one_of("accountant", self.accountant, (*ACCOUNTANTS, NOT_PRIVATE))
        if self.accountant != NOT_PRIVATE:
            within("noise_std", self.noise_std, above=0)
            within("epsilon", self.epsilon, least=0)
            self._check_lipschitz()
        if abs(float(self.weights.sum()) - 1) > 1e-6:
            raise InvalidInputError(
                f"weights must sum to 1, got {float(self.weights.sum()):g}: divide them"
            )
        self._check_rounds()
        if (self.batch_size > self.num_samples).any():
            m = int(np.argmax(self.batch_size > self.num_samples))
            raise InvalidInputError(
                f"batch_size {self.batch_size[m]} of device {m} is above its "
                f"{self.num_samples[m]} samples: lower it"
            )

    def _check_lipschitz(self) -> None:
        """Refuse a bound below that of the loss, which devices build from its name."""
        least = self.model.lipschitz
        if not self.lipschitz >= least:
            raise InvalidInputError(
                f"lipschitz {self.lipschitz:g} is below the {least:g} of loss "
                f"{self.loss!r}, so no epsilon would hold: plan with the loss by name"
            )

    def _check_rounds(self) -> None:
        if self.last_round is None:
            return
        within("last_round", self.last_round, least=0)
        if len(self.last_round) != len(self.weights):
            raise InvalidInputError(
                f"last_round has {len(self.last_round)} entries, but there are "
                f"{len(self.weights)} weights: give one entry per device"
            )
        if self.device_rounds.max() < self.rounds:
            raise InvalidInputError(
                f"rounds is {self.rounds}, but the last device stops after round "
                f"{self.device_rounds.max()}: lower rounds to that"
            )

    @property
    def device_rounds(self) -> NDArray[np.int64]:
        """Rounds of each device, from the first one on; shape (M,).

        0 for a device of weight 0: it is not selected, and spends nothing.
        """
        last = self.rounds if self.last_round is None else self.last_round
        return np.where(self.weights > 0, np.minimum(last, self.rounds), 0)

    def takes_part(self, number: int) -> NDArray[np.bool_]:
        """Return which devices take part in a round, counted from 1; shape (M,)."""
        return np.asarray(self.device_rounds >= number)

    @property
    def steps(self) -> int:
        """K: the total number of local steps, tau * rounds.

        A device that stops early takes `tau * device_rounds` steps.
        """
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
        """Noise over G / X_m, the bound on one sample's share; shape (M,)."""
        return self.noise_std * self.batch_size / self.lipschitz

    def without_privacy(self) -> "Plan":
        """Return the same plan without noise or privacy: a baseline."""
        return replace(
            self,
            noise_std=np.zeros(self.num_devices),
            epsilon=np.full(self.num_devices, np.inf),
            accountant=NOT_PRIVATE,
        )

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy guarantee of this plan."""
        return PrivacyStatement(
            epsilon=float(self.epsilon.max()),
            delta=float(self.delta.max()),
            accountant=self.accountant,
        )

    @property
    def sampling_probability(self) -> Array:
        """q: below 1 only where batches are Poisson-sampled; shape (M,)."""
        if self.sampling != "poisson":
            return np.ones(self.num_devices)
        return np.asarray(self.batch_size / self.num_samples)

    @property
    def blocks(self) -> NDArray[np.int64]:
        """B: disjoint batches taken in turn if sampling is cyclic; shape (M,).

        Otherwise 1: a row may be in the batch of every step.
        """
        if self.sampling != "cyclic":
            return np.ones(self.num_devices, dtype=np.int64)
        return self.num_samples // self.batch_size

    @property
    def gradients(self) -> NoisyGradients:
        """The releases of every device, for an accountant; without `prior_mu`."""
        return NoisyGradients(
            lipschitz=self.lipschitz,
            batch_size=self.batch_size,
            noise_std=self.noise_std,
            steps=self.tau * self.device_rounds,
            sampling_probability=self.sampling_probability,
            blocks=self.blocks,
        )

    def check_promise(self) -> None:
        """Raise if the noise is too small for the epsilon that the plan states."""
        if self.accountant == NOT_PRIVATE:
            return
        spent = accountant_named(self.accountant).epsilon(
            self.gradients, delta=self.delta, prior_mu=self.prior_mu
        )
        exceeded = spent > self.epsilon * (1 + 1e-9)
        if exceeded.any():
            m = int(np.argmax(exceeded))
            raise InvalidInputError(
                f"device {m} would spend epsilon {spent[m]:g} with its noise, not "
                f"{self.epsilon[m]:g} as this plan states: plan again"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain numbers, strings and lists."""
        plain: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                # JSON has no infinity: None stands for an unbounded epsilon.
                value = [x if np.isfinite(x) else None for x in value.tolist()]
            plain[item.name] = list(value) if isinstance(value, tuple) else value
        derived = {"device_rounds": self.device_rounds.tolist()}
        return plain | derived | {"steps": self.steps, "privacy": str(self.privacy)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Plan":
        """Return the plan that `to_dict` wrote; its epsilon is checked again."""
        if not isinstance(plain, Mapping):
            raise InvalidInputError(
                f"this is not a plan: a {type(plain).__name__}, not names and values"
            )
        plain = current_keys(plain)
        names = {item.name for item in fields(cls)}
        derived = {"device_rounds", "steps", "privacy"}
        if set(plain) - derived != names:
            invalid = sorted((set(plain) - derived) ^ names)
            raise InvalidInputError(
                f"this is not a plan: keys missing or unknown: {', '.join(invalid)}"
            )
        values = {name: plain[name] for name in names}
        for name in ("binding", "reasons", "prior_releases"):
            if not isinstance(values[name], list):
                raise InvalidInputError(
                    f"{name} must be a list of texts, got {values[name]!r}"
                )
            values[name] = tuple(values[name])
        if not isinstance(values["epsilon"], list):
            raise InvalidInputError(
                f"epsilon must be a list, one per device, got {values['epsilon']!r}"
            )
        values["epsilon"] = [np.inf if x is None else x for x in values["epsilon"]]
        try:
            plan = cls(**values)
        except TypeError as error:
            raise InvalidInputError(f"this is not a plan: {error}") from None
        plan.check_promise()
        return plan


def _array(name: str, value: Any, kind: type) -> NDArray[Any]:
    """Return a read-only copy as an array."""
    checked = np.atleast_1d(np.asarray(numbers(name, value)))
    if kind is np.int64:
        within(name, checked, least=0, most=2**53)
        if np.any(checked != np.floor(checked)):
            raise InvalidInputError(f"{name} must be whole numbers, got {value}")
    array: NDArray[Any] = checked.astype(kind)
    array.setflags(write=False)
    return array


def current_keys(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored plan under the keys of this version."""
    return {_RENAMED_KEYS.get(name, name): value for name, value in plain.items()}


def is_same_plan(first: Any, second: Mapping[str, Any]) -> bool:
    """Return whether two stored plans make the same run, however they explain it.

    The first may be anything that was read from a file.
    """
    if not isinstance(first, Mapping):
        return False
    plans = [current_keys(plain) for plain in (first, second)]
    for plain in plans:
        for name in _EXPLANATIONS:
            plain.pop(name, None)
    return plans[0] == plans[1]
