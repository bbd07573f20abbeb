"""Shares of which some are wrong: a decoder of Reed-Solomon codes.

Shares of one secret are the values of a polynomial of degree T - 1, and so a word of
such a code. Of n shares up to (n - T) / 2 may be wrong: Gao, "A new algorithm for
decoding Reed-Solomon codes" (2003). Polynomials are lists of coefficients, the lowest
first, over Shamir's field.
"""

from collections.abc import Iterable, Mapping, Sequence

from fedbudget.fleet.secure.shamir import PRIME


def corrected(
    shares: Mapping[int, int], *, threshold: int
) -> tuple[int, frozenset[int]] | None:
    """Return the secret of shares of which some are wrong, and the wrong ones' holders.

    None if more than (n - T) / 2 of the n shares are wrong. Let g be the polynomial
    through all shares, f the secret's, and w one with the wrong holders as roots. Then
    g w = f w modulo the product of all x - x_i, and the extended Euclidean algorithm of
    that product and g finds f w and w.

    >>> corrected({1: 8, 2: 9, 3: 5, 4: 11}, threshold=2)  # of 7 + x
    (7, frozenset({3}))
    """
    if len(shares) < threshold:
        return None
    older, newer = _product(shares), _through(shares)
    older_factor: list[int] = []
    factor = [1]
    while 2 * (len(newer) - 1) >= len(shares) + threshold:
        quotient, remainder = _divided(older, newer)
        older, newer = newer, remainder
        product = _times(quotient, factor)
        older_factor, factor = factor, _minus(older_factor, product)
    polynomial, remainder = _divided(newer, factor)
    if remainder or len(polynomial) > threshold:
        return None
    wrong = {x for x, share in shares.items() if _value(polynomial, x) != share}
    return _value(polynomial, 0), frozenset(wrong)


def _value(polynomial: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):  # Horner
        value = (value * x + coefficient) % PRIME
    return value


def _product(points: Iterable[int]) -> list[int]:
    """Return the product of x - point over all points."""
    product = [1]
    for point in points:
        product = _times([-point % PRIME, 1], product)
    return product


def _through(values: Mapping[int, int]) -> list[int]:
    """Return the polynomial that has these values at these points (Lagrange)."""
    product, total = _product(values), [0] * len(values)
    for point, value in values.items():
        others = _divided(product, [-point % PRIME, 1])[0]
        scale = value * pow(_value(others, point), -1, PRIME) % PRIME
        total = [(a + scale * b) % PRIME for a, b in zip(total, others, strict=True)]
    return _trimmed(total)


def _times(one: Sequence[int], other: Sequence[int]) -> list[int]:
    product = [0] * (len(one) + len(other) - 1) if one and other else []
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            product[i + j] = (product[i + j] + a * b) % PRIME
    return product


def _minus(one: Sequence[int], other: Sequence[int]) -> list[int]:
    size = max(len(one), len(other))
    padded = [[*terms, *[0] * (size - len(terms))] for terms in (one, other)]
    return _trimmed([(a - b) % PRIME for a, b in zip(*padded, strict=True)])


def _divided(one: Sequence[int], other: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the quotient and the remainder of two polynomials."""
    rest, degree = list(one), len(other) - 1
    inverse = pow(other[-1], -1, PRIME)
    quotient = [0] * max(0, len(rest) - degree)
    for place in reversed(range(len(quotient))):
        scale = quotient[place] = rest[place + degree] * inverse % PRIME
        for i, coefficient in enumerate(other):
            rest[place + i] = (rest[place + i] - scale * coefficient) % PRIME
    return quotient, _trimmed(rest[:degree])


def _trimmed(polynomial: list[int]) -> list[int]:
    """Return a polynomial without leading zeros; zero has no coefficients."""
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    return polynomial
