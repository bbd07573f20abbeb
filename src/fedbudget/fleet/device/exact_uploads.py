"""Noisy uploads for a sum, as whole numbers: noise once per upload, on a grid.

`algorithm` has the same in a few lines of ordinary arithmetic. Here the guarantee of
`privacy.uploads` holds for what a computer really does. Three things are counted:

**Rounding errors of the steps.** The steps have no noise, so nothing of them is
released: no sum need be exact, only close to it. If a computed step is within E of the
exact one, two runs on neighbouring data move apart by 2 E more per step, because exact
steps do not expand: the sensitivity is s + 2 tau E. `rounding_error` bounds tau E from
the standard model of floating-point arithmetic (Higham 2002, section 3.1; it holds for
every order of summation, and for fused operations). It grows with the norm of the
model: a longer one than `UploadGrid.largest_norm` is refused.

**The grid.** Upload k = rint(p Delta / g) is a vector of whole numbers. Rounding moves
a coordinate by at most 1/2 on either data set: replacing one unit moves k by at most
p (s + 2 tau E) / g + sqrt(d) grid steps (E also counts the rounded quotient). The step
g is chosen such that this, over the share's std in grid steps, is at most the planned
p s over the planned std. It must not be so fine that an upload could exceed 2^62 steps:
beyond 64 bits, what rounding does is undefined.

**The sum of rounded normals.** A share is a vector of R_i = round(S N_i) with N_i exact
standard normals and S = 2^scale_bits. *Statement:* the sum of n independent shares has
the law of round(S sqrt(n) N + W), up to a total variation distance of at most
exp(`log_sum_error`) per coordinate, where W is independent of N and of all data. As k
is whole, k + round(S sqrt(n) N + W) = round(k + S sqrt(n) N + W): the ordinary Gaussian
mechanism with variance n S^2, followed by post-processing. So mu-Gaussian DP holds as
without rounding. *Proof.* P(R_i = k) = f(k), where f is the density of S N + U, U
uniform on [-1/2, 1/2]. Let f_n be the density of S sqrt(n) N + U_1 + .. + U_n. Adding
U_1 integrates over a unit interval, so f_n(k) = P(round(S sqrt(n) N + W) = k) with
W = U_2 + .. + U_n. By Poisson summation, the characteristic function of R_i is the sum
of a_j = F(t + 2 pi j) over all whole j, F that of S N + U, and the one of f_n on the
whole numbers is the sum of a_j^n. On |t| <= pi, the a_j with j != 0 sum up to at most
A = 2.1 exp(-pi^2 S^2 / 2), so (sum a_j)^n and sum a_j^n differ by at most
(n + 1) A (1 + A)^n, and so do the probabilities of every k. Sum over |k| <= K =
40 S sqrt(n) + n; both tails beyond have less than exp(-800). For S >= 16 the distance
is below 1e-300: times (1 + e^epsilon), rounds and coordinates, it is far below the
1e-15 of delta by which `conversions.delta_from_mu` rounds up. (Kairouz, Liu and Steinke
2021, Theorem 1, bound the same for discrete Gaussians.)

Reduction modulo 2^ring_bits, as masks need it, is post-processing of the sum: one that
wraps around costs no privacy, and adds nothing to delta. It would wreck the model;
range and ring are chosen such that an honest sum does not wrap around within 12
standard deviations of its noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbudget.checks import Array, floats
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_noise import ExactNormals, Integers
from fedbudget.fleet.device.exact_steps import BLOCK, ExactRows
from fedbudget.losses import Loss
from fedbudget.privacy import LocalSteps, NoisyUploads

MOST_SCALE_BITS, LEAST_SCALE_BITS = 30, 4  # of a share's std, in grid steps
MOST_OUTPUTS = 4096  # for which slopes are known to be accurate
_UNIT = 2.0**-53  # largest relative error of one operation
# Largest error of a computed slope (its norm, for several outputs) at a given score: a
# hundred times what a C library's exp and tanh are wrong by.
_SLOPE_ERROR = 2.0**-40
_MOST_RAISE = 1e-3  # relative, of the noise
_TAIL = 12.0  # standard deviations that the noise of the sum stays within
_LARGEST_WHOLE = 2.0**62  # of an upload: above, int64 would overflow


def quiet_steps(
    theta: Array,
    rows: ExactRows,
    *,
    loss: Loss,
    tau: int,
    learning_rate: float,
    batches: Sequence[Any] | None = None,
) -> Array:
    """Return how far tau steps without noise move theta: Delta_m.

    Within `rounding_error` of the exact result. `batches` has the row indices of
    disjoint batches, taken in turn from the first; None: all rows in every step.
    """
    model = np.asarray(theta, dtype=np.float64)
    for step in range(tau):
        batch = None if batches is None else batches[step % len(batches)]
        gradient = _mean_gradient(loss, model, rows, batch)
        model = model - learning_rate * (gradient + loss.l2 * model)
    return np.asarray(model - theta)


def _mean_gradient(loss: Loss, theta: Array, rows: ExactRows, batch: Any) -> Array:
    """Return the mean gradient of a batch, in blocks of rows, without the L2 term."""
    total = np.zeros_like(theta)
    count = len(rows) if batch is None else len(batch)
    for start in range(0, count, BLOCK):
        part = slice(start, start + BLOCK)
        index = part if batch is None else batch[part]
        x = rows.x[index].astype(np.float64)
        slopes = loss.slopes(loss.scores(theta, x), rows.y[index])
        total += (x.T @ slopes).T.reshape(-1)
    return np.asarray(total / count)


def rounding_error(
    loss: Loss, steps: LocalSteps, *, start_norm: float, dim: int
) -> Array:
    """Return a bound on the norm of computed minus exact moves; shape of batch sizes.

    With g(k) = k u / (1 - k u): a score has an error of at most g(dim) |theta|, also
    counting what a slope's formula adds to it; the mean over X rows one of g(X) G;
    the update one of a few u times its terms. For the device as the unit, errors of
    scores do not matter: slopes at wrong scores are within their bound, too.
    """
    if loss.num_outputs > MOST_OUTPUTS:
        raise InvalidInputError(
            f"the loss has {loss.num_outputs} outputs: exact uploads are for at most "
            f"{MOST_OUTPUTS}"
        )
    eta, bound = steps.learning_rate, steps.lipschitz
    reach = (start_norm + steps.tau * eta * bound) * (1 + 1e-6)  # of every iterate
    score = _gamma(dim + 2 * loss.num_outputs + 16) * (reach + 2)
    slope = _SLOPE_ERROR
    if steps.unit == "sample":
        slope += steps.curvature * score
    gradient = slope + _gamma(floats(steps.batch_size) + 4) * bound
    each = eta * gradient + 16 * _UNIT * (reach + eta * bound)
    clipped = 0.0
    if steps.clip is not None:
        clipped = _gamma(loss.num_params(dim) + 16) * steps.clip
    return np.asarray(steps.tau * each + 4 * _UNIT * reach + clipped)


def _gamma(terms: Any) -> Any:
    return terms * _UNIT / (1 - terms * _UNIT)


@dataclass(frozen=True, kw_only=True)
class UploadGrid:
    """The common grid of all devices' uploads in a run; public."""

    step: float  # g
    scale_bits: int  # a share's std is 2^scale_bits grid steps
    ring_bits: int  # sums are modulo 2^ring_bits, from -2^(ring_bits-1)
    largest_norm: float  # of a model that devices start from

    def __post_init__(self) -> None:
        if not LEAST_SCALE_BITS <= self.scale_bits <= MOST_SCALE_BITS:
            raise InvalidInputError(
                f"scale_bits must be {LEAST_SCALE_BITS} to {MOST_SCALE_BITS}, got "
                f"{self.scale_bits}: with fewer, sums of rounded normals are not normal"
            )

    @classmethod
    def of(
        cls,
        uploads: NoisyUploads,
        loss: Loss,
        *,
        dim: int,
        ring_bits: int = 32,
        largest_norm: float = 1e3,
    ) -> "UploadGrid":
        """Return the finest grid whose sums of all devices fit the ring.

        Raises:
            InvalidInputError: Rounding would raise the noise by more than a thousandth.
        """
        weights = np.atleast_1d(floats(uploads.weights))
        weights = weights[weights > 0]
        furthest = float(weights.sum()) * _largest_move(uploads.steps, largest_norm)
        tail = _TAIL * math.sqrt(len(weights)) + 1
        # furthest / g + M + tail S <= 2^(ring_bits - 1), for g = std / S.
        room = 2.0 ** (ring_bits - 1) - len(weights) - 1
        scale = room / (furthest / uploads.noise_std + tail)
        bits = min(MOST_SCALE_BITS, math.floor(math.log2(max(scale, 1.0))))
        for scale_bits in range(bits, LEAST_SCALE_BITS - 1, -1):
            raised = _raise_needed(uploads, loss, dim, scale_bits, largest_norm)
            if raised > _MOST_RAISE:
                break
            step = uploads.noise_std * (1 + raised) / 2**scale_bits
            grid = cls(
                step=step,
                scale_bits=scale_bits,
                ring_bits=ring_bits,
                largest_norm=largest_norm,
            )
            if grid.covers(uploads, loss, dim=dim).all():
                return grid
        raise InvalidInputError(
            f"sums of {len(weights)} uploads in {ring_bits} bits would need more than "
            f"{1 + _MOST_RAISE:g} times the noise, for {loss.num_params(dim)} "
            "parameters: use more ring_bits"
        )

    def covers(self, uploads: NoisyUploads, loss: Loss, *, dim: int) -> Any:
        """Return for which devices an upload on this grid keeps the planned mu.

        A device must check this for itself: the grid is the coordinator's.
        """
        planned = floats(uploads.weights) * uploads.steps.sensitivity
        moved = self.most_moved(uploads, loss, dim=dim)
        furthest = _largest_move(uploads.steps, self.largest_norm)
        largest = floats(uploads.weights) * furthest / self.step
        keeps = moved / 2.0**self.scale_bits <= planned / uploads.noise_std
        return keeps & (largest < _LARGEST_WHOLE)

    def most_moved(self, uploads: NoisyUploads, loss: Loss, *, dim: int) -> Array:
        """Return the largest distance of neighbours' whole numbers, in grid steps."""
        steps = uploads.steps
        error = rounding_error(loss, steps, start_norm=self.largest_norm, dim=dim)
        error = error + _product_error(steps, self.largest_norm)
        exact = floats(uploads.weights) * (steps.sensitivity + 2 * error) / self.step
        rounded = math.sqrt(loss.num_params(dim)) * (1 + 1e-9)
        return np.where(floats(uploads.weights) > 0, exact * (1 + 1e-9) + rounded, 0.0)

    def decoded(self, total: Integers) -> Array:
        """Return a sum of uploads from its whole numbers modulo the ring."""
        half = 1 << (self.ring_bits - 1)
        whole = (np.asarray(total, dtype=np.int64) + half) % (1 << self.ring_bits)
        return np.asarray((whole - half) * self.step)


