"""All parts of the audit of one claim, with controls (part (e)) and a verdict.

The controls are the same audit of the same claim with too little noise: half of it, and
the noise that the paper prints (`docs/paper.md`, erratum 1: the other root). An audit
that does not catch them is too weak to say anything of the claim.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Generic, TypeAlias

from fedbudget.auditing.bounds import LowerBounds, Trials, lower_bounds
from fedbudget.auditing.grids import GridTest, measure_grid
from fedbudget.auditing.guards import GuardTest
from fedbudget.auditing.mechanisms import AnyClaim, Mechanism
from fedbudget.auditing.noise import NoiseTest, measure_noise
from fedbudget.auditing.sensitivity import Sensitivity, measure_sensitivity
from fedbudget.auditing.settings import Audited, Claim
from fedbudget.auditing.trials import AT_ONCE, Effort, run_trials, steps_trials
from fedbudget.auditing.upload_claims import UploadClaim
from fedbudget.privacy import rounded_up

CONSISTENT = "consistent: no evidence against the claim"
VIOLATED, INCONCLUSIVE = "violated", "inconclusive"

# Shares of the seconds, or of the trials. Parts (a) and (c) need less than a second.
_NOISE, _STEPS, _RUNS, _CONTROL = (0.08, 0.0), (0.62, 1.0), (0.12, 0.01), (0.08, 0.25)
_STEPS_ERROR, _RUNS_ERROR = 0.8, 0.2  # shares of the error probability
_GRID_VALUES = 10_000
_NOISE_DRAWS = 100_000  # if a number of trials is given, and no time

OnPart: TypeAlias = Callable[[str, float], None]  # a part begins; its share of the time
Runs: TypeAlias = Callable[[Effort], tuple[Trials, GuardTest | None]]


@dataclass(frozen=True, kw_only=True)
class Control:
    """The audit of the same claim with too little noise."""

    name: str
    noise: float  # share of the claim's noise
    bounds: LowerBounds
    caught: bool

    def __str__(self) -> str:
        verb = "caught" if self.caught else "NOT caught"
        return f"{verb}: epsilon at least {rounded_down(self.bounds.largest)}"


@dataclass(frozen=True, kw_only=True)
class ClaimAudit:
    """The audit of one claim: its parts, and what follows from them."""

    claim: Claim | UploadClaim
    path: str  # the release path under test
    sensitivity: Sensitivity
    noise: NoiseTest
    grid: GridTest
    steps: LowerBounds  # from runs step by step, many at once
    runs: LowerBounds  # from runs through the path's own loop, or a guard
    guard: GuardTest | None
    controls: tuple[Control, ...]

    @property
    def violations(self) -> tuple[str, ...]:
        """What contradicts the claim."""
        epsilon = self.claim.epsilon
        violations = []
        for bounds in (self.steps, self.runs):
            if bounds.largest > epsilon:
                violations.append(
                    f"epsilon is at least {rounded_down(bounds.largest)}, above the "
                    f"claimed {rounded_up(epsilon)}"
                )
        parts = (self.sensitivity, self.grid, self.guard)
        broken = [part for part in parts if part is not None and not part.holds]
        return (*violations, *map(str, broken))

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """Why the absence of violations would say little."""
        weak = [
            f"too weak, the control with {control.name} was not caught: give it more "
            "seconds"
            for control in self.controls
            if not control.caught
        ]
        if not self.noise.holds:
            weak.append("the noise is not the normal one that the bounds assume")
        return tuple(weak)

    @property
    def verdict(self) -> str:
        """The verdict in one line."""
        return verdict_of(self.violations, self.weaknesses)


def verdict_of(violations: tuple[str, ...], weaknesses: tuple[str, ...]) -> str:
    """Return a verdict: never that a claim is proved."""
    if violations:
        return f"{VIOLATED}: {'; '.join(violations)}"
    if weaknesses:
        return f"{INCONCLUSIVE}: {'; '.join(weaknesses)}"
    return CONSISTENT


def audit_claim(
    mechanism: Mechanism[AnyClaim],
    claim: AnyClaim,
    effort: Effort,
    *,
    error: float,
    runs: Runs | None = None,
    on_part: OnPart = lambda text, share: None,
) -> ClaimAudit:
    """Audit one claim.

    Args:
        mechanism: The release path under test.
        claim: Steps, and the epsilon that they are said to spend.
        effort: The time, or the trials of a table.
        error: The probability with which a correct mechanism is called violating.
        runs: Whole runs; by default, through the mechanism's own loop.
        on_part: Called when a part begins, with its share of the time.
    """
    parts = _Parts(mechanism, claim, effort, error, on_part)
    sensitivity, grid = parts.exact()
    noise, steps = parts.noise(), parts.steps()
    whole, guard = parts.runs(runs)
    return ClaimAudit(
        claim=claim,
        path=mechanism.name,
        sensitivity=sensitivity,
        noise=noise,
        grid=grid,
        steps=steps,
        runs=whole,
        guard=guard,
        controls=(
            parts.control("half of the noise", 0.5),
            parts.control("the noise that the paper prints", printed_share(claim)),
        ),
    )


def audit_steps(
    mechanism: Mechanism[AnyClaim], claim: AnyClaim, effort: Effort, *, error: float
) -> LowerBounds:
    """Return the lower bounds of an audit, without its other parts."""
    return _Parts(mechanism, claim, effort, error, lambda text, share: None).steps()


class _Parts(Generic[AnyClaim]):
    """The parts of an audit, each with its share of the effort."""

    def __init__(
        self,
        mechanism: Mechanism[AnyClaim],
        claim: AnyClaim,
        effort: Effort,
        error: float,
        on_part: OnPart,
    ) -> None:
        self._mechanism: Mechanism[AnyClaim] = mechanism
        self._claim: AnyClaim = claim
        self._effort, self._error, self._on_part = effort, error, on_part
        self._pair = claim.canaries()

    def exact(self) -> tuple[Sensitivity, GridTest]:
        self._on_part("sensitivity and grid", 0.0)
        mechanism, claim = self._mechanism, self._claim
        grid = measure_grid(mechanism, claim, self._pair, values=_GRID_VALUES)
        return measure_sensitivity(mechanism, claim), grid

    def noise(self) -> NoiseTest:
        bits = self._mechanism.grid(self._claim).scale_bits
        effort = self._part("the noise", _NOISE)
        return measure_noise(
            lambda count: self._mechanism.draw(count, scale_bits=bits),
            scale_bits=bits,
            chunks=effort.chunks(_NOISE_DRAWS, AT_ONCE),
            error=self._error,
        )

    def steps(self) -> LowerBounds:
        effort = self._part("trials, step by step", _STEPS)
        return self._of_steps(self._claim, effort)

    def runs(self, runs: Runs | None) -> tuple[LowerBounds, GuardTest | None]:
        effort, guard = self._part("whole runs", _RUNS), None
        if runs is None:
            trials = run_trials(self._mechanism, self._claim, effort)
        else:
            trials, guard = runs(effort)
        return self._bounds(trials, _RUNS_ERROR), guard

    def control(self, name: str, noise: float) -> Control:
        effort = self._part(f"control with {name}", _CONTROL)
        weaker = self._claim.with_noise(noise)
        bounds = self._of_steps(weaker, effort)
        caught = bounds.largest > self._claim.epsilon
        return Control(name=name, noise=noise, bounds=bounds, caught=caught)

    def _of_steps(self, claim: AnyClaim, effort: Effort) -> LowerBounds:
        trials = steps_trials(self._mechanism, claim, self._pair, effort)
        return self._bounds(trials, _STEPS_ERROR)

    def _part(self, name: str, shares: tuple[float, float]) -> Effort:
        seconds, trials = shares
        self._on_part(name, seconds)
        return self._effort.part(seconds=seconds, trials=trials)

    def _bounds(self, trials: Trials, share: float) -> LowerBounds:
        error = share * self._error
        return lower_bounds(trials, delta=self._claim.delta, error=error)


def printed_share(claim: Audited) -> float:
    """Return the noise that the paper's `opt_sigma` prints, over the claim's noise.

    It takes the other root of epsilon = rho + 2 sqrt(rho log(1/delta)): erratum 1.
    """
    log_term = -math.log(claim.delta)
    root = math.sqrt(log_term**2 + claim.epsilon * log_term)
    rho = claim.epsilon + 2 * log_term + 2 * root
    return math.sqrt(2 * claim.steps / rho) / claim.noise_multiplier


def rounded_down(value: float, *, digits: int = 4) -> str:
    """Show a number with a few digits, rounded down: a lower bound must not grow.

    >>> rounded_down(3.99996), rounded_down(0.0)
    ('3.999', '0')
    """
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(step, rounding=ROUND_FLOOR)):.{digits}g}"
