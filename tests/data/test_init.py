import subprocess
import sys
from typing import Any

import pytest

import fedbudget.data
from fedbudget.data import load
from fedbudget.errors import InvalidInputError

HEAVY = ("scipy", "pyarrow", "pandas", "polars", "sklearn")


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedbudget.data\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_unknown_data_set_is_refused_with_the_list() -> None:
    with pytest.raises(
        InvalidInputError, match="'mnist' is not known: use adult, wisdm"
    ):
        load("mnist")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adult", {"split": "iid", "num_devices": "3"}, "num_devices .* got '3'"),
        ("adult", {"split": "iid", "num_devices": 2.5}, "num_devices .* got 2.5"),
        ("adult", {"num_devices": "16"}, "num_devices='16' does not go with"),
        ("vehicle", {"split": "iid", "num_devices": "3"}, "num_devices .* got '3'"),
        ("vehicle", {"path": 3}, "path must be a file's name, got 3"),
        ("adult", {"split": ""}, "split '' is not known"),
        ("adult", {"split": []}, r"split \[\] is not known"),
        (None, {}, "data set None is not known"),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    name: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        load(name, **options)
    assert "\n" not in str(caught.value)


def test_every_export_exists_and_is_sorted() -> None:
    assert fedbudget.data.__all__ == sorted(fedbudget.data.__all__)
    assert all(hasattr(fedbudget.data, name) for name in fedbudget.data.__all__)