def _largest_move(steps: LocalSteps, largest_norm: float) -> float:
    """Return the largest norm of Delta_m, of any device."""
    eta, tau, bound = steps.learning_rate, steps.tau, steps.lipschitz
    reach = largest_norm + eta * tau * bound
    most = eta * tau * (bound + steps.l2 * reach)
    return most if steps.clip is None else min(most, steps.clip)


def _product_error(steps: LocalSteps, largest_norm: float) -> float:
    """Return how far rounding p Delta / g moves Delta: two operations, relative."""
    return 4 * _UNIT * _largest_move(steps, largest_norm)


def _raise_needed(
    uploads: NoisyUploads, loss: Loss, dim: int, scale_bits: int, largest_norm: float
) -> float:
    """Return by how much the noise grows to cover rounding, relative.

    With a = 2 tau E / s and b = sqrt(d) std / (2^scale_bits p s), a factor of 1 + r
    is enough if (1 + a) / (1 + r) + b <= 1; r = 2 (a + b) is, for b <= 1/4.
    """
    steps = uploads.steps
    moved = floats(uploads.weights) * steps.sensitivity
    error = rounding_error(loss, steps, start_norm=largest_norm, dim=dim)
    error = error + _product_error(steps, largest_norm)
    share = uploads.noise_std * math.sqrt(loss.num_params(dim)) / 2**scale_bits
    with np.errstate(divide="ignore"):
        part = 2 * error / steps.sensitivity + share / moved
    taking_part = np.broadcast_to(moved > 0, np.shape(part))
    return 2 * float(np.max(part[taking_part])) + 1e-8


