"""The protocol of a secure sum in one process: seconds and bytes of every device.

    python benchmarks/fleet/secure_sum.py --devices 16 100 1000 --params 102

Every device does all it does in a fleet, one after the other: it announces a key and
encrypted shares, checks the roster's signatures, masks its vector, confirms the list of
answers, checks a quorum of confirmations and reveals its shares. A tenth of the devices
drop out before their upload. The sum must be exact, or the exit code is 1.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from tests.fleet.secure.rounds import SecureRound, sealed_for, vectors

from fedbudget.fleet.secure import protocol, unmasking
from fedbudget.fleet.wire.secure_messages import AttemptRoster


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[16, 100, 1000])
    parser.add_argument("--params", type=int, default=102)
    options = parser.parse_args(arguments)
    print("devices  neighbours  T    ms per device  server s  kB up  kB down  exact")
    exact = True
    for count in options.devices:
        row = measured(
            count, options.params, colluders=count // 20, missing=count // 10
        )
        exact = exact and row["exact"]
        print(
            f"{count:7d}  {row['degree']:10d}  {row['threshold']:3d}  "
            f"{1e3 * row['device']:13.1f}  {row['server']:8.2f}  "
            f"{row['up'] / 1e3:5.1f}  {row['down'] / 1e3:7.1f}  {row['exact']}"
        )
    return 0 if exact else 1


def measured(
    count: int,
    params: int,
    *,
    colluders: int,
    missing: int,
    dropouts: int | None = None,
) -> dict[str, Any]:
    """Return the seconds and bytes of one device, and the server's seconds.

    `missing` devices drop out, of `dropouts` that may; None: just as many.
    """
    most = missing if dropouts is None else dropouts
    current = SecureRound(count, colluders=colluders, dropouts=most)
    inputs = vectors(count, params)
    peers, everybody = current.peers, list(range(count))
    # Evenly over the list, as by chance.
    gone = set(np.linspace(0, count - 1, missing, dtype=int).tolist())
    answered = [m for m in everybody if m not in gone]
    quorum = answered[: peers.quorum]
    started = time.perf_counter()
    announced = current.announce(everybody)
    roster = current.roster(announced)
    # Every device checks as many signatures as the first one does.
    checking = time.perf_counter()
    roster.for_device(0).check(0)
    signatures = {m: current.devices[m].confirm(roster, answered) for m in quorum}
    protocol.check_confirmations(roster, answered, signatures)
    checked = time.perf_counter() - checking
    uploads = current.upload(roster, inputs, answered)
    shares = current.reveal(roster, announced, answered, answered)
    devices = time.perf_counter() - started - checked
    started = time.perf_counter()
    roster.check(0)  # all keys
    total = unmasking.unmask(roster, uploads, shares, ring_bits=32)
    server = time.perf_counter() - started
    expected = inputs[answered].sum(axis=0) % (1 << 32)
    neighbours = peers.neighbourhood.degree
    sealed = sum(map(len, sealed_for(0, announced).values()))
    roster_bytes = len(AttemptRoster.of_roster(roster.for_device(0)).to_bytes())
    return {
        "degree": neighbours,
        "threshold": peers.neighbourhood.threshold,
        "device": devices / count + checked,
        "server": server,
        "up": sealed + 128 + 4 * params + 64 + 32 * neighbours,
        "down": 4 * params + roster_bytes + 4 * count + 68 * peers.quorum + sealed,
        "exact": bool(np.array_equal(total, expected)),
    }


if __name__ == "__main__":
    sys.exit(main())
