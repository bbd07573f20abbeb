"""The spending in the tables of a fleet."""

import numpy as np
import pytest

from fedbudget.cli.views.fleet import _devices, live_table, spent
from fedbudget.privacy import rounded_up


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([3.99949, 3.99949], "4"),  # rounded up
        ([1.23401, 3.99949], "1.235 to 4"),
        ([1.0, np.inf], "without bound"),
    ],
)
def test_epsilon_is_never_shown_too_low(values: list[float], shown: str) -> None:
    assert spent(np.array(values), rounded_up) == shown


def test_one_is_not_many() -> None:
    assert _devices([1, 1]) == "1 device"
    assert (_devices([2, 2]), _devices([0, 1])) == ("2 devices", "0 to 1 devices")


def test_costs_are_plain() -> None:
    assert spent(np.array([936.0, 1000.04])) == "936 to 1000"


def test_the_phase_of_a_secure_sum_is_shown() -> None:
    status = {"rounds": 6, "rounds_closed": 2, "phase": "uploads"}
    (head, *_) = live_table(status, None, ()).renderables
    assert str(head) == "round 2 of 6; secure sum: waiting for uploads"
