"""Whether an offer lies within the owner's policy, and what a round of it costs."""

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.data_file import DeviceRows, loss_of
from fedbudget.fleet.device.exact_steps import NoiseGrid
from fedbudget.fleet.device.policy import Policy, PricePolicy
from fedbudget.fleet.wire.messages import RunOffer
from fedbudget.ledger import Charge


class Refusal(Exception):  # noqa: N818  # an answer, not an error
    """Why an order is not carried out: a code of messages.REFUSALS, and words."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def check_offer(offer: RunOffer, policy: Policy, rows: DeviceRows) -> None:
    """Refuse what lies outside the owner's policy or the data's shape.

    Raises:
        Refusal: It says what is wrong; all of that is public.
    """
    limits = policy.orders
    if not limits.joins(offer.name):
        raise Refusal("policy", "the owner does not join runs of this name")
    for name, given, most in (
        ("tau", offer.tau, limits.most_tau),
        ("rounds", offer.rounds, limits.most_rounds),
        ("learning_rate", offer.learning_rate, limits.most_learning_rate),
        ("l2", offer.l2, limits.most_l2),
        ("num_samples", offer.num_samples, len(rows)),
        ("batch_size", offer.batch_size, offer.num_samples),
    ):
        if given > most:
            raise Refusal("policy", f"{name} {given:g} is above {most:g}")
    shape = (policy.data.loss, rows.num_classes, rows.dim)
    if (offer.loss, offer.num_classes, offer.dim) != shape:
        raise Refusal("policy", f"loss, num_classes and dim must be {shape}")
    if offer.sampling == "full" and offer.batch_size != offer.num_samples:
        raise Refusal("policy", "a full batch has all samples")
    multiplier, least = noise_multiplier(offer), limits.least_noise_multiplier
    if not multiplier >= least:
        raise Refusal("policy", f"noise multiplier {multiplier:g} is below {least:g}")
    try:
        NoiseGrid.of(
            noise_std=offer.noise_std,
            batch_size=offer.batch_size,
            lipschitz=loss_of(offer.loss, offer.num_classes).lipschitz,
            num_params=offer.num_params,
        )
    except InvalidInputError as error:
        raise Refusal("policy", str(error)) from None


def noise_multiplier(offer: RunOffer) -> float:
    """Return the noise over one sample's share of a mean gradient."""
    lipschitz = loss_of(offer.loss, offer.num_classes).lipschitz
    return offer.noise_std * offer.batch_size / lipschitz


def round_charge(offer: RunOffer, prices: PricePolicy) -> Charge:
    """Return what one round of a run costs."""
    return Charge(
        steps=offer.tau,
        noise_multiplier=noise_multiplier(offer),
        cost=prices.communication + prices.computation * offer.tau,
    )
