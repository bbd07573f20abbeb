"""Attack: have an upload of a run of sums sent in the open.

The noise of a run of sums is a share: an upload without masks would show it with a
fraction of the noise that its epsilon needs. So a device carries out no ordinary order
in such a run, and none of another coordinator, even one that its owner trusts.
"""

import numpy as np

from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Reply, RoundOrder
from fedbudget.fleet.wire.signing import Signer
from tests.fleet.sums import DIM, Hostile


def test_an_ordinary_order_is_refused_uncharged(hostile: Hostile) -> None:
    theta = np.zeros(DIM).tobytes()
    for round in (1, 2):
        order = RoundOrder(run=hostile.run_id, round=round, theta=theta)
        for name in hostile.fleet.names:
            reply = hostile.order(name, order)
            assert isinstance(reply, Reply) and reply.code == "policy"
            assert reply.theta is None and "uploads are masked" in str(reply.reason)
            assert hostile.fleet.entries(name, "charge") == []


def test_not_after_the_upload_either(hostile: Hostile) -> None:
    """The stored vector of a charged round is not the answer to an ordinary order."""
    hostile.up_to_uploads()
    order = RoundOrder(
        run=hostile.run_id, round=1, theta=np.zeros(DIM).tobytes(), selected=None
    )
    reply = hostile.order("device-0", order)
    assert isinstance(reply, Reply) and reply.refused and reply.theta is None


def test_another_trusted_coordinator_takes_no_part(inside: Hostile) -> None:
    name, other = "device-0", Signer.generate()
    path = inside.fleet.paths[name]
    first = f'"{inside.signer.public_key}"'
    path.write_text(
        path.read_text().replace(first, f'{first}, "{other.public_key}"', 1)
    )
    inside.fleet.restart(name)
    topic = topics.order_again(name)
    for order in (inside.attempt(), inside.peer_list()):
        (reply,) = inside.deliver(name, topic, other.sign(order))
        assert isinstance(reply, Reply) and reply.code == "untrusted"
    assert inside.order(name, inside.attempt()) is not None
