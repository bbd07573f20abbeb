"""The privacy loss of a run, and the noise that a budget needs.

Two mechanisms, each for its adversary:

    noise per step    the server, the other devices and anyone who sees every upload. A
                      device releases K gradients. Each is a mean over X samples whose
                      gradients have norm at most G, plus independent Gaussian noise
                      of std sigma per coordinate: `NoisyGradients`
    noise per upload  the server and c colluding devices, who see only sums of at least
                      t uploads. Local steps have no noise, and devices share the noise
                      of the sum: `NoisyUploads`

Unit of privacy: one sample, or one device with all its samples. Neighbours: one unit
is replaced.

Three accountants answer the same two questions (epsilon of a run, noise for a
budget), each for one device or for an array of them:

    gdp    exact for Gaussian noise without sampling: mu = 2 G sqrt(K) / (X sigma)
           (Dong, Roth and Su 2022, Corollary 2.13; Balle and Wang 2018, Theorem 8)
    zcdp   the paper's: rho = mu^2 / 2, epsilon = rho + 2 sqrt(rho log(1/delta))
    pld    for Poisson-sampled batches, through Google's dp-accounting

All results are rounded towards privacy: an epsilon is exact or too high.
"""

from fedbudget.checks import one_of
from fedbudget.privacy.accountants import GDP, SLACK, ZCDP, Accountant
from fedbudget.privacy.conversions import (
    delta_from_mu,
    epsilon_from_mu,
    epsilon_from_rho,
    mu_from_epsilon,
    rho_from_epsilon,
)
from fedbudget.privacy.runs import (
    Kind,
    NoisyGradients,
    PrivacyStatement,
    Releases,
    Scope,
    Trust,
    Unit,
    dp_event,
    rounded_up,
)
from fedbudget.privacy.sampled import PldAccountant
from fedbudget.privacy.schedules import first_factor, noise_factors
from fedbudget.privacy.uploads import (
    LocalSteps,
    NoisyUploads,
    noise_for_budget,
)

__all__ = [
    "ACCOUNTANTS",
    "GDP",
    "SLACK",
    "ZCDP",
    "Accountant",
    "Kind",
    "LocalSteps",
    "NoisyGradients",
    "NoisyUploads",
    "PldAccountant",
    "PrivacyStatement",
    "Releases",
    "Scope",
    "Trust",
    "Unit",
    "accountant_named",
    "delta_from_mu",
    "dp_event",
    "epsilon_from_mu",
    "epsilon_from_rho",
    "first_factor",
    "mu_from_epsilon",
    "noise_factors",
    "noise_for_budget",
    "rho_from_epsilon",
    "rounded_up",
]

ACCOUNTANTS: dict[str, Accountant] = {
    accountant.name: accountant for accountant in (GDP, ZCDP, PldAccountant())
}


def accountant_named(name: str) -> Accountant:
    """Return the accountant called `name`."""
    return ACCOUNTANTS[one_of("accountant", name, tuple(ACCOUNTANTS))]
