"""Sweeps on real local clusters; each is skipped if it is not installed.

Dask comes with the dev extra (4 MB, 11 s); Ray (70 MB, 25 s more) only with its own.
"""

import warnings
from collections.abc import Iterator

import pytest

import fedbudget as fb

PRICES = fb.Prices(communication=100, computation=1)


@pytest.fixture(scope="module")
def example() -> tuple[fb.Dataset, list[fb.Plan], fb.Sweep]:
    data = fb.load("adult", split="iid", num_devices=4)
    plans = [
        fb.plan(data.problem(), fb.Budget(epsilon=e, cost=300), PRICES)
        for e in (1, 4, 9)
    ]
    return data, plans, fb.sweep(data, plans, seeds=[0, 1])


@pytest.fixture
def quiet() -> Iterator[None]:
    """Ignore the warnings of the clusters; our own errors still fail a test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_cluster_gives_the_same_models(
    backend: str, example: tuple[fb.Dataset, list[fb.Plan], fb.Sweep]
) -> None:
    package = {"ray": "ray", "dask": "distributed"}[backend]
    pytest.importorskip(package, reason=f"{package} is not installed: no cluster")
    data, plans, local = example
    remote = fb.sweep(data, plans, seeds=[0, 1], backend=backend)
    assert remote.theta.tolist() == local.theta.tolist()
    assert remote.measured.keys() == local.measured.keys()


@pytest.mark.usefixtures("quiet")
def test_an_existing_dask_cluster_is_used(
    example: tuple[fb.Dataset, list[fb.Plan], fb.Sweep],
) -> None:
    distributed = pytest.importorskip("distributed", reason="no Dask cluster here")
    data, plans, local = example
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        remote = fb.sweep(
            data,
            plans,
            seeds=[0, 1],
            backend="dask",
            address=cluster.scheduler_address,
        )
    assert remote.theta.tolist() == local.theta.tolist()
