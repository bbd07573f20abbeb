"""Real processes, killed at random: a short campaign; the long one is a benchmark."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedbudget.data import Dataset
from fedbudget.fleet.demo import Terms
from tests.contract_devices import rows_of
from tests.fleet.brokers import FLEETS
from tests.fleet.conftest import need_broker
from tests.fleet.faults import Report, campaign, judge_accuracy


def judged_on_all_rows(sizes: Sequence[int]) -> Dataset:
    """Return rows whose accuracy is that of all of them.

    Of the few test rows, undisturbed runs get the same ones right. Their spread is then
    0, and noise that moves a single row looks like damage.
    """
    data = rows_of(sizes)
    return replace(data, test=data.train)


@pytest.mark.parametrize("broker", sorted(FLEETS))
def test_ten_kills_leave_ledgers_and_model_whole(tmp_path: Path, broker: str) -> None:
    need_broker(broker)
    report = campaign(
        tmp_path,
        broker=broker,
        injections=10,
        terms=Terms(epsilon=8, cost=200, communication=4, computation=1),
        data=judged_on_all_rows([300, 300, 300]),
        seed=7,
        most_seconds=900,
    )
    assert report.broken == []
    assert report.injections >= 10
    assert set(report.kills) == {"broker", "coordinator", "device"}
    assert report.charges >= report.answers > 0


def test_kills_during_secure_sums_reveal_nothing_twice(tmp_path: Path) -> None:
    need_broker("amqtt")
    report = campaign(
        tmp_path,
        broker="amqtt",
        injections=8,
        terms=Terms(
            epsilon=8,
            cost=60,
            communication=4,
            computation=1,
            trust="sum",
            least_answers=4,
        ),
        data=judged_on_all_rows([300] * 5),
        seed=11,
        most_seconds=900,
    )
    assert report.broken == []
    assert report.injections >= 8
    assert report.charges >= report.reveals > 0


def test_the_audit_finds_violations() -> None:
    # The audit of valid files means something only if invalid ones do not pass.
    report = Report(accuracies=[0.5], simulated=(0.8, 0.01))
    judge_accuracy(report)
    assert len(report.broken) == 1
