"""What a device stores for secure sums, in the file of its ledger.

    keys of the run, and the introduction that was sent; of an evaluation, its order
    the list of peers                 with an entry `peers`, once per run
    the noisy vector and its masks    with the entry `answer`, before anything is sent
    the confirmed list of answers     before its signature is sent
    the revealed shares               with an entry `reveal`, once per round, before
                                      they are sent

A device that is killed at any moment sends the same bytes again, or nothing: it signs
one list of answers per attempt, reveals once per round, and is charged once.
"""

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.wire.codec import decode, encode

_KEYS, _INTRODUCTION, _PEERS, _STATE = "keys", "introduction", "peers", "state"
_ORDER = "order"


@dataclass(frozen=True, kw_only=True)
class SumState:
    """The last round of a run in which this device sent a masked upload."""

    round: int
    attempt: int
    vector: bytes  # whole numbers with this device's share of the noise
    mask_secret: bytes
    self_secret: bytes
    roster: bytes  # the message
    answered: bytes | None = None  # the confirmed list
    revealed: bytes | None = None  # the message with the shares

    def to_bytes(self) -> bytes:
        """Return it as stored."""
        return encode(asdict(self))


class SumLedger(LedgerFile):
    """The ledger of a device that takes part in secure sums."""

    def keys(self, run: bytes) -> tuple[bytes, bytes] | None:
        """Return the secret keys of a run and its introduction, if there are any."""
        with self._open() as database:
            secret = _part(database, run, _KEYS)
            introduction = _part(database, run, _INTRODUCTION)
        if secret is None or introduction is None:
            return None
        return secret, introduction

    def evaluation_order(self, run: bytes) -> bytes | None:
        """Return the order of an evaluation in a sum, if there is one."""
        with self._open() as database:
            return _part(database, run, _ORDER)

    def store_keys(
        self,
        run: bytes,
        secret: bytes,
        introduction: bytes,
        *,
        order: bytes | None = None,
    ) -> None:
        """Store the keys of a run, before its introduction is sent.

        `order` is that of an evaluation.
        """
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            _put(database, run, _KEYS, secret)
            _put(database, run, _INTRODUCTION, introduction)
            if order is not None:
                _put(database, run, _ORDER, order)
            database.execute("COMMIT")

    def peers(self, run: bytes) -> bytes | None:
        """Return the list of peers of a run, once it is accepted."""
        with self._open() as database:
            return _part(database, run, _PEERS)

    def peers_digest(self, run: bytes) -> bytes | None:
        """Return the digest of the list of peers that was accepted, from the chain."""
        with self._open() as database:
            row = database.execute(
                "SELECT body FROM entries WHERE kind = 'peers' AND run = ?", (run,)
            ).fetchone()
        return None if row is None else bytes.fromhex(json.loads(row[0])["digest"])

    def accept_peers(self, run: bytes, message: bytes, digest: bytes) -> None:
        """Record the list of peers of a run; there is one."""
        with self._open() as database:
            self._write(
                database,
                "peers",
                {"digest": digest.hex()},
                run=run,
                also=lambda database: _put(database, run, _PEERS, message),
            )

    def state(self, run: bytes) -> SumState | None:
        """Return the state of a run, if it has sent an upload."""
        with self._open() as database:
            data = _part(database, run, _STATE)
        return None if data is None else SumState(**decode(data))

    def store_upload(self, run: bytes, state: SumState) -> None:
        """Store a noisy vector; the entry says that the round has one."""
        digest = hashlib.sha256(state.vector).hexdigest()
        self._write_state("answer", {"digest": digest}, run, state)

    def update(self, run: bytes, state: SumState) -> None:
        """Store a new attempt with the same vector, or a confirmed list."""
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            _put(database, run, _STATE, state.to_bytes())
            database.execute("COMMIT")

    def reveal(self, run: bytes, state: SumState, body: Mapping[str, Any]) -> None:
        """Record which shares are revealed; only then may they be sent.

        Raises:
            LedgerError: Shares of this round were revealed before.
        """
        self._write_state("reveal", body, run, state)

    def _write_state(
        self, kind: str, body: Mapping[str, Any], run: bytes, state: SumState
    ) -> None:
        with self._open() as database:
            self._write(
                database,
                kind,
                body,
                run=run,
                round=state.round,
                also=lambda database: _put(database, run, _STATE, state.to_bytes()),
            )


def _part(database: sqlite3.Connection, run: bytes, part: str) -> bytes | None:
    row = database.execute(
        "SELECT data FROM sums WHERE run = ? AND part = ?", (run, part)
    ).fetchone()
    return None if row is None else bytes(row[0])


def _put(database: sqlite3.Connection, run: bytes, part: str, data: bytes) -> None:
    row = (run, part, data)
    database.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?)", row)
