"""Opacus for the local steps: its per-sample gradients, clipping and noise.

One wrapped model serves all devices in turn. Batches are tensors drawn by hand, which
is much faster than Opacus's data loader over single rows.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator, misc"

import warnings
from typing import Any

import opacus
import torch
from measuring import Measuring, Run
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from workloads import Workload

CLIP = 1.0  # rows have norm 1, so no gradient is longer: clipping changes nothing


def trained(work: Workload, threads: int) -> Run:
    x, y = torch.from_numpy(work.dense()), torch.from_numpy(work.y)
    model = GradSampleModule(torch.nn.Linear(work.dim, 1, bias=False))
    weight = next(model.parameters())
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=work.learning_rate),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=work.batch,
    )

    def loss_of(margins: Any) -> Any:
        if work.loss == "logistic":
            return torch.nn.functional.softplus(-margins).mean()
        return torch.relu(1 - margins).mean()

    def train_device(xm: Any, ym: Any) -> None:
        for _ in range(work.tau):
            rows = torch.randperm(len(ym))[: work.batch]
            optimizer.zero_grad()
            loss_of(ym[rows] * model(xm[rows])[:, 0]).backward()
            optimizer.step()

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        # Opacus adds its noise to the sum of the clipped gradients.
        optimizer.noise_multiplier = noise_std * work.batch / CLIP
        theta = torch.zeros(1, work.dim)
        for _ in range(rounds):
            total = torch.zeros_like(theta)
            for xm, ym in zip(x, y, strict=True):
                weight.data.copy_(theta)
                train_device(xm, ym)
                total += weight.data
            theta = total / work.num_devices
        return theta.numpy()

    return run


def main() -> None:
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    measuring = Measuring("opacus", opacus.__version__)
    threads = sorted({1, torch.get_num_threads()})
    measuring.run(
        {f"threads: {count}": trained(measuring.work, count) for count in threads},
        f"torch {torch.__version__}; batches drawn by hand, not by its data loader",
    )


if __name__ == "__main__":
    main()
