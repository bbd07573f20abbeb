"""Files that are written atomically, and folders that one process writes to."""

import fcntl
import os
import weakref
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


class FolderLock:
    """The lock of a folder that this process writes to; garbage collection frees it.

    The folder itself is locked, not a file in it: no lock file remains, even if the
    process is killed.
    """

    def __init__(self, handle: int) -> None:
        weakref.finalize(self, os.close, handle)


# One per folder, by device and inode: a process may open its own folder again.
_locks: weakref.WeakValueDictionary[tuple[int, int], FolderLock] = (
    weakref.WeakValueDictionary()
)


def lock_folder(path: Path) -> FolderLock:
    """Lock a folder against other processes, as long as the lock is referenced.

    Raises:
        RecordError: Another process has locked it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    status = os.fstat(handle)
    lock = _locks.get((status.st_dev, status.st_ino))
    if lock is not None:
        os.close(handle)
        return lock
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RecordError(
            f"{path}: another process is writing to it: wait for it, or choose another "
            "folder"
        ) from None
    except OSError:
        pass  # some network file systems cannot lock folders: continue without
    lock = _locks[status.st_dev, status.st_ino] = FolderLock(handle)
    return lock
