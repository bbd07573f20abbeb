"""FedJAX: its federated averaging, with a gradient function that adds the noise."""

# mypy: disable-error-code="import-not-found, untyped-decorator, misc"

from importlib.metadata import version
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from measuring import Measuring, Run, Variants
from workloads import Workload


def averaging(work: Workload, x: Any, *, columns: bool) -> Run:
    def mean_loss(params: Any, batch: Any) -> Any:
        theta, xb = params["theta"], batch["x"]
        scores = work.value * theta[xb].sum(axis=1) if columns else xb @ theta
        margins = batch["y"] * scores
        if work.loss == "logistic":
            return jax.nn.softplus(-margins).mean()
        return jax.nn.relu(1 - margins).mean()

    def algorithm(noise_std: float) -> Any:
        def noisy_grad(params: Any, batch: Any, rng: Any) -> Any:
            gradient = jax.grad(mean_loss)(params, batch)["theta"]
            noise = noise_std * jax.random.normal(rng, gradient.shape)
            return {"theta": gradient + noise}

        return fed_avg.federated_averaging(
            noisy_grad,
            client_optimizer=fedjax.optimizers.sgd(work.learning_rate),
            server_optimizer=fedjax.optimizers.sgd(1.0),
            client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
                batch_size=work.batch, num_epochs=None, num_steps=work.tau
            ),
        )

    algorithms: dict[float, Any] = {}  # compiled once for each level of noise
    clients = [
        (device, fedjax.ClientDataset({"x": xm, "y": ym}))
        for device, (xm, ym) in enumerate(zip(x, work.y, strict=True))
    ]

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        if noise_std not in algorithms:
            algorithms[noise_std] = algorithm(noise_std)
        federated = algorithms[noise_std]
        state = federated.init({"theta": jnp.zeros(work.dim)})
        key = jax.random.PRNGKey(seed)
        for _ in range(rounds):
            key, use = jax.random.split(key)
            keys = jax.random.split(use, len(clients))
            cohort = [(i, data, k) for (i, data), k in zip(clients, keys, strict=True)]
            state, _ = federated.apply(state, cohort)
        return np.asarray(state.params["theta"])

    return run


def main() -> None:
    measuring = Measuring("fedjax", version("fedjax"))
    work = measuring.work
    variants: Variants = {
        "dense rows": averaging(work, work.dense(), columns=False),
    }
    if work.one_hot:
        columns = work.x.astype(np.int32)
        variants["columns"] = averaging(work, columns, columns=True)
    measuring.run(
        variants,
        f"jax {jax.__version__}; its sampler: a device's rows are shuffled every round",
    )


if __name__ == "__main__":
    main()
