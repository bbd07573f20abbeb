"""The plan: what every device will do, and what it will spend."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array, number, numbers, one_of, whole, within
from fedbudget.data.schema import Schema, read_schema
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Loss, loss_named
from fedbudget.privacy import (
    ACCOUNTANTS,
    GDP,
    LocalSteps,
    NoisyGradients,
    NoisyUploads,
    PrivacyStatement,
    Releases,
    Scope,
    Trust,
    Unit,
    accountant_named,
    first_factor,
    noise_factors,
    rounded_up,
)
from fedbudget.privacy.runs import TRUSTS, UNITS
from fedbudget.privacy.uploads import check_answers
from fedbudget.problem import Problem

NOT_PRIVATE = "none"  # the accountant of a plan without noise

_COUNTS = ("num_samples", "batch_size")
_REALS = ("noise_std", "weights", "epsilon", "delta", "prior_mu", "cost")
_SAMPLINGS = ("full", "fixed", "poisson", "cyclic")


# Keys that earlier states of this version wrote, and what they are called now.
_RENAMED_KEYS = {"drift_control": "drift_correction"}
# Keys that earlier states of this version did not write, and what their plans did.
_ADDED_KEYS = {
    "trust": "uploads",
    "unit": "sample",
    "least_answers": 1,
    "colluders": 0,
    "clip": None,
    "server_rate": 1.0,
    "predicted_range": None,
    "noise_decay": 1.0,
    "schema": None,
    "threshold": 0.5,
    "participation": 1.0,
    "prior_cost": None,
}
# Texts for people, and the range of a prediction: they do not change a run.
_EXPLANATIONS = ("advice", "privacy", "reasons", "predicted_range")


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The schedule, batches, noise, weights and spending of a run.

    Arrays have one entry per device. A plan is a value and holds no data. `train` and
    the devices follow it without further choices.
    """

    tau: int  # local steps between two uploads
    rounds: int  # uploads per device, unless rounds ask a share of the devices
    learning_rate: float  # eta
    momentum: float  # of the server; the paper uses 0
    sampling: str  # full | fixed (without replacement) | poisson | cyclic
    num_samples: NDArray[np.int64]  # N_m: training rows
    batch_size: NDArray[np.int64]  # X_m
    # sigma_m, per coordinate: of the noise on a mean gradient, or with trust "sum" of
    # each device's share on its weighted upload.
    noise_std: Array
    weights: Array  # p_m, in the average; they sum to 1
    epsilon: Array  # spent by the whole run
    delta: Array
    prior_mu: Array  # spent before the run, as Gaussian DP; epsilon includes it
    cost: Array  # spent by the whole run
    loss: str
    num_classes: int  # scores per row; 1 unless the loss is softmax
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
    trust: Trust = "uploads"  # what the server sees: uploads (noise per step) | sum
    unit: Unit = "sample"  # what epsilon protects: sample | device
    least_answers: int = 1  # t: of a sum that the server sees
    colluders: int = 0  # c: devices that may collude with the server
    clip: float | None = None  # largest norm of a device's move in a round, for sums
    # A factor of the averaged move of a round, on the server; 1 unless trust is "sum".
    server_rate: float = 1.0
    # Between which the excess loss is expected in 8 of 10 cases; None: the prediction.
    predicted_range: tuple[float, float] | None = None
    # The noise of a round over that of the round before. Below 1, `noise_std` is the
    # constant noise of equal cost: see `privacy.schedules`.
    noise_decay: float = 1.0
    # The public encoding of the rows, for whoever uses the model; None: not known.
    schema: Schema | None = None
    # With two classes: the second is predicted where its probability is above this.
    threshold: float = 0.5
    # Share of the devices that a round asks, by turns; real fleets only. Every answer
    # is charged in full: no amplification of privacy is claimed.
    participation: float = 1.0
    # Spent before the run on `prior_releases`; `cost` includes it. None: nothing.
    prior_cost: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", whole("tau", self.tau))
        object.__setattr__(self, "rounds", whole("rounds", self.rounds))
        object.__setattr__(self, "dim", whole("dim", self.dim))
        object.__setattr__(self, "num_classes", whole("num_classes", self.num_classes))
        number("learning_rate", self.learning_rate, above=0)
        number("momentum", self.momentum, least=0, below=1)
        number("server_rate", self.server_rate, above=0)
        number("l2", self.l2, least=0)
        number("lipschitz", self.lipschitz, above=0)
        number("threshold", self.threshold, above=0, below=1)
        number("noise_decay", self.noise_decay, above=0, most=1)
        number("participation", self.participation, above=0, most=1)
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
        if self.prior_cost is not None:
            spent = _array("prior_cost", self.prior_cost, np.float64)
            object.__setattr__(self, "prior_cost", spent if spent.any() else None)
        low, high = self.predicted_range or (self.predicted_loss,) * 2
        object.__setattr__(self, "predicted_range", (float(low), float(high)))
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
        if self.sampling == "poisson" and self.prior_mu.any():
            raise InvalidInputError(
                f"prior_mu is {self.prior_mu.max():g} and sampling poisson: no theorem "
                "composes sampled steps with a measurement that they were planned by; "
                "plan with accountant gdp, or without private measurements"
            )
        if abs(float(self.weights.sum()) - 1) > 1e-6:
            raise InvalidInputError(
                f"weights must sum to 1, got {float(self.weights.sum()):g}: divide them"
            )
        self._check_prior_cost()
        self._check_rounds()
        self._check_trust()
        if (self.batch_size > self.num_samples).any():
            m = int(np.argmax(self.batch_size > self.num_samples))
            raise InvalidInputError(
                f"batch_size {self.batch_size[m]} of device {m} is above its "
                f"{self.num_samples[m]} samples: lower it"
            )
        self._check_full_batches()
        self._check_noise_decay()
        self._check_schema()
        binary = self.loss == "logistic" or self.num_classes == 2
        if self.threshold != 0.5 and not binary:
            raise InvalidInputError(
                f"threshold is {self.threshold:g}, which is for two classes with "
                f"probabilities, and loss {self.loss!r} has {self.num_classes} scores "
                "per row: leave it out"
            )

    def _check_prior_cost(self) -> None:
        """Refuse a cost before the run that the plan's cost cannot include."""
        if self.prior_cost is None:
            return
        if self.prior_cost.shape != self.cost.shape:
            raise InvalidInputError(
                f"prior_cost has {len(self.prior_cost)} entries, but there are "
                f"{len(self.cost)} devices: give one entry per device"
            )
        within("prior_cost", self.prior_cost, least=0)
        if not self.prior_releases:
            raise InvalidInputError(
                f"prior_cost is {self.prior_cost.max():g}, and prior_releases names no "
                "measurement: name it, so that ledgers count it once"
            )
        if (self.prior_cost > self.cost).any():
            m = int(np.argmax(self.prior_cost - self.cost))
            raise InvalidInputError(
                f"prior_cost {self.prior_cost[m]:g} of device {m} is above its cost "
                f"{self.cost[m]:g}, which includes it: raise the cost"
            )

    def _check_full_batches(self) -> None:
        """Refuse full batches that are not: they would train on rows not counted."""
        part = self.batch_size != self.num_samples
        if self.sampling == "full" and part.any():
            m = int(np.argmax(part))
            raise InvalidInputError(
                f"sampling is 'full', but batch_size {self.batch_size[m]} of device "
                f"{m} is below its {self.num_samples[m]} samples: raise it to that, "
                "or set sampling to 'fixed'"
            )

    def _check_schema(self) -> None:
        """Refuse a schema of other rows or labels than the plan is for."""
        if self.schema is None:
            return
        if not isinstance(self.schema, Schema):
            raise InvalidInputError(
                f"schema is a {type(self.schema).__name__}: give a Schema"
            )
        columns = len(self.schema.feature_names)
        if columns != self.dim:
            raise InvalidInputError(
                f"the schema gives rows of {columns} columns, the plan is for "
                f"{self.dim}: plan again with this schema"
            )
        classes = self.schema.classes
        expected = self.num_classes if self.loss == "softmax" else 2
        count = None if self.loss == "huber" else expected
        if (None if classes is None else len(classes)) != count:
            labels = "numbers" if classes is None else f"{len(classes)} classes"
            raise InvalidInputError(
                f"the schema's label {self.schema.label!r} has {labels}, which loss "
                f"{self.loss!r} with {self.num_classes} scores per row does not fit: "
                "plan again with this schema"
            )

    def _check_noise_decay(self) -> None:
        """Refuse falling noise where it is not accounted for."""
        if self.noise_decay < 1 and self.sampling not in ("full", "fixed"):
            raise InvalidInputError(
                f"noise_decay is {self.noise_decay:g} and sampling {self.sampling}, "
                "which is accounted for with constant noise only: set noise_decay to "
                "1, or sampling to full or fixed"
            )
        per_step = self.trust == "uploads" and self.unit == "sample"
        if self.noise_decay < 1 and not per_step:
            raise InvalidInputError(
                f"noise_decay is {self.noise_decay:g}, with trust {self.trust!r} and "
                f"unit {self.unit!r}, whose noise is constant: set noise_decay to 1"
            )
        first_factor(self.noise_decay, self.rounds)  # refuses what falls too far

    def _check_lipschitz(self) -> None:
        """Refuse a bound below that of the loss, which devices build from its name."""
        least = self.model.lipschitz
        if not self.lipschitz >= least:
            raise InvalidInputError(
                f"lipschitz {self.lipschitz:g} is below the {least:g} of loss "
                f"{self.loss!r}, so no epsilon would hold: plan with the loss by name"
            )

    def _check_trust(self) -> None:
        """Refuse what the accounting of this trust and this unit does not cover."""
        one_of("trust", self.trust, TRUSTS)
        one_of("unit", self.unit, UNITS)
        if self.unit == "device" and self.prior_releases:
            raise InvalidInputError(
                f"prior_mu is {self.prior_mu.max():g}, of a measurement that protects "
                "one sample, and epsilon is for unit 'device': plan without private "
                "measurements"
            )
        if self.unit == "device" and self.sampling == "poisson":
            raise InvalidInputError(
                "unit 'device' needs batches of a fixed size, got sampling 'poisson': "
                "use full, fixed or cyclic"
            )
        if self.trust == "uploads":
            plain = (self.least_answers, self.colluders, self.clip) == (1, 0, None)
            if not plain or self.server_rate != 1:
                raise InvalidInputError(
                    f"least_answers {self.least_answers}, colluders {self.colluders}, "
                    f"clip {self.clip} and server_rate {self.server_rate:g} are for "
                    "trust 'sum': leave them out"
                )
            return
        if self.sampling not in ("full", "cyclic"):
            raise InvalidInputError(
                "trust 'sum' needs full or cyclic batches, got sampling "
                f"{self.sampling!r}: use one of them",
                argument="sampling",
            )
        if self.drift_correction:
            raise InvalidInputError(
                "drift_correction needs uploads that were released, and with trust "
                "'sum' none are: set it to false"
            )
        if np.ptp(self.noise_std) > 0:
            raise InvalidInputError(
                f"noise_std is {self.noise_std.min():g} to {self.noise_std.max():g}: "
                "with trust 'sum' every device adds the same share"
            )
        last = int(self.takes_part(self.rounds).sum())
        check_answers(self.least_answers, self.colluders, last)
        if self.accountant != NOT_PRIVATE:
            _ = self.uploads  # also checks the learning rate and the loss

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

    @property
    def paid_rounds(self) -> NDArray[np.int64]:
        """The most rounds that each device carries out, and pays for; shape (M,).

        Below `device_rounds` where rounds ask a share of the devices by turns.
        """
        size = share_size(self.participation, len(self.weights))
        return -(-self.device_rounds * size // len(self.weights))

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
    def likely(self) -> str:
        """The range of the predicted excess loss, in words."""
        low, high = self.predicted_range or (self.predicted_loss,) * 2
        return f"{low:.2g} to {high:.2g}"

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
        """Noise over half of what replacing one unit moves, at most; shape (M,).

        For noise per step and one sample, that is its share G / X_m.
        """
        if self.trust == "sum" and self.noise_std.any():
            return self.uploads.noise_multiplier
        size = self.batch_size if self.unit == "sample" else 1
        return self.noise_std * size / self.lipschitz

    @property
    def noise_factors(self) -> Array:
        """Each round's noise over `noise_std`; shape (rounds,), and 1 if constant."""
        factors = noise_factors(self.noise_decay, self.rounds)
        factors.setflags(write=False)
        return factors

    def noise_std_of(self, number: int) -> Array:
        """Return the noise of a round, counted from 1; shape (M,)."""
        if self.noise_decay == 1:
            return self.noise_std
        first = self.noise_std * first_factor(self.noise_decay, self.rounds)
        return first * self.noise_decay ** (number - 1)

    def without_privacy(self) -> "Plan":
        """Return the same plan without noise or privacy: a baseline."""
        return replace(
            self,
            noise_std=np.zeros(self.num_devices),
            epsilon=np.full(self.num_devices, np.inf),
            accountant=NOT_PRIVATE,
        )

    def privacy_after(self, epsilon: Array, rounds: int) -> PrivacyStatement:
        """Return the guarantee of a run of this plan that continues another one.

        It has spent more than its plan says, unless the plan counts the rounds before
        (`replan`).

        Args:
            epsilon: What each device has spent in all runs together; by Gaussian DP,
                at the plan's delta.
            rounds: Of this plan, that are done.
        """
        more = epsilon > self.epsilon * (1 + 1e-9)
        spent = float(np.where(more, epsilon, self.epsilon).max())
        own = self.privacy
        if own.epsilon_alone is None:
            return replace(own, epsilon=spent)
        done = np.minimum(rounds, self.device_rounds)
        square = done / np.maximum(self.device_rounds, 1) * self.uploads.mu**2
        total = GDP.mu_from_epsilon(np.maximum(epsilon, 1e-12), self.delta) ** 2
        earlier = np.maximum(total - square, 0.0)
        # At most all devices shared the noise of earlier sums.
        honest = self.least_answers - self.colluders
        mu = np.sqrt(honest * square + self.num_devices * earlier) * (1 + 1e-9)
        alone = float(GDP.epsilon_from_mu(mu, self.delta).max())
        return replace(own, epsilon=spent, epsilon_alone=max(alone, own.epsilon_alone))

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy guarantee of this plan."""
        alone = None
        if self.trust == "sum" and self.accountant != NOT_PRIVATE:
            alone = float(self._epsilon_alone().max())
        return PrivacyStatement(
            epsilon=float(self.epsilon.max()),
            delta=float(self.delta.max()),
            accountant=self.accountant,
            unit=self.unit,
            trust=self.trust,
            least_answers=self.least_answers,
            colluders=self.colluders,
            epsilon_alone=alone,
        )

    @property
    def scope(self) -> Scope:
        """What epsilon protects, and against whom."""
        return Scope(self.unit, self.trust, self.colluders)

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
    def releases(self) -> Releases:
        """The releases of every device, for an accountant; without `prior_mu`."""
        return self.gradients if self.trust == "uploads" else self.uploads

    @property
    def gradients(self) -> NoisyGradients:
        """The noisy gradients of every device: its releases if uploads are seen.

        Noise that falls costs what constant noise does (`privacy.schedules`), or less
        on a device that stops early.
        """
        if self.trust != "uploads":
            raise InvalidInputError(
                "with trust 'sum' gradients have no noise: use plan.releases"
            )
        whole_device = self.unit == "device"  # as if its mean were one sample
        return NoisyGradients(
            lipschitz=self.lipschitz,
            batch_size=1.0 if whole_device else self.batch_size,
            noise_std=self.noise_std,
            steps=self.tau * self.paid_rounds,
            sampling_probability=self.sampling_probability,
            blocks=1 if whole_device else self.blocks,
        )

    @property
    def uploads(self) -> NoisyUploads:
        """The noisy uploads of every device: its releases if only sums are seen."""
        if self.trust != "sum":
            raise InvalidInputError(
                "with trust 'uploads' every gradient has noise: use plan.releases"
            )
        return NoisyUploads(
            steps=LocalSteps(
                lipschitz=self.lipschitz,
                curvature=self.model.curvature,
                l2=self.l2,
                learning_rate=self.learning_rate,
                tau=self.tau,
                batch_size=self.batch_size,
                blocks=self.blocks,
                unit=self.unit,
                clip=self.clip,
            ),
            weights=self.weights,
            rounds=self.device_rounds,
            noise_std=float(self.noise_std[0]),
            least_answers=self.least_answers,
            colluders=self.colluders,
        )

    def _epsilon_of(self, releases: Releases) -> Array:
        return accountant_named(self.accountant).epsilon(
            releases, delta=self.delta, prior_mu=self.prior_mu
        )

    def _epsilon_alone(self) -> Array:
        """Return what remains if everybody else colludes; exact or too high.

        A plan of the rest of a run (`replan`) states an epsilon that includes earlier
        rounds. Of their sums at most all devices shared the noise: alone, they were at
        most sqrt(M) times as large a mu.
        """
        alone = self._epsilon_of(self.uploads.alone)
        if self.accountant != "gdp":  # only Gaussian steps are planned again
            return alone
        stated = GDP.mu_from_epsilon(self.epsilon, self.delta) ** 2
        own = self.uploads.mu**2 + self.prior_mu**2
        earlier = np.where(stated > own * (1 + 1e-6), stated - own, 0.0)
        if not earlier.any():
            return alone
        square = self.uploads.mu_alone**2 + self.prior_mu**2
        mu = np.sqrt(square + self.num_devices * earlier)
        return GDP.epsilon_from_mu(mu, self.delta)

    def check_promise(self) -> None:
        """Raise if the noise is too small for the epsilon that the plan states."""
        if self.accountant == NOT_PRIVATE:
            return
        spent = self._epsilon_of(self.releases)
        exceeded = spent > self.epsilon * (1 + 1e-9)
        if exceeded.any():
            m = int(np.argmax(exceeded))
            raise InvalidInputError(
                f"device {m} would spend epsilon {rounded_up(spent[m], digits=6)} "
                f"with its noise, not {self.epsilon[m]:g} as this plan states: plan "
                "again"
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
        derived: dict[str, Any] = {"device_rounds": self.device_rounds.tolist()}
        schema = self.schema
        plain["schema"] = None if schema is None else schema.to_dict()
        derived["schema_digest"] = None if schema is None else schema.digest
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
        derived = {"device_rounds", "steps", "privacy", "schema_digest"}
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
        values["schema"] = read_schema(values["schema"], plain.get("schema_digest"))
        values["predicted_range"] = _pair(values["predicted_range"])
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


def schema_of(problem: Problem) -> Schema | None:
    """Return the schema that a problem carries."""
    return Schema.from_json(problem.schema) if problem.schema else None


def share_size(participation: float, num_devices: int) -> int:
    """Return how many devices a round asks.

    >>> share_size(0.1, 25), share_size(0.3, 10), share_size(1.0, 4)
    (3, 3, 4)
    """
    # A share such as 0.3 is a hair above three tenths as a binary number.
    return max(1, math.ceil(round(participation * num_devices, 9)))


def current_keys(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored plan under the keys of this version."""
    current = {_RENAMED_KEYS.get(name, name): value for name, value in plain.items()}
    return _ADDED_KEYS | current


def _pair(value: Any) -> tuple[float, float] | None:
    """Return the two ends of a range that was read from JSON."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidInputError(
            f"predicted_range must be a list of two numbers, got {value!r}"
        )
    low, high = (number("predicted_range", end) for end in value)
    return low, high


def is_same_plan(first: Any, second: Mapping[str, Any]) -> bool:
    """Return whether two stored plans make the same run, however they explain it.

    The first may be anything that was read from a file.
    """
    if not isinstance(first, Mapping):
        return False
    plans = [current_keys(plain) for plain in (first, second)]
    for plain in plans:
        for name in (*_EXPLANATIONS, "schema_digest"):
            plain.pop(name, None)
    if None in (plans[0]["schema"], plans[1]["schema"]):  # one of an earlier state
        plans = [plain | {"schema": None} for plain in plans]
    return plans[0] == plans[1]
