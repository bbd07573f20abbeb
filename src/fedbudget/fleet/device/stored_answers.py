"""The last answer of each run, in the ledger's file: to be sent again, byte for byte.

Beside it, while drift control needs it, is the course of its round (`drift.Course`).
Both are written with the entry that says that the round was answered, and are what
their digests in that entry say; only the last ones of a run are kept.
"""

import hashlib
import json
import sqlite3
from typing import NamedTuple

from fedbudget.errors import LedgerError


class StoredAnswer(NamedTuple):
    """The answer to a round, and what drift control keeps of the round."""

    round: int
    reply: bytes
    course: bytes | None = None

    @property
    def digests(self) -> dict[str, str]:
        """What the answer's entry in the ledger says of the bytes."""
        found = {"digest": hashlib.sha256(self.reply).hexdigest()}
        if self.course is not None:
            found["course"] = hashlib.sha256(self.course).hexdigest()
        return found


def put(database: sqlite3.Connection, run: bytes, answer: StoredAnswer) -> None:
    """Replace the last answer of a run, inside the caller's transaction."""
    row = (run, answer.round, answer.reply)
    database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", row)
    database.execute("DELETE FROM courses WHERE run = ?", (run,))
    if answer.course is not None:
        row = (run, answer.round, answer.course)
        database.execute("INSERT INTO courses VALUES (?, ?, ?)", row)


def get(database: sqlite3.Connection, run: bytes, round: int) -> bytes | None:
    """Return the answer of a round, if it is the last of its run.

    Raises:
        LedgerError: It is not what it was.
    """
    row = database.execute(
        "SELECT reply, body FROM answers JOIN entries USING (run, round) "
        "WHERE kind = 'answer' AND run = ? AND round = ?",
        (run, round),
    ).fetchone()
    if row is None:
        return None
    reply, body = bytes(row[0]), json.loads(row[1])
    if StoredAnswer(round, reply).digests["digest"] != body["digest"]:
        raise LedgerError(f"the stored answer of round {round} is not what it was")
    return reply


def get_last(database: sqlite3.Connection, run: bytes) -> StoredAnswer | None:
    """Return the last answer of a run with its course.

    None if either is missing, or is not what it was: drift control then begins anew,
    which is no reason to refuse a round.
    """
    row = database.execute(
        "SELECT round, reply, course, body FROM answers JOIN courses "
        "USING (run, round) JOIN entries USING (run, round) "
        "WHERE kind = 'answer' AND run = ?",
        (run,),
    ).fetchone()
    if row is None:
        return None
    found, body = StoredAnswer(*row[:3]), json.loads(row[3])
    return found if found.digests.items() <= body.items() else None
