"""The secure sum: exact under every allowed pattern of dropouts, and as the vectors."""

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure import graph, protocol, reference, shamir, unmasking
from fedbudget.fleet.secure.peers import Attempt, Peers, RunKeys
from tests.fleet.secure.rounds import SecureRound, sealed_for, vectors
from tests.vectors.secure_sum import vectors_of_a_round

VECTORS = Path(__file__).parents[2] / "vectors" / "secure_sum.json"


def expected(inputs: Any, answered: list[int], ring_bits: int = 32) -> list[int]:
    total = [sum(int(inputs[m][i]) for m in answered) for i in range(inputs.shape[1])]
    return [value % (1 << ring_bits) for value in total]


def patterns(peers: Peers) -> list[tuple[list[int], list[int], list[int]]]:
    """Every allowed choice of who announces, answers and reveals."""
    everybody, least = range(len(peers.members)), peers.least_answers
    return [
        (list(announced), list(answered), list(revealed))
        for announced in subsets(everybody, least)
        for answered in subsets(announced, least)
        for revealed in subsets(answered, least)
    ]


def subsets(members: Any, least: int) -> Any:
    for size in range(least, len(members) + 1):
        yield from itertools.combinations(members, size)


@pytest.mark.parametrize("num_devices, colluders", [(4, 0), (5, 0), (5, 1), (6, 0)])
def test_the_sum_is_exact_for_every_pattern_of_dropouts(
    num_devices: int, colluders: int
) -> None:
    current = SecureRound(num_devices, colluders=colluders)
    inputs = vectors(num_devices, 3, bits=32)
    cases = patterns(current.peers)
    assert len(cases) > 1
    for announced, answered, revealed in cases:
        total = current.run(
            inputs, announced=announced, answered=answered, revealed=revealed
        )
        assert total.tolist() == expected(inputs, answered)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), ring_bits=st.sampled_from([16, 32, 40, 62]))
def test_the_sum_is_exact_for_random_patterns_and_rings(
    data: Any, ring_bits: int
) -> None:
    num_devices = data.draw(st.integers(3, 9))
    colluders = data.draw(st.integers(0, num_devices - 3))
    current = SecureRound(num_devices, colluders=colluders, ring_bits=ring_bits)
    lists = []
    members = list(range(num_devices))
    for _ in range(3):
        count = data.draw(st.integers(current.peers.least_answers, len(members)))
        members = sorted(data.draw(st.permutations(members))[:count])
        lists.append(members)
    inputs = vectors(num_devices, 5, bits=ring_bits)
    total = current.run(
        inputs, announced=lists[0], answered=lists[1], revealed=lists[2]
    )
    assert total.tolist() == expected(inputs, lists[1], ring_bits)


def test_a_circle_of_neighbours_gives_the_same_sum() -> None:
    num_devices = 120
    current = SecureRound(num_devices, colluders=2, dropouts=6)
    degree = current.peers.neighbourhood.degree
    assert degree < num_devices - 1
    inputs = vectors(num_devices, 4)
    everybody = list(range(num_devices))
    answered = [m for m in everybody if m % 40]  # three drop out after announcing
    total = current.run(
        inputs, announced=everybody[1:], answered=answered, revealed=answered[2:]
    )
    assert total.tolist() == expected(inputs, answered)


@settings(max_examples=60, deadline=None)
@given(
    last_phase=st.dictionaries(
        st.integers(0, 13), st.sampled_from([0, 1, 2]), max_size=6
    )
)
def test_on_a_circle_the_sum_is_exact_or_there_is_none(
    last_phase: dict[int, int],
) -> None:
    """For any devices that drop out, each before keys, upload or shares."""
    few = graph.Neighbourhood(degree=6, threshold=4, least_nearby=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "neighbourhood", lambda *_, **__: few)
        current, inputs = SecureRound(14), vectors(14, 3, bits=32)
        announced, answered, revealed = (
            [m for m in range(14) if last_phase.get(m, 3) > phase] for phase in range(3)
        )
        around = [set(others) for others in current.peers.neighbours]
        needed = [m for m in announced if m in answered or around[m] & set(answered)]
        lists = {"announced": announced, "answered": answered, "revealed": revealed}
        if all(len(around[m] & set(revealed)) >= few.threshold for m in needed):
            total = current.run(inputs, **lists)
            assert total.tolist() == expected(inputs, answered)
        else:
            with pytest.raises(InvalidInputError, match="right ones are needed"):
                current.run(inputs, **lists)


