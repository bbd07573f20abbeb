"""Attack: a device sends garbage instead of its vector.

Nobody can see which one: its upload is masked. That *a* device did is noticed, because
the norm of an honest sum has a bound. The round ends without a step, and after three
such sums in a row the run stops and names the devices that were in all of them.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedbudget.errors import TrainingError
from fedbudget.fleet.wire.secure_messages import AttemptUpload
from tests.fleet.sums import Hostile


def spoil(hostile: Hostile, culprit: str, rounds: set[int]) -> None:
    def changed(name: str, kind: str, payload: bytes) -> bool:
        if (name, kind) != (culprit, "attempt-upload"):
            return True
        message = AttemptUpload.from_bytes(hostile.reply_keys.open(name, payload))
        if message.round not in rounds:
            return True
        words = np.frombuffer(message.vector, dtype="<u4") + np.uint32(1 << 30)
        hostile.lie(name, replace(message, vector=words.tobytes()))
        return False

    hostile.fleet.loop.from_device = changed


def test_a_wrecked_sum_moves_nothing_and_the_next_one_counts(hostile: Hostile) -> None:
    spoil(hostile, "device-2", {1})
    moves: list[float] = []
    run = hostile.fleet.train()
    assert [r.answered for r in run.rounds] == [0, 6]
    moves.append(float(np.linalg.norm(run.theta)))
    assert moves[0] < 10
    assert len(hostile.fleet.entries("device-2", "charge")) == 2


def test_three_wrecked_sums_stop_the_run_and_name_those_in_all(
    hostile: Hostile,
) -> None:
    """Device 4 is missing in one of the three, and all were in a sound one."""
    spoil(hostile, "device-2", {2, 3, 4})
    spoiled = hostile.fleet.loop.from_device

    def arrives(name: str, kind: str, payload: bytes) -> bool:
        tally = hostile.fleet.coordinator.tally
        if tally and (name, kind, tally.round) == ("device-4", "attempt-upload", 3):
            return False
        return spoiled(name, kind, payload)

    hostile.fleet.loop.from_device = arrives
    others = "device-0, device-1, device-2, device-3, device-5"
    with pytest.raises(
        TrainingError,
        match=f"3 sums in a row were wrecked.*these 5 devices .*: {others}; leave them",
    ):
        hostile.fleet.train(rounds=5)


def test_devices_of_a_sound_sum_are_not_suspected(hostile: Hostile) -> None:
    """Device 2 was not in it."""
    spoil(hostile, "device-2", {2, 3, 4})
    spoiled = hostile.fleet.loop.from_device

    def arrives(name: str, kind: str, payload: bytes) -> bool:
        tally = hostile.fleet.coordinator.tally
        if tally and (name, kind, tally.round) == ("device-2", "attempt-upload", 1):
            return False
        return spoiled(name, kind, payload)

    hostile.fleet.loop.from_device = arrives
    with pytest.raises(
        TrainingError, match=r"these 1 devices .*: device-2; leave them"
    ):
        hostile.fleet.train(rounds=5)


def test_an_honest_sum_is_within_the_bound(hostile: Hostile) -> None:
    run = hostile.fleet.train(rounds=5)
    assert all(r.answered == 6 for r in run.rounds)
