import pytest

import fedbudget as fb
from fedbudget.planning.feature_steps import predicted_losses
from tests.cli.running import run

PRICES = fb.Prices(communication=100, computation=1)


def test_the_best_features_are_first_and_losses_are_absolute() -> None:
    data = fb.load("wisdm")
    problems = {f: data.problem(features=f) for f in ("linear", "fourier")}
    for epsilon in (1, 10):
        budget = fb.Budget(epsilon=epsilon, delta=1e-5, cost=3000)
        losses = predicted_losses(problems, budget, PRICES)
        assert list(losses.values()) == sorted(losses.values())
        for name, problem in problems.items():
            excess = fb.plan(problem, budget, PRICES).predicted_loss
            best = problem["initial_gap"] * (1 - problem["learnable_share"])
            assert losses[name] == pytest.approx(best + excess)


def test_auto_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", "wisdm", "--epsilon", "4", "--cost", "2000")
    automatic = run(capsys, *arguments, "--features", "auto")
    assert (automatic.code, automatic.err) == (0, "")
    assert "features (predicted loss: " in automatic.words
    wide = run(capsys, *arguments, "--features", "fourier:100")
    assert "101 columns" in wide.words
    bad = run(capsys, *arguments, "--features", "trees")
    assert bad.code == 2 and "features 'trees' is not known" in bad.err
