"""Secret sharing: any T shares give the secret, fewer are independent of it."""

import itertools

import pytest
from hypothesis import given, strategies as st

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure import reference, shamir
from tests.fleet.secure.rounds import stream


def test_the_field_is_one() -> None:
    """2^255 - 19 passes Fermat's test for many bases, as a prime does."""
    assert all(pow(a, shamir.PRIME - 1, shamir.PRIME) == 1 for a in range(2, 60))


@given(
    secret=st.integers(0, shamir.PRIME - 1),
    threshold=st.integers(1, 5),
    extra=st.integers(0, 2),
)
def test_every_large_enough_set_of_shares_gives_the_secret(
    secret: int, threshold: int, extra: int
) -> None:
    holders = list(range(1, threshold + extra + 1))
    shares = shamir.split(
        secret, holders, threshold=threshold, random=stream("polynomial")
    )
    for size in range(threshold, len(holders) + 1):
        for some in itertools.combinations(holders, size):
            assert shamir.combine({x: shares[x] for x in some}) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """For any other secret there is a polynomial through the same T - 1 shares."""
    shares = shamir.split(7, [1, 2, 3], threshold=3, random=stream("hiding"))
    for other in (0, 1, shamir.PRIME - 1):
        # The third share that makes `other` the secret, by Lagrange.
        weights = [
            shamir.combine({1: 1, 2: 0, 3: 0}),
            shamir.combine({1: 0, 2: 1, 3: 0}),
        ]
        last = shamir.combine({1: 0, 2: 0, 3: 1})
        known = weights[0] * shares[1] + weights[1] * shares[2]
        third = (other - known) * pow(last, -1, shamir.PRIME) % shamir.PRIME
        assert shamir.combine({1: shares[1], 2: shares[2], 3: third}) == other


def test_the_reference_agrees() -> None:
    random = stream("agreement")
    coefficients = [shamir.random_element(stream("agreement"))]
    shares = shamir.split(99, [1, 4, 9], threshold=2, random=random)
    assert shares == {x: reference.share(99, coefficients, x) for x in (1, 4, 9)}
    assert reference.reconstruct({4: shares[4], 9: shares[9]}) == 99


def test_elements_are_uniform_below_the_prime() -> None:
    values = iter([b"\xff" * 32, bytes(31) + b"\x07"])
    assert shamir.random_element(lambda _: next(values)) == 3  # the first is too large


@pytest.mark.parametrize(
    "holders, threshold", [([1, 1], 1), ([0, 1], 1), ([1, 2], 3), ([1, 2], 0)]
)
def test_bad_holders_and_thresholds_are_refused(
    holders: list[int], threshold: int
) -> None:
    with pytest.raises(InvalidInputError):
        shamir.split(5, holders, threshold=threshold)


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33), b"\xff" * 32])
def test_bytes_that_are_no_element_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError, match="not an element"):
        shamir.from_bytes(data)


def test_bytes_and_back() -> None:
    for element in (0, 1, shamir.PRIME - 1):
        assert shamir.from_bytes(shamir.to_bytes(element)) == element


def test_a_secret_outside_the_field_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="element"):
        shamir.split(shamir.PRIME, [1], threshold=1)
