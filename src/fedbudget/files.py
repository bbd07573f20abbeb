"""Files that are written atomically."""

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
    remedy: str = "make room, or choose another path",
) -> Iterator[IO[Any]]:
    """Write a file atomically: to a partial file, renamed at the end of the block.

    If the block fails, the partial file is removed.

    Raises:
        RecordError: It cannot be written; an existing file is unchanged.
    """
    target = Path(path)
    partial = target.parent / f".{target.name}.partial"
    text: dict[str, Any] = {"encoding": "utf-8", "newline": ""}
    options = {} if "b" in mode else text

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, permissions)

    try:
        with refusing(target, remedy):
            with open(partial, mode, opener=opener, **options) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
    finally:
        with suppress(OSError):  # it exists only if something failed
            partial.unlink()


@contextmanager
def refusing(path: Path, remedy: str) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into a one-line RecordError."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}: {remedy}"
        ) from error
