"""The protocol in plain Python, to be read beside the papers; only tests use it.

It has no code in common with `protocol`, `masks` and `shamir`: X25519 (RFC 7748),
ChaCha20 (RFC 8439) and HKDF (RFC 5869) are written out, sums are of Python's whole
numbers, and a round is one function with the sets of Bonawitz et al. (2017), figure 4:
U1 announced a key, U2 (= U1: shares come with the key) can be reconstructed, U3 have
uploaded, U4 revealed shares. Encryption, signatures and confirmations, which do not
change the sum, are left out.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

P = 2**255 - 19


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869, for one block of SHA-256."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def x25519(secret: bytes, point: bytes = (9).to_bytes(32, "little")) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder."""
    scalar = bytearray(secret)
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    k = int.from_bytes(scalar, "little")
    u = int.from_bytes(point, "little") % 2**255
    x2, z2, x3, z3 = 1, 0, u, 1
    for t in reversed(range(255)):
        if k >> t & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        x3, z3 = (d * a + c * b) ** 2 % P, u * (d * a - c * b) ** 2 % P
        e = a * a - b * b
        x2, z2 = a * a * b * b % P, e * (a * a + 121665 * e) % P
        if k >> t & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, -1, P) % P).to_bytes(32, "little")


def _quarter(s: list[int], a: int, b: int, c: int, d: int) -> None:
    for i, j, k, shift in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[i] = (s[i] + s[j]) % 2**32
        mixed = s[k] ^ s[i]
        s[k] = (mixed << shift | mixed >> (32 - shift)) % 2**32


def chacha20(key: bytes, count: int) -> list[int]:
    """Return the first words of the key stream; counter and nonce start at zero."""
    words: list[int] = []
    head = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    head += [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    for block in range(-(-count // 16)):
        start = [*head, block, 0, 0, 0]
        state = list(start)
        for _ in range(10):
            for i in range(4):
                _quarter(state, i, 4 + i, 8 + i, 12 + i)
            for i in range(4):
                _quarter(state, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
        words += [(x + y) % 2**32 for x, y in zip(state, start, strict=True)]
    return words[:count]


def share(secret: int, coefficients: Sequence[int], x: int) -> int:
    """Return the share of holder x: the polynomial's value there."""
    value = secret
    for i, a in enumerate(coefficients, 1):
        value += a * x**i
    return value % P


def reconstruct(shares: Mapping[int, int]) -> int:
    """Return the secret: Lagrange's polynomial at 0."""
    secret = 0
    for x, value in shares.items():
        term = value
        for other in shares:
            if other != x:
                term = term * other * pow(other - x, -1, P) % P
        secret = (secret + term) % P
    return secret


def pair_mask(
    secret: bytes, key: bytes, *, salt: bytes, info: bytes, count: int
) -> list[int]:
    """PRG of the secret that two devices share, in words of 32 bits."""
    return chacha20(hkdf(x25519(secret, key), salt, info), count)


def self_mask(secret: bytes, *, salt: bytes, info: bytes, count: int) -> list[int]:
    """PRG of a device's own secret, in words of 32 bits."""
    return chacha20(hkdf(secret, salt, info), count)


def secure_sum(
    x: Mapping[int, Sequence[int]],
    s: Mapping[int, bytes],
    b: Mapping[int, bytes],
    *,
    neighbours: Mapping[int, Sequence[int]],
    uploaded: Sequence[int],
    salt: bytes,
    attempt: bytes,
) -> tuple[dict[int, list[int]], list[int]]:
    """Return the masked uploads y_u of U3, and their unmasked sum modulo 2^32.

    Args:
        x: The vectors of U1.
        s: The mask secrets of U1.
        b: The self-mask secrets of U1.
        neighbours: N(u), inside U1.
        uploaded: U3.
        salt: Digest of the roster.
        attempt: Bytes of the attempt.
    """
    d, key = len(next(iter(x.values()))), {u: x25519(s[u]) for u in x}

    def own(u: int) -> list[int]:
        info = b"fedbudget self mask 1" + attempt + u.to_bytes(4)
        return self_mask(b[u], salt=salt, info=info, count=d)

    def pair(u: int, v: int) -> list[int]:
        low, high = min(u, v), max(u, v)
        info = b"fedbudget pair mask 1" + attempt + low.to_bytes(4) + high.to_bytes(4)
        mask = pair_mask(s[u], key[v], salt=salt, info=info, count=d)
        return mask if u < v else [-word for word in mask]

    y = {}
    for u in uploaded:
        masks = [x[u], own(u), *(pair(u, v) for v in neighbours[u])]
        y[u] = [sum(column) % 2**32 for column in zip(*masks, strict=True)]
    total = [sum(column) for column in zip(*y.values(), strict=True)]
    for u in x:
        if u in uploaded:  # its self-mask is reconstructed
            total = [a - mask for a, mask in zip(total, own(u), strict=True)]
        else:  # its mask key is: remove what its neighbours added for it
            for v in set(neighbours[u]) & set(uploaded):
                # pair(u, v) = -pair(v, u)
                total = [a + mask for a, mask in zip(total, pair(u, v), strict=True)]
    return y, [a % 2**32 for a in total]
