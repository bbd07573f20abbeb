"""Work that threads share: each takes the next piece from a common counter.

All threads do the same: claim pieces until none is left, then look after the pieces
that another thread has claimed and not finished. On an idle machine they finish at
about the same time. On a busy one, the scheduler may stop a thread in the middle of a
piece for milliseconds, longer than many a round takes. Nobody waits that long: after
some spinning, the others do the piece again. A piece is a function of values that no
longer change, so both results are the same to the last bit, and each thread writes to
memory of its own or the same bytes to the same memory.

So the calling thread needs no other thread. Helpers are Python threads that live as
long as the process; they come when the scheduler lets them, and leave when the work
is done. A late one may still be inside a piece of an old run: its arguments keep the
arrays of that run alive.
"""

import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedbudget.simulation.kernels.simd import compiled_inline

_compiled: set[Hashable] = set()  # kernels that this process has called
_pools: dict[int, ThreadPoolExecutor] = {}  # by process: a fork has no threads


def compiled_here(key: Hashable, empty: Callable[[], None]) -> None:
    """Call a kernel without work, the first time: it is compiled in this thread.

    Ctrl-C ends the compilation here; in a helper, the process would wait for its end.
    """
    if key not in _compiled:
        empty()
        _compiled.add(key)


def shared(task: Callable[[int], None], workers: int) -> None:
    """Run task(0) here and task(1) .. task(workers - 1) in helpers.

    Returns when task(0) does, which must do all the work if no helper comes.
    """
    helpers = [_pool().submit(task, worker) for worker in range(1, workers)]
    try:
        task(0)
    finally:
        for helper in helpers:
            helper.cancel()  # if it has not started yet


def distributed(task: Callable[[int], None], workers: int) -> None:
    """Run task(0) .. task(workers - 1), which share pieces; wait for those that began.

    For pieces that are not done twice.
    """
    helpers = [_pool().submit(task, worker) for worker in range(1, workers)]
    task(0)
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def _pool() -> ThreadPoolExecutor:
    process = os.getpid()
    if process not in _pools:
        _pools.clear()
        count = max(1, (os.cpu_count() or 1) - 1)
        _pools[process] = ThreadPoolExecutor(count, thread_name_prefix="fedbudget")
    return _pools[process]


def _atomic(generator: Callable[..., Any]) -> Any:
    """Turn a code generator into a function for compiled code."""
    return intrinsic(generator)


def _address(context: Any, builder: Any, array: Any, index: Any) -> Any:
    """Return the address of an entry; array and index are pairs (type, value)."""
    data = context.make_array(array[0])(context, builder, array[1]).data
    offset = context.cast(builder, index[1], index[0], types.intp)
    return builder.gep(data, [offset])


@_atomic
def claim(typing: Any, counters: Any, i: Any) -> Any:
    """Add 1 to counters[i] and return the value before, atomically."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        counters, i = zip(signature.args, args, strict=True)
        address = _address(context, builder, counters, i)
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", address, one, "seq_cst")

    return types.int64(counters, i), generate


@_atomic
def peek(typing: Any, flags: Any, i: Any) -> Any:
    """Return flags[i]; what was written before it was set can be read after this."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flags, i = zip(signature.args, args, strict=True)
        address = _address(context, builder, flags, i)
        builder.fence("seq_cst")  # earlier reads stay before it
        return builder.load_atomic(address, "seq_cst", 8)

    return types.int64(flags, i), generate


@_atomic
def change(typing: Any, flags: Any, i: Any, old: Any, new: Any) -> Any:
    """Set flags[i] from old to new, atomically; leave any other value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flags, i, old, new = zip(signature.args, args, strict=True)
        address = _address(context, builder, flags, i)
        words = [context.cast(builder, v, t, types.int64) for t, v in (old, new)]
        builder.cmpxchg(address, *words, ordering="seq_cst", failordering="seq_cst")
        return context.get_dummy_value()

    return types.void(flags, i, old, new), generate


@compiled_inline
def unfinished(done: Any, first: Any) -> Any:
    """Return a piece whose flag is 0, from `first` on and around; -1 if none is."""
    for i in range(len(done)):
        piece = (first + i) % len(done)
        if peek(done, piece) == 0:
            return piece
    return -1
