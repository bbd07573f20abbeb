"""A run over Flower next to its simulation: `python benchmarks/fleet/flower.py`.

Adult's four largest levels of education, one on each device; epsilon 4, cost 1000, a
round costs 100 and a step 1. SuperLink, SuperNodes and guards are processes of their
own, on loopback. The simulation runs the same plan with 20 seeds. Needs the extra
`flower`, and takes about two minutes.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import fedbudget as fb
from fedbudget.data.dataset import select_devices
from fedbudget.fleet.demo import Terms, compare
from fedbudget.privacy import rounded_up

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from tests.fleet.flower_trial import FlowerTrial

TERMS = Terms(epsilon=4, delta=1e-4, cost=1000, communication=100, computation=1)


def main() -> None:
    data = fb.load("adult", split="by-education", seed=0)
    data = select_devices(data, sorted(np.argsort(data.num_samples)[-4:].tolist()))
    folder = Path(tempfile.mkdtemp(prefix="fedbudget-flower-"))
    trial = FlowerTrial(folder, data, TERMS, deadline=60)
    with ExitStack() as stack:
        trial.start(stack)
        trial.wait(lambda status: None)
    comparison, plan = compare(trial), trial.plan()
    ours, simulated = comparison["fleet"], comparison["simulated"]
    print(f"devices    {', '.join(trial.names)}")
    print(f"plan       {plan.rounds} rounds of {plan.tau} local steps")
    for device in trial.final_status()["devices"]:
        print(
            f"           {device['name']}: {device['answered']} answers, epsilon "
            f"{rounded_up(device['epsilon'])}, cost {device['cost']:g} (own ledger)"
        )
    print(f"round      {comparison['median_round_seconds']:.1f} s median")
    print(f"accuracy   {ours['accuracy']:.4f} over Flower")
    print(
        f"           {simulated['accuracy']:.4f} +- {simulated['spread']:.4f} "
        f"simulated, {simulated['seeds']} seeds"
    )
    print(f"files      {folder}")


if __name__ == "__main__":
    main()
