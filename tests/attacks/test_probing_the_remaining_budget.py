"""Attack: a trusted coordinator probes for the remaining budget with free refusals.

It offers runs of decreasing cost. Each one that would overdraw the budget is refused
without a charge, so a thousand of them tell what remains to 1%. What remains must stay
private: after a few such runs, everything is refused whatever it costs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbudget.errors import LedgerError
from fedbudget.fleet.device.guard import MOST_OVERDRAFTS, Guard
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.statement import clear_overdrafts, read_statement
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.signing import Signer
from tests.cli.running import run as run_command
from tests.fleet.devices import SIGNER, Site, new_site
from tests.fleet.examples import offer, order

BUDGETS = ("privacy-budget", "cost-budget")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = new_site(tmp_path, cost=1e6)
    yield site
    site.guard.close()


def probe(site: Site, number: int, noise_std: float, **changes: Any) -> list[Reply]:
    """Offer a run of 50 steps with this noise, and order its first round."""
    run = number.to_bytes(16, "big")
    rounds = {"tau": 50, "rounds": 100, "noise_std": noise_std} | changes
    signer = rounds.pop("signer", SIGNER)
    offered = site.guard.answer_offer(signer.sign(offer(run=run, **rounds)))
    return offered + site.guard.answer_order(signer.sign(order(run=run)))


def overdraw(site: Site, number: int, **changes: Any) -> str:
    """Probe with the least noise that the policy allows, which exceeds epsilon 4."""
    return probe(site, number, 0.05, **changes)[-1].code


def test_many_probes_tell_no_more_than_three(tmp_path: Path) -> None:
    transcripts = []
    for name, spent in (("fresh", 0), ("used", 2)):
        site = new_site(tmp_path / name, cost=1e6)
        site.offer()
        for number in range(1, spent + 1):
            assert site.order(round=number).code == "answered"
        replies = [probe(site, n, 0.05 * 1.01**n) for n in range(1, 301)]
        transcripts.append([[r.code for r in each] for each in replies])
        site.guard.close()
    fresh, used = transcripts
    assert fresh == used  # what remains differs by a third
    told = [codes for codes in fresh if codes[-1] in BUDGETS]
    assert len(told) == MOST_OVERDRAFTS
    assert all(codes == ["policy"] for codes in fresh[MOST_OVERDRAFTS:])


def test_the_refusal_does_not_depend_on_the_cost(site: Site) -> None:
    site.offer()
    for number in range(1, MOST_OVERDRAFTS + 1):
        assert overdraw(site, number) == "privacy-budget"
    cheap = probe(site, 90, 1e3)[0]
    dear = probe(site, 91, 0.05)[0]
    assert (cheap.code, cheap.reason) == (dear.code, dear.reason)
    assert cheap.code == "policy" and "ask the owner" in str(cheap.reason)
    joined = site.order()  # of a run that was joined before
    assert (joined.code, joined.reason) == (cheap.code, cheap.reason)


def test_a_run_counts_once_however_often_it_is_ordered(site: Site) -> None:
    first = probe(site, 1, 0.05)[-1]
    for _ in range(20):
        assert probe(site, 1, 0.05)[-1].to_bytes() == first.to_bytes()
    assert read_statement(site.policy.ledger).overdrafts == {SIGNER.public_key: 1}
    assert probe(site, 2, 1e3)[-1].code == "answered"


def test_an_answer_is_still_sent_again(site: Site) -> None:
    site.offer()
    first = site.order()
    for number in range(1, MOST_OVERDRAFTS + 1):
        overdraw(site, number)
    assert site.order().to_bytes() == first.to_bytes()


def test_restarts_forget_nothing(site: Site) -> None:
    for number in range(1, MOST_OVERDRAFTS + 1):
        assert overdraw(site, number) == "privacy-budget"
        site.restart()
    assert overdraw(site, 9) == probe(site, 10, 1e3)[-1].code == "policy"


def test_nothing_is_told_that_is_not_on_disk(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "note_overdraft", full)
        assert overdraw(site, 1) == "device-trouble"
    assert read_statement(site.policy.ledger).overdrafts == {}
    assert overdraw(site, 1) == "privacy-budget"


def test_another_coordinator_is_not_blocked(site: Site) -> None:
    other = Signer.generate()
    path = site.folder / "policy.toml"
    text = path.read_text().replace(
        f'["{SIGNER.public_key}"]', f'["{SIGNER.public_key}", "{other.public_key}"]'
    )
    path.write_text(text)
    site.restart()
    for number in range(1, MOST_OVERDRAFTS + 1):
        overdraw(site, number)
    assert probe(site, 8, 1e3)[-1].code == "policy"
    assert probe(site, 9, 1e3, signer=other)[-1].code == "answered"


def test_the_owner_clears_it(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(site.policy.ledger)
    for number in range(1, MOST_OVERDRAFTS + 1):
        overdraw(site, number)
    shown = run_command(capsys, "ledger", "show", path)
    assert "3 runs of ed25519:" in shown.words and "blocked" in shown.words
    with pytest.raises(LedgerError, match="in use by another process: stop it first"):
        clear_overdrafts(path)
    site.guard.close()
    cleared = run_command(capsys, "ledger", "clear", path)
    assert cleared.words.startswith("cleared: 3 runs")
    site.guard = Guard(site.policy)
    assert probe(site, 9, 1e3)[-1].code == "answered"
    assert overdraw(site, 1) == "privacy-budget"  # counted from the beginning again
    assert "intact" in run_command(capsys, "ledger", "verify", path).words


def test_a_changed_budget_clears_it_too(site: Site) -> None:
    for number in range(1, MOST_OVERDRAFTS + 1):
        overdraw(site, number)
    path = site.folder / "policy.toml"
    path.write_text(path.read_text().replace("epsilon = 4.0", "epsilon = 90.0"))
    site.restart()
    assert read_policy(path).budget.epsilon == 90
    assert overdraw(site, 1) == "answered"
