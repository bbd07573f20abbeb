"""Real processes, killed at random: the short form of benchmarks/fleet/faults.py."""

import runpy
from pathlib import Path

import pytest

from fedbudget.fleet.trial import Terms
from tests.contract_devices import rows_of

FOLDER = Path(__file__).parents[2] / "benchmarks" / "fleet"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(FOLDER))
    FAULTS = runpy.run_path(str(FOLDER / "faults.py"))


def test_ten_kills_leave_ledgers_and_model_whole(tmp_path: Path) -> None:
    FAULTS["campaign"].__globals__["MOST_SECONDS"] = 90
    report = FAULTS["campaign"](
        tmp_path,
        injections=10,
        terms=Terms(epsilon=8, cost=200, communication=4, computation=1),
        data=rows_of([300, 300, 300]),
        seed=7,
    )
    assert report.broken == []
    assert report.injections >= 10
    assert set(report.kills) == {"broker", "coordinator", "device"}
    assert report.charges >= report.answers > 0


def test_the_audit_finds_what_is_broken(tmp_path: Path) -> None:
    # What it says of good files means something only if bad ones do not pass.
    report = FAULTS["Report"](accuracies=[0.5], simulated=(0.8, 0.01))
    FAULTS["judge_accuracy"](report)
    assert len(report.broken) == 1
