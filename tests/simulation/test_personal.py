"""Personal models: better than the global and local-only ones, at no charge."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import fedbudget as fb
from fedbudget.data import Dataset
from fedbudget.losses import loss_named
from fedbudget.privacy import Kind
from fedbudget.simulation.measuring import means, measure, measure_devices
from fedbudget.simulation.personal import (
    adapt,
    adapt_all,
    adapt_each,
    fit,
    judged_fits,
    measure_personal,
    smooth,
)
from tests.examples import small_data


def pooled_model(data: Dataset) -> np.ndarray:
    return fit(data.problem().model, data.train.x, data.train.y, strength=1e-3)


def test_few_rows_on_heterogeneous_devices_gain_over_both() -> None:
    losses = {"global": [], "personal": [], "alone": []}  # type: dict[str, list[float]]
    for seed in range(4):
        data = small_data(devices=12, rows=40, dim=8, unlike=0.5, seed=seed)
        loss, theta = data.problem().model, pooled_model(data)
        measured = measure_personal(data, loss, theta)
        losses["global"].append(measure(data, loss, theta)["test_loss"])
        losses["personal"].append(measured["personal_test_loss"])
        losses["alone"].append(measured["alone_test_loss"])
    assert np.mean(losses["personal"]) < np.mean(losses["global"])
    assert np.mean(losses["personal"]) < np.mean(losses["alone"])


def test_a_good_model_is_used_and_a_bad_one_is_not() -> None:
    data = small_data(devices=6, rows=60)
    loss, theta = data.problem().model, 3 * pooled_model(data)
    good = adapt_all(data, loss, theta)
    bad = adapt_all(data, loss, -10 * theta)
    assert np.mean([p.global_weight for p in good]) > 0.2
    assert max(p.global_weight for p in bad) < 1e-3
    assert min(p.local_weight for p in bad) > 0.9
    assert bad[0].theta == pytest.approx(bad[0].own, abs=0.1)


def test_an_overconfident_model_is_scaled() -> None:
    data = small_data(devices=1, rows=200)
    loss, train = data.problem().model, data.train.device(0)
    best = fit(loss, *train)
    judged = [
        judged_fits(loss, train, data.validation.device(0), scale * best, 0)
        for scale in (1, 2, 0.5, 8)
    ]
    scales = [float(fits[0] @ best / (best @ best)) for fits, _ in judged]
    losses = [held_out[0] for _, held_out in judged]
    assert scales == pytest.approx([1, 1, 1, 4])
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0] == pytest.approx(losses[2])
    assert losses[3] > losses[0]


def test_a_device_uses_only_its_own_rows() -> None:
    data = small_data(devices=3, rows=50)
    loss, theta = data.problem().model, pooled_model(data)
    single = adapt(loss, data.train.device(1), data.validation.device(1), theta, seed=1)
    assert (single.theta == adapt_all(data, loss, theta)[1].theta).all()


def test_several_models_at_once_are_adapted_as_one_by_one() -> None:
    data = small_data(devices=2, rows=50)
    loss, theta = data.problem().model, pooled_model(data)
    models = [theta, None, -theta]
    for model, together in zip(models, adapt_each(data, loss, models), strict=True):
        for ours, expected in zip(together, adapt_all(data, loss, model), strict=True):
            assert (ours.theta == expected.theta).all()
            assert (ours.own == expected.own).all()
            assert ours.global_weight == expected.global_weight
            assert ours.local_weight == expected.local_weight


@pytest.mark.parametrize("classes", [3, None])
def test_several_classes_and_regression(classes: int | None) -> None:
    data = small_data(devices=3, rows=40, classes=classes, unlike=0.5)
    loss = data.problem().model
    theta = fit(loss, data.train.x, data.train.y, strength=1e-3)
    measured = measure_personal(data, loss, theta)
    assert measured["personal_test_loss"] < measured["constant_test_loss"]
    assert ("personal_test_accuracy" in measured) == (classes is not None)


def test_one_row_is_too_few_to_judge_by_but_not_too_few_to_run() -> None:
    data = small_data(devices=4, rows=1)
    adapted = adapt_all(data, data.problem().model, np.ones(5))
    assert all(np.isfinite(personal.theta).all() for personal in adapted)


def test_sparse_rows_give_the_same_model() -> None:
    from scipy.sparse import csr_array

    data = small_data(devices=1, rows=100)
    loss, theta = data.problem().model, pooled_model(data)
    (x, y), (held_x, held_y) = data.train.device(0), data.validation.device(0)
    dense = adapt(loss, (x, y), (held_x, held_y), theta)
    sparse = adapt(loss, (csr_array(x), y), (csr_array(held_x), held_y), theta)
    assert sparse.theta == pytest.approx(dense.theta, abs=1e-3)


def test_training_measures_personal_models_at_no_charge() -> None:
    data = small_data(devices=4, rows=60, unlike=0.5)
    budget = fb.Budget(epsilon=4, cost=1000)
    prices = fb.Prices(communication=100, computation=1)
    plan = fb.plan(data.problem(), budget, prices)
    plain, personal = (fb.SimulatedDevices(data, budget=budget) for _ in range(2))
    without = fb.train(plan, plain)
    run = fb.train(plan, personal, personal=True)
    assert (run.theta == without.theta).all()
    assert (personal.ledger.cost == plain.ledger.cost).all()
    assert (personal.ledger.epsilon == plain.ledger.epsilon).all()
    expected = measure_personal(data, plan.model, run.theta)
    assert run.measured == without.measured | expected
    assert not any(name.startswith("personal") for name in without.measured)


def test_devices_that_keep_theirs_to_themselves_are_refused() -> None:
    data = small_data()
    budget, prices = (
        fb.Budget(epsilon=4, cost=1000),
        fb.Prices(communication=100, computation=1),
    )

    class Silent:
        kind: Kind = "release"

        def __init__(self) -> None:
            inner = fb.SimulatedDevices(data)
            self.num_devices, self.begin = inner.num_devices, inner.begin
            self.run_round, self.kind = inner.run_round, inner.kind

    plan = fb.plan(data.problem(), budget, prices)
    with pytest.raises(fb.InvalidInputError, match="which real devices do not send"):
        fb.train(plan, Silent(), personal=True)


def test_measuring_one_model_per_device_agrees_with_measuring_one() -> None:
    data = small_data(devices=5, rows=30)
    loss, theta = data.problem().model, pooled_model(data)
    once = means(measure_devices(data, loss, theta))
    each = means(measure_devices(data, loss, np.tile(theta, (5, 1))))
    measured = measure(data, loss, theta)
    assert once == each and measured | once == pytest.approx(measured)


def test_a_logistic_fit_is_sklearns() -> None:
    x, y = small_data(rows=200).train.device(0)
    theta = fit(loss_named("logistic"), x, y, strength=1e-2, tolerance=1e-8)
    witness = LogisticRegression(C=1 / (1e-2 * len(y)), fit_intercept=False, tol=1e-10)
    assert theta == pytest.approx(witness.fit(x, y).coef_[0], abs=1e-4)


def test_a_hinge_fit_is_about_sklearns() -> None:
    x, y = small_data(rows=200).train.device(0)
    loss = loss_named("hinge")
    theta = fit(loss, x, y, strength=1e-2)
    witness = LinearSVC(
        C=1 / (1e-2 * len(y)), loss="hinge", fit_intercept=False, max_iter=10**6
    ).fit(x, y)

    def objective(model: np.ndarray) -> float:
        return loss.value(model, x, y) + 0.5e-2 * float(model @ model)

    # The rounded kink costs at most half its width.
    assert objective(theta) == pytest.approx(objective(witness.coef_[0]), abs=0.05)


@pytest.mark.parametrize(
    "name", ["logistic", "softmax", "hinge", "smooth_hinge", "huber"]
)
def test_the_gradient_vanishes_at_the_fit(name: str) -> None:
    classes = {"softmax": 3, "huber": None}.get(name, 2)
    x, y = small_data(classes=classes).train.device(1)
    loss = loss_named(name, num_classes=classes if name == "softmax" else None, l2=1e-3)
    centre = np.linspace(-1, 1, loss.num_params(x.shape[1]))
    theta = fit(loss, x, y, strength=0.1, centre=centre, tolerance=1e-7)
    gradient = smooth(loss).gradient(theta, x, y) + 0.1 * (theta - centre)
    assert np.abs(gradient).max() < 1e-6


def test_strong_regularisation_gives_the_centre_and_weights_count_as_copies() -> None:
    x, y = small_data().train.device(0)
    loss, centre = loss_named("logistic"), np.arange(5.0)
    strong, weak = (fit(loss, x, y, strength=s, centre=centre) for s in (1e6, 1e-3))
    assert strong == pytest.approx(centre, abs=1e-5)
    assert loss.value(weak, x, y) < loss.value(strong, x, y)
    twice = np.where(np.arange(len(y)) < 10, 2.0, 1.0)
    weighted = fit(loss, x, y, strength=0.1, row_weights=twice / twice.sum())
    copied = np.concatenate([x, x[:10]]), np.concatenate([y, y[:10]])
    assert weighted == pytest.approx(fit(loss, *copied, strength=0.1), abs=1e-3)


def test_fits_use_one_thread_of_each_blas() -> None:
    """Also of scipy's, which is loaded late and has threads of its own."""
    code = (
        "import sys\n"
        "from fedbudget.simulation.personal import one_thread\n"
        "assert 'scipy.optimize' not in sys.modules\n"
        "with one_thread():\n"
        "    import scipy.optimize, threadpoolctl\n"
        "    pools = threadpoolctl.threadpool_info()\n"
        "print([p['num_threads'] for p in pools if p['user_api'] == 'blas'])\n"
    )
    several = {f"{name}_NUM_THREADS": "4" for name in ("OPENBLAS", "OMP", "MKL")}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | several,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert set(ran.stdout.strip("[]\n").split(", ")) == {"1"}
