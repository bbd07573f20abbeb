"""The claims of a plan: noisy steps, and the epsilon that they are said to spend."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedbudget.auditing.canaries import (
    Pair,
    crafted_devices,
    crafted_pairs,
    opposite_pair,
)
from fedbudget.auditing.upload_claims import UploadClaim, upload_claim
from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Loss, loss_named
from fedbudget.planning import Plan
from fedbudget.planning.plans import NOT_PRIVATE
from fedbudget.privacy import Releases, Unit, accountant_named
from fedbudget.text import counted

MOST_CLAIMS = 3  # audited of one plan; more would leave each too few trials
_SAME = 1e-6  # relative: rounding, and noise for slightly less than the budget
_DIGITS = 9  # devices whose noise multipliers agree in these make the same claim
_MOST_ROWS, _MOST_COLUMNS = 2048, 8  # of the canaries' tables
_RUN_ROWS, _RUN_COLUMNS = 32, 4  # of the table of whole runs: larger ones are slow


class Audited(Protocol):
    """Releases, and the epsilon that they are said to spend.

    It is a `Claim` about noisy steps, or an `UploadClaim` about uploads to a sum.
    """

    @property
    def name(self) -> str:
        """Whose claim it is."""

    @property
    def steps(self) -> int:
        """K: the releases that use a unit, a row or a device."""

    @property
    def epsilon(self) -> float:
        """Claimed for these releases."""

    @property
    def delta(self) -> float:
        """Claimed for these releases."""

    @property
    def noise_multiplier(self) -> float:
        """Noise over half of what replacing one unit moves, at most."""

    @property
    def deviation(self) -> float:
        """Std of the noise on a released sum, per coordinate."""

    @property
    def shares(self) -> int:
        """The number of draws that this noise is the sum of."""

    @property
    def bound(self) -> str:
        """What limits the move of a sum, in words."""

    @property
    def squared_bound(self) -> Fraction:
        """The square of how far replacing one unit moves a released sum, at most."""

    def canaries(self) -> Pair:
        """Return the neighbouring tables of the trials."""

    def crafted_pairs(self) -> Iterator[Pair]:
        """Yield neighbouring tables that might move a sum too far."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The noisy steps on one row, and the epsilon that they are said to spend."""

    name: str  # whose claim it is
    loss: str
    num_classes: int  # as in a plan: 1 unless the loss is softmax
    dim: int  # columns of a row
    num_samples: int  # rows of the device
    batch_size: int  # X
    noise_std: float  # sigma, per coordinate of a mean gradient
    steps: int  # K: those that use a row
    epsilon: float  # claimed for these steps
    delta: float
    unit: Unit = "sample"

    @property
    def model(self) -> Loss:
        """The loss, without its L2 term, which no row changes."""
        classes = self.num_classes if self.loss == "softmax" else None
        return loss_named(self.loss, num_classes=classes)

    @property
    def num_params(self) -> int:
        """The length of the model."""
        return self.model.num_params(self.dim)

    @property
    def noise_multiplier(self) -> float:
        """Noise over one unit's share of a mean gradient: G / X, or G of a device."""
        return self.deviation / (self._changed_rows * self.model.lipschitz)

    @property
    def _changed_rows(self) -> int:
        return 1 if self.unit == "sample" else self.batch_size

    @property
    def deviation(self) -> float:
        """Std of the noise on a sum of gradients, per coordinate."""
        return self.noise_std * self.batch_size

    @property
    def shares(self) -> int:
        """The noise is one draw."""
        return 1

    @property
    def bound(self) -> str:
        """What limits the move of a sum, in words."""
        return "2 G" if self.unit == "sample" else f"2 G x {self.batch_size} rows"

    @property
    def squared_bound(self) -> Fraction:
        """(2 G)^2, times the square of the changed rows: G^2 is 2 for softmax."""
        lipschitz = Fraction(self.model.lipschitz)
        square = Fraction(2) if self.loss == "softmax" else lipschitz**2
        return 4 * square * self._changed_rows**2

    def canaries(self) -> Pair:
        """Return the canaries' tables: as large as the claim's, up to a limit.

        The noise and its grid are those of the claim's own size. More rows or columns
        would add the same numbers to both sums.
        """
        rows, dim = min(self.batch_size, _MOST_ROWS), min(self.dim, _MOST_COLUMNS)
        whole = self.unit == "device"
        return opposite_pair(self.model, rows=rows, dim=dim, whole=whole)

    def crafted_pairs(self) -> Iterator[Pair]:
        """Yield pairs that would break sums with rounding errors, or bounds."""
        dim = min(self.dim, _MOST_COLUMNS)
        if self.unit == "sample":
            return crafted_pairs(self.model, dim=dim)
        return crafted_devices(self.model, rows=self.batch_size, dim=dim)

    def small(self) -> "Claim":
        """Return the claim for a small table, at the same noise multiplier."""
        rows = min(self.batch_size, _RUN_ROWS)
        dim = max(2, min(self.dim, _RUN_COLUMNS))
        return self.with_table(rows=rows, dim=dim)

    def with_noise(self, factor: float) -> "Claim":
        """Return the same claim with `factor` times the noise: a control."""
        return replace(self, noise_std=self.noise_std * factor)

    def with_table(self, *, rows: int, dim: int) -> "Claim":
        """Return the claim at the same noise multiplier for a table of this shape."""
        share = self.model.lipschitz / (rows if self.unit == "sample" else 1)
        noise_std = self.noise_multiplier * share
        return replace(
            self, num_samples=rows, batch_size=rows, dim=dim, noise_std=noise_std
        )


