"""The local steps of one device, compiled: one score per row."""

from typing import Any

import numpy as np
from numba.extending import overload

from fedbudget.devices.compiled import compiled, compiled_inline
from fedbudget.devices.elementary import fast_exp
from fedbudget.devices.random_numbers import (
    NOISE,
    fill_normals,
    stream,
)
from fedbudget.devices.rows import DenseRows, OneHotRows, SparseRows
from fedbudget.devices.vectors import (
    RUN,
    add,
    keep_apart,
    load,
    multiply,
    multiply_add,
    prefetch,
    splat,
    store,
    total,
)
from fedbudget.devices.work import (
    HINGE,
    LOGISTIC,
    clear,
    draw_batch,
    gather,
    undo_batch,
)

f32 = np.float32
AHEAD = 16  # rows between asking for a dense row and reading it
CODE = np.uint64(0xFFFF)  # the bits of one one-hot code


@compiled_inline
def slopes(loss: Any, threshold: Any, scores: Any, y: Any, size: Any) -> None:
    """Replace scores by d loss / d score."""
    if loss == LOGISTIC:
        for i in range(size):
            scores[i] = -y[i] / (f32(1.0) + fast_exp(y[i] * scores[i]))
    elif loss == HINGE:
        for i in range(size):
            scores[i] = -y[i] if y[i] * scores[i] < f32(1.0) else f32(0.0)
    else:
        for i in range(size):
            scores[i] = min(max(scores[i] - y[i], -threshold), threshold)


def add_gradient(rows: Any, device: Any, size: Any, work: Any, scratch: Any) -> None:
    """Write the sum of the gradients of a batch into scratch.gradient.

    The batch is scratch.order[:size].
    """
    raise NotImplementedError


