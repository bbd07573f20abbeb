"""Machine code on disk, which is used again only while no kernel's source has changed.

Numba's own cache compares the file of a function. Other functions and constants are
compiled into it, from other files: after a change of those it would go on with the old
machine code. Here, one digest of all these files decides.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

_PACKAGE = Path(__file__).parents[2]
# What is compiled, and what constants are taken from.
_SOURCES = (
    "simulation/kernels/*.py",
    "release/*.py",
    "auditing/kernels.py",
    "fleet/device/exact_*.py",
)


class _KernelCache(FunctionCache):
    def __init__(self, function: Any) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        own = Path(function.__code__.co_filename)
        self._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            # Also the function's own file: tests compile functions, too.
            source_stamp=(_package_digest(), digest_of([own])),
        )


def keep_on_disk(dispatcher: Any) -> Any:
    """Let a compiled function keep its machine code, and return it."""
    dispatcher._cache = _KernelCache(dispatcher.py_func)
    return dispatcher


def digest_of(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of files, in their order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@cache
def _package_digest() -> str:
    return digest_of(
        file for pattern in _SOURCES for file in sorted(_PACKAGE.glob(pattern))
    )
