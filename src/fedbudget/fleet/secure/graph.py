"""Who shares masks with whom: everybody up to 100 devices, k neighbours above.

Bell, Bonawitz, Gascon, Lepoint and Raykova, "Secure single-server aggregation with
(poly)logarithmic overhead" (CCS 2020), section 3: a Harary graph over a random order.
The devices stand in a circle, in an order drawn from the roster's digest, and each has
the k / 2 next ones on both sides. So the cost per device grows with log n instead of n.

**What must hold**, for n devices of which c collude and d drop out, threshold T:

(a) A device's mask key and its self-mask never become known both. An honest neighbour
    reveals a share of one of them. If x of the k neighbours collude, both would need
    2 (T - x) honest neighbours of k - x: impossible if x <= 2 T - k - 1.
(b) Both can be reconstructed where needed: at least T neighbours remain.
(c) Honest devices that remain are connected by masks: otherwise the sum of a part of
    them would be seen. The circle falls apart only if k / 2 consecutive devices collude
    or drop out.

A device's neighbours are k draws without replacement from the n - 1 others. With
hypergeometric tails and a union bound over all devices, (a) fails with probability at
most n P(H(n-1, c, k) > 2T - k - 1), (b) with n P(H(n-1, d, k) > k - T), and (c) with
n B (B-1) .. (B-k/2+1) / (n (n-1) .. (n-k/2+1)), B = c + d. `neighbourhood` returns the
smallest k, with its T, for which (a) and (c) together stay below the given probability
of a privacy failure and (b) below that of a lost round. With all devices as neighbours
(a) is certain for T = (k + c) // 2 + 1 and (c) needs no luck.
"""

import hashlib
import math
from dataclasses import dataclass

from fedbudget.errors import InvalidInputError

LARGEST_COMPLETE = 100  # devices that all share masks with each other
PRIVACY_FAILURE = 2.0**-40  # as in Bell et al.
LOST_ROUND = 2.0**-30


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """The number of a device's neighbours, and of shares that give its secrets."""

    degree: int  # k
    threshold: int  # T


def complete(num_devices: int, *, colluders: int) -> Neighbourhood:
    """Return the neighbourhood in which everybody shares masks with everybody.

    >>> complete(16, colluders=2)
    Neighbourhood(degree=15, threshold=9)
    """
    degree = num_devices - 1
    threshold = (degree + colluders) // 2 + 1
    if threshold > degree:
        raise InvalidInputError(
            f"{num_devices} devices cannot tolerate {colluders} colluding ones: "
            f"{threshold} others would have to reveal a share of every device; take "
            "more devices, or lower colluders"
        )
    return Neighbourhood(degree=degree, threshold=threshold)


def neighbourhood(
    num_devices: int,
    *,
    colluders: int,
    dropouts: int = 0,
    privacy_failure: float = PRIVACY_FAILURE,
    lost_round: float = LOST_ROUND,
) -> Neighbourhood:
    """Return the smallest neighbourhood that keeps (a), (b) and (c) above.

    Raises:
        InvalidInputError: Not even all others are enough.
    """
    if num_devices <= LARGEST_COMPLETE:
        return complete(num_devices, colluders=colluders)
    for degree in range(2, num_devices - 1, 2):
        apart = log_apart(num_devices, degree, lost=colluders + dropouts)
        if apart > math.log(privacy_failure / 2):
            continue
        # (a) falls and (b) grows with the threshold: the smallest one that keeps (a).
        threshold = _least_threshold(num_devices, degree, colluders, privacy_failure)
        missing = log_tail(num_devices - 1, dropouts, degree, degree - threshold)
        if math.log(num_devices) + missing <= math.log(lost_round):
            return Neighbourhood(degree=degree, threshold=threshold)
    return complete(num_devices, colluders=colluders)


def _least_threshold(
    num_devices: int, degree: int, colluders: int, privacy_failure: float
) -> int:
    limit = math.log(privacy_failure / 2) - math.log(num_devices)
    for threshold in range(degree // 2 + 1, degree):
        tolerated = 2 * threshold - degree - 1
        if log_tail(num_devices - 1, colluders, degree, tolerated) <= limit:
            return threshold
    return degree


def log_tail(population: int, marked: int, draws: int, most: int) -> float:
    """Return log P(more than `most` of the draws are marked), hypergeometric.

    >>> round(math.exp(log_tail(10, 5, 2, 1)), 6)  # both: 5/10 * 4/9
    0.222222
    """
    logs = [
        _log_choose(marked, hits)
        + _log_choose(population - marked, draws - hits)
        - _log_choose(population, draws)
        for hits in range(max(most + 1, 0), min(draws, marked) + 1)
        if draws - hits <= population - marked
    ]
    if not logs:
        return -math.inf
    largest = max(logs)
    return min(0.0, largest + math.log(sum(math.exp(x - largest) for x in logs)))


def log_apart(num_devices: int, degree: int, *, lost: int) -> float:
    """Return log of n P(k / 2 given devices are all lost): a bound for (c)."""
    half = degree // 2
    if lost < half:
        return -math.inf
    both = _log_choose(lost, half) - _log_choose(num_devices, half)
    return math.log(num_devices) + both


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def neighbours(num_devices: int, degree: int, digest: bytes) -> list[tuple[int, ...]]:
    """Return the neighbours of each device, sorted.

    >>> neighbours(3, 2, b"")
    [(1, 2), (0, 2), (0, 1)]
    """
    if degree >= num_devices - 1:
        return [
            tuple(other for other in range(num_devices) if other != index)
            for index in range(num_devices)
        ]
    order = sorted(range(num_devices), key=lambda index: _rank(digest, index))
    around: list[set[int]] = [set() for _ in order]
    for position, index in enumerate(order):
        for step in range(1, degree // 2 + 1):
            other = order[(position + step) % num_devices]
            around[index].add(other)
            around[other].add(index)
    return [tuple(sorted(others)) for others in around]


def _rank(digest: bytes, index: int) -> bytes:
    return hashlib.sha256(b"fedbudget circle 1" + digest + index.to_bytes(4)).digest()
