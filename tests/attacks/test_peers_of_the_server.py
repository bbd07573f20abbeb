"""Attack: bring own peers into a sum.

The coordinator, the broker and `fedbudget measure` have certificates of the authority
that signs the devices, and their keys are on the server. As peers they would be
colluders beyond those that the noise was planned for. So would a stolen device.
"""

import shutil
from pathlib import Path

import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure.introductions import check_introduction, introduce
from fedbudget.fleet.secure.peers import RunKeys
from fedbudget.fleet.transport.authority import revoke
from fedbudget.fleet.transport.certificates import make_certificates

RUN = bytes(range(16))


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "certs", ["device-0"])
    return tmp_path / "certs"


@pytest.mark.parametrize("name", ["coordinator", "broker", "measure"])
def test_certificates_of_the_server_are_no_peers(certs: Path, name: str) -> None:
    introduction = introduce(
        RUN,
        name,
        RunKeys.generate(),
        certificate=certs / f"{name}.pem",
        key=certs / f"{name}.key",
    )
    with pytest.raises(InvalidInputError, match=name):
        check_introduction(introduction, certs / "ca.pem")


def test_a_revoked_device_is_no_peer(certs: Path, tmp_path: Path) -> None:
    introduction = introduce(
        RUN,
        "device-0",
        RunKeys.generate(),
        certificate=certs / "devices" / "device-0.pem",
        key=certs / "devices" / "device-0.key",
    )
    check_introduction(introduction, certs / "ca.pem")
    copy = tmp_path / "device"
    shutil.copytree(certs, copy)
    revoke(certs, "device-0")
    shutil.copy(certs / "crl.pem", copy / "crl.pem")
    with pytest.raises(InvalidInputError, match="revoked"):
        check_introduction(introduction, copy / "ca.pem")
