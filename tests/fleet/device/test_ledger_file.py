"""The ledger on disk: append-only, tamper-evident, within budget, on full disks."""

import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fedbudget.errors import LedgerError
from fedbudget.fleet.device import statement as statement_module
from fedbudget.fleet.device.hash_chain import Anchor, Entry, anchor_path, open_to_read
from fedbudget.fleet.device.ledger_file import JoinedRun, LedgerFile, StoredAnswer
from fedbudget.fleet.device.policy import BudgetPolicy
from fedbudget.fleet.device.statement import read_statement
from fedbudget.ledger import Charge
from fedbudget.privacy import GDP, epsilon_from_mu
from tests.fleet.devices import SIGNER, Site, new_site
from tests.fleet.examples import RUN, offer, order

JOINED = JoinedRun(offer=offer(rounds=100).to_bytes(), key="k", fingerprint="f")


def policy(**changes: Any) -> BudgetPolicy:
    defaults: dict[str, Any] = {
        "epsilon": 4.0,
        "delta": 1e-4,
        "cost": 1000.0,
        "accountant": "gdp",
    }
    return BudgetPolicy(**(defaults | changes))


def opened(folder: Path, **changes: Any) -> LedgerFile:
    return LedgerFile(folder / "ledger.sqlite", policy(**changes), lineage="roof")


def charge(multiplier: float = 40.0, steps: int = 10, cost: float = 100.0) -> Charge:
    return Charge(steps=steps, noise_multiplier=multiplier, cost=cost)


def filled(folder: Path) -> Path:
    """Write a ledger of four charges, two of them answered; return its path."""
    ledger = opened(folder)
    ledger.note_data(100, "f", continues="first")
    ledger.join(RUN, JOINED)
    for number in range(1, 5):
        assert ledger.charge(RUN, number, charge()) is None
        if number % 2:
            answer = StoredAnswer(number, b"answer %d" % number)
            ledger.store_answer(RUN, answer)
    ledger.close()
    return folder / "ledger.sqlite"


def test_a_statement_adds_up_what_was_charged(tmp_path: Path) -> None:
    statement = read_statement(filled(tmp_path))
    # By hand: mu^2 = 4 * 40 steps / 40^2 = 0.1, rho = mu^2 / 2.
    assert statement.mu == pytest.approx(np.sqrt(0.1))
    assert statement.rho == pytest.approx(0.05)
    assert statement.epsilon == pytest.approx(
        float(epsilon_from_mu(statement.mu, 1e-4))
    )
    assert (statement.cost, statement.cost_budget) == (400.0, 1000.0)
    assert (statement.lineage, statement.rows) == ("roof", 100)
    (run,) = statement.runs
    assert (run.name, run.rounds, run.charged, run.answered) == ("alarms", 100, 4, 2)
    assert (run.steps, run.cost) == (40, 400.0)
    assert run.mu == pytest.approx(statement.mu)


def test_spending_is_read_again_after_a_restart(tmp_path: Path) -> None:
    path = filled(tmp_path)
    ledger = opened(tmp_path)
    assert float(ledger.spent.cost[0]) == 400.0
    assert float(ledger.spent.epsilon[0]) == read_statement(path).epsilon
    assert ledger.run(RUN) == JOINED
    assert (ledger.last_round(RUN), ledger.data) == (4, (100, "f"))
    assert ledger.answer(RUN, 3) == b"answer 3"
    assert ledger.answer(RUN, 1) is None  # only the last answer is stored
    with pytest.raises(LedgerError, match="must be after the last"):
        ledger.charge(RUN, 4, charge())
    ledger.close()


def test_the_zcdp_accountant_decides_by_its_own_conversion(tmp_path: Path) -> None:
    paid = {}
    for name in ("gdp", "zcdp"):
        (tmp_path / name).mkdir()
        ledger = opened(tmp_path / name, accountant=name, cost=1e9)
        ledger.join(RUN, JOINED)
        paid[name] = 0
        while ledger.charge(RUN, paid[name] + 1, charge(multiplier=20.0)) is None:
            paid[name] += 1
        ledger.close()
        assert read_statement(tmp_path / name / "ledger.sqlite").epsilon <= 4.0
    assert 0 < paid["zcdp"] < paid["gdp"]


