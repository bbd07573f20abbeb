"""What a device's policy releases in sums: its uploads, its charges, its refusals.

The terms are the least that the owner accepts: so many answers, so many colluders, the
policy's unit. Offer, checks and charges are those of a real device, in a ledger file of
its own. Masks need peers, and hide uploads from nobody who is in a sum: the trials are
of the uploads, with the noise of the honest devices, and not of the protocol.
"""

import os
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from fedbudget.auditing.guards import GuardTest, temporary_folder
from fedbudget.auditing.upload_claims import UploadClaim
from fedbudget.checks import floats
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.ledger_file import JoinedRun, LedgerFile
from fedbudget.fleet.device.periods import FIRST, RowRange
from fedbudget.fleet.device.policy import Policy, SumPolicy
from fedbudget.fleet.device.sum_terms import check_sum, sum_charge
from fedbudget.fleet.wire.messages import RUN_BYTES, RunOffer
from fedbudget.fleet.wire.secure_messages import SumTerms
from fedbudget.losses import Loss, loss_named
from fedbudget.privacy import LocalSteps, NoisyUploads, accountant_named

_ROUNDS, _TAU = 4, 8  # of the run that spends the budget: more are slow
_MOST_ROUNDS = 1000  # unless the policy's least noise needs more of them
_ROWS, _COLUMNS = 32, 4  # of the canaries' tables
_SLACK = 1e-9  # noise above the least: the ledger adds up in another order


@dataclass(frozen=True, kw_only=True)
class SumRun:
    """The run of sums that spends a policy's budget."""

    policy: Policy
    claim: UploadClaim
    offer: RunOffer
    exhausts: bool  # whether a further round must be refused

    def charged(self) -> GuardTest:
        """Charge the run to a new ledger file; then ask for one more round."""
        with temporary_folder() as name:
            ledger = LedgerFile(
                Path(name) / "ledger.sqlite", self.policy.budget, lineage="audit"
            )
            try:
                return self._charged(ledger)
            finally:
                ledger.close()

    def _charged(self, ledger: LedgerFile) -> GuardTest:
        offer, rows = (
            self.offer,
            RowRange(period=FIRST.number, first_row=0, count=_ROWS),
        )
        joined = JoinedRun(offer=offer.to_bytes(), key="", fingerprint="", rows=rows)
        ledger.join(offer.run, joined)
        charge = sum_charge(offer, self.policy.prices)
        for number in range(1, self.claim.steps + 1):
            overdrawn = ledger.charge(offer.run, number, charge)
            if overdrawn is not None:
                raise InvalidInputError(
                    f"round {number} of {self.claim.steps} would overdraw the "
                    f"{overdrawn} of this policy: raise it, or lower the prices"
                )
        refused = None
        if self.exhausts:
            refused = ledger.charge(offer.run, number + 1, charge) is not None
        return GuardTest(
            runs=1,
            spent=float(ledger.spent.epsilon[0]),
            budget=self.policy.budget.epsilon,
            refused=refused,
            through="ledger",
        )


def sum_run(policy: Policy, sums: SumPolicy) -> SumRun:
    """Return the run of sums that spends a policy's budget, as far as it allows.

    Raises:
        InvalidInputError: The policy allows no such run.
    """
    budget, limits, prices = policy.budget, policy.orders, policy.prices
    accountant = accountant_named(budget.accountant)
    one_upload = float(
        accountant.noise_multiplier(epsilon=budget.epsilon, delta=budget.delta, steps=1)
    )
    least = (limits.least_noise_multiplier / one_upload) ** 2
    wanted = min(max(_ROUNDS, int(least) + 1), _MOST_ROUNDS, limits.most_rounds)
    tau = min(_TAU, limits.most_tau)
    a_round = prices.communication + prices.computation * tau
    paid = int(budget.cost / a_round) if a_round else wanted
    rounds = min(wanted, paid)
    if rounds < 1:
        raise InvalidInputError(
            f"the cost budget {budget.cost:g} of the policy does not pay for one round "
            f"of {tau} steps: raise it, or lower the prices"
        )
    multiplier = max(
        one_upload * rounds**0.5 * (1 + _SLACK), limits.least_noise_multiplier
    )
    claim = _claim(policy, sums, tau, rounds, multiplier)
    offer = _offer(policy, sums, claim)
    check_sum(offer, policy)
    return SumRun(
        policy=policy,
        claim=claim,
        offer=offer,
        exhausts=rounds >= least or (rounds + 1) * a_round > budget.cost,
    )


def _claim(
    policy: Policy, sums: SumPolicy, tau: int, rounds: int, multiplier: float
) -> UploadClaim:
    """Return the claim of such a run: what the device's ledger says of it."""
    budget, data = policy.budget, policy.data
    loss = loss_named(
        data.loss, num_classes=data.classes if data.loss == "softmax" else None
    )
    steps = LocalSteps(
        lipschitz=loss.lipschitz,
        curvature=loss.curvature,
        learning_rate=_rate(loss, sums, policy.orders.most_learning_rate),
        tau=tau,
        batch_size=float(_ROWS),
        unit="device" if sums.unit == "device" else "sample",
    )
    weight, shares = 1 / sums.least_answers, sums.least_answers - sums.colluders
    uploads = NoisyUploads(
        steps=steps,
        weights=weight,
        rounds=float(rounds),
        noise_std=multiplier * weight * float(steps.sensitivity) / 2 / shares**0.5,
        least_answers=sums.least_answers,
        colluders=sums.colluders,
    )
    spent = accountant_named(budget.accountant).epsilon(uploads, delta=budget.delta)
    return UploadClaim(
        name=f"device {policy.device}, in sums",
        loss=data.loss,
        num_classes=loss.num_outputs,
        dim=_COLUMNS,
        uploads=uploads,
        epsilon=min(float(spent), budget.epsilon),
        delta=budget.delta,
    )


def _rate(loss: Loss, sums: SumPolicy, most: float) -> float:
    """Return a learning rate that the policy allows and steps do not expand with."""
    rate = min(1.0, most)
    if sums.unit == "device" or not isfinite(loss.curvature):
        return rate  # no rate makes steps of a loss with a kink stable: it is refused
    return min(rate, 2 / loss.curvature)


def _offer(policy: Policy, sums: SumPolicy, claim: UploadClaim) -> RunOffer:
    """Return the offer of the run, as a coordinator would send it."""
    uploads, grid = claim.uploads, claim.grid
    terms = SumTerms(
        unit=sums.unit,
        least_answers=sums.least_answers,
        colluders=sums.colluders,
        weight=float(floats(uploads.weights)),
        step=grid.step,
        scale_bits=grid.scale_bits,
        ring_bits=grid.ring_bits,
        largest_norm=grid.largest_norm,
    )
    return RunOffer(
        run=os.urandom(RUN_BYTES),
        name="audit",
        device=policy.device,
        tau=uploads.steps.tau,
        rounds=claim.steps,
        learning_rate=uploads.steps.learning_rate,
        sampling="full",
        num_samples=_ROWS,
        batch_size=_ROWS,
        noise_std=uploads.noise_std,
        loss=claim.loss,
        num_classes=claim.num_classes,
        l2=0.0,
        dim=claim.dim,
        precision="float64",
        sum_terms=terms.to_bytes(),
    )
