"""The commands behind the tables of docs/accuracy.md run, and report failures."""

from typing import Any

import ablation
import comparison
import leaking
import methods
import numpy as np
import personal
import pytest
import searching
from accuracy import CASES, PRICES
from methods import COST, Question

import fedbudget as fb
from fedbudget.privacy import GDP
from fedbudget.simulation.kernels.runs import device_replies


def test_every_method_answers_on_the_same_rows() -> None:
    names = [name for name in comparison.METHODS if name != "diffprivlib"]
    results: comparison.Results = {}
    comparison.answer(results, "cancer", 10.0, 0, names)
    assert len(results) == len(names)
    assert all(value is not None and 0 <= value <= 1 for value in results.values())
    once = comparison.figures(results, "cancer", 10.0, range(1))
    assert list(once) == names
    assert once["centralised"][0] > 0.9
    # Two seeds without spread: every difference is significant.
    accuracies = {name: values * 2 for name, values in once.items()}
    shown = "\n".join(comparison.table({"cancer": accuracies}))
    ours = accuracies["ours"][0]
    assert f"| ours | {100 * ours:.1f} +- 0.0 |" in shown
    for method in comparison.FEDERATED[1:]:
        leaks = " (LEAKS)" if method in comparison.LEAKS else ""
        assert f"| {method}{leaks} |" in shown
        named = f"{method}{leaks} on cancer" in shown
        assert named == (ours <= accuracies[method][0])
    accuracies["paper"] = [ours + 0.01] * 2
    shown = "\n".join(comparison.table({"cancer": accuracies}))
    line = "- behind paper on cancer: ours less theirs -1.00 [-1.00, -1.00]"
    assert line in shown
    # Three seeds: 2 +- 1 points are not ahead by Student's t, 2 standard errors are.
    accuracies = {"paper": [0.8] * 3, "ours": [0.8023, 0.82, 0.8377]}
    (line,) = [li for li in comparison.table({"x": accuracies}) if li.startswith("- ")]
    assert line == "- not ahead of paper on x: ours less theirs +2.00 [-2.40, +6.40]"


def test_what_is_known_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    results: comparison.Results = {comparison.key("cancer", 1.0, 0, "alone"): 0.5}
    monkeypatch.setattr(comparison, "Question", None)  # would be called
    comparison.answer(results, "cancer", 4.0, 0, ["alone"])
    assert comparison.figures(results, "cancer", 4.0, range(1)) == {"alone": [0.5]}
    # A line is of all seeds or missing.
    assert comparison.figures(results, "cancer", 4.0, range(2)) == {}
    with pytest.raises(TypeError):
        comparison.answer(results, "cancer", 4.0, 0, ["ours"])


def test_noise_of_fedavg_is_that_of_its_budget() -> None:
    def model(epsilon: float, seed: int) -> np.ndarray:
        question = Question("cancer", epsilon, 0)
        question.seed = seed  # of the noise alone
        return np.asarray(methods.fedavg(question))

    quiet = model(1e6, 0)
    spread = np.std([model(1.0, seed) - quiet for seed in range(12)])
    # By hand: 9 rounds; a sample moves an update by tau eta 2 G / N, at most by 2.
    sizes = Question("cancer", 1.0, 0).data.num_samples
    moves = np.minimum(2.0, 10 * 2.0 * 2 / sizes)
    mu = float(GDP.mu_from_epsilon(1.0, 1e-4))
    once = np.sqrt(np.sum((sizes / sizes.sum() * moves) ** 2)) * 9**0.5 / mu
    # Later rounds contract earlier noise, but never below the last round's.
    assert 0.8 * once < spread < 1.2 * once * 9**0.5


def test_a_personal_model_is_held_against_the_better_of_both() -> None:
    def word(personal_accuracy: list[float]) -> str:
        table = np.array([[70.0, 80.0, p] for p in personal_accuracy])
        return str(personal.verdict(table)[2])

    assert word([81.0, 81.2, 81.1]) == "better"
    assert word([79.95, 80.05, 80.0]) == "as good"  # not worse by 0.2 points
    assert word([79.0, 81.0, 80.1]) == "undecided"
    assert word([79.0, 79.1, 79.2]) == "worse"


