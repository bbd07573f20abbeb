"""Fixtures of attacks on secure sums: a fleet, and a coordinator that attacks it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbudget.fleet.transport.certificates import make_certificates
from tests.fleet.sums import Hostile, SumFleet


@pytest.fixture(scope="session")
def sum_certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sum-certs")
    make_certificates(folder, [f"device-{m}" for m in range(6)])
    return folder


@pytest.fixture
def hostile(tmp_path: Path, sum_certs: Path) -> Iterator[Hostile]:
    """Six devices that have joined a run and know their peers; t = 4."""
    (tmp_path / "certs").symlink_to(sum_certs)
    fleet = SumFleet(tmp_path, 6, 4)
    hostile = Hostile(fleet)
    hostile.meet()
    yield hostile
    fleet.close()
