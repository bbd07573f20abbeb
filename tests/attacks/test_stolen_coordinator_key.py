"""Attack: a thief has a coordinator's signing key, which devices trust.

Within every policy, he can order rounds until all budgets are spent. One signed message
withdraws the key: each device records it, and obeys the key never again, whatever its
policy says. The thief must not be able to use that message against other keys.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbudget.errors import LedgerError
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.signing import Signer
from fedbudget.fleet.wire.withdrawals import Revocation, RunEnd
from tests.fleet.devices import SIGNER, Site, new_site
from tests.fleet.examples import RUN, offer, order

RECOVERY, OTHER = Signer.generate(), Signer.generate()
STOLEN = Revocation(key=SIGNER.public_key)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A device with two coordinators and an owner's recovery key."""
    site = new_site(tmp_path)
    path = tmp_path / "policy.toml"
    keys = f'["{SIGNER.public_key}", "{OTHER.public_key}"]'
    recovery = f'{keys}\nrecovery = ["{RECOVERY.public_key}"]'
    path.write_text(path.read_text().replace(f'["{SIGNER.public_key}"]', recovery))
    site.restart()
    yield site
    site.guard.close()


def obeys(site: Site, signer: Signer, number: int) -> bool:
    """Return whether a coordinator can have a round carried out."""
    run = number.to_bytes(16, "big")
    replies: list[Reply] = site.guard.answer_offer(signer.sign(offer(run=run)))
    replies += site.guard.answer_order(signer.sign(order(run=run)))
    return [reply.code for reply in replies] == ["accepted", "answered"]


@pytest.mark.parametrize("signer", [SIGNER, RECOVERY], ids=["itself", "recovery"])
def test_a_withdrawn_key_is_never_obeyed_again(site: Site, signer: Signer) -> None:
    assert obeys(site, SIGNER, 1)
    site.offer()
    spent = site.spent
    assert site.guard.answer_order(signer.sign(STOLEN)) == []
    for _ in range(2):
        assert not obeys(site, SIGNER, 2)
        assert (
            site.guard.answer_order(SIGNER.sign(order())) == []
        )  # a run joined before
        assert site.spent == spent
        site.restart()  # the policy still lists the key
    assert obeys(site, OTHER, 3)
    assert read_statement(site.policy.ledger).revoked == [SIGNER.public_key]


def test_a_thief_withdraws_no_other_key(site: Site) -> None:
    for notice in (OTHER.public_key, RECOVERY.public_key):
        site.guard.answer_order(SIGNER.sign(Revocation(key=notice)))
    site.guard.answer_order(Signer.generate().sign(STOLEN))
    assert read_statement(site.policy.ledger).revoked == []
    assert obeys(site, OTHER, 1) and obeys(site, SIGNER, 2)


def test_a_recovery_key_orders_nothing(site: Site) -> None:
    assert not obeys(site, RECOVERY, 1)
    site.offer()
    assert site.guard.answer_order(RECOVERY.sign(order())) == []
    site.guard.answer_order(RECOVERY.sign(RunEnd(run=RUN, reason="no")))
    assert site.order().code == "answered"


def test_it_takes_effect_only_once_on_disk(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "revoke", full)
        assert site.guard.answer_order(SIGNER.sign(STOLEN)) == []
    assert read_statement(site.policy.ledger).revoked == []
    site.guard.answer_order(SIGNER.sign(STOLEN))  # it is retained, and comes again
    assert not obeys(site, SIGNER, 1)


def test_it_is_recorded_once(site: Site) -> None:
    for _ in range(3):
        site.guard.answer_order(RECOVERY.sign(STOLEN))
    assert read_statement(site.policy.ledger).revoked == [SIGNER.public_key]
