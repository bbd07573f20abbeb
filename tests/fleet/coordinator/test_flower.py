"""A whole run over Flower: real SuperLink, SuperNodes and guards, on loopback."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedbudget.data.dataset import select_devices
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.coordinator.flower import settings_of
from fedbudget.fleet.demo import Terms
from fedbudget.fleet.device.statement import read_statement, verified
from fedbudget.record import read_run
from tests.contract_devices import DATA
from tests.fleet.flower_trial import FlowerTrial

# The budgets pay for two rounds.
TERMS = Terms(
    epsilon=50,
    cost=250,
    communication=100,
    computation=1,
    least_noise_multiplier=0.01,
)


def test_a_run_over_flower_is_planned_paid_and_released(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed: docs/fleet.md says how")
    trial = FlowerTrial(tmp_path, select_devices(DATA, [0, 1, 2]), TERMS)
    with ExitStack() as stack:
        trial.start(stack)
        trial.wait(lambda status: None)
    rounds = read_run(tmp_path / "out" / "run").rounds
    assert len(rounds) == trial.plan().rounds > 1
    assert [done.answered for done in rounds] == [3] * len(rounds)
    assert np.abs(trial.model()).max() > 0
    for m, name in enumerate(trial.names):
        ledger = read_statement(tmp_path / name / "ledger.sqlite")
        assert 0 < ledger.cost == pytest.approx(rounds[-1].cost[m])
        assert ledger.epsilon == pytest.approx(rounds[-1].epsilon[m])
        assert ledger.epsilon <= 50 and ledger.cost <= 250


def test_secure_sums_over_flower_charge_and_reveal_once(tmp_path: Path) -> None:
    """The same guards: over Flower the coordinator sees only sums, too."""
    pytest.importorskip("flwr", reason="flwr is not installed: docs/fleet.md says how")
    terms = replace(TERMS, trust="sum", least_answers=3)
    trial = FlowerTrial(tmp_path, select_devices(DATA, [0, 1, 2, 3]), terms)
    with ExitStack() as stack:
        trial.start(stack)
        trial.wait(lambda status: None)
    rounds, plan = read_run(tmp_path / "out" / "run").rounds, trial.plan()
    assert plan.trust == "sum" and len(rounds) == plan.rounds
    assert sum(done.answered for done in rounds) >= 3 * len(rounds)
    for m, name in enumerate(trial.names):
        ledger = tmp_path / name / "ledger.sqlite"
        entries = verified(ledger)
        for kind in ("charge", "reveal"):
            numbers = [entry.round for entry in entries if entry.kind == kind]
            assert numbers == sorted(set(numbers)) and numbers
        assert read_statement(ledger).epsilon <= rounds[-1].epsilon[m] * (1 + 1e-9)


def test_a_run_config_is_read_like_the_options_of_the_server() -> None:
    config = {"out": "runs/a", "signing-key": "a.sign", "devices": 0}
    settings = settings_of(config | {"status-port": -1, "wait": 5.0})
    assert (settings.out, settings.wait) == (Path("runs/a"), 5.0)
    assert settings.devices is None and settings.status_port is None
    assert settings_of(config | {"status-port": 0}).status_port == 0
    sums = {"trust": "sum", "least-answers": 3, "colluders": 1, "authority": "ca.pem"}
    settings = settings_of(config | sums)
    assert settings.promise["least_answers"] == 3
    assert settings.authority == Path("ca.pem")
    assert settings_of(config | sums | {"least-answers": 0}).least_answers is None


@pytest.mark.parametrize("key", ["dead-line", "signing_key", "broker"])
def test_an_unknown_key_of_a_run_config_is_refused(key: str) -> None:
    config = {"out": "runs/a", "signing-key": "a.sign", key: "9"}
    with pytest.raises(InvalidInputError, match=f"^{key} in the run .* deadline, "):
        settings_of(config)


@pytest.mark.parametrize("key", ["status-port", "devices", "wait", "planner"])
def test_an_invalid_value_of_a_run_config_is_refused(key: str) -> None:
    config = {"out": "runs/a", "signing-key": "a.sign", key: "many"}
    with pytest.raises(InvalidInputError, match=key):
        settings_of(config)


@pytest.mark.parametrize("missing", ["out", "signing-key"])
def test_a_run_config_without_its_paths_is_refused(missing: str) -> None:
    config = {"out": "runs/a", "signing-key": "a.sign"} | {missing: ""}
    with pytest.raises(InvalidInputError, match=f"{missing} is missing"):
        settings_of(config)
