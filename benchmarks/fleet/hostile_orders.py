"""A hostile coordinator: many thousands of orders against one guard.

    python benchmarks/fleet/hostile_orders.py --orders 100000

The messages and the checks are in tests/fleet/device/hostile_orders.py; `make test`
runs a short campaign. The exit code is 1 if there is a breach, with a line for each.
--seed determines the messages, except for keys.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from tests.fleet.device.hostile_orders import Campaign


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    started = time.perf_counter()

    def progress(number: int) -> None:
        if sys.stderr.isatty() and number % 500 == 0:
            print(f"\r{number} of {options.orders}", end="", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), random.Random(options.seed))
        campaign.run(options.orders, progress)
    print(f"orders      {options.orders} in {time.perf_counter() - started:.0f} s")
    print(f"devices     {campaign.lives}, restarted {campaign.restarts} times")
    print(f"sent        {_listed(campaign.attacks)}")
    print(f"replies     {_listed(campaign.answers)}")
    print(f"charged     {campaign.charged} rounds, each once")
    squares = np.array(campaign.squares)
    if len(squares):  # a short campaign may have none to compare
        print(
            f"noise       mean square {squares.mean():.3f} of the expected value, over "
            f"{len(squares)} numbers (standard error {np.sqrt(2 / len(squares)):.3f})"
        )
    print(f"shifted     {campaign.shifted} of the compared answers")
    print(f"breaches    {len(campaign.breaches)}")
    for breach in campaign.breaches[:20]:
        print(f"  {breach}")
    return 1 if campaign.breaches else 0


def _listed(counts: "Counter[str]") -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
