"""Rounds of a release whose server sees only sums: noise once per upload.

`fleet.device.exact_uploads` has the mechanism, its proof and the code of one device;
here are all devices of this process. Their steps are compiled (`release.quiet_steps`),
and their shares of the noise are exact (`release.normals`). Uploads are whole numbers:
they are added without an error, and only the sum leaves this module.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array, floats
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.device.exact_noise import Integers
from fedbudget.fleet.device.exact_uploads import UploadGrid
from fedbudget.losses import Huber, Loss
from fedbudget.planning import Plan
from fedbudget.planning.plans import NOT_PRIVATE
from fedbudget.privacy import NoisyUploads
from fedbudget.release.rounds import AT_ONCE
from fedbudget.simulation.kernels.layouts import PackedRows
from fedbudget.simulation.kernels.runs import LOSS_CODES, num_threads

if TYPE_CHECKING:
    from types import ModuleType

# Of the model that a round starts from: longer ones have larger rounding errors than
# were counted. Rows have norm 1, so a useful model is far shorter.
LARGEST_NORM = 1e4
RING_BITS = 62  # sums are in 64 bits, and no mask needs a smaller ring


@dataclass(frozen=True, kw_only=True, eq=False)
class UploadRounds:
    """The uploads of all devices of this process, ready to run."""

    uploads: NoisyUploads
    packed: PackedRows
    grid: UploadGrid
    work: Any
    memory: Any

    @classmethod
    def of(cls, plan: Plan, packed: PackedRows) -> "UploadRounds":
        """Prepare the rounds of a plan.

        Raises:
            InvalidInputError: The plan has no noise, or rounding errors would need more
                noise than it has.
        """
        if plan.accountant == NOT_PRIVATE:
            raise InvalidInputError(
                "the plan has no noise, so its model may not be released: simulate the "
                "devices, or plan with a budget"
            )
        return cls.of_uploads(plan.uploads, packed, cyclic=plan.sampling == "cyclic")

    @classmethod
    def of_uploads(
        cls, uploads: NoisyUploads, packed: PackedRows, *, cyclic: bool = False
    ) -> "UploadRounds":
        """Prepare the uploads of devices with these rows."""
        loss, steps = packed.loss, uploads.steps
        kernels = _kernels()
        sizes = np.broadcast_to(steps.batch_size, (packed.num_devices,))
        work = kernels.QuietWork(
            loss=LOSS_CODES[loss.name],
            constant=float(
                loss.threshold if isinstance(loss, Huber) else loss.curvature
            ),
            dim=packed.dim,
            num_outputs=loss.num_outputs,
            l2=float(loss.l2),
            learning_rate=float(steps.learning_rate),
            tau=steps.tau,
            batch_size=np.array(sizes, dtype=np.int64),
            cyclic=cyclic,
        )
        return cls(
            uploads=uploads,
            packed=packed,
            grid=grid_of(uploads, loss, packed.dim),
            work=work,
            memory=kernels.new_memory(packed.dim, loss.num_outputs, num_threads()),
        )

    def model_after(
        self,
        theta: Array,
        devices: Integers,
        *,
        first_step: int,
        deal: NDArray[np.uint32],
    ) -> Array:
        """Return the model of the sum of these devices' uploads: what is released.

        The devices are at least `uploads.least_answers`, and were charged.

        Raises:
            InvalidInputError: There are fewer devices.
            TrainingError: The model is longer than rounding errors were counted for.
        """
        if len(devices) < self.uploads.least_answers:
            raise InvalidInputError(
                f"{len(devices)} devices answered, below least_answers "
                f"{self.uploads.least_answers}: their sum has too little noise"
            )
        total = self.noisy_sum(theta, devices, first_step=first_step, deal=deal)
        weight = float(self._weights[devices].sum())
        return np.asarray(theta + self.grid.decoded(total) / weight)

    def noisy_sum(
        self,
        theta: Array,
        devices: Integers,
        *,
        first_step: int,
        deal: NDArray[np.uint32],
    ) -> Integers:
        """Return the sum of the devices' noisy uploads, in grid steps; exact."""
        from fedbudget.release.normals import FastNormals

        normals = FastNormals()  # a new key for every round
        total = np.zeros(self.packed.num_params, dtype=np.int64)
        at_once = max(1, AT_ONCE // len(total))
        for start in range(0, len(devices), at_once):
            part = devices[start : start + at_once]
            whole = self.whole_moves(theta, part, first_step=first_step, deal=deal)
            noise = normals.draw(whole.size, scale_bits=self.grid.scale_bits)
            total += (whole + noise.reshape(whole.shape)).sum(axis=0)
        return total

    def whole_moves(
        self,
        theta: Array,
        devices: Integers,
        *,
        first_step: int,
        deal: NDArray[np.uint32],
    ) -> Integers:
        """Return uploads without noise, in grid steps, shape (devices, params).

        Raises:
            TrainingError: The model is longer than rounding errors were counted for.
        """
        length = float(np.linalg.norm(theta))
        if not length <= self.grid.largest_norm:  # also NaN
            raise TrainingError(
                f"the model has norm {length:.3g}, above {self.grid.largest_norm:g}, "
                "up to which rounding errors are counted: lower learning_rate, or "
                "raise epsilon"
            )
        moves = self._moves(
            np.asarray(theta, dtype=np.float64), devices, first_step, deal
        )
        clip = self.uploads.steps.clip
        if clip is not None:
            norms = np.linalg.norm(moves, axis=1, keepdims=True)
            moves *= clip / np.maximum(norms, clip)
        weighted = self._weights[devices, None] * moves
        return np.rint(weighted / self.grid.step).astype(np.int64)

    def _moves(
        self, theta: Array, devices: Integers, first_step: int, deal: Any
    ) -> Array:
        """Return how far the steps move each device, on all threads."""
        from fedbudget.simulation.kernels.sharing import distributed

        moves = np.empty((len(devices), len(theta)))
        claims = np.zeros(1, dtype=np.int64)

        def task(worker: int) -> None:
            _kernels().worker_moves(
                self.packed.rows,
                worker,
                claims,
                devices,
                first_step,
                theta,
                deal,
                self.work,
                self.memory,
                moves,
            )

        distributed(task, len(self.memory.theta))
        return moves

    @property
    def _weights(self) -> Array:
        weights = floats(self.uploads.weights)
        return np.broadcast_to(weights, (self.packed.num_devices,))


def grid_of(uploads: NoisyUploads, loss: Loss, dim: int) -> UploadGrid:
    """Return the grid of uploads in this process.

    Raises:
        InvalidInputError: Rounding errors would need more noise than the plan has.
    """
    return UploadGrid.of(
        uploads, loss, dim=dim, ring_bits=RING_BITS, largest_norm=LARGEST_NORM
    )


def _kernels() -> "ModuleType":
    """Import Numba and the kernels lazily, as `simulation.kernels.runs` does."""
    from fedbudget.release import quiet_steps

    return quiet_steps