@given(
    data=st.lists(
        st.tuples(
            st.floats(0.5, 200), st.integers(1, 60), st.floats(0, 400), st.booleans()
        ),
        min_size=1,
        max_size=12,
    ),
    epsilon=st.floats(0.1, 8),
    cost=st.floats(1, 1500),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sum_never_exceeds_the_budget(
    tmp_path: Path,
    data: list[tuple[float, int, float, bool]],
    epsilon: float,
    cost: float,
) -> None:
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir()
    limits = {"epsilon": epsilon, "cost": cost}
    ledger = opened(folder, **limits)
    ledger.join(RUN, JOINED)
    most_mu_squared = float(GDP.mu_from_epsilon(epsilon, 1e-4)) ** 2
    mu_squared = spent = 0.0
    for number, (multiplier, steps, price, restarts) in enumerate(data, 1):
        refused = ledger.charge(RUN, number, charge(multiplier, steps, price))
        added = 4 * steps / multiplier**2
        if refused is None:
            mu_squared, spent = mu_squared + added, spent + price
        elif refused == "cost-budget":
            assert spent + price > cost * (1 - 1e-9)
        else:
            assert mu_squared + added > most_mu_squared * (1 - 1e-9)
        if restarts:
            ledger.close()
            ledger = opened(folder, **limits)
    ledger.close()
    statement = read_statement(folder / "ledger.sqlite")
    assert statement.cost == pytest.approx(spent)
    assert statement.mu**2 == pytest.approx(mu_squared)
    assert statement.cost <= cost * (1 + 1e-9)
    assert statement.mu**2 <= most_mu_squared * (1 + 1e-9)


def tampered(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path)
    database.execute("DROP TRIGGER never_change")
    database.execute("DROP TRIGGER never_remove")
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


TAMPERING = {
    "a cost is edited": "UPDATE entries SET body = replace(body, '100.0', '1.0') "
    "WHERE number = 7",
    "a round is edited": "UPDATE entries SET round = 9 WHERE number = 5",
    "an entry is removed": "DELETE FROM entries WHERE number = 6",
    "the last entry is removed": "DELETE FROM entries WHERE number = 10",
    "the last five are removed": "DELETE FROM entries WHERE number > 5",
    "all are removed": "DELETE FROM entries",
    "two are swapped": "UPDATE entries SET number = CASE number WHEN 5 THEN -7 "
    "WHEN 7 THEN -5 END WHERE number IN (5, 7)",
    "one is added": "INSERT INTO entries SELECT 11, kind, run, 99, body, digest "
    "FROM entries WHERE number = 10",
    "the digest is edited": "UPDATE entries SET digest = zeroblob(32) WHERE number = 3",
}


@pytest.mark.parametrize("statement", TAMPERING.values(), ids=TAMPERING)
def test_tampering_is_detected(tmp_path: Path, statement: str) -> None:
    path = filled(tmp_path)
    assert read_statement(path).entries == 10
    again = ["UPDATE entries SET number = -number WHERE number < 0"]
    tampered(path, statement, *(again if "CASE" in statement else []))
    with pytest.raises(LedgerError, match=r"tampered|once had"):
        read_statement(path)
    with pytest.raises(LedgerError, match=r"tampered|once had"):
        opened(tmp_path)


def test_an_old_copy_is_detected(tmp_path: Path) -> None:
    path = filled(tmp_path)
    copy = tmp_path / "copy"
    shutil.copy(path, copy)
    ledger = opened(tmp_path)
    ledger.charge(RUN, 5, charge())
    ledger.close()
    shutil.copy(copy, path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with pytest.raises(LedgerError, match="has 10 entries, but once had 11"):
        opened(tmp_path)


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"?")])
def test_a_ledger_without_its_head_file_is_refused(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = filled(tmp_path)
    change(anchor_path(path))
    with pytest.raises(LedgerError, match=r"\.head file is missing or damaged"):
        read_statement(path)
    with pytest.raises(LedgerError, match=r"\.head file is missing or damaged"):
        opened(tmp_path)


def test_a_removed_ledger_is_not_a_new_budget(tmp_path: Path) -> None:
    path = filled(tmp_path)
    path.unlink()
    with pytest.raises(LedgerError, match="has 0 entries, but once had 10"):
        opened(tmp_path)


def test_entries_cannot_be_changed_by_mistake(tmp_path: Path) -> None:
    database = sqlite3.connect(filled(tmp_path))
    for statement in ("UPDATE entries SET round = 1", "DELETE FROM entries"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
    database.close()


def test_a_tampered_answer_is_not_sent(tmp_path: Path) -> None:
    path = filled(tmp_path)
    database = sqlite3.connect(path)
    database.execute("UPDATE answers SET reply = x'00'")
    database.commit()
    database.close()
    ledger = opened(tmp_path)
    with pytest.raises(LedgerError, match="does not match its digest"):
        ledger.answer(RUN, 3)
    ledger.close()


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with pytest.raises(LedgerError, match="does not exist"):
        read_statement(path)
    path.write_bytes(b"not a database" * 500)
    with pytest.raises(LedgerError):
        read_statement(path)
    with pytest.raises(LedgerError):
        opened(tmp_path)


def test_every_commit_is_forced_to_disk(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    assert ledger._database is not None
    query = ledger._database.execute
    assert query("PRAGMA journal_mode").fetchone() == ("wal",)
    assert query("PRAGMA synchronous").fetchone() == (2,)  # FULL
    ledger.close()


@pytest.fixture
def no_space() -> Iterator[Callable[[Path], None]]:
    """Let no file of this process grow beyond what the ledger's files have."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(folder: Path) -> None:
        largest = max(file.stat().st_size for file in folder.glob("ledger.sqlite*"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_refuses_and_never_answers_uncharged(
    tmp_path: Path, no_space: Callable[[Path], None]
) -> None:
    site = new_site(tmp_path, epsilon=100.0, cost=1e9)
    site.offer(rounds=60)
    no_space(tmp_path)
    check_full_disk(site)
    hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
    check_space_again(site)


def check_full_disk(site: Site) -> None:
    codes = [site.order(round=number).code for number in range(1, 31)]
    trouble = codes.count("device-trouble")
    # A little space may become free when the ledger's files are opened again.
    assert trouble > 5 and set(codes) <= {"answered", "device-trouble"}
    statement = read_statement(site.policy.ledger)
    assert sum(run.charged for run in statement.runs) >= codes.count("answered")
    assert sum(run.answered for run in statement.runs) == codes.count("answered")


def check_space_again(site: Site) -> None:
    """With space again, the device continues, and no charge is lost."""
    before = read_statement(site.policy.ledger).cost
    assert site.order(round=50).code == "answered"
    assert site.spent[1] == before + 105.0
    site.guard.close()


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount a small disk")
    try:
        site = new_site(disk, epsilon=100.0, cost=1e9)
        site.offer(rounds=60)
        filler = disk / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError:
            pass
        check_full_disk(site)
        filler.unlink()
        check_space_again(site)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_answer_that_cannot_be_stored_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = new_site(tmp_path)
    site.offer()

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "store_answer", lambda *a: _raise_inside(a[0], fail))
        assert site.order().code == "device-trouble"
    assert site.order().code == "already-charged"
    assert site.spent[1] == 105.0
    assert site.guard.answer_order(SIGNER.sign(order(round=2)))[0].code == "answered"
    site.guard.close()


def _raise_inside(ledger: Any, fail: Callable[[], None]) -> None:
    with ledger._open():
        fail()


def test_a_statement_read_while_the_guard_writes_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path)
    ledger = opened(tmp_path)

    def charge_and_open(path: Path) -> sqlite3.Connection:
        assert ledger.charge(RUN, 5, charge()) is None
        return open_to_read(path)

    monkeypatch.setattr(statement_module, "open_to_read", charge_and_open)
    assert read_statement(path).runs[0].charged == 5
    ledger.close()


def test_only_the_owner_may_read_the_files_of_the_ledger(
    tmp_path: Path,
) -> None:
    before = os.umask(0o022)
    try:
        ledger = opened(tmp_path)
    finally:
        os.umask(before)
    rights = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert "ledger.sqlite-wal" in rights
    assert set(rights.values()) == {0o600}
    ledger.close()


def test_power_cuts_at_the_first_starts_do_not_lock_the_owner_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Anchor.write
    for first_lost in (1, 2):  # the entry is on disk, its anchor is not

        def write(anchor: Anchor, head: Entry, first_lost: int = first_lost) -> None:
            if head.number >= first_lost:
                raise KeyboardInterrupt
            real(anchor, head)

        with monkeypatch.context() as power:
            power.setattr(Anchor, "write", write)
            with pytest.raises(KeyboardInterrupt):
                opened(tmp_path)
    ledger = opened(tmp_path)
    ledger.join(RUN, JOINED)
    assert ledger.charge(RUN, 1, charge()) is None
    ledger.close()
