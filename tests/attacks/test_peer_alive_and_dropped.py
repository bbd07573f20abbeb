"""Attack: tell some devices that a peer answered, and others that it dropped out.

Each of them reveals one share, and the server has both kinds. So a device signs one
list of answers per attempt, and reveals only for a list that a quorum has signed: no
two lists can have one, unless more devices collude than was assumed.
"""

import itertools

from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import AttemptConfirmation, RevealedShares
from tests.fleet.sums import Hostile

LISTS = [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4]


def test_no_two_lists_get_a_quorum(hostile: Hostile) -> None:
    keys, _ = hostile.up_to_uploads()
    # The one that is said to have dropped out signs no list without itself.
    last = hostile.order("device-5", hostile.answers(LISTS[1]))
    assert last is None
    names = hostile.fleet.names[:5]
    signed: list[dict[int, bytes]] = [{}, {}]
    for m, name in enumerate(names):  # half of the devices are told each
        reply = hostile.order(name, hostile.answers(LISTS[m % 2]))
        assert isinstance(reply, AttemptConfirmation)
        signed[m % 2][m] = reply.signature
        other = hostile.order(name, hostile.answers(LISTS[1 - m % 2]))
        assert isinstance(other, Reply) and "another list" in str(other.reason)
    quorum = hostile.peers.quorum
    assert all(len(signatures) < quorum for signatures in signed)
    together = signed[0] | signed[1]
    for name, signatures in itertools.product(names, [*signed, together]):
        reply = hostile.order(name, hostile.reveal(name, keys, signatures))
        assert isinstance(reply, Reply) and "have signed this list" in str(reply.reason)
        assert hostile.fleet.entries(name, "reveal") == []
    assert not any(isinstance(message, RevealedShares) for message in hostile.sent)


def test_a_peer_listed_twice_is_refused(hostile: Hostile) -> None:
    hostile.up_to_uploads()
    for indices in ([0, 1, 2, 3, 3], [0, 1, 2, 3, 2], [5, 0, 1, 2]):
        reply = hostile.order("device-1", hostile.answers(indices))
        assert not isinstance(reply, AttemptConfirmation)


def test_a_signature_survives_a_restart(hostile: Hostile) -> None:
    """A device that is killed after it signed does not sign another list."""
    hostile.up_to_uploads()
    first = hostile.order("device-2", hostile.answers(LISTS[0]))
    hostile.fleet.restart("device-2")
    reply = hostile.order("device-2", hostile.answers(LISTS[1]))
    assert isinstance(reply, Reply) and reply.refused
    assert hostile.order("device-2", hostile.answers(LISTS[0])) == first
