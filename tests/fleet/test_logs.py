"""Logs: lines for people, JSON for machines."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from fedbudget.fleet.logs import JsonLines
from tests.fleet.devices import new_site


def test_json_lines_have_the_facts() -> None:
    record = logging.LogRecord(
        "fedbudget.fleet.x", logging.WARNING, "f", 1, "round %d", (3,), None
    )
    record.facts = {"round": 3, "reason": "no"}
    line = json.loads(JsonLines().format(record))
    assert (line["level"], line["event"], line["module"]) == (
        *("warning", "round 3", "fleet.x"),
    )
    assert (line["round"], line["reason"]) == (3, "no") and "T" in line["time"]


def test_a_device_logs_charges_and_refusals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site = new_site(tmp_path)
    site.offer()
    site.order()
    site.order(round=9)
    site.guard.close()
    facts = [record.facts for record in caplog.records if hasattr(record, "facts")]
    charged = next(fact for fact in facts if "charge" in fact)
    assert charged["round"] == 1 and charged["charge"]["cost"] == 105.0
    refused = next(fact for fact in facts if "code" in fact)
    assert (refused["round"], refused["code"]) == (9, "wrong-round")


def test_a_process_writes_json(tmp_path: Path) -> None:
    code = (
        "from fedbudget.fleet.logs import start_logging; import logging; "
        "start_logging(); logging.getLogger('fedbudget.a').info('b')"
    )
    for value, starts in (("json", '{"time"'), ("", "20")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"FEDBUDGET_LOG": value, "PYTHONPATH": "src"},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.stderr.startswith(starts) and "b" in done.stderr
