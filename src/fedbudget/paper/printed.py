"""The noise that the paper prints, and what it really spends (erratum 1)."""

from dataclasses import replace
from math import log, sqrt

import numpy as np

from fedbudget.paper.cases import DELTA
from fedbudget.planning import Plan
from fedbudget.privacy import GDP, NoisyGradients, rho_from_epsilon

PRINTED = "printed-sigma"  # the scheme of runs with this noise


def printed_noise(plan: Plan, *, epsilon: float) -> Plan:
    """Return the plan with the paper's printed sigma, and the epsilon that it spends.

    The printed root is the wrong one of the two (see docs/paper.md, erratum 1): rho is
    too large by far, and the noise too small.
    """
    log_term = log(1 / DELTA)
    wrong = (sqrt(epsilon + log_term) + sqrt(log_term)) ** 2
    right = float(rho_from_epsilon(epsilon, delta=DELTA))
    noise_std = plan.noise_std * sqrt(right / wrong)
    run = NoisyGradients(
        lipschitz=plan.lipschitz,
        batch_size=plan.batch_size,
        noise_std=noise_std,
        steps=plan.steps,
    )
    spent = np.broadcast_to(GDP.epsilon(run, delta=DELTA), plan.epsilon.shape)
    return replace(plan, noise_std=noise_std, epsilon=spent, accountant="gdp")
