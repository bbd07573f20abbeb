import subprocess
import sys

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
    with pytest.raises(InvalidInputError, match="'mnist' is not known: use adult or"):
        load("mnist")


def test_every_export_is_there_and_sorted() -> None:
    assert fedbudget.data.__all__ == sorted(fedbudget.data.__all__)
    assert all(hasattr(fedbudget.data, name) for name in fedbudget.data.__all__)
