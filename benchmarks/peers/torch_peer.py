"""PyTorch: all devices at a time, by torch.func's vmap and grad, or by bmm."""

# mypy: disable-error-code="import-not-found, untyped-decorator, misc"

from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import Measuring, Run, Variants
from torch.func import grad, vmap
from workloads import Workload


def mean_loss(theta: Any, x: Any, y: Any, loss: str) -> Any:
    margins = y * (x @ theta)
    if loss == "logistic":
        return torch.nn.functional.softplus(-margins).mean()
    return torch.relu(1 - margins).mean()


def slopes(scores: Any, y: Any, loss: str) -> Any:
    if loss == "logistic":
        return -y * torch.sigmoid(-y * scores)
    return torch.where(y * scores < 1, -y, 0.0)


def by_vmap(work: Workload) -> Any:
    per_device = vmap(grad(lambda t, x, y: mean_loss(t, x, y, work.loss)))

    def gradients(local: Any, x: Any, y: Any, rows: Any) -> Any:
        return per_device(local, x[rows], y[rows])

    return gradients


def by_bmm(work: Workload) -> Any:
    def gradients(local: Any, x: Any, y: Any, rows: Any) -> Any:
        xb = x[rows]
        scores = torch.bmm(xb, local[:, :, None])[:, :, 0]
        by_row = slopes(scores, y[rows], work.loss)
        return torch.bmm(by_row[:, None], xb)[:, 0] / work.batch

    return gradients


def by_columns(work: Workload) -> Any:
    def gradients(local: Any, x: Any, y: Any, rows: Any) -> Any:
        xb = x[rows].reshape(len(local), -1)
        scores = local.gather(1, xb).reshape(*rows.shape, -1).sum(2) * work.value
        by_row = slopes(scores, y[rows], work.loss) * (work.value / work.batch)
        spread = by_row[:, :, None].expand(-1, -1, x.shape[1]).reshape(xb.shape)
        return torch.zeros_like(local).scatter_add_(1, xb, spread)

    return gradients


def drawn_by_torch(num_devices: int, n: int, batch: int, seed: int) -> Any:
    del seed  # torch's own
    keys = partial(torch.rand, num_devices, n)
    return lambda: keys().topk(batch, dim=1, sorted=False).indices


def drawn_by_numpy(num_devices: int, n: int, batch: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    draw = partial(rng.choice, n, batch, replace=False, shuffle=False)
    return lambda: torch.from_numpy(np.stack([draw() for _ in range(num_devices)]))


def trained(
    work: Workload, x: Any, gradients: Any, threads: int, draws: Any = drawn_by_torch
) -> Run:
    num_devices, n = work.y.shape
    y = torch.from_numpy(work.y).reshape(-1)
    first_row = n * torch.arange(num_devices)[:, None]

    @torch.no_grad()
    def run(rounds: int, noise_std: float, seed: int) -> Any:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        theta = torch.zeros(work.dim)
        draw = draws(num_devices, n, work.batch, seed)
        for _ in range(rounds):
            local = theta.repeat(num_devices, 1)
            for _ in range(work.tau):
                step = gradients(local, x, y, draw() + first_row)
                step.add_(torch.randn_like(local), alpha=noise_std)
                local.sub_(step, alpha=work.learning_rate)
            theta = local.mean(0)
        return theta.numpy()

    trained_run: Run = run
    return trained_run


def main() -> None:
    measuring = Measuring("torch", torch.__version__)
    work = measuring.work
    rows = torch.from_numpy(work.dense()).reshape(work.y.size, -1)
    methods = {
        "torch.func vmap": (rows, by_vmap(work)),
        "bmm": (rows, by_bmm(work)),
    }
    if work.one_hot:
        columns = torch.from_numpy(work.x.astype("int64")).reshape(work.y.size, -1)
        methods["columns"] = columns, by_columns(work)
    variants: Variants = {
        f"{name}, threads: {threads}": trained(work, x, gradients, threads)
        for name, (x, gradients) in methods.items()
        for threads in sorted({1, torch.get_num_threads()})
    }
    for name in ("torch.func vmap", "bmm"):
        x, gradients = methods[name]
        variants[f"{name}, threads: 1, batches drawn by NumPy"] = trained(
            work, x, gradients, 1, drawn_by_numpy
        )
    measuring.run(variants)


if __name__ == "__main__":
    main()
