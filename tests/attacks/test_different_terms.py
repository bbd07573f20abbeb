"""Attack: tell devices different terms of one sum.

Every device counts on the noise and on the least number of answers of the others. A
server that gives the others a coarser grid leaves the victim's upload nearly without
their noise; one that gives them a smaller t has a sum of fewer answers unmasked. The
terms are in the digest that all signatures, masks and shares are bound to.
"""

from dataclasses import replace
from typing import Any

import pytest

from fedbudget.fleet.coordinator.devices import offers_of
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import SumTerms
from tests.fleet.sums import Hostile

VICTIM = "device-0"


@pytest.mark.parametrize("changes", [{"least_answers": 5}, {"ring_bits": 40}])
def test_devices_with_other_terms_do_not_take_part(
    hostile: Hostile, changes: dict[str, Any]
) -> None:
    def changed(name: str, terms: SumTerms) -> SumTerms:
        return replace(terms, **changes) if name == VICTIM else terms

    other = Hostile(hostile.fleet, run=bytes(16), changed=changed)
    names = hostile.fleet.names
    assert set(other.introductions) == set(names)  # every device takes its own terms
    other.meet()
    roster = other.roster(other.keys(names))
    for name in names:
        reply = other.order(name, roster)
        assert isinstance(reply, Reply) and reply.code == "policy"
        assert not hostile.fleet.entries(name, "charge")


def test_the_grid_is_one_of_the_terms(hostile: Hostile) -> None:
    def terms_of(_: str, terms: SumTerms) -> SumTerms:
        commons.add(terms.common)
        commons.add(replace(terms, scale_bits=terms.scale_bits - 14).common)
        return terms

    commons: set[bytes] = set()
    Hostile(hostile.fleet, run=bytes(16), changed=terms_of)
    assert len(commons) == 2


@pytest.mark.parametrize(
    "factors",
    [
        {"step": 0.5},  # moves of twice as many steps, under the same noise
        {"largest_norm": 1e12},  # rounding errors of long models
        {"step": 1e-30},  # whole numbers beyond 64 bits
    ],
)
def test_a_grid_that_costs_more_than_its_noise_says_is_refused_uncharged(
    inside: Hostile, factors: dict[str, float]
) -> None:
    def changed(_: str, terms: SumTerms) -> SumTerms:
        plain = vars(terms)
        values = {name: plain[name] * factor for name, factor in factors.items()}
        return replace(terms, **values)

    other = Hostile(inside.fleet, run=bytes(16), changed=changed)
    assert other.introductions == {}
    for name, reply in zip(inside.fleet.names, other.sent, strict=True):
        assert reply.code == "policy" and "does not keep" in reply.reason
        assert not inside.fleet.entries(name, "charge")


@pytest.mark.parametrize(
    "changes", [{"noise_decay": 0.9}, {"drift_momentum": 0.5}, {"sampling": "fixed"}]
)
def test_what_the_charge_of_a_sum_does_not_count_is_refused(
    inside: Hostile, changes: dict[str, Any]
) -> None:
    """Falling noise, a memory of earlier rounds, and batches have other sensitivity."""
    fleet = inside.fleet
    offers = offers_of(
        fleet.plan(),
        fleet.declarations(),
        run=bytes(16),
        name="demo",
        precision="float64",
    )
    for offer in offers:
        signed = inside.signer.sign(replace(offer, **changes))
        (reply,) = inside.deliver(offer.device, topics.offer(offer.device), signed)
        assert isinstance(reply, Reply) and reply.code == "policy"
        assert str(reply.reason).startswith("sums ")