def log_sum_error(*, scale_bits: int, answers: int) -> float:
    """Return the log of how far a sum of shares is from a rounded normal, at most.

    It is the total variation distance of one coordinate; see the statement above.

    >>> log_sum_error(scale_bits=4, answers=1000) < -700
    True
    """
    scale = 2.0**scale_bits
    log_aliases = math.log(2.1) - (math.pi * scale) ** 2 / 2
    reach = 40 * scale * math.sqrt(answers) + answers
    growth = answers * math.log1p(math.exp(log_aliases))
    inside = math.log(reach + 1) + math.log(answers + 1) + log_aliases + growth
    return max(inside, -800.0) + math.log(3)


def exact_upload(
    theta: Array,
    rows: ExactRows,
    *,
    loss: Loss,
    uploads: NoisyUploads,
    grid: UploadGrid,
    batches: Sequence[Any] | None = None,
) -> Integers:
    """Return what a device adds to a sum: whole numbers with its share of the noise.

    The caller charges the uploads first, masks the result, and releases only sums of at
    least `uploads.least_answers` devices. Arguments and errors: see `whole_upload`.
    """
    whole = whole_upload(
        theta, rows, loss=loss, uploads=uploads, grid=grid, batches=batches
    )
    return whole + ExactNormals().draw(len(whole), scale_bits=grid.scale_bits)