def test_uploads_and_sum_are_the_references() -> None:
    current = SecureRound(5)
    inputs = vectors(5, 20)
    announced = current.announce(range(5))
    roster = current.roster(announced)
    answered = [0, 2, 3, 4]
    uploads = current.upload(roster, inputs, answered)
    y, total = reference.secure_sum(
        {m: inputs[m].tolist() for m in range(5)},
        {m: shamir.to_bytes(current.secrets[m].mask_secret) for m in range(5)},
        {m: shamir.to_bytes(current.secrets[m].self_secret) for m in range(5)},
        neighbours={m: roster.neighbours(m) for m in range(5)},
        uploaded=answered,
        salt=roster.digest,
        attempt=current.attempt.to_bytes(),
    )
    assert {m: upload.tolist() for m, upload in uploads.items()} == y
    shares = current.reveal(roster, announced, answered, answered)
    ours = unmasking.unmask(roster, uploads, shares, ring_bits=32)
    assert ours.tolist() == total == expected(inputs, answered)


def test_the_published_vectors() -> None:
    """Key derivation, masks, shares and a whole round, byte by byte."""
    assert vectors_of_a_round() == json.loads(VECTORS.read_text())


def test_a_masked_upload_is_uniform_without_the_shares() -> None:
    """The same vector twice, under fresh secrets: nothing of it is left."""
    inputs = np.zeros((4, 2000), dtype=np.int64)
    uploads = []
    for label in ("first", "second"):
        current = SecureRound(4, label=label)
        roster = current.roster(current.announce(range(4)))
        uploads.append(current.upload(roster, inputs, [0])[0])
    difference = (uploads[0] - uploads[1]).astype(np.float64) / 2**32
    # Means of 2000 uniform numbers; the labels fix them.
    assert abs(difference.mean() - 0.5) < 0.03


def test_without_a_quorum_of_shares_nothing_is_unmasked() -> None:
    current = SecureRound(6, colluders=1)
    inputs = vectors(6, 2)
    threshold = current.peers.neighbourhood.threshold
    everybody = list(range(6))
    announced = current.announce(everybody)
    roster = current.roster(announced)
    uploads = current.upload(roster, inputs, everybody)
    shares = current.reveal(roster, announced, everybody, everybody[:threshold])
    with pytest.raises(InvalidInputError, match="shares of the self-mask"):
        unmasking.unmask(roster, uploads, shares, ring_bits=32)


def test_a_wrong_share_is_left_out() -> None:
    current = SecureRound(8)
    inputs = vectors(8, 2)
    everybody, answered = list(range(8)), [0, 1, 2, 3, 4, 5, 6]
    announced = current.announce(everybody)
    roster = current.roster(announced)
    uploads = current.upload(roster, inputs, answered)
    shares = current.reveal(roster, announced, answered, answered)
    shares[1] = dict.fromkeys(shares[1], bytes(32))  # well formed, and wrong
    shares[2] = shares[2] | {0: b"short"}
    total = unmasking.unmask(roster, uploads, shares, ring_bits=32)
    assert total.tolist() == expected(inputs, answered)


class Lies:
    """A round of 16 devices, of which two may lie; all but the last have answered."""

    def __init__(self, num_devices: int = 16, colluders: int = 2) -> None:
        self.round = SecureRound(num_devices, colluders=colluders)
        self.inputs = vectors(num_devices, 2)
        self.answered = list(range(num_devices - 1))
        self.announced = self.round.announce(range(num_devices))
        self.roster = self.round.roster(self.announced)

    def total(self, change: Any, revealed: list[int] | None = None) -> list[int]:
        """Return the sum, after `change` of the revealed shares."""
        uploads = self.round.upload(self.roster, self.inputs, self.answered)
        holders = self.answered if revealed is None else revealed
        shares = self.round.reveal(self.roster, self.announced, self.answered, holders)
        change(shares)
        total = unmasking.unmask(self.roster, uploads, shares, ring_bits=32)
        return total.tolist()  # type: ignore[no-any-return]

    def expected(self) -> list[int]:
        return expected(self.inputs, self.answered)


def lies(*liars: int) -> Any:
    """Replace all shares of these holders by well-formed ones that are wrong."""

    def change(shares: Any) -> None:
        for liar in liars:
            shares[liar] = dict.fromkeys(shares[liar], bytes([0, liar] * 16))

    return change


