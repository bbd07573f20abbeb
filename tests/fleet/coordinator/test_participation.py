"""Which devices are asked: shares by turns, pauses of late devices, refused ones."""

import numpy as np
import pytest

from fedbudget.errors import TrainingError
from fedbudget.fleet.coordinator.participation import Participation

NAMES = tuple("abcdefg")
ALL = np.ones(len(NAMES), dtype=bool)


def asked(participation: Participation, round: int, refused: str = "") -> str:
    mask = participation.asked(round, ALL, refused)
    return "".join(name for name, flag in zip(NAMES, mask, strict=True) if flag)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_every_device_has_its_turn_equally_often(share: float) -> None:
    participation = Participation(NAMES, run=bytes(16), share=share)
    rounds = 70
    counts = sum(
        participation.asked(number, ALL, ()).astype(int) for number in range(rounds)
    )
    size = int(np.ceil(share * len(NAMES)))
    assert np.sum(counts) == rounds * size
    assert np.ptp(counts) <= 1


def test_a_run_has_the_same_turns_after_a_restart_and_another_run_others() -> None:
    turns = [
        [asked(Participation(NAMES, run=run, share=0.3), number) for number in (1, 2)]
        for run in (bytes(16), bytes(16), b"another run 0000")
    ]
    assert turns[0] == turns[1] != turns[2]


def test_a_late_device_pauses_for_longer_each_time() -> None:
    participation = Participation(NAMES, run=bytes(16))
    rounds = []
    for number in range(1, 40):
        if "c" in asked(participation, number):
            rounds.append(number)
            participation.closed(number, late=["c"], answered=["a"])
    assert rounds == [1, 3, 6, 11, 20, 37]


def test_an_answer_in_time_or_a_new_connection_ends_the_pause() -> None:
    participation = Participation(NAMES, run=bytes(16))
    for _ in range(5):
        participation.closed(1, late=["c"], answered=())
    assert asked(participation, 2) == "abdefg"
    participation.returned(["c"])
    assert asked(participation, 2) == "abcdefg"
    participation.closed(2, late=(), answered=["c"])
    participation.closed(3, late=["c"], answered=())
    assert [asked(participation, number) for number in (4, 5)] == ["abdefg", "abcdefg"]


def test_somebody_is_always_asked_unless_all_are_refused() -> None:
    participation = Participation(NAMES, run=bytes(16))
    participation.closed(1, late=NAMES, answered=())
    assert asked(participation, 2) == "abcdefg"
    assert asked(participation, 2, refused="bcdefg") == "a"
    with pytest.raises(TrainingError, match="round 2 has no device to ask"):
        asked(participation, 2, refused="abcdefg")
