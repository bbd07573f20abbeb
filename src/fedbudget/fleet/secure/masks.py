"""Masks: seeds from key agreement, and vectors of whole numbers from seeds.

    seed of a pair   HKDF-SHA256(X25519(own secret, other's key), salt = roster digest)
    seed of oneself  HKDF-SHA256(own random secret, salt = roster digest)
    mask             ChaCha20(seed), in little-endian words, modulo 2^ring_bits

Seeds have 256 bits, and are never folded. The salt is the digest of the round's roster:
devices that were given different rosters derive different masks, which do not cancel.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import InvalidInputError

Words: TypeAlias = NDArray[Any]  # unsigned, of 32 or 64 bits

KEY_BYTES = 32
LEAST_RING_BITS, MOST_RING_BITS = 16, 62


def derive(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    """Return a key of 32 bytes: HKDF with SHA-256 (RFC 5869)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(
        secret
    )


def agree(secret: bytes, public: bytes) -> bytes:
    """Return the shared secret of X25519 (RFC 7748).

    Raises:
        InvalidInputError: The public key is not one, or of small order.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey,
        X25519PublicKey,
    )

    try:
        key = X25519PublicKey.from_public_bytes(public)
        return X25519PrivateKey.from_private_bytes(secret).exchange(key)
    except ValueError:  # also an all-zero result
        raise InvalidInputError("a public key of X25519 is invalid") from None


def public_key(secret: bytes) -> bytes:
    """Return the public key of an X25519 secret."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.from_private_bytes(secret).public_key()
    return key.public_bytes_raw()


def word_type(ring_bits: int) -> np.dtype[Any]:
    """Return the type of a word: little-endian, of 4 bytes or of 8."""
    if not LEAST_RING_BITS <= ring_bits <= MOST_RING_BITS:
        raise InvalidInputError(
            f"ring_bits must be {LEAST_RING_BITS} to {MOST_RING_BITS}, got {ring_bits}"
        )
    return np.dtype("<u4" if ring_bits <= 32 else "<u8")


def expand(seed: bytes, count: int, *, ring_bits: int) -> Words:
    """Return a mask: `count` uniform numbers below 2^ring_bits.

    >>> expand(bytes(32), 2, ring_bits=32).tolist()  # RFC 8439, appendix A.1
    [2917185654, 2419978656]
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    kind = word_type(ring_bits)
    # A seed serves one mask: counter and nonce start at zero.
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    words = np.frombuffer(stream.update(bytes(count * kind.itemsize)), dtype=kind)
    return reduced(words, ring_bits=ring_bits)


def reduced(words: Words, *, ring_bits: int) -> Words:
    """Return words modulo 2^ring_bits."""
    kind = word_type(ring_bits)
    if ring_bits == 8 * kind.itemsize:
        return words
    return np.asarray(words & kind.type((1 << ring_bits) - 1))


def ring(vector: NDArray[np.int64], *, ring_bits: int) -> Words:
    """Return whole numbers as words modulo 2^ring_bits."""
    kind = word_type(ring_bits)
    return reduced(vector.astype(np.uint64).astype(kind), ring_bits=ring_bits)
