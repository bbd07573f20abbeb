"""Claims are judged by the rows, not by the paper."""

from dataclasses import replace

import numpy as np
import pytest

from fedbudget.paper.cases import Scale, case_named
from fedbudget.paper.claims import (
    DOES_NOT_HOLD,
    HOLDS,
    IN_PART,
    UNDECIDED,
    Claim,
    all_claims,
    close_taus,
)
from fedbudget.paper.lab import Row
from fedbudget.paper.results import Estimate, Runs, mean_interval, paired, regrets

SURE = Estimate(mean=1.0, low=0.5, high=1.5)


@pytest.fixture
def tiny(tiny: Scale) -> Scale:
    return replace(tiny, costs=(500, 1000), panel_costs=(500, 1000))


def made_up(
    tiny: Scale,
    *,
    tau_gain: float = 0.0,
    cost_gain: float = 0.0,
    best_taus: dict[float, int] | None = None,
) -> list[Row]:
    """Rows with these effects and very little noise."""
    rows: list[Row] = []

    def add(
        scheme: str, epsilon: float, cost: float, accuracy: float, **columns: float
    ) -> None:
        for repeat in range(3):
            noise = 1e-4 * np.sin(17 * repeat + len(rows))
            rows.append(
                {
                    "case": tiny.cases[0].name,
                    "scheme": scheme,
                    "epsilon": float(epsilon),
                    "cost": float(cost),
                    "repeat": repeat,
                    "test_accuracy": accuracy + noise,
                    "validation_accuracy": accuracy + noise,
                    # The joint plan has the lowest loss, though not the accuracy.
                    "test_loss": {"joint": 0.3, "grid-full": 0.4}.get(scheme, 0.5),
                    "tau": 1,
                    "rounds": 9,
                    "learning_rate": 4.0,
                }
                | columns
            )

    for rate in tiny.rates:
        add("tau=1", 10, 1000, 0.8, learning_rate=rate)
        add("tau=10", 10, 1000, 0.8 + tau_gain, tau=10, learning_rate=rate)
    for epsilon, cost in tiny.line_budgets:
        accuracy = 0.7 + cost_gain * cost / 1000
        for scheme in ("joint", "paper-tuned"):
            add(scheme, epsilon, cost, accuracy, tau=10)
        for scheme in ("bound", "paper"):
            add(scheme, epsilon, cost, accuracy - 0.1, tau=10)
        add("grid-full", epsilon, cost, accuracy + 0.01, tau=10)
        for scheme in ("curve-fixed", "curve-own", "curve-full"):
            best = (best_taus or {}).get(epsilon, 10)
            for tau in (1, 10):
                add(scheme, epsilon, cost, accuracy + 0.01 * (tau == best), tau=tau)
    return rows


def verdicts(tiny: Scale, rows: list[Row]) -> dict[str, str]:
    claims = all_claims(Runs(rows), {tiny.cases[0].name: 4.0}, tiny)
    return {claim.number: claim.verdict for claim in claims}


def test_what_holds_is_said_to_hold(tiny: Scale) -> None:
    answers = verdicts(tiny, made_up(tiny, tau_gain=0.05, cost_gain=0.1))
    assert answers["1a"] == answers["1b"] == HOLDS
    assert answers["2a"] == answers["2c"] == HOLDS
    assert answers["4a"] == answers["4b"] == HOLDS
    assert answers["4a'"] == DOES_NOT_HOLD  # accuracy does not depend on epsilon there
    assert answers["3a"] == DOES_NOT_HOLD  # nor does the best tau


def test_what_does_not_hold_is_said_not_to(tiny: Scale) -> None:
    answers = verdicts(tiny, made_up(tiny, tau_gain=-0.05, cost_gain=-0.1))
    assert answers["1a"] == answers["1b"] == answers["4a"] == DOES_NOT_HOLD


def test_a_tau_that_grows_with_epsilon_is_seen(tiny: Scale) -> None:
    answers = verdicts(tiny, made_up(tiny, best_taus={1: 1, 10: 10}))
    assert answers["3a"] == answers["3b"] == HOLDS
    assert answers["3a'"] == answers["3b'"] == DOES_NOT_HOLD  # cost has no part in it
    assert answers["3c"] == DOES_NOT_HOLD  # the planners choose 10 always
    assert answers["2a"] == DOES_NOT_HOLD  # which is right for half of the settings
    reverse = verdicts(tiny, made_up(tiny, best_taus={1: 10, 10: 1}))
    assert reverse["3a"] == reverse["3b"] == DOES_NOT_HOLD


