"""`audit`: the claims of a plan, of a device's policy, or of a run."""

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedbudget.auditing.audits import (
    ClaimAudit,
    OnPart,
    audit_claim,
    verdict_of,
)
from fedbudget.auditing.grids import ModelGridTest, measure_model_grid
from fedbudget.auditing.guards import guard_trials, guarded_run
from fedbudget.auditing.mechanisms import DevicePath
from fedbudget.auditing.release_path import ReleasePath
from fedbudget.auditing.settings import Claim, claims_of
from fedbudget.auditing.sum_policies import sum_run
from fedbudget.auditing.trials import Effort
from fedbudget.auditing.upload_claims import UploadClaim
from fedbudget.auditing.upload_paths import DeviceUploads, ReleaseUploads
from fedbudget.checks import number, one_of, whole
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.policy import Policy, read_policy
from fedbudget.planning import Plan
from fedbudget.record import RecordedRun, read_run
from fedbudget.text import counted, shown

CONFIDENCE = 0.999
SECONDS = 60.0
PATHS = ("device", "release")
_MOST_SECONDS = 86_400.0
_LEAST_TRIALS = 100
_BESIDE_PLAN = ("data", "constants")  # keys that `fedbudget plan --json` adds
_SIMULATED = (
    "nothing is promised for the model of this simulation; for a release of its plan, "
)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit."""

    subject: str
    kind: str  # plan | policy | run
    claims: tuple[ClaimAudit, ...]
    model: ModelGridTest | None  # of a run
    simulation: bool  # a run whose model nothing is promised for
    notes: tuple[str, ...]
    confidence: float  # of all lower bounds together
    seconds: float

    @property
    def violated(self) -> bool:
        """Whether something contradicts a claim."""
        broken_model = self.model is not None and not self.model.holds
        return broken_model or any(item.violations for item in self.claims)

    @property
    def verdict(self) -> str:
        """The verdict in one line; never that a claim is proved."""
        violations = [text for item in self.claims for text in item.violations]
        weaknesses = [text for item in self.claims for text in item.weaknesses]
        if self.model is not None and not self.model.holds:
            violations.append(str(self.model))
        verdict = verdict_of(tuple(violations), tuple(dict.fromkeys(weaknesses)))
        return f"{_SIMULATED}{verdict}" if self.simulation else verdict

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as plain numbers, strings and lists."""
        plain = asdict(self)
        for item, audited in zip(plain["claims"], self.claims, strict=True):
            item["verdict"] = audited.verdict
        return plain | {"violated": self.violated, "verdict": self.verdict}


def audit(
    target: "Plan | Policy | str | os.PathLike[str]",
    *,
    seconds: float = SECONDS,
    trials: int | None = None,
    confidence: float = CONFIDENCE,
    path: str | None = None,
    on_part: OnPart = lambda text, share: None,
) -> Audit:
    """Audit the privacy claims of a plan, of a device's policy, or of a run.

    The mechanism under test is the real one; the rows are synthetic canaries. An audit
    can refute a claim. It cannot prove one.

    Args:
        target: A plan, or a file that `fedbudget plan --json` wrote; a device's policy,
            or its TOML file; or a run folder.
        seconds: The time for all trials.
        trials: The trials on each table, instead of a time.
        confidence: Of all lower bounds together.
        path: The code under test: "device" for that of real devices, "release" for
            that of releases in this process. By default, "device" for a policy and for
            the run of a fleet, else "release".
        on_part: Called when a part begins, with its share of the time.

    Raises:
        InvalidInputError: The target claims nothing, or cannot be read.
        RecordError: The run folder is damaged.
    """
    number("seconds", seconds, least=1, most=_MOST_SECONDS)
    number("confidence", confidence, least=0.5, below=1)
    if trials is not None:
        whole("trials", trials, least=_LEAST_TRIALS)
    effort = Effort(trials=trials) if trials is not None else Effort(seconds=seconds)
    opened = _opened(target)
    code = _code(path, opened)
    started = time.monotonic()
    error, model, simulation = 1 - confidence, None, False
    if isinstance(opened, Policy):
        claims, notes = _audit_policy(opened, effort, error, on_part)
    elif isinstance(opened, Plan):
        claims, notes = _audit_plan(opened, code, effort, error, on_part)
    else:
        simulation = opened.kind == "simulation"
        model = measure_model_grid(opened, released=not simulation)
        claims, notes = _audit_plan(opened.plan, code, effort, error, on_part)
    return Audit(
        subject=_subject(target, opened),
        kind=_KINDS[type(opened)],
        claims=claims,
        model=model,
        simulation=simulation,
        notes=notes,
        confidence=confidence,
        seconds=time.monotonic() - started,
    )