def claims_of(plan: Plan) -> tuple[list[Claim] | list[UploadClaim], tuple[str, ...]]:
    """Return the worst claims of a plan, and notes on what was left out.

    Devices with the same noise multiplier, steps, delta and epsilon make one claim: the
    trials of one are the trials of all. The claim is for the steps of the run alone,
    without measurements before it (`prior_mu`), which the audit does not repeat. Noise
    that falls from round to round is audited as the constant noise of equal cost.

    Raises:
        InvalidInputError: The plan claims nothing, or its batches are Poisson-sampled.
    """
    if plan.accountant == NOT_PRIVATE:
        raise InvalidInputError(
            "this plan has no noise, so it claims no epsilon: there is nothing to audit"
        )
    if plan.sampling == "poisson":
        raise InvalidInputError(
            "the plan samples batches by Poisson, whose releases are not normal: the "
            "audit covers sampling full, fixed and cyclic"
        )
    run = plan.releases
    uses = np.broadcast_to(run.laps, (plan.num_devices,)).astype(np.int64)
    epsilon = _claimed(plan, run)
    multipliers = [f"{z:.{_DIGITS}g}" for z in plan.noise_multiplier]
    groups: dict[tuple[object, ...], list[int]] = {}
    for m in np.flatnonzero(uses > 0).tolist():
        # Rounded: the last digits of epsilon differ where those of the noise do.
        key = (multipliers[m], int(uses[m]), float(plan.delta[m]), f"{epsilon[m]:.6g}")
        groups.setdefault(key, []).append(m)
    if not groups:
        raise InvalidInputError("no device of this plan takes a step: plan again")
    worst = sorted(groups.values(), key=lambda group: -float(epsilon[group].max()))
    notes, groups_audited = _notes(plan, run, len(worst)), worst[:MOST_CLAIMS]
    if plan.trust == "sum":
        uploads = [upload_claim(plan, group, epsilon) for group in groups_audited]
        return [claim for claim, _ in uploads], notes + uploads[0][1]
    return [
        _claim(plan, group, int(uses[group[0]]), epsilon) for group in groups_audited
    ], notes


def _claimed(plan: Plan, run: Releases) -> Array:
    """Return the epsilon of each device's steps, without what was spent before.

    Before the run were measurements, or the rounds of a run that this one continues.
    """
    epsilon = accountant_named(plan.accountant).epsilon(run, delta=plan.delta)
    return np.where(_has_more(plan, epsilon), epsilon, plan.epsilon)


def _has_more(plan: Plan, epsilon: Array) -> NDArray[np.bool_]:
    """Return whose stated epsilon includes more than the steps of this plan."""
    return np.asarray(plan.epsilon > epsilon * (1 + _SAME))


def _claim(plan: Plan, group: list[int], uses: int, epsilon: Array) -> Claim:
    m = max(group, key=lambda device: float(epsilon[device]))
    claim = Claim(
        name=f"{len(group)} of {counted(plan.num_devices, 'device')}",
        loss=plan.loss,
        num_classes=plan.num_classes,
        dim=plan.dim,
        num_samples=int(plan.num_samples[m]),
        batch_size=int(plan.batch_size[m]),
        noise_std=float(plan.noise_std[m]),
        steps=uses,
        epsilon=float(epsilon[m]),
        delta=float(plan.delta[m]),
        unit=plan.unit,
    )
    if plan.unit == "sample":
        return claim
    # All rows of a table are canaries: it is of the claim's own size.
    rows, dim = min(claim.batch_size, _MOST_ROWS), min(plan.dim, _MOST_COLUMNS)
    return claim.with_table(rows=rows, dim=max(2, dim))


def _notes(plan: Plan, run: Releases, count: int) -> tuple[str, ...]:
    """Say what the audited claims leave out."""
    notes = []
    alone = accountant_named(plan.accountant).epsilon(
        run, delta=plan.delta, prior_mu=plan.prior_mu
    )
    if _has_more(plan, alone)[plan.device_rounds > 0].any():
        notes.append(
            "the plan states more than its own steps spend, such as earlier rounds: "
            "these are not audited"
        )
    if count > MOST_CLAIMS:
        notes.append(
            f"the {MOST_CLAIMS} largest of {count} different claims are audited"
        )
    if plan.prior_mu.any():
        notes.append(
            "measurements before the run are in the plan's epsilon, but not audited"
        )
    if plan.noise_decay < 1:
        notes.append(
            "noise falls from round to round: the claim is audited with the constant "
            "noise that costs the same"
        )
    if plan.trust == "uploads" and plan.unit == "device":
        notes.append(
            f"all rows of a table are canaries: at most {_MOST_ROWS}, at the plan's "
            "noise multiplier"
        )
    if plan.sampling == "fixed" and plan.unit == "sample":
        notes.append("the canary is in every batch: no sampling is counted")
    return tuple(notes)