def test_new_devices_take_no_part_in_training() -> None:
    case = {case.name: case for case, _ in personal.CASES}["breast cancer, Dirichlet 1"]
    trained = personal.accuracies(case, 0, 0)
    new = personal.accuracies(case, 1, 0)
    assert trained.shape == new.shape == (len(personal.BUDGETS), 3)
    assert (np.ptp(trained[:, 1]), np.ptp(new[:, 1])) == (0, 0)  # local only: no budget
    assert (trained != new).any()
    assert 50 < trained.min() <= trained.max() <= 100


def test_ali_dpfl_keeps_its_budgets_and_its_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # By hand: 4/0.1^2 + 3 + 2 * 0.2 * 30 * 0.1 + 1 = 405.2; (2 + 2/30) * 2 = 4.1333;
    # sqrt(1 + 98.032) = 9.95.
    settings: dict[str, Any] = {"gamma": 0.2, "horizon": 30, "lipschitz": 1.0}
    assert leaking.local_iterations(mu=0.1, noise=1.0, **settings) == 10
    assert leaking.local_iterations(mu=1e-6, noise=0.0, **settings) == 100
    assert leaking.local_iterations(mu=10.0, noise=1e9, **settings) == 1
    question = Question("cancer", 4.0, 0)
    taken = []
    original = device_replies

    def spy(packed: Any, theta: Any, order: Any, **keys: Any) -> Any:
        taken.append((order.tau, keys["first_step"], order.noise_std))
        return original(packed, theta, order, **keys)

    monkeypatch.setattr(leaking, "device_replies", spy)
    leaking.adaptive_run(question, 0, 90, 16.0)
    taus = [tau for tau, _, _ in taken]
    assert taus[0] == 1 and len(set(taus)) > 1  # recomputed from round to round
    assert sum(taus) <= 90 and sum(100 + tau for tau in taus) <= COST
    assert [first for _, first, _ in taken] == list(np.cumsum([0, *taus])[:-1])
    # The noise is for all 90 steps at once: by hand, 2 G sqrt(90) / (N mu).
    mu = float(GDP.mu_from_epsilon(4.0, 1e-4))
    by_hand = 2 * 90**0.5 / (question.data.num_samples * mu)
    assert np.allclose(taken[0][2], by_hand, rtol=1e-6)


def test_settings_are_picked_with_noise_that_no_score_has() -> None:
    used: list[int] = []

    def models(question: Any, seed: int, settings: Any) -> Any:
        used.append(seed)
        truth = leaking.tuned_sgd(question, seed, [(16.0, 0.5, 0.5, 9)])[0]
        return np.array([s * truth for s in settings])

    method = leaking.tuned(models, [-1.0, 1.0])  # the first has all signs wrong
    question = Question("cancer", 10.0, 3)
    assert question.accuracy(method(question)) > 0.6
    assert used == [leaking.PICKING + split for split in range(leaking.SPLITS)] + [3]
    method(Question("cancer", 10.0, 4))
    assert used[-1] == 4 and len(used) == leaking.SPLITS + 2  # picked once


def test_a_search_keeps_picking_and_scoring_apart() -> None:
    points = {index.point(4, 1000) for index in searching.coarse()}
    assert {p.learning_rate for p in points} == {1, 4, 16, 64}
    assert {p.drift_correction for p in points} == {False, True}
    assert all(p.cost <= 1000 for p in points)
    index = next(searching.coarse())
    near = list(index.neighbours())
    assert index in near and len(near) == 1 + len(index)
    seeds = {n + s for n in (10_000, 20_000, 30_000) for s in range(100)}
    assert not seeds & {s for split in range(50) for s in searching.scoring(split)}


def test_parts_are_taken_away_from_equal_budgets() -> None:
    problem = CASES[0].load(0).problem()
    budget = fb.Budget(epsilon=4.0, delta=1e-4, cost=1000)
    default = fb.plan(problem, budget, PRICES)
    assert default.momentum > 0 and default.drift_correction
    for name, variant in ablation.PARTS.items():
        plan = variant(problem, budget)
        plan.check_promise()
        assert plan.epsilon.max() <= 4.0 and plan.cost.max() <= 1000, name
    plans = {name: make(problem, budget) for name, make in ablation.PARTS.items()}
    assert plans["no momentum"].momentum == 0 and plans["tau 1"].tau == 1
    assert not plans["no drift correction"].drift_correction
    assert plans["zcdp"].accountant == "zcdp"
    assert np.ptp(plans["weights uniform"].weights) < 1e-12
    assert plans["batches of 256"].batch_size.max() == 256
