"""Shamir's secret sharing over a prime field.

Shamir, "How to share a secret" (Comm. ACM 22, 1979). A secret is the value at 0 of a
random polynomial of degree T - 1; holder x gets its value at x > 0. Any T values give
the secret, and fewer are independent of it.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from fedbudget.errors import InvalidInputError

PRIME = 2**255 - 19
SECRET_BYTES = 32

Random = Callable[[int], bytes]  # that many random bytes


def random_element(random: Random = os.urandom) -> int:
    """Return a uniform element of the field, by rejection."""
    while True:
        value = int.from_bytes(random(SECRET_BYTES)) >> 1
        if value < PRIME:
            return value


def split(
    secret: int,
    holders: Sequence[int],
    *,
    threshold: int,
    random: Random = os.urandom,
) -> dict[int, int]:
    """Return a share for each holder; any `threshold` of them give the secret.

    >>> shares = split(7, [1, 2, 3], threshold=2)
    >>> combine({1: shares[1], 3: shares[3]})
    7
    """
    _check(holders)
    if not 1 <= threshold <= len(holders):
        raise InvalidInputError(
            f"threshold must be 1 to the {len(holders)} holders, got {threshold}"
        )
    if not 0 <= secret < PRIME:
        raise InvalidInputError("a secret must be an element of the field")
    polynomial = [secret, *(random_element(random) for _ in range(threshold - 1))]
    polynomial.reverse()
    shares = {}
    for x in holders:
        value = 0
        for coefficient in polynomial:  # Horner
            value = (value * x + coefficient) % PRIME
        shares[x] = value
    return shares


def combine(shares: Mapping[int, int]) -> int:
    """Return the secret of at least `threshold` shares; of fewer, a wrong number."""
    holders = tuple(sorted(shares))
    weights = _lagrange_at_zero(holders)
    terms = (weight * shares[x] for weight, x in zip(weights, holders, strict=True))
    return sum(terms) % PRIME


@lru_cache(maxsize=1024)
def _lagrange_at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights of the values at these points in the value at 0."""
    _check(holders)
    weights = []
    for x in holders:
        above, below = 1, 1
        for other in holders:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


def _check(holders: Iterable[int]) -> None:
    points = list(holders)
    if not all(0 < x < PRIME for x in points) or len(set(points)) < len(points):
        raise InvalidInputError(
            "holders must be different numbers above 0: the value at 0 is the secret"
        )


def to_bytes(element: int) -> bytes:
    """Return an element of the field as 32 bytes."""
    return element.to_bytes(SECRET_BYTES)


def from_bytes(data: bytes) -> int:
    """Return an element of the field from untrusted bytes.

    Raises:
        InvalidInputError: They are not 32 bytes of a number below the prime.
    """
    value = int.from_bytes(data)
    if len(data) != SECRET_BYTES or value >= PRIME:
        raise InvalidInputError(
            f"{len(data)} bytes are not an element of the field: it has "
            f"{SECRET_BYTES}, below 2^255 - 19"
        )
    return value
