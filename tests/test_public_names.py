"""The public surface: every name listed, sorted, there, and documented."""

import inspect
from types import ModuleType

import pytest

import fedbudget

# The names of the design that exist so far; later ones join as they come.
PROMISED = {"Budget", "Plan", "Prices", "Problem", "from_table", "frontier", "load"}
PROMISED |= {"SimulatedDevices", "plan", "sweep", "train"}


def test_all_is_sorted_and_without_twins() -> None:
    assert fedbudget.__all__ == sorted(set(fedbudget.__all__))


def test_all_is_complete() -> None:
    public = {
        name
        for name, value in vars(fedbudget).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", "").startswith("fedbudget")
    }
    lazy = set(fedbudget._LAZY)  # not in the module until first used
    assert public | lazy | {"__version__"} == set(fedbudget.__all__)


def test_promised_names_exist() -> None:
    assert set(fedbudget.__all__) >= PROMISED


@pytest.mark.parametrize("name", fedbudget.__all__)
def test_names_are_importable_and_documented(name: str) -> None:
    value = getattr(fedbudget, name)
    if name != "__version__":
        assert inspect.getdoc(value)
