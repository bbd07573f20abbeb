"""Attack: a row is used in two periods, and so spends two budgets.

A budget renews for new rows. An owner, or a program that writes the data file, inserts
or deletes rows before others, so that rows which have spent their budget get the
positions of new ones; or a coordinator asks an old run for rows of another period. One
row would then be charged twice, each time against a full budget.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

from fedbudget.errors import InvalidInputError, LedgerError
from fedbudget.fleet.device import exact_steps
from fedbudget.fleet.device.exact_noise import ExactNormals
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.ledger_file import JoinedRun, LedgerFile
from fedbudget.fleet.device.periods import RowRange
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.renewal import start_period
from fedbudget.fleet.device.statement import read_statement
from fedbudget.privacy import GDP, epsilon_from_mu, mu_from_epsilon
from tests.fleet.devices import DIM, NUM_ROWS, Site, new_site, rows
from tests.fleet.examples import RUN, offer

SECOND = bytes(16)


def write(site: Site, x: Any, y: Any) -> None:
    np.savez(site.folder / "rows.npz", x=x, y=y)


def more_rows(count: int) -> tuple[Any, Any]:
    """Return the usual rows, and others after them."""
    x, y = rows(count)
    x[:NUM_ROWS], y[:NUM_ROWS] = rows()
    return x, y


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A device whose budget renews every 100 rows, and pays for one round."""
    site = new_site(tmp_path, epsilon=0.7)
    path = tmp_path / "policy.toml"
    path.write_text(f"{path.read_text()}\n[renewal]\nrows = {NUM_ROWS}\n")
    site.restart()
    yield site
    site.guard.close()


def spend(site: Site, run: bytes = RUN) -> list[str]:
    """Order rounds of a run until one is refused; return the codes."""
    codes = [site.offer(run=run).code]
    for number in range(1, 9):
        codes.append(site.order(run=run, round=number).code)
        if codes[-1] != "answered":
            break
    return codes


def test_new_rows_have_a_budget_of_their_own(site: Site) -> None:
    first = spend(site)
    assert first[-2:] == ["answered", "privacy-budget"]
    assert spend(site, b"x" * 16)[-1] == "privacy-budget"
    write(site, *more_rows(2 * NUM_ROWS))
    assert site.guard.refresh()
    assert spend(site, SECOND) == first
    one, two = read_statement(site.policy.ledger).periods
    assert (one.first_row, two.first_row) == (0, NUM_ROWS)
    assert one.epsilon == two.epsilon <= 0.7
    # The old run stays with the old rows, whose budget is spent.
    assert site.order(round=9).code == "wrong-round"
    assert spend(site, b"y" * 16)[-1] == "privacy-budget"


def test_three_witnesses_of_what_a_row_spends(site: Site) -> None:
    for run, count in ((RUN, NUM_ROWS), (SECOND, 2 * NUM_ROWS)):
        write(site, *more_rows(count))
        site.guard.refresh()
        site.offer(run=run, noise_std=0.5)
        for number in (1, 2):
            assert site.order(run=run, round=number).code == "answered"
    statement = read_statement(site.policy.ledger)
    # By hand: 2 rounds of 5 steps; the noise is 0.5 * 100 shares of one sample.
    mu = np.sqrt(4 * 10 / 50**2)
    assert [p.mu for p in statement.periods] == pytest.approx([mu, mu])
    # By its inverse: the noise for this epsilon and 10 steps is that of the offer.
    multiplier = GDP.noise_multiplier(epsilon=statement.epsilon, delta=1e-4, steps=10)
    assert float(multiplier) == pytest.approx(50, rel=1e-6)
    assert float(mu_from_epsilon(statement.epsilon, 1e-4)) == pytest.approx(mu)
    # By a library: ten Gaussian steps on the rows of one period, replaced by another.
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(25.0), 10)
    theirs = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-4)
    assert statement.epsilon == pytest.approx(theirs, rel=1e-3)
    assert statement.epsilon == pytest.approx(float(epsilon_from_mu(mu, 1e-4)))


def seeded_words(seed: int) -> Callable[[int], Any]:
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(2**64, size=count, dtype=np.uint64)


def returned(normals: ExactNormals, *_: Any) -> ExactNormals:
    return normals


