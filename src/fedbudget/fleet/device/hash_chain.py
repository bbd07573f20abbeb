"""The entries of a ledger's file, chained by digests, and the anchor beside it."""

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

KINDS = ("open", "budget", "data", "run", "charge", "answer")
START = bytes(32)  # what the first entry has for the digest before it

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY,  -- from 1, without gaps
    kind TEXT NOT NULL,
    run BLOB NOT NULL,           -- empty where an entry is about no run
    round INTEGER NOT NULL,      -- 0 where it is about none
    body TEXT NOT NULL,          -- JSON
    digest BLOB NOT NULL         -- of the digest before, and of all of this
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS one_of_each
    ON entries (run, round, kind) WHERE kind IN ('run', 'charge', 'answer');
CREATE TRIGGER IF NOT EXISTS never_change BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS never_remove BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TABLE IF NOT EXISTS answers (
    run BLOB PRIMARY KEY,        -- only the last answer of a run is kept
    round INTEGER NOT NULL,
    reply BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS courses (
    run BLOB PRIMARY KEY,        -- beside its answer, while drift control needs it
    round INTEGER NOT NULL,
    course BLOB NOT NULL
) STRICT;
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger."""

    number: int
    kind: str
    run: bytes
    round: int
    text: str  # JSON, as it is stored
    digest: bytes

    @property
    def body(self) -> dict[str, Any]:
        """What the entry says."""
        body: dict[str, Any] = json.loads(self.text)
        return body


def _digest_of(
    before: bytes, *, number: int, kind: str, run: bytes, round: int, text: str
) -> bytes:
    """Return the digest of an entry; each part goes in with its length."""
    digest = hashlib.sha256(before)
    for part in (str(number).encode(), kind.encode(), run, str(round).encode()):
        digest.update(struct.pack("<Q", len(part)) + part)
    digest.update(text.encode())
    return digest.digest()


def open_database(path: Path) -> sqlite3.Connection:
    """Open or make a ledger's file for writing; every commit reaches the disk."""
    new = not path.exists()
    try:
        # Before SQLite does: the files it puts beside this one get the same rights.
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
    found, part = [], ""
    for line in _SCHEMA.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            found.append(part)
            part = ""
    return found


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a ledger's file without changing it, also while a device uses it."""
    if not path.is_file():
        raise LedgerError(f"ledger {str(path)!r} is not there: check the path")
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
    """Add an entry behind the head, inside the caller's transaction."""
    number = 1 if head is None else head.number + 1
    before = START if head is None else head.digest
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = _digest_of(
        before, number=number, kind=kind, run=run, round=round, text=text
    )
    # A number that is taken means that another process wrote: the insert fails.
    database.execute(
        "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
        (number, kind, run, round, text, digest),
    )
    return Entry(
        number=number, kind=kind, run=run, round=round, text=text, digest=digest
    )


def check_chain(database: sqlite3.Connection) -> list[Entry]:
    """Return all entries.

    Raises:
        LedgerError: One was edited, removed, moved or added by another hand; the
            message says which.
    """
    before, entries = START, []
    try:
        rows = database.execute(
            "SELECT number, kind, run, round, body, digest FROM entries ORDER BY number"
        ).fetchall()
    except sqlite3.Error as error:
        where = database.execute("PRAGMA database_list").fetchone()[2]
        raise LedgerError(
            f"{where!r} cannot be read as a ledger ({error}): name the SQLite file of "
            "a device, its ledger.sqlite"
        ) from None
    for place, (number, kind, run, round, text, digest) in enumerate(rows, 1):
        if number != place:
            raise LedgerError(f"entry {place} is missing: the ledger was tampered with")
        right = _digest_of(
            before, number=number, kind=kind, run=bytes(run), round=round, text=text
        )
        if bytes(digest) != right or kind not in KINDS:
            raise LedgerError(
                f"entry {number} is not what it was: the ledger was tampered with, "
                f"there or just before it"
            )
        before = right
        entries.append(
            Entry(
                number=number,
                kind=kind,
                run=bytes(run),
                round=round,
                text=text,
                digest=right,
            )
        )
    return entries


class Anchor:
    """The file PATH.head: number and digest of the last entry, for a cut ledger shows.

    Two slots are written in turn, so that one is whole whenever the power goes; they
    are in sectors of their own, for a torn write may take all of a sector. A slot is
    written in place, which needs no new space on a full disk. Holding the file also
    keeps a second process off the ledger.
    """

    _SLOT = struct.Struct("<Q32s32s")  # number, digest, checksum of both
    _PLACES = (0, 4096)

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
        """Remember an entry that is on disk; it is on disk when this returns."""
        body = struct.pack("<Q32s", head.number, head.digest)
        slot = body + hashlib.sha256(body).digest()
        os.pwrite(self._file, slot, self._PLACES[head.number % 2])
        os.fsync(self._file)

    def check(self, entries: Sequence[Entry]) -> None:
        """Refuse entries that lack the one remembered; later ones are fine."""
        both = os.pread(self._file, self._PLACES[1] + self._SLOT.size, 0)
        check_anchor(both, entries)

    def close(self) -> None:
        """Let another process use the ledger."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def check_anchor(data: bytes, entries: Sequence[Entry]) -> None:
    """Refuse entries that lack the one that an anchor's file remembers.

    Raises:
        LedgerError: The ledger is shorter than it was, or another one.
    """
    size = Anchor._SLOT.size
    slots = [data[place : place + size] for place in Anchor._PLACES]
    known = [
        struct.unpack("<Q32s", slot[:40])
        for slot in slots
        if len(slot) == size and hashlib.sha256(slot[:40]).digest() == slot[40:]
    ]
    if not known:
        # The first entry is written before the first slot: a crash between is fine.
        if len(entries) > 1:
            raise LedgerError(
                "the ledger's .head file is gone or damaged: without it, a ledger that "
                "was cut would not show; bring that very file back, an older one has "
                "forgotten charges"
            )
        return
    number, digest = max(known)
    if len(entries) < number or entries[number - 1].digest != digest:
        raise LedgerError(
            f"the ledger has {len(entries)} entries, but once had {number}: it was cut "
            "or is an old copy; bring the newest one back"
        )


def anchor_path(ledger: Path) -> Path:
    """Return where a ledger's anchor is."""
    return ledger.with_name(ledger.name + ".head")


def _sync_folder(folder: Path) -> None:
    """Make a new file's name survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
