"""A tree of coordinators, simulated: `python benchmarks/fleet/tree.py`.

    python benchmarks/fleet/tree.py [devices] [leaves]     100,000 and 10 by default

Each leaf is a coordinator with its own broker and its own part of the devices; a root
averages the leaves' averages, weighted by the weights of those who answered. Here the
leaves' own code reads, checks, stores and averages the answers of all devices, one leaf
after the other (answers.py: in memory, without brokers), and the result is compared
with the mean over all devices. The seconds of a round are those of the slowest leaf and
of the root, as if every leaf had a core of its own; what its broker can carry
(scale.py) is a limit besides.
"""

import sys
import time

import numpy as np
from answers import Answering, run_rounds

from fedbudget.algorithm import weighted_mean


class Moving(Answering):
    """Devices that answer with models of their own."""

    def model(self, name: str, theta: bytes) -> bytes:
        """Return a device's model: the order's, moved by what its name says."""
        return (np.frombuffer(theta, "<f4") + move_of(name)).astype("<f4").tobytes()


def move_of(name: str) -> float:
    """Return how far a device moves each weight."""
    return 1e-3 * (int(name.rsplit("-", 1)[1]) % 97)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    leaves = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    names = [f"device-{number:06d}" for number in range(count)]
    parts = [names[first::leaves] for first in range(leaves)]
    averaged = [run_rounds(Moving(part), 1)[0] for part in parts]
    seconds = [part.seconds for part in averaged]
    began = time.process_time()
    shares = np.array([len(part) / count for part in parts])
    theta = weighted_mean([part.theta for part in averaged], shares)
    root = time.process_time() - began
    error = np.abs(theta - np.mean([move_of(name) for name in names])).max()
    print(f"{'devices, leaves':40} {count}, {leaves}")
    print(f"{'seconds of a round, slowest leaf':40} {max(seconds):.2f}")
    print(f"{'milliseconds per answer of a leaf':40} {1e3 * sum(seconds) / count:.3f}")
    print(f"{'seconds of the root':40} {root:.4f}")
    print(f"{'largest difference to one coordinator':40} {error:.1e}")


if __name__ == "__main__":
    main()
