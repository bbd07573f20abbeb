"""Checks of arguments: what passes, and that an error names it all on one line."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedbudget import checks
from fedbudget.errors import InvalidInputError


@pytest.mark.parametrize(
    "check, message",
    [
        (
            lambda: checks.one_of("mode", "loud", ("low", "high")),
            "mode 'loud' is not known: choose one of low, high",
        ),
        (
            lambda: checks.one_of("mode", ["low"], ("low", "high")),
            "mode ['low'] is not known: choose one of low, high",
        ),
        (
            lambda: checks.text("info", "two\nlines"),
            "info must be a printable text of at most 200 characters, "
            "got 'two\\nlines'",
        ),
        (
            lambda: checks.identity("device", "a/b"),
            "device must be 1 to 64 letters, digits, '.', '_' or '-', got 'a/b'",
        ),
        (
            lambda: checks.of_type("tau", True, int),
            "tau must be a whole number, got True",
        ),
        (
            lambda: checks.of_type("cost", "4", float, int),
            "cost must be a number, got '4'",
        ),
        (
            lambda: checks.seed_number(-1),
            "seed must be a whole number of at least 0, got -1",
        ),
        (
            lambda: checks.seed_number(2**64),
            "seed must be at most 18446744073709551615, got 18446744073709551616",
        ),
        (
            lambda: checks.number("rate", [1.0, 2.0]),
            "rate must be one number, got [1.0, 2.0]",
        ),
        (
            lambda: checks.per_device("cost", np.ones((2, 3)), 3),
            "cost has 6 values but there are 3 devices: give one number, or one per "
            "device",
        ),
    ],
)
def test_an_error_names_the_argument_its_value_and_the_limit(
    check: Callable[[], Any], message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "value",
    [np.array([["a"] * 40] * 40), "x\n" * 1000, [[1]] * 999, 10**5000],
    ids=["array", "text", "list", "number"],
)
def test_a_long_value_stays_on_one_short_line(value: object) -> None:
    for check in (checks.whole, checks.number, checks.text, checks.identity):
        with pytest.raises(InvalidInputError) as caught:
            check("size", value)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_valid_values_are_returned() -> None:
    assert checks.one_of("mode", "low", ("low", "high")) == "low"
    assert checks.text("info", "") == ""
    assert checks.identity("device", "sensor-1.a_b") == "sensor-1.a_b"
    assert checks.of_type("cost", 3, float, int) == 3
    assert checks.seed_number(np.int64(7)) == 7
    assert checks.per_device("cost", 2, 3).tolist() == [2.0, 2.0, 2.0]
