"""Attack: spend a budget for a whole device with queries that protect one row.

With `unit = "device"` an owner's epsilon is for all rows together. A run of open
uploads, an evaluation or a new period would be charged for one row of many.
"""

from pathlib import Path

import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.renewal import start_period
from tests.fleet.devices import new_site

SUMS = """
[sums]
least_answers = 4
unit = "device"
peers = "ca.pem"
certificate = "c.pem"
key = "c.key"
"""


def test_open_runs_are_refused(tmp_path: Path) -> None:
    site = new_site(tmp_path)
    path = tmp_path / "policy.toml"
    path.write_text(path.read_text() + SUMS)
    site.restart()
    reply = site.offer()
    assert reply.code == "policy" and "unit 'device'" in str(reply.reason)
    assert site.spent == (0.0, 0.0)
    site.guard.close()


@pytest.mark.parametrize(
    "table",
    ["[evaluation]\nepsilon = 0.5\nnum_samples = 10\n", "[renewal]\nrows = 40\n"],
)
def test_evaluations_and_periods_are_refused(tmp_path: Path, table: str) -> None:
    new_site(tmp_path).guard.close()
    path = tmp_path / "policy.toml"
    path.write_text(path.read_text() + SUMS + table)
    with pytest.raises(InvalidInputError, match="counts single rows"):
        read_policy(path)


def test_an_owner_starts_no_period(tmp_path: Path) -> None:
    new_site(tmp_path).guard.close()
    path = tmp_path / "policy.toml"
    path.write_text(path.read_text() + SUMS)
    with pytest.raises(InvalidInputError, match="one budget for all its rows"):
        start_period(read_policy(path))


def test_charges_for_single_rows_are_no_charges_for_the_device(tmp_path: Path) -> None:
    site = new_site(tmp_path)
    site.offer()
    assert site.order().code == "answered"
    spent = site.spent
    site.guard.close()
    path = tmp_path / "policy.toml"
    open_runs = path.read_text()
    path.write_text(open_runs + SUMS)
    with pytest.raises(InvalidInputError, match="was charged for single rows"):
        site.restart()
    path.write_text(open_runs)
    site.restart()
    assert site.spent == spent
    site.guard.close()
