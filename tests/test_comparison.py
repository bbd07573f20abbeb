"""The tables on other answers and on personal models: they run, and can say no."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def comparison() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("comparison")


@pytest.fixture(scope="module")
def personal(comparison: Any) -> Any:
    return importlib.import_module("personal")


def test_every_method_answers_on_the_same_rows(
    comparison: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = [name for name in comparison.METHODS if name != "diffprivlib"]
    known: dict[str, float] = {}
    comparison.answer(known, "cancer", 10.0, 0, methods)
    assert len(known) == len(methods)
    assert all(0 <= value <= 1 for value in known.values())
    once = comparison.figures(known, "cancer", 10.0, range(1))
    assert list(once) == methods
    assert once["centralised"][0] > 0.9
    # Two seeds without spread: ahead means ahead, behind is said.
    found = {name: values * 2 for name, values in once.items()}
    comparison.show({"cancer": found}, 10.0)
    shown = capsys.readouterr().out
    ours = found["ours"][0]
    assert f"| ours | {100 * ours:.1f} +- 0.0 |" in shown
    for method in comparison.FEDERATED[1:]:
        behind = ours <= found[method][0]
        assert (f"not ahead of {method} on cancer" in shown) == behind
    found["paper"] = [ours + 0.01] * 2
    comparison.show({"cancer": found}, 10.0)
    expected = "- not ahead of paper on cancer: ours less theirs -1.00 +- 0.00\n"
    assert expected in capsys.readouterr().out


def test_what_is_known_is_not_computed_again(
    comparison: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {comparison.key("cancer", 1.0, 0, "alone"): 0.5}
    monkeypatch.setattr(comparison, "Question", None)  # would be called
    comparison.answer(known, "cancer", 4.0, 0, ["alone"])
    assert comparison.figures(known, "cancer", 4.0, range(1)) == {"alone": [0.5]}
    # A line is of all seeds or missing.
    assert comparison.figures(known, "cancer", 4.0, range(2)) == {}
    with pytest.raises(TypeError):
        comparison.answer(known, "cancer", 4.0, 0, ["ours"])


def test_noise_of_fedavg_is_that_of_its_budget(comparison: Any) -> None:
    def model(epsilon: float, seed: int) -> np.ndarray:
        asked = comparison.Question("cancer", epsilon, 0)
        asked.seed = seed  # of the noise alone
        return np.asarray(comparison.fedavg(asked))

    quiet = model(1e6, 0)
    spread = np.std([model(1.0, seed) - quiet for seed in range(12)])
    # By hand: 9 rounds; a sample moves an update by tau eta 2 G / N, at most by 2.
    sizes = comparison.Question("cancer", 1.0, 0).data.num_samples
    moves = np.minimum(2.0, 10 * 2.0 * 2 / sizes)
    mu = float(comparison.GDP.mu_from_epsilon(1.0, 1e-4))
    once = np.sqrt(np.sum((sizes / sizes.sum() * moves) ** 2)) * 9**0.5 / mu
    # Later rounds contract earlier noise, but never below the last round's.
    assert 0.8 * once < spread < 1.2 * once * 9**0.5


def test_a_personal_model_is_held_against_the_better_of_both(personal: Any) -> None:
    def word(personal_accuracy: list[float]) -> str:
        table = np.array([[70.0, 80.0, p] for p in personal_accuracy])
        return str(personal.verdict(table)[2])

    assert word([81.0, 81.2, 81.1]) == "better"
    assert word([79.0, 81.0, 80.1]) == "as good"
    assert word([79.0, 79.1, 79.2]) == "worse"


def test_new_devices_take_no_part_in_training(personal: Any) -> None:
    case = {case.name: case for case, _ in personal.CASES}["breast cancer, Dirichlet 1"]
    there = personal.accuracies(case, 0, 0)
    new = personal.accuracies(case, 1, 0)
    assert there.shape == new.shape == (len(personal.BUDGETS), 3)
    assert (np.ptp(there[:, 1]), np.ptp(new[:, 1])) == (0, 0)  # alone: no budget
    assert (there != new).any()
    assert 50 < there.min() <= there.max() <= 100