def whole_upload(
    theta: Array,
    rows: ExactRows,
    *,
    loss: Loss,
    uploads: NoisyUploads,
    grid: UploadGrid,
    batches: Sequence[Any] | None = None,
) -> Integers:
    """Return an upload without its noise, in grid steps; it must not be sent.

    `uploads` are those of this device alone.

    Raises:
        InvalidInputError: The grid does not keep the planned mu, the model is too long
            for it, or the rows are not those of the plan.
    """
    steps, dim = uploads.steps, rows.x.shape[1]
    _check(theta, rows, uploads, grid, batches)
    if not np.all(grid.covers(uploads, loss, dim=dim)):
        raise InvalidInputError(
            f"the grid of step {grid.step:g} does not keep this device's epsilon: "
            "refuse the run"
        )
    move = quiet_steps(
        theta,
        rows,
        loss=loss,
        tau=steps.tau,
        learning_rate=steps.learning_rate,
        batches=batches,
    )
    if steps.clip is not None:
        move = move * (steps.clip / max(float(np.linalg.norm(move)), steps.clip))
    return np.rint(float(floats(uploads.weights)) * move / grid.step).astype(np.int64)


def _check(
    theta: Array,
    rows: ExactRows,
    uploads: NoisyUploads,
    grid: UploadGrid,
    batches: Sequence[Any] | None,
) -> None:
    length = float(np.linalg.norm(theta))
    if not length <= grid.largest_norm:  # also NaN
        raise InvalidInputError(
            f"the model has norm {length:g}, above {grid.largest_norm:g}: its rounding "
            "errors are not covered; refuse the round"
        )
    sizes = [len(rows)] if batches is None else [len(batch) for batch in batches]
    planned = float(floats(uploads.steps.batch_size))
    blocks = float(floats(uploads.steps.blocks))
    if set(sizes) != {planned} or len(sizes) != blocks:
        raise InvalidInputError(
            f"the plan is for {blocks:g} batches of {planned:g} rows, got "
            f"{len(sizes)} of {min(sizes)} to {max(sizes)}: plan again"
        )
    if batches is not None:
        used = np.concatenate([np.asarray(batch) for batch in batches])
        if len(np.unique(used)) < len(used):
            raise InvalidInputError(
                "a row is in two batches, and would count twice: give disjoint batches"
            )
