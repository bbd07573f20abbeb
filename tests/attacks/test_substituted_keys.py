"""Attack: put the server's own keys in the place of a device's.

With the secret of a peer's mask key the server knows the masks of everybody with that
peer; with that of its share key it reads shares. Mask keys are signed by the device's
run key, run keys by the key of its certificate, and that by the authority in the
owner's policy.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbudget.fleet.secure.introductions import introduce
from fedbudget.fleet.secure.peers import RunKeys
from fedbudget.fleet.secure.protocol import AttemptSecrets
from fedbudget.fleet.transport.certificates import make_certificates
from fedbudget.fleet.wire.messages import Reply
from tests.fleet.sums import Hostile


def test_a_mask_key_of_the_server_is_refused(hostile: Hostile) -> None:
    keys = hostile.keys(hostile.fleet.names)
    made_up = AttemptSecrets.generate()
    for change in (
        {"mask_key": made_up.mask_key},
        {"commitment": made_up.commitment},
        {"mask_key": keys["device-4"].mask_key},
        {"signature": keys["device-4"].signature},
    ):
        changed = keys | {"device-3": replace(keys["device-3"], **change)}
        reply = hostile.order("device-0", hostile.roster(changed))
        assert isinstance(reply, Reply) and "not signed by it" in str(reply.reason)
    assert hostile.fleet.entries("device-0", "charge") == []


def test_another_key_of_the_device_itself_is_refused(hostile: Hostile) -> None:
    keys = hostile.keys(hostile.fleet.names)
    made_up = replace(keys["device-0"], mask_key=AttemptSecrets.generate().mask_key)
    reply = hostile.order("device-0", hostile.roster(keys | {"device-0": made_up}))
    assert isinstance(reply, Reply) and "another key of" in str(reply.reason)


def stranger(hostile: Hostile, folder: Path, name: str) -> Any:
    """Return an introduction under a name, with a certificate of another authority."""
    make_certificates(folder, [name])
    return introduce(
        hostile.run_id,
        name,
        RunKeys.generate(),
        certificate=folder / "devices" / f"{name}.pem",
        key=folder / "devices" / f"{name}.key",
    )


@pytest.mark.parametrize("change", ["authority", "keys", "name", "device", "run"])
def test_introductions_of_the_server_are_refused(
    hostile: Hostile, change: str, tmp_path: Path
) -> None:
    other = Hostile(hostile.fleet, run=bytes(16))
    introductions = dict(other.introductions)
    third = introductions["device-3"]
    keys = RunKeys.generate().member("device-3")
    changed: dict[str, Any] = {
        "authority": stranger(other, tmp_path / "authority", "device-3"),
        "keys": replace(third, share_key=keys.share_key),
        "name": replace(third, device="somebody"),
        "device": introductions["device-4"],
        "run": hostile.introductions["device-3"],
    }
    listed = [*(introductions | {"device-3": changed[change]}).values()]
    reply = other.order("device-0", other.peer_list(listed))
    assert isinstance(reply, Reply) and reply.code == "policy"
    assert "/" not in str(reply.reason)  # no path of the owner's
    assert other.order("device-0", other.peer_list()) is None  # the right one is taken


def test_a_list_with_other_keys_of_the_device_itself_is_refused(
    hostile: Hostile, sum_certs: Path
) -> None:
    """Somebody has its certificate's key: two devices under one name."""
    other = Hostile(hostile.fleet, run=bytes(16))
    twin = introduce(
        other.run_id,
        "device-0",
        RunKeys.generate(),
        certificate=sum_certs / "devices" / "device-0.pem",
        key=sum_certs / "devices" / "device-0.key",
    )
    listed = [*(other.introductions | {"device-0": twin}).values()]
    reply = other.order("device-0", other.peer_list(listed))
    assert isinstance(reply, Reply) and "other keys of" in str(reply.reason)
