"""A tiny evaluation that all tests of the package share."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedbudget.paper.cases import QUICK, Scale, case_named

TINY = replace(
    QUICK,
    cases=(case_named("adult-2"),),
    costs=(1000,),
    line_costs=(500, 1000),
    line_epsilons=(1, 10),
    panel_costs=(1000,),
    repeats=2,
    curve_repeats=2,
    rate_repeats=1,
    finalists=2,
    final_repeats=1,
    taus=(1, 10),
    far_taus=(66,),
    rates=(4, 16),
    full_taus=(1, 20),
    momenta=(0.0, 0.5),
    powers=(0.0,),
)


@pytest.fixture
def tiny() -> Scale:
    """The scale of the evaluation."""
    return TINY


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished evaluation."""
    from fedbudget.paper.reproduce import reproduce

    out = tmp_path_factory.mktemp("paper")
    reproduce(out, TINY, version="0", command="fedbudget paper")
    return out