def _code(path: str | None, opened: Plan | Policy | RecordedRun) -> str:
    """Return whose code is under test."""
    of_fleet = isinstance(opened, RecordedRun) and "fleet" in opened.about
    if path is None:
        path = "device" if of_fleet or isinstance(opened, Policy) else "release"
    one_of("path", path, PATHS)
    if isinstance(opened, Policy) and path != "device":
        raise InvalidInputError(
            f"path {path!r} has no guard: audit a policy with path 'device'"
        )
    return path


def _audit_plan(
    plan: Plan, code: str, effort: Effort, error: float, on_part: OnPart
) -> tuple[tuple[ClaimAudit, ...], tuple[str, ...]]:
    """Audit the worst claims of a plan; they share time and error probability."""
    claims, notes = claims_of(plan)
    share = 1 / len(claims)
    part = effort.part(seconds=share, trials=1.0)

    def audited(claim: Claim | UploadClaim) -> ClaimAudit:
        error_share = share * error
        if isinstance(claim, UploadClaim):
            uploads = DeviceUploads() if code == "device" else ReleaseUploads()
            return audit_claim(uploads, claim, part, error=error_share, on_part=report)
        steps = DevicePath() if code == "device" else ReleasePath()
        return audit_claim(steps, claim, part, error=error_share, on_part=report)

    def report(text: str, size: float) -> None:
        on_part(text, share * size)

    return tuple(map(audited, claims)), notes


def _audit_policy(
    policy: Policy, effort: Effort, error: float, on_part: OnPart
) -> tuple[tuple[ClaimAudit, ...], tuple[str, ...]]:
    """Audit what a policy releases for its whole budget: through its guard, in sums."""
    sums = policy.sums
    is_open = sums is None or (sums.trust == "any" and sums.unit == "sample")
    share = 0.5 if is_open and sums is not None else 1.0
    part = effort.part(seconds=share, trials=1.0)
    claims, notes = [], []

    def report(text: str, size: float) -> None:
        on_part(text, share * size)

    if is_open:
        run = guarded_run(policy)
        claims.append(
            audit_claim(
                DevicePath(),
                run.claim,
                part,
                error=share * error,
                runs=lambda part: guard_trials(run, part),
                on_part=report,
            )
        )
    if sums is not None:
        of_sums = sum_run(policy, sums)
        uploads = DeviceUploads()
        audited = audit_claim(
            uploads, of_sums.claim, part, error=share * error, on_part=report
        )
        claims.append(replace(audited, guard=of_sums.charged()))
        notes.append(
            f"sums have {sums.least_answers} answers, {sums.colluders} of them from "
            "colluders: uploads and charges are audited, not the masks that hide them"
        )
    return tuple(claims), tuple(notes)


_KINDS = {Plan: "plan", Policy: "policy", RecordedRun: "run"}


def _opened(
    target: "Plan | Policy | str | os.PathLike[str]",
) -> Plan | Policy | RecordedRun:
    """Read a target: a folder is a run, a .toml file a policy, others are plans."""
    if isinstance(target, Plan | Policy):
        return target
    if not isinstance(target, str | os.PathLike):
        raise InvalidInputError(
            f"target must be a plan, a policy or a path, got {shown(target)}"
        )
    path = Path(target)
    if path.is_dir():
        return read_run(path)
    return read_policy(path) if path.suffix == ".toml" else _read_plan(path)


def _read_plan(path: Path) -> Plan:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"{str(path)!r} cannot be read: {error.strerror or error}"
        ) from None
    except (ValueError, RecursionError):
        raise InvalidInputError(
            f"{str(path)!r} is not JSON: name a file that fedbudget plan --json wrote, "
            "a device's policy (.toml) or a run folder"
        ) from None
    if isinstance(plain, dict):
        plain = {key: plain[key] for key in plain if key not in _BESIDE_PLAN}
    try:
        return Plan.from_dict(plain)
    except InvalidInputError as error:
        raise InvalidInputError(f"{str(path)!r}: {error}") from None


def _subject(target: object, opened: Plan | Policy | RecordedRun) -> str:
    if isinstance(opened, Policy):
        return f"the policy of device {opened.device}"
    plan = opened if isinstance(opened, Plan) else opened.plan
    name = "a plan" if isinstance(target, Plan) else str(target)
    return f"{name}: {counted(plan.num_devices, 'device')}, {plan.loss} loss"
