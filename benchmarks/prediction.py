"""How well the planner's model predicts a run: `python benchmarks/prediction.py`.

Plans for Adult over budgets, learning rates and tau, without drift control; runs each
on simulated devices; prints the correlation of predicted and measured training loss,
and the error once the best loss (which the prediction leaves out) has been added. By
education, the constants of the model were fitted on these same rows: that line says
how well it describes, not how well it would predict elsewhere. No private number goes
back into a plan.
"""

from dataclasses import replace

import numpy as np

import fedbudget as fb
from fedbudget.planning.spectral import DRIFT, SLOWER, Schedule, Spectrum, respond
from fedbudget.privacy import GDP

EPSILONS, COST, TAUS = (1, 4, 10), 1000, (1, 3, 8, 20, 50)
RATES, MOMENTA, SEEDS = (1.0, 2.0, 4.0, 7.6), (0.0, 0.5), range(3)


def candidates(problem: fb.Problem) -> list[fb.Plan]:
    """Vary one plan per epsilon: tau, learning rate and momentum of its own."""
    prices = fb.Prices(communication=100, computation=1)
    found = []
    for epsilon in EPSILONS:
        budget = fb.Budget(epsilon=epsilon, delta=1e-4, cost=COST)
        plan = fb.plan(problem, budget, prices, weights="uniform", drift_control=False)
        for tau in TAUS:
            rounds = COST // (100 + tau)
            noise = GDP.noise_std(
                lipschitz=plan.lipschitz,
                batch_size=plan.batch_size,
                epsilon=epsilon,
                delta=1e-4,
                steps=tau * rounds,
            )
            found += [
                replace(
                    plan,
                    tau=tau,
                    rounds=rounds,
                    learning_rate=rate,
                    momentum=momentum,
                    noise_std=noise,
                )
                for rate in RATES
                for momentum in MOMENTA
            ]
    return found


def predict(problem: fb.Problem, plan: fb.Plan, *, fitted: bool) -> float:
    """Return the predicted loss above the best, for uniform weights.

    Fitted is what `joint` scores plans by: with its factors for unlike devices.
    """
    schedule = Schedule(
        tau=np.array([float(plan.tau)]),
        rounds=np.array([float(plan.rounds)]),
        learning_rate=np.array([plan.learning_rate]),
        momentum=np.array([plan.momentum]),
    )
    found = respond(Spectrum.of(problem), schedule, variance=1.0)
    noise = float(np.sum((plan.weights * plan.noise_std) ** 2))
    unlike = problem["dissimilarity"] ** 2
    slower, drift = (1 + SLOWER * min(unlike, 1.0), DRIFT) if fitted else (1.0, 1.0)
    return float(
        slower * found.remaining[0]
        + found.noise[0] * noise
        + drift * unlike * found.drift[0]
    )


def main() -> None:
    for split in ("iid", "by-education"):
        data = fb.load("adult", split=split, seed=0)
        problem = data.problem()
        plans = candidates(problem)
        measured = fb.sweep(data, plans, seeds=SEEDS).measured["train_loss"].mean(1)
        sane = measured < np.log(2)  # the others are worse than not training at all
        print(f"{split}: {sane.sum()} of {len(plans)} plans learn")
        for name, fitted in (("spectral model", False), ("as joint scores", True)):
            predicted = np.array([predict(problem, p, fitted=fitted) for p in plans])
            best = float(np.median(measured[sane] - predicted[sane]))
            error = np.abs(measured[sane] - best - predicted[sane])
            correlation = np.corrcoef(predicted[sane], measured[sane])[0, 1]
            median, high = np.percentile(error, [50, 90])
            print(
                f"{name:>17}: correlation {correlation:.3f}, median error "
                f"{median:.4f}, 90th percentile {high:.4f}"
            )


if __name__ == "__main__":
    main()