def test_regret_is_what_the_grid_has_more(tiny: Scale) -> None:
    rows = made_up(tiny, tau_gain=0.0, cost_gain=0.1)
    plans = [
        {"scheme": name, "seconds": 0.5}
        for name in ("joint", "bound", "paper", "paper-tuned")
    ]
    by_planner = {each.planner: each for each in regrets(Runs(rows), plans, tiny)}
    assert by_planner["joint"].mean.mean == pytest.approx(1.0, abs=0.05)
    assert by_planner["bound"].worst == pytest.approx(11.0, abs=0.1)
    assert [each.reads for each in by_planner.values()] == [False, False, False, True]
    case, budgets = tiny.cases[0].name, len(tiny.budgets)
    assert by_planner["joint"].lower_losses == {case: budgets}
    assert by_planner["bound"].lower_losses == {case: 0}


@pytest.mark.parametrize(
    ("holds", "against", "sign", "verdict"),
    [
        (10, 0, 1, HOLDS),
        (9, 1, 1, HOLDS),
        (4, 1, 0, IN_PART),
        (4, 1, -1, DOES_NOT_HOLD),  # on average the reverse is true
        (4, 5, 1, DOES_NOT_HOLD),
        (1, 0, 1, IN_PART),
        (1, 0, 0, DOES_NOT_HOLD),
        (0, 0, 1, DOES_NOT_HOLD),
    ],
)
def test_verdicts(holds: int, against: int, sign: int, verdict: str) -> None:
    assert judged(holds, against, sign).verdict == verdict


@pytest.mark.parametrize(
    ("holds", "sign", "verdict"),
    [(9, 0, HOLDS), (5, 1, IN_PART), (5, 0, UNDECIDED), (5, -1, DOES_NOT_HOLD)],
)
def test_settings_that_count_by_their_sign_alone_decide_little(
    holds: int, sign: int, verdict: str
) -> None:
    assert replace(judged(holds, 1, sign), tested=False).verdict == verdict


def judged(holds: int, against: int, sign: int) -> Claim:
    effects = {
        1: SURE,
        0: replace(SURE, low=-1.0),
        -1: Estimate(mean=-1.0, low=-1.5, high=-0.5),
    }
    return Claim(
        number="1a",
        claim="",
        reading="",
        holds=holds,
        against=against,
        total=10,
        effect=effects[sign],
        unit="",
    )


def test_close_taus() -> None:
    assert close_taus(1, 3) and close_taus(20, 30) and close_taus(400, 300)
    assert not close_taus(1, 4) and not close_taus(20, 31)


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    estimates = [mean_interval(rng.normal(size=5)) for _ in range(2000)]
    assert np.mean([each.low <= 0 <= each.high for each in estimates]) == pytest.approx(
        0.95, abs=0.015
    )
    assert np.isnan(mean_interval([1.0]).low)


def test_pairs_are_of_the_same_repeat() -> None:
    assert paired(np.array([3.0, 5.0, 7.0]), np.array([1.0, 2.0])).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("exception", "other", "verdict"), [(1, 5, HOLDS), (5, 1, DOES_NOT_HOLD)]
)
def test_the_fifth_claim_compares_cases(
    tiny: Scale, exception: float, other: float, verdict: str
) -> None:
    """Epsilon matters less on Adult-1: accuracy gains fewer points there."""
    scale = replace(tiny, cases=(case_named("adult-1"), case_named("adult-2")))
    rows = []
    for case, gain in (("Adult-1", exception), ("Adult-2", other)):
        for row in made_up(tiny, tau_gain=0.05, cost_gain=0.1):
            added = gain / 100 if row["epsilon"] == 10 else 0.0
            accuracy = row["test_accuracy"] + added
            rows.append(row | {"case": case, "test_accuracy": accuracy})
    assert "5a" not in verdicts(tiny, rows)  # one case alone
    rates = {"Adult-1": 4.0, "Adult-2": 4.0}
    claims = {claim.number: claim for claim in all_claims(Runs(rows), rates, scale)}
    assert claims["5a"].verdict == claims["5b"].verdict == verdict
    assert claims["5a"].effect.mean == pytest.approx(other - exception, abs=0.1)
    assert claims["5a'"].verdict == DOES_NOT_HOLD  # C matters the same in both
