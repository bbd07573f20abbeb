"""The terms of a run whose server sees only sums: what a device checks and charges.

`privacy.uploads` has the guarantee. Noise is counted as the honest shares in a sum of
`least_answers` devices of which `colluders` are on the server's side.
"""

from collections.abc import Mapping

from fedbudget.checks import floats
from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.device.data_file import loss_of
from fedbudget.fleet.device.exact_uploads import UploadGrid
from fedbudget.fleet.device.policy import Policy, PricePolicy, SumPolicy
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import RunOffer
from fedbudget.fleet.wire.secure_messages import ORDERS, SumTerms
from fedbudget.ledger import Charge
from fedbudget.privacy import LocalSteps, NoisyUploads
from fedbudget.privacy.uploads import check_answers


def terms_of(offer: RunOffer) -> SumTerms:
    """Return the terms of a sum in an offer that has some.

    Raises:
        InvalidInputError: It has none.
        MessageError: They are damaged.
    """
    if offer.sum_terms is None:
        raise InvalidInputError("this run is not one of sums: its uploads are seen")
    return SumTerms.from_bytes(offer.sum_terms)


def is_sum_order(body: bytes) -> bool:
    """Return whether an order is one of a secure sum; from any bytes."""
    try:
        plain = decode(body)
    except MessageError:
        return False
    kind = plain.get("kind") if isinstance(plain, dict) else None
    return any(kind == order.kind for order in ORDERS)


def grid_of(terms: SumTerms) -> UploadGrid:
    """Return the grid of the uploads."""
    return UploadGrid(
        step=terms.step,
        scale_bits=terms.scale_bits,
        ring_bits=terms.ring_bits,
        largest_norm=terms.largest_norm,
    )


def upload_of(offer: RunOffer) -> NoisyUploads:
    """Return what one round releases of this device, in sums."""
    terms = terms_of(offer)
    loss = loss_of(offer.loss, offer.num_classes, offer.l2)
    return NoisyUploads(
        steps=LocalSteps(
            lipschitz=loss.lipschitz,
            curvature=loss.curvature,
            l2=loss.l2,
            learning_rate=offer.learning_rate,
            tau=offer.tau,
            batch_size=offer.batch_size,
            unit="device" if terms.unit == "device" else "sample",
            clip=terms.clip,
        ),
        weights=terms.weight,
        rounds=1,
        noise_std=offer.noise_std,
        least_answers=terms.least_answers,
        colluders=terms.colluders,
    )


def sum_charge(offer: RunOffer, prices: PricePolicy) -> Charge:
    """Return the charge of a round: one Gaussian release, and its cost."""
    return Charge(
        steps=1,
        noise_multiplier=floats(upload_of(offer).noise_multiplier).item(),
        cost=prices.sum_round + prices.computation * offer.tau,
    )


def check_charged_unit(charged: Mapping[bytes, RunOffer | None], unit: str) -> None:
    """Raise if a budget for all rows would add up charges for single rows.

    A mu for one row bounds next to nothing for all of them: see `privacy.runs.Scope`.

    Args:
        charged: The offers of charged runs; none of an evaluation.
        unit: What the owner's epsilon protects.
    """
    if unit != "device":
        return
    for run, offer in charged.items():
        if offer is None or not offer.sum_terms or terms_of(offer).unit != "device":
            raise InvalidInputError(
                f"sums.unit is 'device', and run {run.hex()[:8]} of this ledger was "
                "charged for single rows: its epsilon is not one for all rows "
                "together; set sums.unit to 'sample' again"
            )


def check_answers_policy(
    least_answers: int, colluders: int, policy: Policy
) -> SumPolicy:
    """Raise unless the owner takes part in sums of so many; return the limits.

    Raises:
        InvalidInputError: With the reason, which reveals only public facts.
    """
    limits = policy.sums
    if limits is None:
        raise InvalidInputError("the owner takes no part in sums: no [sums] in policy")
    if least_answers < limits.least_answers:
        raise InvalidInputError(
            f"least_answers {least_answers} is below the limit {limits.least_answers}"
        )
    if colluders < limits.colluders:
        raise InvalidInputError(
            f"colluders {colluders} is below the {limits.colluders} that the owner "
            "wants to survive"
        )
    check_answers(least_answers, colluders)
    return limits


def check_sum(offer: RunOffer, policy: Policy) -> None:
    """Raise unless a run of sums is within the owner's policy.

    Raises:
        InvalidInputError: With the reason, which reveals only public facts.
        MessageError: The terms are damaged.
    """
    terms = terms_of(offer)
    limits = check_answers_policy(terms.least_answers, terms.colluders, policy)
    if limits.unit == "device" and terms.unit != "device":
        raise InvalidInputError("the owner takes part only with unit 'device'")
    if offer.sampling != "full":
        raise InvalidInputError("sums need full batches")
    if offer.drift_momentum is not None or offer.noise_decay is not None:
        raise InvalidInputError("sums have no drift correction and constant noise")
    uploads = upload_of(offer)  # refuses steps that expand, and c >= t
    multiplier = floats(uploads.noise_multiplier).item()
    least = policy.orders.least_noise_multiplier
    if not multiplier < float("inf"):
        raise InvalidInputError("the weight is 0, or too small to be charged")
    if not multiplier >= least:
        raise InvalidInputError(
            f"noise multiplier {multiplier:g} of a sum is below the limit {least:g}"
        )
    loss = loss_of(offer.loss, offer.num_classes, offer.l2)
    if not grid_of(terms).covers(uploads, loss, dim=offer.dim).all():
        raise InvalidInputError(
            f"the grid of step {terms.step:g} does not keep this device's epsilon"
        )
