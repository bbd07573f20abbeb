"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedbudget.errors import RecordError


@contextmanager
def whole_file(
    path: str | os.PathLike[str],
    mode: str = "w",
    *,
    permissions: int = 0o666,
    remedy: str = "make room, or choose another place",
) -> Iterator[IO[Any]]:
    """Open a file that is moved to its place once it is whole, or leaves no trace.

    Raises:
        RecordError: It cannot be written; what stood in its place still does.
    """
    place = Path(path)
    partial = place.parent / f".{place.name}.partial"
    text: dict[str, Any] = {"encoding": "utf-8", "newline": ""}
    how = {} if "b" in mode else text

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, permissions)

    try:
        with refusing(place, remedy):
            with open(partial, mode, opener=opener, **how) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, place)
    finally:
        with suppress(OSError):  # it is gone already, unless something failed
            partial.unlink()


@contextmanager
def refusing(path: Path, remedy: str) -> Iterator[None]:
    """Turn a full disk or a missing right into one line."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}: {remedy}"
        ) from error
