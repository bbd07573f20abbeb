"""What each device is offered: its own part of the plan, once per run."""

from collections.abc import Iterator, Sequence

from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import Declaration, Precision, RunOffer
from fedbudget.planning import Plan


def offers_of(
    plan: Plan,
    declared: Sequence[Declaration],
    *,
    run: bytes,
    name: str,
    precision: Precision,
) -> Iterator[RunOffer]:
    """Yield the offers to all devices that have a part in the plan."""
    for index, told in enumerate(declared):
        if plan.device_rounds[index] > 0:
            yield RunOffer(
                run=run,
                name=name,
                device=told.device,
                tau=plan.tau,
                rounds=int(plan.device_rounds[index]),
                learning_rate=plan.learning_rate,
                sampling=plan.sampling,
                num_samples=int(plan.num_samples[index]),
                batch_size=int(plan.batch_size[index]),
                noise_std=float(plan.noise_std[index]),
                loss=plan.loss,
                num_classes=plan.num_classes,
                l2=plan.l2,
                dim=plan.dim,
                precision=precision,
                drift_momentum=plan.momentum if plan.drift_control else None,
            )


def precision_of(payload: bytes) -> Precision:
    """Return the precision of a run's models, from a signed offer of ours."""
    body, _ = decode(payload)
    return RunOffer.from_bytes(body).precision
