"""docs/plan.schema.json is what the code generates, and plans are valid."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from tests.cli.running import run

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

PUBLISHED = Path(__file__).parents[2] / "docs" / "plan.schema.json"
SCHEMA = json.loads(PUBLISHED.read_text())
FLEET = ("--samples", "64x3", "--dim", "5", "--epsilon", "4", "--cost", "999")


def plan(**options: Any) -> fb.Plan:
    problem = fb.Problem(num_samples=[300, 400], dim=5, loss="softmax", num_classes=3)
    budget = fb.Budget(epsilon=2.0, cost=900)
    prices = fb.Prices(communication=100, computation=1)
    return fb.plan(problem, budget, prices, **options)


PLAN = plan()


def test_the_published_file_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("planner", ["joint", "bound", "paper"])
def test_every_plan_is_valid(planner: str) -> None:
    private = plan(planner=planner)
    for each in (private, private.without_privacy()):
        jsonschema.validate(json.loads(json.dumps(each.to_dict())), SCHEMA)


def test_the_output_of_the_command_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "plan", *FLEET, "--json")
    jsonschema.validate(json.loads(result.out), SCHEMA)


@pytest.mark.parametrize(
    "change",
    [
        {"tau": 0},
        {"tau": 1.5},
        {"momentum": 1.0},
        {"sampling": "some"},
        {"epsilon": [-1.0]},
        {"epsilon": []},
        {"delta": [0.0]},
        {"batch_size": [1.5]},
        {"binding": ["luck"]},
        {"noise_std": None},
        {"surprise": 1},
    ],
)
def test_other_values_are_invalid(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(PLAN.to_dict() | change, SCHEMA)


@pytest.mark.parametrize("name", PLAN.to_dict())
def test_every_key_is_needed(name: str) -> None:
    lacking = {k: v for k, v in PLAN.to_dict().items() if k != name}
    with pytest.raises(jsonschema.ValidationError, match=name):
        jsonschema.validate(lacking, SCHEMA)


def test_a_valid_plan_is_read_back() -> None:
    again = fb.Plan.from_dict(json.loads(json.dumps(PLAN.to_dict())))
    assert np.array_equal(again.noise_std, PLAN.noise_std)
