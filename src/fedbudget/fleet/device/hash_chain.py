"""A ledger's file: entries chained by digests, and the anchor file beside it."""

import fcntl
import hashlib
import json
import os
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbudget.errors import LedgerError

KINDS = (
    *("open", "budget", "data", "run", "charge", "answer", "overdraft", "clear"),
    *("period", "evaluation", "revoke", "end", "peers", "reveal"),
)
START = bytes(32)  # the first entry has no digest before it

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY,  -- from 1, without gaps
    kind TEXT NOT NULL,
    run BLOB NOT NULL,           -- empty if the entry concerns no run
    round INTEGER NOT NULL,      -- 0 if it concerns no round
    body TEXT NOT NULL,          -- JSON
    digest BLOB NOT NULL         -- of the previous digest and the columns above
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS one_of_each
    ON entries (run, round, kind) WHERE kind IN ('run', 'charge', 'answer');
CREATE UNIQUE INDEX IF NOT EXISTS one_of_each_sum
    ON entries (run, round, kind) WHERE kind IN ('peers', 'reveal');
CREATE TABLE IF NOT EXISTS sums (
    run BLOB NOT NULL,           -- of secure sums: see `sum_ledger`
    part TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, part)
) STRICT;
CREATE TRIGGER IF NOT EXISTS never_change BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS never_remove BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TABLE IF NOT EXISTS answers (
    run BLOB PRIMARY KEY,        -- only the last answer of a run is stored
    round INTEGER NOT NULL,
    reply BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS courses (
    run BLOB PRIMARY KEY,        -- drift correction's state, beside the answer
    round INTEGER NOT NULL,
    course BLOB NOT NULL
) STRICT;
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of the ledger."""

    number: int
    kind: str
    run: bytes
    round: int
    text: str  # JSON, as stored
    digest: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The content of the entry."""
        body: dict[str, Any] = json.loads(self.text)
        return body


def _digest_of(
    previous: bytes, *, number: int, kind: str, run: bytes, round: int, text: str
) -> bytes:
    """Return the digest of an entry; each part is prefixed by its length."""
    digest = hashlib.sha256(previous)
    for part in (str(number).encode(), kind.encode(), run, str(round).encode()):
        digest.update(struct.pack("<Q", len(part)) + part)
    digest.update(text.encode())
    return digest.digest()


def open_database(path: Path) -> sqlite3.Connection:
    """Open or create a ledger's file for writing; every commit reaches the disk."""
    new = not path.exists()
    try:
        # Created before SQLite does: its other files get the same permissions.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(path, isolation_level=None, timeout=10)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"ledger {str(path)!r} cannot be opened: {error}") from None
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("BEGIN IMMEDIATE")
        for statement in _statements():
            database.execute(statement)
        database.execute("COMMIT")
        if new:
            _sync_folder(path.parent)
    except sqlite3.Error as error:
        database.close()
        raise LedgerError(f"ledger {str(path)!r} cannot be used: {error}") from None
    return database


def _statements() -> list[str]:
    statements, part = [], ""
    for line in _SCHEMA.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            statements.append(part)
            part = ""
    return statements


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a ledger's file read-only; a device may use it at the same time."""
    if not path.is_file():
        raise LedgerError(f"ledger {str(path)!r} does not exist: check the path")
    return sqlite3.connect(f"file:{path.resolve()}?mode=ro", uri=True, timeout=10)


def append(
    database: sqlite3.Connection,
    head: Entry | None,
    *,
    kind: str,
    run: bytes,
    round: int,
    body: dict[str, Any],
) -> Entry:
    """Append an entry after the head, inside the caller's transaction."""
    number = 1 if head is None else head.number + 1
    previous = START if head is None else head.digest
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = _digest_of(
        previous, number=number, kind=kind, run=run, round=round, text=text
    )
    # If another process has written, the number exists and the insert fails.
    database.execute(
        "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
        (number, kind, run, round, text, digest),
    )
    return Entry(
        number=number, kind=kind, run=run, round=round, text=text, digest=digest
    )


def check_chain(database: sqlite3.Connection) -> list[Entry]:
    """Return all entries, verified.

    Raises:
        LedgerError: An entry was edited, removed, moved or added; the message says
            which one.
    """
    previous, entries = START, []
    try:
        rows = database.execute(
            "SELECT number, kind, run, round, body, digest FROM entries ORDER BY number"
        ).fetchall()
    except sqlite3.Error as error:
        path = database.execute("PRAGMA database_list").fetchone()[2]
        raise LedgerError(
            f"{path!r} cannot be read as a ledger ({error}): name the SQLite file of "
            "a device, its ledger.sqlite"
        ) from None
    for expected, (number, kind, run, round, text, digest) in enumerate(rows, 1):
        if number != expected:
            raise LedgerError(
                f"entry {expected} is missing: the ledger was tampered with"
            )
        recomputed = _digest_of(
            previous, number=number, kind=kind, run=bytes(run), round=round, text=text
        )
        if bytes(digest) != recomputed or kind not in KINDS:
            raise LedgerError(
                f"entry {number} does not match its digest: the ledger was tampered "
                "with, at this entry or the one before"
            )
        previous = recomputed
        entries.append(
            Entry(
                number=number,
                kind=kind,
                run=bytes(run),
                round=round,
                text=text,
                digest=recomputed,
            )
        )
    return entries


class Anchor:
    """The file PATH.head: number and digest of the last entry, to detect truncation.

    Two slots are written alternately, so that one is intact after a power cut. Each has
    its own disk sector, because an incomplete write may damage a whole sector. A slot
    is overwritten in place, which works on a full disk. A lock on the file keeps a
    second process from using the ledger.
    """

    _SLOT = struct.Struct("<Q32s32s")  # number, digest, checksum of both
    _OFFSETS = (0, 4096)

    def __init__(self, ledger: Path) -> None:
        self.path = anchor_path(ledger)
        new = not self.path.exists()
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(
                f"{str(self.path)!r} cannot be opened: {error.strerror}"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            self._file = -1
            raise LedgerError(
                f"ledger {str(ledger)!r} is in use by another process: stop it first"
            ) from None
        if new:
            _sync_folder(self.path.parent)

    def write(self, head: Entry) -> None:
        """Record an entry that is on disk; the record is on disk when this returns."""
        body = struct.pack("<Q32s", head.number, head.digest)
        slot = body + hashlib.sha256(body).digest()
        os.pwrite(self._file, slot, self._OFFSETS[head.number % 2])
        os.fsync(self._file)

    def check(self, entries: Sequence[Entry]) -> None:
        """Refuse entries that lack the recorded one; later entries are allowed."""
        data = os.pread(self._file, self._OFFSETS[1] + self._SLOT.size, 0)
        check_anchor(data, entries)

    def close(self) -> None:
        """Release the ledger for other processes."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def check_anchor(data: bytes, entries: Sequence[Entry]) -> None:
    """Refuse entries that lack the one that an anchor file records.

    Raises:
        LedgerError: The ledger was truncated or replaced, or the anchor is damaged.
    """
    size = Anchor._SLOT.size
    slots = [data[offset : offset + size] for offset in Anchor._OFFSETS]
    heads = [
        struct.unpack("<Q32s", slot[:40])
        for slot in slots
        if len(slot) == size and hashlib.sha256(slot[:40]).digest() == slot[40:]
    ]
    if not heads:
        # The first entry is written before the first slot: a crash may come between.
        if len(entries) > 1:
            raise LedgerError(
                "the ledger's .head file is missing or damaged: without it, truncation "
                "cannot be detected; restore the newest copy of that file, an older "
                "one lacks charges"
            )
        return
    number, digest = max(heads)
    if len(entries) < number or entries[number - 1].digest != digest:
        raise LedgerError(
            f"the ledger has {len(entries)} entries, but once had {number}: it was "
            "truncated or is an old copy; restore the newest one"
        )


def anchor_path(ledger: Path) -> Path:
    """Return the path of a ledger's anchor."""
    return ledger.with_name(ledger.name + ".head")


def _sync_folder(folder: Path) -> None:
    """Force a folder to disk, so that a new file survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
