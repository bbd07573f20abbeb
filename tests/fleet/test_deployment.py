"""What owners install: the policy in the document, and the systemd unit."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedbudget.data import Schema
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.wire.messages import REFUSALS
from fedbudget.fleet.wire.signing import Signer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fleet-device.md").read_text(encoding="utf-8")
UNIT = ROOT / "deploy" / "systemd" / "fedbudget-device.service"


def test_the_policy_in_the_document_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "policy.toml"
    key = Signer.generate().public_key
    path.write_text(re.sub(r"ed25519:[^\"]+", key, text))
    policy = read_policy(path)
    assert policy.device == "roof-7"
    assert policy.orders.joins("alarms-2026")
    assert policy.public.epsilon < policy.budget.epsilon
    # Every key that a policy can have is shown.
    assert policy.budget.accountant == "gdp" and policy.broker is not None
    assert policy.broker.identity is not None


def test_the_schema_in_the_document_is_valid() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    schema = Schema.from_dict(json.loads(text))
    names = ("heat", "site=roof", "site=cellar", "intercept")
    assert (schema.label, schema.feature_names) == ("alarm", names)


def test_the_document_explains_every_refusal() -> None:
    codes = set(re.findall(r"`([a-z-]+)`", PAGE))
    assert set(REFUSALS) <= codes


def test_the_unit_runs_the_command_with_its_own_ledger() -> None:
    text = UNIT.read_text()
    assert "fedbudget device /etc/fedbudget/policy.toml" in text
    assert "User=fedbudget" in text and "StateDirectory=fedbudget" in text
    assert "/var/lib/fedbudget/ledger.sqlite" in PAGE


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    path = tmp_path / UNIT.name
    # The command itself is not installed here.
    path.write_text(
        UNIT.read_text().replace("/opt/fedbudget/bin/fedbudget", "/bin/true")
    )
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_systemd_understands_every_line(unit: Path) -> None:
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_finds_little_exposed(unit: Path) -> None:
    done = analyze("security", "--offline=true", str(unit))
    (level,) = re.findall(r"Overall exposure level .*: ([\d.]+)", done.stdout)
    assert float(level) <= 2.0  # 10 is a service without any limits
