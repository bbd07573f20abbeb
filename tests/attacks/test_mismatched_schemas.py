"""Devices that mean different things by the same numbers must not train one model.

Five devices have the same number of columns and the same loss. One has two columns in
another order, and one has the label's values swapped. Averaged, they train to a coin's
accuracy, and every device pays its whole epsilon for it.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbudget.fleet.coordinator.roster import Roster, plan_fleet
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.wire.messages import Declaration
from tests.fleet.devices import SIGNER
from tests.fleet.scripted import Scripted

FEATURES = {"age": {"low": 0, "high": 99}, "kind": {"values": ["x", "y"]}}
LABEL = {"name": "ill", "values": ["no", "yes"]}
REVERSED: dict[str, Any] = {"features": dict(reversed(FEATURES.items()))}
SWAPPED: dict[str, Any] = {"label": {"name": "ill", "values": ["yes", "no"]}}
SCALED: dict[str, Any] = {"features": FEATURES | {"age": {"low": 0, "high": 199}}}

POLICY = """
device = "{name}"
data.file = "rows.csv"
data.schema = "schema.json"
budget = {{ epsilon = 4.0, delta = 1e-4, cost = 1000 }}
prices = {{ communication = 100, computation = 1 }}
orders.trusted = ["{key}"]
broker.host = "localhost"
"""


def declared(folder: Path, name: str, changes: dict[str, Any]) -> Declaration:
    """Return what a device declares whose schema has these changes."""
    folder = folder / name
    folder.mkdir()
    schema = {"features": FEATURES, "label": LABEL} | changes
    (folder / "schema.json").write_text(json.dumps(schema))
    labels = ["no" if age < 50 else "yes" for age in range(99)]
    lines = [f"{age},{'xy'[age % 2]},{label}" for age, label in enumerate(labels)]
    (folder / "rows.csv").write_text("\n".join(["age,kind,ill", *lines, ""]))
    path = folder / "policy.toml"
    path.write_text(POLICY.format(name=name, key=SIGNER.public_key))
    guard = Guard(read_policy(path))
    declaration = guard.declaration
    guard.close()
    return declaration


def planned(declarations: Sequence[Declaration], roster: Roster) -> list[str]:
    return [d.device for d in plan_fleet(declarations, roster=roster)[1]]


@pytest.mark.parametrize(
    "changes", [REVERSED, SWAPPED, SCALED], ids=["order", "label", "bounds"]
)
def test_a_device_with_another_schema_is_left_out_by_name(
    tmp_path: Path, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    declarations = [
        declared(tmp_path, name, changes if name == "c" else {}) for name in "abcde"
    ]
    # Without the digest, nothing tells them apart.
    assert len({(d.dim, d.loss, d.num_classes) for d in declarations}) == 1
    roster = Roster()
    with caplog.at_level(logging.WARNING):
        assert planned(declarations, roster) == ["a", "b", "d", "e"]
    (line,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    # Both sides are named.
    for declaration in (declarations[0], declarations[2]):
        assert declaration.schema is not None
        assert f"schema {declaration.schema[:12]}" in line
    assert line.startswith("device c is left out") and "a, b, d and 1 more" in line
    # The owner of the device reads the same in its log.
    connection = Scripted()
    roster.send_notices(connection, SIGNER)
    assert connection.notices == {"c": line.removeprefix("device c is left out: ")}


def test_a_coordinator_that_knows_the_schema_does_not_ask_the_majority(
    tmp_path: Path,
) -> None:
    declarations = [
        declared(tmp_path, name, {} if name == "c" else SWAPPED) for name in "abc"
    ]
    assert planned(declarations, Roster()) == ["a", "b"]
    roster, digest = Roster(), declarations[2].schema
    assert digest is not None
    _, selected = plan_fleet(declarations, roster=roster, schema=digest)
    assert [d.device for d in selected] == ["c"]
    connection = Scripted()
    roster.send_notices(connection, SIGNER)
    assert sorted(connection.notices) == ["a", "b"]
    assert digest[:12] in connection.notices["a"]


def test_rows_with_and_without_a_schema_do_not_mix(tmp_path: Path) -> None:
    declarations = [declared(tmp_path, name, {}) for name in "abc"]
    declarations[1] = replace(declarations[1], schema=None)
    assert planned(declarations, Roster()) == ["a", "c"]
