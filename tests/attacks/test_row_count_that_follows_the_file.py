"""Attack: watch what a device declares while its owner adds or removes a row.

The guarantee is for replacing a row; the number of rows is public because it does not
change with the data. A count that follows the file would tell of every row that was
added or removed. So it is fixed at the first start, or by the owner.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.process import Device
from tests.fleet.devices import Site, new_site, rows

NEW_RUN = bytes(16)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = new_site(tmp_path)
    yield site
    site.guard.close()


def write(site: Site, count: int) -> None:
    x, y = rows(count)
    np.savez(site.folder / "rows.npz", x=x, y=y)


def test_an_added_row_does_not_show(site: Site) -> None:
    before = site.guard.declaration.to_bytes()
    write(site, 101)
    assert site.guard.refresh()
    assert site.guard.declaration.to_bytes() == before
    site.restart()
    assert site.guard.declaration.to_bytes() == before


def test_no_message_is_published_for_an_added_row(site: Site) -> None:
    site.guard.close()
    device = Device(site.policy)
    hello = device.hello()
    write(site, 101)
    assert device.refresh() == []
    assert device.hello() == hello
    device.close()


def test_an_offer_cannot_ask_for_a_row_beyond_the_declared_ones(site: Site) -> None:
    before = site.offer(run=NEW_RUN, num_samples=101, batch_size=101)
    write(site, 101)
    site.guard.refresh()
    after = site.offer(run=NEW_RUN, num_samples=101, batch_size=101)
    assert before.to_bytes() == after.to_bytes()
    assert (after.code, after.reason) == (
        "policy",
        "num_samples 101 is above the limit 100",
    )


def test_a_removed_row_does_not_show_while_the_device_runs(site: Site) -> None:
    before = site.guard.declaration.to_bytes()
    write(site, 99)
    says = r"99 rows, fewer than the 100 .* set public.num_samples .* to 99 or less"
    with pytest.raises(InvalidInputError, match=says):
        site.guard.refresh()
    assert site.guard.declaration.to_bytes() == before
    assert site.offer().code == "accepted"  # from the rows that were read before
    assert site.order().code == "answered"


def test_a_device_with_too_few_rows_does_not_start_and_forgets_nothing(
    site: Site,
) -> None:
    site.guard.close()
    write(site, 99)
    for _ in range(2):  # a failed start leaves the ledger as it was
        with pytest.raises(InvalidInputError, match="99 rows, fewer than the 100"):
            Guard(site.policy)
    write(site, 100)
    site.restart()
    assert site.guard.declaration.num_samples == 100


def test_the_owner_decides_how_many_rows_are_public(site: Site) -> None:
    write(site, 130)
    site.declare(120)
    assert site.guard.declaration.num_samples == 120
    many = {"num_samples": 120, "batch_size": 120}
    assert site.offer(run=NEW_RUN, **many).code == "accepted"
    site.declare(90)
    assert site.guard.declaration.num_samples == 90
    assert site.order(run=NEW_RUN).code == "policy"  # more rows than are now public
    with pytest.raises(InvalidInputError, match="130 rows, fewer than the 131"):
        site.declare(131)
