"""The decorator of every compiled function: one place for Numba's settings."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    from numba import njit
except ImportError as error:
    from fedbudget.errors import MissingExtraError

    raise MissingExtraError("the fast simulator", "numba") from error

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and fused, so that they vectorise; but infinities and NaNs keep
# their meaning, so that a diverging run is seen to diverge.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz", "afn"}


def compiled(function: F) -> F:
    """Compile for the calling thread; the machine code is cached on disk."""
    return cast(
        F, njit(cache=True, fastmath=_FASTMATH, error_model="numpy")(function)
    )


def compiled_inline(function: F) -> F:
    """Compile a small formula and let the optimiser see through every call of it."""
    options = {"fastmath": _FASTMATH, "error_model": "numpy", "forceinline": True}
    return cast(F, njit(cache=True, **options)(function))


def compiled_parallel(function: F) -> F:
    """Compile with `prange` loops spread over the threads."""
    options = {"fastmath": _FASTMATH, "error_model": "numpy", "parallel": True}
    return cast(F, njit(cache=True, **options)(function))
