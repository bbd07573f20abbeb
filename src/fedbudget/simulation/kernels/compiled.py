"""The decorator of every compiled function: one place for Numba's settings."""

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from fedbudget.errors import needed

# Threads that wait for each other at the end of a round spin for a moment, then sleep.
# Sleeping at once costs a third of the speed on an idle machine. Spinning on takes, on
# a busy one, the very core that a late thread waits for: rounds took up to 100 times
# as long. Read when the thread pool starts; the user's own setting stands.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

with needed("the fast simulator", "numba"):
    from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and fused, so that they vectorise; but infinities and NaNs keep
# their meaning, so that a diverging run is seen to diverge.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz", "afn"}
# No counting of references: nothing in the kernels allocates, the callers in Python
# hold every array, and counting took a third of the time.
_LEAN = {"_nrt": False}
_ONLY_PRANGE = {
    "prange": True,
    "comprehension": False,
    "reduction": False,
    "inplace_binop": False,
    "setitem": False,
    "numpy": False,
    "stencil": False,
    "fusion": False,
}


def compiled(function: F) -> F:
    """Compile for the calling thread; the machine code is cached on disk."""
    options: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy", **_LEAN}
    options["nogil"] = True  # Python threads may run it side by side
    return cast(F, njit(cache=True, **options)(function))


def compiled_inline(function: F) -> F:
    """Compile as a part of every caller.

    The tuples that hold a run's arrays are passed as hundreds of numbers: for what is
    called in every step, that costs more than the work on a small batch.
    """
    options: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy", **_LEAN}
    options["forceinline"] = True
    return cast(F, njit(cache=True, nogil=True, **options)(function))


def compiled_parallel(function: F) -> F:
    """Compile with `prange` loops spread over the threads.

    Nothing but `prange` is made parallel: looking for more takes the compiler seconds.
    """
    options: dict[str, Any] = {
        "fastmath": _FASTMATH,
        "error_model": "numpy",
        "parallel": _ONLY_PRANGE,
    }
    return cast(F, njit(cache=True, **options)(function))
