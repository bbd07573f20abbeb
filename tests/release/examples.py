"""Rows in every layout, and single sums of their gradients."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

import fedbudget as fb
from fedbudget.checks import Array
from fedbudget.data import Dataset, Part
from fedbudget.fleet.device.exact_steps import ExactRows, slope_bits
from fedbudget.release.rounds import ReleaseRounds
from fedbudget.release.rows import exact_rows
from fedbudget.release.sums import Scratch, add_sums
from fedbudget.simulation.kernels.simd import compiled

KINDS = ["dense", "pairs", "codes", "sparse"]
LOSSES = ["logistic", "hinge", "smooth_hinge", "huber", "softmax"]
SIZES = (1300, 40)  # more than two blocks of rows, and less than one
DIM = 37


def rows_of(kind: str, count: int, seed: int = 0) -> Any:
    """Return rows in the unit ball: an array, or CSR with equal or other entries."""
    rng = np.random.default_rng(seed)
    if kind in ("pairs", "codes"):
        # An odd number of groups cannot be merged in pairs.
        groups = 4 if kind == "pairs" else 3
        starts = np.arange(groups) * 9
        columns = starts + rng.integers(0, 9, (count, groups))
        x = np.zeros((count, DIM))
        np.put_along_axis(x, columns, groups**-0.5, axis=1)
        return csr_array(x.astype(np.float32))
    x = rng.normal(size=(count, DIM))
    if kind == "sparse":
        x *= rng.random(x.shape) < 0.2
    x *= rng.uniform(0.5, 1, (count, 1)) ** 0.5
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)) * (1 + 1e-7)
    return csr_array(x.astype(np.float32)) if kind == "sparse" else x.astype("f4")


def data_of(kind: str, loss: str, sizes: tuple[int, ...] = SIZES) -> Dataset:
    """Return a data set whose labels fit the loss."""
    rng = np.random.default_rng(1)
    classes = {"softmax": ("a", "b", "c"), "huber": None}.get(loss, ("a", "b"))

    def part(counts: tuple[int, ...], seed: int) -> Part:
        count = sum(counts)
        y: NDArray[Any] = rng.uniform(-1, 1, count)
        if classes is not None:
            y = rng.integers(0, len(classes), count)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Part(x=rows_of(kind, count, seed), y=y, offsets=offsets)

    few = (2,) * len(sizes)
    return Dataset(
        name=kind,
        train=part(sizes, 2),
        validation=part(few, 3),
        test=part(few, 4),
        device_names=tuple(f"device-{m}" for m in range(len(sizes))),
        feature_names=tuple(f"x{i}" for i in range(DIM)),
        classes=classes,
        dissimilarity="iid",
    )


def plan_of(data: Dataset, loss: str, **values: Any) -> fb.Plan:
    """Return a plan of full batches, with some of its values changed."""
    plan = fb.plan(
        data.problem(loss=loss),
        fb.Budget(epsilon=4.0, cost=1000),
        fb.Prices(communication=10, computation=1),
        noise_schedule=False,
    )
    full: dict[str, Any] = {
        "sampling": "full",
        "batch_size": data.num_samples,
        "momentum": 0.0,
        "weights": np.full(data.num_devices, 1 / data.num_devices),
    }
    return replace(plan, **(full | values))


@compiled
def write_sums(
    rows: Any, device: Any, size: Any, theta: Any, work: Any, scratch: Any
) -> None:
    add_sums(rows, device, size, theta, work, scratch)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """The compiled sums of one data set."""

    data: Dataset
    rounds: ReleaseRounds

    @classmethod
    @cache
    def of(cls, kind: str, loss: str, sizes: tuple[int, ...] = SIZES) -> "Sums":
        data = data_of(kind, loss, sizes)
        plan = plan_of(data, loss)
        packed = exact_rows(data.train, plan.model)
        return cls(data=data, rounds=ReleaseRounds.of(plan, packed))

    @property
    def bits(self) -> int:
        """Of a slope of the first device."""
        plan = self.rounds.plan
        return slope_bits(int(plan.num_samples[0]), plan.lipschitz)

    def exact(self) -> ExactRows:
        """Return the rows of the first device, as a real device rounds them."""
        x, y = self.data.train.device(0)
        return ExactRows.rounded(x if isinstance(x, np.ndarray) else x.toarray(), y)

    def theta(self, size: float = 1.0, seed: int = 5) -> Array:
        """Return a model of this length."""
        num_params = self.rounds.packed.num_params
        theta = np.random.default_rng(seed).normal(size=num_params)
        return theta * size / np.linalg.norm(theta)

    def of_batch(self, theta: Array, batch: Any, device: int = 0) -> NDArray[np.int64]:
        """Return the sum over rows of a batch, as the compiled code computes it."""
        scratch = Scratch(*(buffer[0].copy() for buffer in self.rounds.memory))
        scratch.order[: len(batch)] = batch
        rows, work = self.rounds.rows, self.rounds.work
        write_sums(rows, device, len(batch), theta, work, scratch)
        return np.asarray(scratch.sums)

    def slopes(self, theta: Array, row: int) -> list[int]:
        """Return the whole slopes of one row."""
        scratch = Scratch(*(buffer[0].copy() for buffer in self.rounds.memory))
        scratch.order[0] = row
        write_sums(self.rounds.rows, 0, 1, theta, self.rounds.work, scratch)
        outputs = self.rounds.packed.loss.num_outputs
        by_output = scratch.slopes.reshape(outputs, -1)[:, 0]
        assert (by_output == np.rint(by_output)).all()
        return [int(slope) for slope in by_output]
