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


def attacked(folder: Path, certs: Path, *, processes: bool) -> Iterator[Hostile]:
    """Six devices that have joined a run and know their peers; t = 4."""
    (folder / "certs").symlink_to(certs)
    fleet = SumFleet(folder, 6, 4, processes=processes)
    try:
        hostile = Hostile(fleet)
        hostile.meet()
        yield hostile
    finally:
        fleet.close()


@pytest.fixture
def hostile(
    request: pytest.FixtureRequest, tmp_path: Path, sum_certs: Path
) -> Iterator[Hostile]:
    """A coordinator that attacks six processes of `fedbudget device`.

    Of a test with several cases, the first one has processes, the others have guards in
    this process, to save time.
    """
    cases = getattr(request.node, "callspec", None)
    first = cases is None or not any(cases.indices.values())
    yield from attacked(tmp_path, sum_certs, processes=first)


@pytest.fixture
def inside(tmp_path: Path, sum_certs: Path) -> Iterator[Hostile]:
    """The same with guards in this process, to look at what they hold."""
    yield from attacked(tmp_path, sum_certs, processes=False)
