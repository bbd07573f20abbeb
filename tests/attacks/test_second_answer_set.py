"""Attack: a second set of answers for a round, to subtract one sum from the other.

Two sums of the same noisy vectors that differ in one device are that device's upload. A
round may be tried again under fresh masks, but a device that has revealed shares of it
sends nothing more in that round; so at most one attempt can be unmasked.
"""

from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import (
    AttemptConfirmation,
    AttemptUpload,
    RevealedShares,
)
from tests.fleet.sums import Hostile

EVERYBODY = [0, 1, 2, 3, 4, 5]


def test_after_a_reveal_the_round_is_over(hostile: Hostile) -> None:
    names = hostile.fleet.names
    keys, uploads = hostile.up_to_uploads()
    assert all(isinstance(upload, AttemptUpload) for upload in uploads.values())
    signatures = hostile.confirmed(EVERYBODY)
    for name in names:
        reply = hostile.order(name, hostile.reveal(name, keys, signatures))
        assert isinstance(reply, RevealedShares)
    for name in names:
        reply = hostile.order(name, hostile.attempt(attempt=2))
        assert isinstance(reply, Reply) and "were revealed" in str(reply.reason)


def test_a_prepared_second_attempt_ends_with_the_reveal_of_the_first(
    hostile: Hostile,
) -> None:
    """Keys for attempt 2 are drawn before shares of attempt 1 are requested."""
    names = hostile.fleet.names
    keys, _ = hostile.up_to_uploads()
    second = hostile.keys(names, attempt=2)
    signatures = hostile.confirmed(EVERYBODY)
    for name in names:
        hostile.order(name, hostile.reveal(name, keys, signatures))
    roster = hostile.roster(second, attempt=2)
    for name in names:
        reply = hostile.order(name, roster)
        assert not isinstance(reply, AttemptUpload)


def test_with_uploads_of_two_attempts_only_the_last_can_be_confirmed(
    hostile: Hostile,
) -> None:
    _, first = hostile.up_to_uploads()
    _, second = hostile.up_to_uploads(attempt=2)
    assert all(isinstance(upload, AttemptUpload) for upload in second.values())
    # The same vectors under fresh masks: nothing can be subtracted.
    assert all(first[n].vector != second[n].vector for n in hostile.fleet.names)
    assert hostile.confirmed(EVERYBODY, attempt=1) == {}
    assert len(hostile.confirmed(EVERYBODY, attempt=2)) == 6
    charges = [hostile.fleet.entries(n, "charge") for n in hostile.fleet.names]
    assert all(len(entries) == 1 for entries in charges)
    assert isinstance(
        hostile.order("device-0", hostile.answers(EVERYBODY, attempt=2)),
        AttemptConfirmation,
    )
