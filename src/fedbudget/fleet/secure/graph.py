"""Who shares masks with whom: everybody up to 100 devices, k neighbours above.

Bell, Bonawitz, Gascon, Lepoint and Raykova, "Secure single-server aggregation with
(poly)logarithmic overhead" (CCS 2020), section 3: a Harary graph over a random order.
The devices stand in a circle, in an order drawn from the roster's digest, and each has
the k / 2 next ones on both sides. So the cost per device grows with log n instead of n.

**What must hold**, for n devices of which c collude with the server, and d drop out,
with threshold T, h = k / 2, and at least w answers in every h consecutive places:

(a) A device's mask key and its self-mask never become known both. An honest neighbour
    reveals a share of one of them. If x of the k neighbours collude, both would need
    2 (T - x) honest neighbours of k - x: impossible if x <= 2 T - k - 1.
(b) Honest devices that answered are connected by masks: otherwise the sum of a part of
    them would be seen. Two of them with fewer than h places between them share a mask;
    so it is enough that every h consecutive places have one. The server names who has
    answered, and may leave out all honest ones of a place in which many collude: hence
    devices refuse a list with fewer than w answers in any h consecutive places, and the
    claim fails only if w of h consecutive devices collude.
(c) Secrets can be reconstructed where needed: at least T neighbours remain. And at
    least w of h consecutive devices do.

A device's neighbours are k draws without replacement from the n - 1 others, h
consecutive places are h draws from n. With hypergeometric tails and union bounds over
all devices and all places

    (a) fails with a probability of at most n P(H(n-1, c, k) > 2T - k - 1),
    (b) of at most n P(H(n, c, h) >= w),
    (c) of at most n P(H(n-1, d, k) > k - T) + n P(H(n, d, h) > h - w).

`neighbourhood` returns the smallest k, with its T and w, for which (a) and (b) together
stay below the given probability of a privacy failure, and (c) below that of a lost
round. Bell et al. take 2^-40 for the first, with a server that follows the protocol.
Here it may lie. The order on the circle is drawn from the list of peers, which the
server makes, and it could try many lists: with 2^-100, 2^60 of them leave 2^-40.

With all others as neighbours (a) is certain for T = (k + c) // 2 + 1, (b) needs no
luck, and w is 0.
"""

import hashlib
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

from fedbudget.checks import number
from fedbudget.errors import InvalidInputError

LARGEST_COMPLETE = 100  # devices that all share masks with each other
PRIVACY_FAILURE = 2.0**-100  # of one list of peers; 2^-40 after 2^60 tries
LOST_ROUND = 2.0**-30  # as in Bell et al.
UNLIKELY = 2.0**-40  # more colluders than were counted with


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """The number of a device's neighbours, and of shares that give its secrets."""

    degree: int  # k
    threshold: int  # T
    least_nearby: int = 0  # w: answers in every k / 2 consecutive places


