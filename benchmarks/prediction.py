"""How well the planner's model predicts a run: `python benchmarks/prediction.py`.

Plans for Adult over budgets, learning rates and tau, without drift correction; runs
each on simulated devices; prints the correlation of predicted and measured training
loss, and the error after adding the best loss, which the prediction leaves out. By
education, the constants of the model were fitted on these same rows: that line shows
the fit, not the prediction on other data. No private number goes back into a plan.
"""

from dataclasses import replace

import numpy as np

import fedbudget as fb
from fedbudget.planning.spectral import DRIFT, Schedule, Spectrum, respond
from fedbudget.privacy import GDP

EPSILONS, COST, TAUS = (1, 4, 10), 1000, (1, 3, 8, 20, 50)
RATES, MOMENTA, SEEDS = (1.0, 2.0, 4.0, 7.6), (0.0, 0.5), range(3)


def candidates(problem: fb.Problem) -> list[fb.Plan]:
    """Return variations of one plan per epsilon: tau, learning rate, momentum."""
    prices = fb.Prices(communication=100, computation=1)
    plans = []
    for epsilon in EPSILONS:
        budget = fb.Budget(epsilon=epsilon, delta=1e-4, cost=COST)
        plan = fb.plan(
            problem, budget, prices, weights="uniform", drift_correction=False
        )
        for tau in TAUS:
            rounds = COST // (100 + tau)
            noise = GDP.noise_std(
                lipschitz=plan.lipschitz,
                batch_size=plan.batch_size,
                epsilon=epsilon,
                delta=1e-4,
                steps=tau * rounds,
            )
            plans += [
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
    return plans


def predict(problem: fb.Problem, plan: fb.Plan, *, fitted: bool) -> float:
    """Return the predicted excess loss, for uniform weights.

    `fitted` adds the factor of `joint` for heterogeneous devices.
    """
    schedule = Schedule(
        tau=np.array([float(plan.tau)]),
        rounds=np.array([float(plan.rounds)]),
        learning_rate=np.array([plan.learning_rate]),
        momentum=np.array([plan.momentum]),
    )
    response = respond(Spectrum.of(problem), schedule, variance=1.0)
    noise = float(np.sum((plan.weights * plan.noise_std) ** 2))
    squared = problem["dissimilarity"] ** 2
    drift = DRIFT / np.sqrt(problem.num_devices) if fitted else 1.0
    return float(
        response.remaining[0]
        + response.noise[0] * noise
        + drift * squared * response.drift[0]
    )


def main() -> None:
    for split in ("iid", "by-education"):
        data = fb.load("adult", split=split, seed=0)
        problem = data.problem()
        plans = candidates(problem)
        measured = fb.sweep(data, plans, seeds=SEEDS).measured["train_loss"].mean(1)
        learns = measured < np.log(2)  # below the loss of the untrained model
        print(f"{split}: {learns.sum()} of {len(plans)} plans learn")
        for name, fitted in (("spectral model", False), ("as joint scores", True)):
            predicted = np.array([predict(problem, p, fitted=fitted) for p in plans])
            best = float(np.median(measured[learns] - predicted[learns]))
            error = np.abs(measured[learns] - best - predicted[learns])
            correlation = np.corrcoef(predicted[learns], measured[learns])[0, 1]
            median, high = np.percentile(error, [50, 90])
            print(
                f"{name:>17}: correlation {correlation:.3f}, median error "
                f"{median:.4f}, 90th percentile {high:.4f}"
            )


if __name__ == "__main__":
    main()