@compiled_inline
def dense_gradient(rows: Any, device: Any, size: Any, work: Any, scratch: Any) -> None:
    """Sum the gradients of dense rows, four rows at a time.

    Four rows share each load of theta, and each load and store of the gradient. Blocks
    of rows small enough for the cache are read from memory once for both passes.
    """
    x, labels, scores = rows.x, scratch.labels, scratch.scores
    width, first_row, order = rows.width, rows.offsets[device], scratch.order
    gather(rows.y, first_row, order, size, labels)
    clear(scratch.gradient)
    block = max(4, min(32, 8192 // width // 4 * 4))
    for start in range(0, size, block):
        stop = min(start + block, size)
        for b in range(start, stop, 4):
            here = four_rows(first_row, order, b, stop, width)
            ahead = four_rows(first_row, order, b + AHEAD, size, width)
            dense_scores(x, here, ahead, scratch.theta, width, scores, b)
        slopes(work.loss, work.threshold, scores[start:], labels[start:], stop - start)
        for b in range(start, stop, 4):
            here = four_rows(first_row, order, b, stop, width)
            for i in range(stop, b + 4):
                scores[i] = f32(0.0)  # rows that fill up the last four count nothing
            dense_add(x, here, scores, b, scratch.gradient, width)


@compiled_inline
def four_rows(first_row: Any, order: Any, b: Any, stop: Any, width: Any) -> Any:
    """Return where four rows of the batch start; past its end, the last one's place."""
    last = stop - 1
    return (
        (first_row + np.int64(order[min(b, last)])) * width,
        (first_row + np.int64(order[min(b + 1, last)])) * width,
        (first_row + np.int64(order[min(b + 2, last)])) * width,
        (first_row + np.int64(order[min(b + 3, last)])) * width,
    )


@compiled_inline
def dense_scores(
    x: Any, places: Any, ahead: Any, theta: Any, width: Any, scores: Any, b: Any
) -> None:
    """Write scores[b : b + 4], of the rows that start at x[places].

    Rows are drawn at random: the processor does not guess the next, but we know it.
    """
    p0, p1, p2, p3 = places
    q0, q1, q2, q3 = ahead
    s0 = s1 = s2 = s3 = splat(f32(0.0))
    for i in range(0, width, RUN):
        t = load(theta, i)
        prefetch(x, q0 + i)
        prefetch(x, q1 + i)
        prefetch(x, q2 + i)
        prefetch(x, q3 + i)
        s0 = multiply_add(load(x, p0 + i), t, s0)
        s1 = multiply_add(load(x, p1 + i), t, s1)
        s2 = multiply_add(load(x, p2 + i), t, s2)
        s3 = multiply_add(load(x, p3 + i), t, s3)
    scores[b] = total(s0)
    scores[b + 1] = total(s1)
    scores[b + 2] = total(s2)
    scores[b + 3] = total(s3)


@compiled_inline
def dense_add(
    x: Any, places: Any, scores: Any, b: Any, gradient: Any, width: Any
) -> None:
    """Add scores[b : b + 4] times the rows that start at x[places] to the gradient."""
    p0, p1, p2, p3 = places
    a0, a1 = splat(scores[b]), splat(scores[b + 1])
    a2, a3 = splat(scores[b + 2]), splat(scores[b + 3])
    for i in range(0, width, RUN):
        left = multiply_add(a0, load(x, p0 + i), load(gradient, i))
        left = multiply_add(a1, load(x, p1 + i), left)
        right = multiply(a2, load(x, p2 + i))
        right = multiply_add(a3, load(x, p3 + i), right)
        store(gradient, i, add(left, right))


@compiled_inline
def one_hot_gradient(
    rows: Any, device: Any, size: Any, work: Any, scratch: Any
) -> None:
    """Sum the gradients of one-hot rows: look up, add, and count by code."""
    first, stop = rows.offsets[device], rows.offsets[device + 1]
    order, scores, sums = scratch.order, scratch.scores, scratch.sums
    fill_table(rows, scratch.theta, scratch.table)
    gather(rows.y, first, order, size, scratch.labels)
    look_up(rows.words[0, first:stop], order, size, scratch.table, scores)
    for w in range(1, len(rows.words)):
        look_up_more(rows.words[w, first:stop], order, size, scratch.table, scores)
    slopes(work.loss, work.threshold, scores, scratch.labels, size)
    clear(sums)
    for w in range(len(rows.words)):
        add_by_code(rows.words[w, first:stop], order, size, scores, sums)
    sum_table(rows, sums, scratch.gradient)


@compiled_inline
def entries(word: Any, table: Any) -> Any:
    """Return the sum of the entries of a word's four codes."""
    left = table[word & CODE] + table[(word >> np.uint64(16)) & CODE]
    right = table[(word >> np.uint64(32)) & CODE] + table[word >> np.uint64(48)]
    return left + right


@compiled_inline
def look_up(words: Any, order: Any, size: Any, table: Any, scores: Any) -> None:
    """Write the rows' scores: most rows have one word."""
    for b in range(size):
        scores[b] = entries(words[order[b]], table)


@compiled_inline
def look_up_more(words: Any, order: Any, size: Any, table: Any, scores: Any) -> None:
    """Add what further words bring."""
    for b in range(size):
        scores[b] += entries(words[order[b]], table)


@compiled_inline
def add_by_code(words: Any, order: Any, size: Any, scores: Any, sums: Any) -> None:
    """Add each row's slope to the sums of its four codes.

    Two copies of the sums by turns: rows in a row often share a code, and the second
    would wait for the first to be stored.
    """
    half = np.uint64(len(sums) // 2)
    for b in range(size):
        copy = np.uint64(b & 1) * half
        slope = scores[b]
        word = words[order[b]]
        sums[copy + (word & CODE)] += slope
        sums[copy + ((word >> np.uint64(16)) & CODE)] += slope
        sums[copy + ((word >> np.uint64(32)) & CODE)] += slope
        sums[copy + (word >> np.uint64(48))] += slope


@compiled_inline
def fill_table(rows: Any, theta: Any, table: Any) -> None:
    """Fill the table of one-hot codes from theta, scaled by the rows' value.

    Entries past the end of a group hold a neighbour's sum, and no code points there.
    """
    value = splat(rows.value)
    if len(rows.pairs) == 0:
        for i in range(0, rows.table_size - 1, RUN):
            store(table, i, multiply(value, load(theta, i)))
        table[rows.table_size - 1] = f32(0.0)
        return
    for p in range(len(rows.pairs)):
        first, num_first, second, num_second, place = rows.pairs[p]
        for i in range(first, first + num_first):
            base = splat(theta[i])
            for j in range(second, second + num_second, RUN):
                store(table, place, multiply(value, add(base, load(theta, j))))
                place += RUN


@compiled_inline
def sum_table(rows: Any, sums: Any, gradient: Any) -> None:
    """Turn sums by code into the gradient: the reverse of `fill_table`."""
    value = splat(rows.value)
    half = len(sums) // 2
    clear(gradient)
    if len(rows.pairs) == 0:
        for i in range(0, rows.table_size - 1, RUN):
            both = add(load(sums, i), load(sums, half + i))
            store(gradient, i, multiply(value, both))
        return
    for p in range(len(rows.pairs)):
        first, num_first, second, num_second, place = rows.pairs[p]
        for i in range(first, first + num_first):
            line = splat(f32(0.0))
            for j in range(second, second + num_second, RUN):
                both = add(load(sums, place), load(sums, half + place))
                both = multiply(value, both)
                line = add(line, both)
                store(gradient, j, add(load(gradient, j), both))
                place += RUN
            gradient[i] += total(line)


@compiled_inline
def sparse_gradient(rows: Any, device: Any, size: Any, work: Any, scratch: Any) -> None:
    """Sum the gradients of compressed sparse rows."""
    theta, gradient, scores = scratch.theta, scratch.gradient, scratch.scores
    columns, values = rows.columns, rows.values
    first_row, order = rows.offsets[device], scratch.order
    gather(rows.y, first_row, order, size, scratch.labels)
    for b in range(size):
        row = np.uint64(first_row) + order[b]
        score = f32(0.0)
        for k in range(rows.starts[row], rows.starts[row + np.uint64(1)]):
            score += values[k] * theta[columns[k]]
        scores[b] = score
    slopes(work.loss, work.threshold, scores, scratch.labels, size)
    clear(gradient)
    for b in range(size):
        row = np.uint64(first_row) + order[b]
        slope = scores[b]
        for k in range(rows.starts[row], rows.starts[row + np.uint64(1)]):
            gradient[columns[k]] += slope * values[k]


@overload(add_gradient, jit_options={"forceinline": True})
def _add_gradient(rows: Any, device: Any, size: Any, work: Any, scratch: Any) -> Any:
    """Choose by the layout of the rows, when the caller is compiled."""
    chosen = {
        DenseRows: dense_gradient,
        OneHotRows: one_hot_gradient,
        SparseRows: sparse_gradient,
    }[rows.instance_class]

    def call(rows: Any, device: Any, size: Any, work: Any, scratch: Any) -> None:
        chosen(rows, device, size, work, scratch)

    return call


@compiled_inline
def add_scaled(out: Any, scale: Any, source: Any) -> None:
    """Add scale * source to out, over whole runs."""
    scales = splat(scale)
    for i in range(0, len(out), RUN):
        store(out, i, multiply_add(scales, load(source, i), load(out, i)))


@compiled
def single_steps(
    rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any
) -> None:
    """Take tau steps from scratch.theta in place, the first `noisy` of them with noise.

    The last step's noise may be left to `add_mean_noise`, drawn once for the mean.
    """
    keep_apart()
    seed, first_step = key
    theta, gradient, noise = scratch.theta, scratch.gradient, scratch.noise
    eta, sigma = work.learning_rate[0], work.noise_std[device, 0]
    for step in range(first_step, first_step + work.tau):
        drawn, divisor = draw_batch(rows, device, step, seed, work, scratch)
        add_gradient(rows, device, drawn, work, scratch)
        undo_batch(rows, device, drawn, work, scratch)
        if step < first_step + noisy and work.noisy[device]:
            state, gamma = stream(seed, device, step, NOISE)
            fill_normals(noise, work.dim, state, gamma)
            add_scaled(gradient, f32(divisor) * sigma, noise)
        if work.l2[0] > f32(0.0):
            add_scaled(theta, -eta * work.l2[0], theta)
        add_scaled(theta, -eta / f32(divisor), gradient)