def complete(num_devices: int, *, colluders: int) -> Neighbourhood:
    """Return the neighbourhood in which everybody shares masks with everybody.

    >>> complete(16, colluders=2)
    Neighbourhood(degree=15, threshold=9, least_nearby=0)
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

    Without one, all others are neighbours.

    Raises:
        InvalidInputError: Not even all others are enough.
    """
    if num_devices <= LARGEST_COMPLETE:
        return complete(num_devices, colluders=colluders)
    log_each = math.log(privacy_failure / 2) - math.log(num_devices)
    log_lost = math.log(lost_round / 2) - math.log(num_devices)
    for degree in range(2, num_devices - 1, 2):
        size = _smallest(num_devices, degree, colluders, log_each)
        if size is None:
            continue
        most_missing = degree - size.threshold
        most_gap = degree // 2 - size.least_nearby
        missing = log_tail(num_devices - 1, dropouts, degree, most_missing)
        gap = log_tail(num_devices, dropouts, degree // 2, most_gap)
        if max(missing, gap) <= log_lost:
            return size
    return complete(num_devices, colluders=colluders)


def _smallest(
    num_devices: int, degree: int, colluders: int, most: float
) -> Neighbourhood | None:
    """Return the smallest T and w that keep (a) and (b): (c) grows with both."""
    half = degree // 2
    for threshold in range(half + 1, degree + 1):
        tolerated = 2 * threshold - degree - 1
        if log_tail(num_devices - 1, colluders, degree, tolerated) <= most:
            break
    else:
        return None
    for nearby in range(1, half + 1):
        if log_tail(num_devices, colluders, half, nearby - 1) <= most:
            return Neighbourhood(
                degree=degree, threshold=threshold, least_nearby=nearby
            )
    return None


def least_answers_for(
    num_devices: int, *, dropout: float, lost_round: float = LOST_ROUND
) -> int:
    """Return t, if each device drops out of a round with this probability.

    The largest t for which P(Binomial(n, dropout) > n - t) is at most `lost_round`.

    >>> least_answers_for(100, dropout=0.05)
    78

    Raises:
        InvalidInputError: There is none: a sum of 1 would be lost more often.
    """
    number("dropout", dropout, least=0, most=1)
    for most in range(num_devices):
        if log_binomial_tail(num_devices, dropout, most) <= math.log(lost_round):
            return num_devices - most
    raise InvalidInputError(
        f"dropout {dropout:g} loses rounds of {num_devices} devices with more than "
        f"probability {lost_round:.1g}, whatever t is: take more devices"
    )


def colluders_for(
    num_devices: int, *, collusion: float, unlikely: float = UNLIKELY
) -> int:
    """Return c, if each device is on the server's side with this probability.

    The smallest c for which P(Binomial(n, collusion) > c) is at most `unlikely`.

    >>> colluders_for(100, collusion=0.01)
    14
    """
    number("collusion", collusion, least=0, most=1)
    for most in range(num_devices):
        if log_binomial_tail(num_devices, collusion, most) <= math.log(unlikely):
            return most
    return num_devices


def log_binomial_tail(trials: int, chance: float, most: int) -> float:
    """Return log P(more than `most` of the trials succeed).

    >>> round(math.exp(log_binomial_tail(3, 0.5, 1)), 6)
    0.5
    """
    if chance in (0, 1) or most < 0:
        return 0.0 if most < chance * trials else -math.inf
    return _log_sum(
        [
            _log_choose(trials, hits)
            + hits * math.log(chance)
            + (trials - hits) * math.log1p(-chance)
            for hits in range(most + 1, trials + 1)
        ]
    )


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
    return _log_sum(logs)


def _log_sum(logs: list[float]) -> float:
    """Return the log of a sum of probabilities, from their logs."""
    if not logs:
        return -math.inf
    largest = max(logs)
    return min(0.0, largest + math.log(sum(math.exp(x - largest) for x in logs)))


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
    order = circle(num_devices, digest)
    around: list[set[int]] = [set() for _ in order]
    for position, index in enumerate(order):
        for step in range(1, degree // 2 + 1):
            other = order[(position + step) % num_devices]
            around[index].add(other)
            around[other].add(index)
    return [tuple(sorted(others)) for others in around]


def circle(num_devices: int, digest: bytes) -> list[int]:
    """Return the devices in their order on the circle."""
    return sorted(range(num_devices), key=lambda index: _rank(digest, index))


def is_spread(
    order: Sequence[int], members: Container[int], *, half: int, least: int
) -> bool:
    """Return whether every `half` consecutive places have `least` of the members.

    >>> is_spread([0, 1, 2, 3], {0, 2}, half=2, least=1)
    True
    >>> is_spread([0, 1, 2, 3], {0, 3}, half=2, least=1)
    False
    """
    here = [index in members for index in order]
    count = sum(here[:half])
    for place in range(len(here)):
        if count < least:
            return False
        count += here[(place + half) % len(here)] - here[place]
    return True


def _rank(digest: bytes, index: int) -> bytes:
    return hashlib.sha256(b"fedbudget circle 1" + digest + index.to_bytes(4)).digest()