@pytest.mark.parametrize("liars", [(0, 1), (3, 7), (0, 14)])
def test_two_holders_of_wrong_shares_are_left_out_and_named(
    liars: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    current = Lies()
    assert current.total(lies(*liars)) == current.expected()
    named = ", ".join(f"'device-{m}'" for m in liars)
    assert caplog.messages == [f"{named} revealed wrong shares"]


def test_any_nine_right_shares_are_enough(caplog: pytest.LogCaptureFixture) -> None:
    """Two of eleven are wrong: more than the code corrects, and sets are tried."""
    current = Lies()
    revealed = [0, 1, 2, 3, 4, 5, 7, 8, 10, 11, 13, 14]  # of each device, at least 11
    assert current.total(lies(0, 7), revealed) == current.expected()
    assert caplog.messages == ["'device-0', 'device-7' revealed wrong shares"]


def test_ten_liars_of_a_hundred_cost_seconds() -> None:
    current = Lies(100, colluders=10)
    started = time.monotonic()
    assert current.total(lies(*range(40, 50))) == current.expected()
    assert time.monotonic() - started < 60


def test_who_was_dealt_wrong_shares_is_not_blamed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    current = Lies()

    def dealt(shares: Any) -> None:  # by device 6, to two honest holders
        for holder in (0, 1):
            shares[holder] = shares[holder] | {6: bytes(32)}

    assert current.total(dealt) == current.expected()
    assert caplog.messages == [
        "'device-0', 'device-1' revealed a wrong share of 'device-6', or was dealt it"
    ]


def test_a_lost_sum_names_who_revealed_none_or_wrong_shares() -> None:
    current = Lies()
    with pytest.raises(InvalidInputError, match=r"mask of 'device-0' .* 'device-8', .*"
                       r"'device-14' revealed none"):  # fmt: skip
        current.total(lambda _: None, list(range(8)))
    with pytest.raises(InvalidInputError, match="it has dealt wrong ones, or too many"):
        current.total(lambda shares: [shares[m].pop(6, None) and shares[m].update(
            {6: bytes(31) + bytes([m])}) for m in shares])  # fmt: skip
    with pytest.raises(InvalidInputError, match="too many devices revealed wrong ones"):
        current.total(lies(*range(8)))


@pytest.mark.parametrize("answered", [[1, 0], [0, 0, 1], [0, 7], [0]])
def test_bad_lists_of_answers_are_refused(answered: list[int]) -> None:
    current = SecureRound(4)
    roster = current.roster(current.announce(range(4)))
    protocol.check_answers_list(roster, [0, 1, 3], least=3)
    with pytest.raises(InvalidInputError, match="a list of"):
        protocol.check_answers_list(roster, answered, least=2)


def test_confirmations_count_once_and_only_for_their_list() -> None:
    current = SecureRound(5)
    roster = current.roster(current.announce(range(4)))
    lists = [0, 1, 2, 3], [0, 1, 2]
    signed = {m: current.devices[m].confirm(roster, lists[0]) for m in range(5)}
    signed_other = {m: current.devices[m].confirm(roster, lists[1]) for m in range(5)}
    quorum = current.peers.quorum
    enough = {m: signed[m] for m in range(quorum)}
    protocol.check_confirmations(roster, lists[0], enough)
    mixed = enough | {quorum - 1: signed_other[quorum - 1]}
    stranger = {m: signed[m] for m in range(quorum - 1)} | {4: signed[4]}
    copied = {m: signed[0] for m in range(4)}
    for signatures in (mixed, stranger, copied, {}, {99: signed[0]}):
        with pytest.raises(InvalidInputError, match="have signed"):
            protocol.check_confirmations(roster, lists[0], signatures)


def test_a_share_of_another_attempt_is_not_opened() -> None:
    first = SecureRound(4)
    later = SecureRound(4, attempt=Attempt(first.attempt.run, 1, 2))
    announced = first.announce(range(4))
    roster = later.roster(later.announce(range(4)))
    revealed = later.devices[0].reveal(roster, [0, 1, 2, 3], sealed_for(0, announced))
    assert revealed == {}


def test_peers_need_their_own_names_and_keys() -> None:
    keys = [RunKeys.generate() for _ in range(4)]
    members = tuple(key.member(f"device-{m}") for m, key in enumerate(keys))
    Peers(run=bytes(16), members=members, colluders=0)
    for twin in (
        replace(members[0], name="device-1"),
        replace(members[0], share_key=members[1].share_key),
    ):
        with pytest.raises(InvalidInputError, match="twice"):
            Peers(run=bytes(16), members=(twin, *members[1:]), colluders=0)
    with pytest.raises(InvalidInputError, match="take more devices"):
        Peers(run=bytes(16), members=members, colluders=3)
    peers = Peers(run=bytes(16), members=members, colluders=0)
    with pytest.raises(InvalidInputError, match="is not among"):
        peers.index("stranger")
    with pytest.raises(InvalidInputError, match="64 bytes"):
        RunKeys(b"short")
