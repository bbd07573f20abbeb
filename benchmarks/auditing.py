"""How close an audit comes to a claim, and how small a cut of the noise it catches.

python benchmarks/auditing.py [--seconds 60] [--epsilons 1,4,10] [--deltas 1e-4,1e-5]
    [--path release] [--no-cuts]

Each claim is that of a plan for 16 devices as in Adult (1628 rows, 102 columns). The
audit gets the seconds; so does the trial of every cut, as if it were the mechanism
under test. A cut is caught if its lower bound is above the claim.
"""

import argparse

import fedbudget as fb
from fedbudget.auditing.audits import audit_claim, audit_steps
from fedbudget.auditing.mechanisms import DevicePath, Mechanism
from fedbudget.auditing.release_path import ReleasePath
from fedbudget.auditing.settings import Claim, claims_of
from fedbudget.auditing.trials import Effort
from fedbudget.cli.options import parse_numbers

PATHS: dict[str, type[Mechanism[Claim]]] = {
    "device": DevicePath,
    "release": ReleasePath,
}
CUTS = (0.5, 0.25, 0.1, 0.05)
ERROR = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--epsilons", default="1,4,10")
    parser.add_argument("--deltas", default="1e-4,1e-5")
    parser.add_argument("--path", choices=PATHS, default="release")
    parser.add_argument("--no-cuts", action="store_true")
    options = parser.parse_args()
    print("epsilon  delta  steps   trials  Gaussian  any law  best fit  verdict")
    for epsilon in parse_numbers("--epsilons", options.epsilons):
        for delta in parse_numbers("--deltas", options.deltas):
            claim, effort = claim_of(epsilon, delta), Effort(seconds=options.seconds)
            audited(PATHS[options.path](), claim, effort)
            for cut in () if options.no_cuts else CUTS:
                try_cut(PATHS[options.path](), claim, effort, cut)


def claim_of(epsilon: float, delta: float) -> Claim:
    problem = fb.Problem(num_samples=[1628] * 16, dim=102)
    plan = fb.plan(
        problem,
        fb.Budget(epsilon=epsilon, delta=delta, cost=1000),
        fb.Prices(communication=100, computation=1),
    )
    (claim,), _ = claims_of(plan)
    assert isinstance(claim, Claim)  # noise per step
    return claim


def audited(mechanism: Mechanism[Claim], claim: Claim, effort: Effort) -> None:
    result = audit_claim(mechanism, claim, effort, error=ERROR)
    bounds = result.steps
    print(
        f"{claim.epsilon:7.4g}  {claim.delta:5g}  {claim.steps:5d}  "
        f"{bounds.trials:7d}  "
        f"{bounds.gaussian / claim.epsilon:8.3f}  {bounds.free / claim.epsilon:7.3f}  "
        f"{bounds.best_fit / claim.epsilon:8.3f}  {result.verdict}",
        flush=True,
    )


def try_cut(
    mechanism: Mechanism[Claim], claim: Claim, effort: Effort, cut: float
) -> None:
    weaker = audit_steps(mechanism, claim.with_noise(1 - cut), effort, error=ERROR)
    verb = "caught" if weaker.largest > claim.epsilon else "not caught"
    print(
        f"         noise cut by {100 * cut:g} %: at least {weaker.largest:.3f}, {verb}",
        flush=True,
    )


if __name__ == "__main__":
    main()
