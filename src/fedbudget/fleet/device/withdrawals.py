"""Withdrawals: runs that have ended, and coordinators' keys that are withdrawn.

Both are recorded in the ledger before they have an effect, and hold for ever: a
replayed order of an ended run is refused, and a withdrawn key is not trusted again,
also after a restart and whatever the policy says. Neither can make a device spend
anything.
"""

import logging
from collections.abc import Mapping

from fedbudget.errors import LedgerError, MessageError
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.policy import OrderPolicy
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.signing import Trust
from fedbudget.fleet.wire.withdrawals import Revocation, RunEnd

_log = logging.getLogger(__name__)
ENDED = "this run has ended"
_MOST_BYTES = 1024  # of a withdrawal
_MOST_ENDED = 20_000  # in one ledger; each entry is small


class Withdrawals:
    """Handles these messages, and knows whose orders count."""

    def __init__(self, ledger: LedgerFile, orders: OrderPolicy) -> None:
        self._ledger, self._orders = ledger, orders
        self._refresh()
        for key in ledger.revoked:
            if key in orders.trusted:
                _log.warning("orders.trusted: %s is withdrawn, and not obeyed", key)

    def _refresh(self) -> None:
        """Trust the policy's keys, but for those that are withdrawn."""
        revoked = self._ledger.revoked
        coordinators = [k for k in self._orders.trusted if k not in revoked]
        recovery = [k for k in self._orders.recovery if k not in revoked]
        self.coordinators = Trust(coordinators)
        self.anyone = Trust(dict.fromkeys((*coordinators, *recovery)))

    def take(self, body: bytes, key: str) -> bool:
        """Handle a withdrawal; return whether the message needs no other handling.

        Args:
            body: Of a message whose signature is verified.
            key: That signed it.
        """
        try:
            # Orders are longer: they have a model.
            value = decode(body) if len(body) <= _MOST_BYTES else None
            kind = value.get("kind") if isinstance(value, Mapping) else None
            if kind == Revocation.kind:
                self._revoke(Revocation.from_value(value), key, body)
                return True
            if key not in self._orders.trusted:  # a recovery key does nothing else
                _log.warning("a message of a recovery key is ignored")
                return True
            if kind == RunEnd.kind:
                self._end(RunEnd.from_value(value), key)
                return True
        except LedgerError as error:
            _log.error("a withdrawal is not recorded: %s", error)
            return True
        except MessageError as error:
            _log.warning("a message is damaged: %s", error)
        return key not in self._orders.trusted

    def _revoke(self, notice: Revocation, key: str, message: bytes) -> None:
        if key != notice.key and key not in self._orders.recovery:
            _log.warning("a revocation is ignored: its signer may not withdraw the key")
            return
        if notice.key in self._ledger.revoked:
            return
        self._ledger.revoke(notice.key, message)
        self._refresh()
        _log.error("the coordinator's key %s is withdrawn for ever", notice.key)

    def _end(self, notice: RunEnd, key: str) -> None:
        run = notice.run
        if self._ledger.has_ended(run, key) or self._ledger.num_ended >= _MOST_ENDED:
            return
        self._ledger.end(run, key, notice.reason)
        _log.info("run %s has ended: %s", run.hex(), notice.reason)