def test_answers_of_a_period_do_not_depend_on_rows_of_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same noise, replacing a row of period 1 changes no bit of period 2."""
    x, y = more_rows(2 * NUM_ROWS)
    answers = []
    for flip in (False, True):
        normals = ExactNormals(seeded_words(1))
        monkeypatch.setattr(exact_steps, "ExactNormals", partial(returned, normals))
        changed = x.copy()
        changed[7] = -x[7] if flip else x[7]
        other = new_site(site.folder / str(flip), epsilon=0.7)
        path = other.folder / "policy.toml"
        path.write_text(f"{path.read_text()}\n[renewal]\nrows = {NUM_ROWS}\n")
        write(other, changed, y)
        other.restart()
        other.offer(run=SECOND)
        answers.append(other.order(run=SECOND).theta)
        assert len(read_statement(other.policy.ledger).periods) == 2
        other.guard.close()
    assert answers[0] == answers[1] is not None


@pytest.mark.parametrize("shift", [1, 50])
def test_rows_inserted_before_used_ones_renew_nothing(site: Site, shift: int) -> None:
    """The last used rows would get positions after the first period."""
    spend(site)
    x, y = more_rows(2 * NUM_ROWS)
    write(site, np.roll(x, shift, axis=0), np.roll(y, shift))
    site.restart()  # it starts: the data set has changed, and has one budget
    assert len(read_statement(site.policy.ledger).periods) == 1
    assert spend(site, SECOND)[-1] == "privacy-budget"


@pytest.mark.parametrize("move", ["insert", "delete", "edit", "shorten"])
def test_rows_that_move_after_a_renewal_are_not_used(site: Site, move: str) -> None:
    x, y = more_rows(2 * NUM_ROWS)
    write(site, x, y)
    site.guard.refresh()
    assert spend(site)[-2:] == ["answered", "privacy-budget"]
    moved = {
        "insert": np.r_[150, np.arange(2 * NUM_ROWS)],
        "delete": np.arange(1, 2 * NUM_ROWS),
        "edit": np.r_[9, np.arange(1, 2 * NUM_ROWS)],
        "shorten": np.arange(NUM_ROWS - 1),
    }[move]
    write(site, x[moved], y[moved])
    with pytest.raises(InvalidInputError, match="a row might count in two periods"):
        site.guard.refresh()
    site.guard.close()
    with pytest.raises(InvalidInputError, match="restore them"):
        Guard(site.policy)
    write(site, x, y)  # restored: it works again, and nothing is renewed
    site.guard = Guard(site.policy)
    assert spend(site, SECOND)[-1] == "privacy-budget"


def ledger_of(site: Site) -> LedgerFile:
    site.guard.close()
    policy = site.policy
    return LedgerFile(policy.ledger, policy.budget, lineage=policy.data.lineage)


def test_the_ledger_refuses_rows_of_two_periods(site: Site) -> None:
    write(site, *more_rows(2 * NUM_ROWS))
    site.guard.refresh()
    ledger = ledger_of(site)
    body = offer().to_bytes()
    for period, first_row, count in (
        (1, 50, 100),
        (1, 100, 1),
        (2, 99, 2),
        (3, 200, 1),
    ):
        joined = JoinedRun(
            offer=body,
            key="k",
            fingerprint="f",
            rows=RowRange(period=period, first_row=first_row, count=count),
        )
        with pytest.raises(LedgerError, match=r"one period only|has not started"):
            ledger.join(RUN, joined)
    ledger.close()


def test_a_period_never_starts_inside_used_rows(site: Site) -> None:
    site.offer()
    ledger = ledger_of(site)
    for start in (0, 1, NUM_ROWS - 1):
        with pytest.raises(LedgerError, match="rows up to 100 were used"):
            ledger.renew(start, lambda *_: "")
    ledger.close()


def test_a_shorter_period_than_what_was_used_waits(site: Site) -> None:
    """Old runs used 100 rows; periods of 30 start after them."""
    site.offer()
    path = site.folder / "policy.toml"
    path.write_text(path.read_text().replace(f"rows = {NUM_ROWS}", "rows = 30"))
    write(site, *more_rows(129))
    site.restart()
    assert len(read_statement(site.policy.ledger).periods) == 1
    write(site, *more_rows(160))
    site.guard.refresh()
    starts = [p.first_row for p in read_statement(site.policy.ledger).periods]
    assert starts == [0, 100, 130]


def test_an_owner_starts_a_period_by_hand(tmp_path: Path) -> None:
    site = new_site(tmp_path, epsilon=0.7)
    first = spend(site)
    with pytest.raises(LedgerError, match="in use by another process"):
        start_period(site.policy)
    site.guard.close()
    assert start_period(site.policy).first_row == NUM_ROWS
    site.guard = Guard(site.policy)
    assert spend(site, SECOND)[-1] == "privacy-budget"  # no rows in the new one yet
    write(site, *more_rows(2 * NUM_ROWS))
    site.guard.refresh()
    assert spend(site, b"z" * 16) == first
    site.guard.close()


def test_raised_rows_do_not_reach_into_the_next_period(tmp_path: Path) -> None:
    """An owner raises public.num_samples while the next period has few rows."""
    site = new_site(tmp_path)
    site.offer()
    site.guard.close()
    start_period(site.policy)
    write(site, *more_rows(150))
    path = tmp_path / "policy.toml"
    path.write_text(f"{path.read_text()}\n[public]\nnum_samples = 120\n")
    with pytest.raises(InvalidInputError, match="has 100 rows, fewer than the 120"):
        Guard(read_policy(path))


def test_old_ledgers_are_of_the_first_period(site: Site) -> None:
    """A release without periods wrote neither a period nor rows with a run."""
    ledger = ledger_of(site)
    joined = JoinedRun(offer=offer().to_bytes(), key="k", fingerprint="f")
    assert joined.to_body().keys() == {"offer", "key", "fingerprint"}
    ledger.join(RUN, joined)
    ledger.close()
    ledger = ledger_of(site)
    read = ledger.run(RUN)
    assert read is not None and read.rows is None
    assert read.row_range == RowRange(period=1, first_row=0, count=offer().num_samples)
    assert ledger.used_until == offer().num_samples
    ledger.close()
    assert DIM == offer().dim
