"""Apple's pfl: its simulated backend, with a NumPy model or with a PyTorch model.

Noise on every local step is not something pfl offers: it is in the local steps of the
NumPy model, and in the local optimizer of the PyTorch model.
"""

# ruff: noqa: D102 (the methods are those of pfl's classes)
# mypy: disable-error-code="import-not-found, untyped-decorator, misc"

import sys
from typing import Any

import numpy as np
import pfl
from local_numpy import dense_steps, one_hot_steps
from measuring import Measuring, Run, Variants
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.base import StatefulModel
from pfl.stats import MappedVectorStatistics
from workloads import Workload


class NumpyModel(StatefulModel):
    """theta as a custom model, as in pfl's tutorial."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.theta = np.zeros(dim, dtype=np.float32)

    def get_parameters(self, placeholders: Any = None) -> Any:
        del placeholders
        return MappedVectorStatistics({"theta": self.theta})

    def set_parameters(self, w: Any) -> None:
        self.theta = w["theta"]

    def get_model_difference(self, other_parameters: Any, clone: bool = False) -> Any:
        del clone
        difference = self.theta - other_parameters["theta"]
        return MappedVectorStatistics({"theta": difference})

    def apply_model_update(self, statistics: Any) -> Any:
        self.theta = self.theta + statistics["theta"]
        return self, Metrics()

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return Metrics()  # requested in the first round with all settings

    def save(self, dir_path: str) -> None:
        raise NotImplementedError("this benchmark does not save")

    def load(self, dir_path: str) -> None:
        raise NotImplementedError("this benchmark does not load")


class NumpyAveraging(FederatedAveraging):
    """Federated averaging whose local training is ours to write."""

    def __init__(self, work: Workload, steps: Any, noise_std: float, seed: int) -> None:
        super().__init__()
        self.work, self.steps, self.noise_std = work, steps, noise_std
        self.rng = np.random.default_rng(seed)

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, context: Any
    ) -> Any:
        del context
        x, y = user_dataset.raw_data
        model.theta = self.steps(model.theta, x, y, self.rng, self.noise_std, self.work)
        return model.get_model_difference(initial_model_state), Metrics()


def backend_of(datasets: list[Any]) -> Any:
    sampler = get_user_sampler("minimize_reuse", list(range(len(datasets))))
    users = FederatedDataset(lambda user: datasets[user], sampler)
    return SimulatedBackend(training_data=users, val_data=users)


def settings_of(work: Workload, rounds: int) -> dict[str, Any]:
    return {
        "algorithm_params": NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=work.num_devices,
            val_cohort_size=0,
        ),
        "model_train_params": NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=work.tau,
            local_learning_rate=work.learning_rate,
            local_batch_size=work.batch,
        ),
        "send_metrics_to_platform": False,
    }


def with_numpy(work: Workload, x: Any, steps: Any) -> Run:
    pairs = zip(x, work.y, strict=True)
    backend = backend_of([Dataset(raw_data=pair) for pair in pairs])

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        algorithm = NumpyAveraging(work, steps, noise_std, seed)
        model = NumpyModel(work.dim)
        return algorithm.run(
            backend=backend, model=model, **settings_of(work, rounds)
        ).theta

    return run


def with_torch(work: Workload, threads: int) -> Run:
    import torch
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.model.pytorch import PyTorchModel

    class FreshBatches(PyTorchTensorDataset):
        """A device's rows: every batch is drawn again, without replacement."""

        def iter(self, batch_size: Any) -> Any:
            x, y = self.raw_data
            if batch_size == len(y):  # to evaluate on
                yield x, y
                return
            while True:
                rows = torch.randperm(len(y))[:batch_size]
                yield x[rows], y[rows]

    class NoisySGD(torch.optim.SGD):
        """SGD with noise on every gradient."""

        noise_std = 0.0

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.add_(torch.randn_like(p), alpha=self.noise_std)
            return super().step(closure)

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = torch.nn.Parameter(torch.zeros(work.dim))

        def loss(self, x: Any, y: Any) -> Any:
            margins = y * (x @ self.theta)
            if work.loss == "logistic":
                return torch.nn.functional.softplus(-margins).mean()
            return torch.relu(1 - margins).mean()

        def metrics(self, x: Any, y: Any) -> Any:
            # Asked for in the first round, whatever the settings: take no time.
            return {"loss": Weighted(0, len(y))}

    tensors = zip(torch.from_numpy(work.dense()), torch.from_numpy(work.y), strict=True)
    backend = backend_of([FreshBatches(pair) for pair in tensors])

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        NoisySGD.noise_std = noise_std
        module = Linear()
        model = PyTorchModel(
            model=module,
            local_optimizer_create=NoisySGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        )
        FederatedAveraging().run(
            backend=backend, model=model, **settings_of(work, rounds)
        )
        return module.theta.detach().numpy()

    return run


def main() -> None:
    use_torch = "--torch" in sys.argv
    if use_torch:
        sys.argv.remove("--torch")
    measuring = Measuring("pfl, torch" if use_torch else "pfl, numpy", pfl.__version__)
    work = measuring.work
    variants: Variants = {}
    if use_torch:
        import torch

        for threads in sorted({1, torch.get_num_threads()}):
            variants[f"threads: {threads}"] = with_torch(work, threads)
        measuring.run(variants, f"torch {torch.__version__}")
        return
    variants["dense rows"] = with_numpy(work, work.dense(), dense_steps)
    if work.one_hot:
        columns = work.x.astype(np.int64)
        variants["columns"] = with_numpy(work, columns, one_hot_steps)
    measuring.run(variants, "the same local steps as the NumPy loop")


if __name__ == "__main__":
    main()
