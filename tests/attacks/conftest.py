"""Fixtures of attacks on secure sums: a fleet, and a coordinator that attacks it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbudget.fleet.secure import graph
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
    yield from met(SumFleet(folder, 6, 4, processes=processes))


def met(fleet: SumFleet) -> Iterator[Hostile]:
    """A coordinator that attacks this fleet, whose devices know their peers."""
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


NUM_DEVICES, LEAST = 24, 18
# A device of a fleet of 1,000 has 66 neighbours, if 100 may drop out.
FEW = graph.Neighbourhood(degree=6, threshold=4, least_nearby=1)


@pytest.fixture
def circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    """A fleet in which devices have few neighbours, as one of 1,000 has."""
    monkeypatch.setattr(graph, "neighbourhood", lambda *_, **__: FEW)
    yield from met(SumFleet(tmp_path, NUM_DEVICES, LEAST))
