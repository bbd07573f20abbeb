"""Log rounds, epsilon and cost to an experiment tracker.

    tensorboard:FOLDER     event files
    mlflow, mlflow:URI     the tracking server or store that MLflow is set up for
    wandb, wandb:PROJECT   Weights & Biases; WANDB_MODE=offline keeps runs on disk

Accuracies and losses are named not_private/...: they were computed on private rows, and
everybody with access to the tracker sees them.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from fedbudget.errors import InvalidInputError, TrackingError, needed
from fedbudget.planning import Plan
from fedbudget.privacy import Kind
from fedbudget.record import Round, largest, to_row

SPELLINGS = "tensorboard:FOLDER, mlflow, mlflow:URI, wandb or wandb:PROJECT"
_PROJECT = "fedbudget"

Parameters: TypeAlias = Mapping[str, Any]  # of a run, by name
# Attributes of a plan that trackers show as parameters of a run.
_PARAMETERS = (
    *("tau", "rounds", "steps", "learning_rate", "momentum", "server_rate"),
    "sampling",
    *("planner", "accountant", "loss", "dim", "num_devices", "predicted_loss"),
)


class Tracker(Protocol):
    """Logs every round of a run; pass it to `train(on_round=...)`."""

    def __call__(self, latest: Round) -> None:
        """Log one round."""
        ...

    def __enter__(self) -> Self:
        """Start a run."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run; it is marked as failed if an exception was raised."""
        ...


def tracker(
    where: str,
    plan: Plan,
    *,
    kind: Kind = "simulation",
    caveats: Sequence[str] = (),
    device_names: Sequence[str] | None = None,
) -> Tracker:
    """Return a tracker; use it in a `with`, and pass it to `train(on_round=...)`.

    Args:
        where: tensorboard:FOLDER, mlflow, mlflow:URI, wandb or wandb:PROJECT.
        plan: The plan of the run; logged as parameters.
        kind: Of the run, as the devices state it.
        caveats: What its guarantee does not cover, as the devices state it.
        device_names: Names of the devices; by default 0, 1, ...

    Raises:
        InvalidInputError: `where` is not one of these.
        MissingExtraError: Its package is not installed.
    """
    service, _, target = where.partition(":")
    shown = parameters(plan, kind, caveats)
    names = tuple(device_names or map(str, range(plan.num_devices)))
    if service == "tensorboard" and target:
        return TensorBoard(target, shown, names)
    if service == "mlflow":
        return MLflow(target or None, shown, names)
    if service == "wandb":
        return WandB(target or _PROJECT, shown, names)
    raise InvalidInputError(f"tracker {where!r} is not known: write {SPELLINGS}")


def scalars(latest: Round, device_names: Sequence[str]) -> dict[str, float]:
    """Return the numbers of a round by name, without unbounded ones.

    For more than 100 devices: the minimum, the median and the maximum spending.

    >>> import numpy as np
    >>> spent = {"epsilon": np.array([0.5]), "cost": np.array([9.0])}
    >>> scalars(Round(number=1, steps=9, answered=1, **spent), ["s1"])["epsilon/s1"]
    0.5
    """
    numbers = {f"not_private/{k}": float(v) for k, v in latest.measured.items()}
    numbers |= {"steps": float(latest.steps), "answered": float(latest.answered)}
    for name, spent in (("epsilon", latest.epsilon), ("cost", latest.cost)):
        values = to_row(spent)
        if not isinstance(values, dict):
            by_name = dict(zip(device_names, values, strict=True))
            values = by_name | {"max": largest(spent)}
        numbers |= {f"{name}/{k}": float(v) for k, v in values.items() if v is not None}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def parameters(plan: Plan, kind: Kind, caveats: Sequence[str] = ()) -> Parameters:
    """Return the parameters of a run that a tracker shows."""
    privacy = replace(plan.privacy, kind=kind, caveats=tuple(caveats))
    values = {name: getattr(plan, name) for name in _PARAMETERS}
    epsilon = float(plan.epsilon.max())
    values["epsilon"] = epsilon if math.isfinite(epsilon) else "none"
    values["cost"] = float(plan.cost.max())
    return values | {"kind": kind, "privacy": str(privacy)}


class TensorBoard:
    """Event files in a folder."""

    def __init__(self, folder: str, shown: Parameters, names: Sequence[str]) -> None:
        with needed("tracker 'tensorboard'", "tensorboard", "track"):
            from tensorboard.summary.writer import event_file_writer
        self._new_writer: Callable[[str], Any] = event_file_writer.EventFileWriter
        self._folder, self._shown, self._names = folder, shown, names

    def __enter__(self) -> Self:
        with _named("tensorboard"):
            self._writer = self._new_writer(self._folder)
            text = "\n".join(f"    {k}: {v}" for k, v in self._shown.items())
            self._add(_text_summary("plan", text), step=0)
        return self

    def __call__(self, latest: Round) -> None:
        """Write a round's numbers."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        with _named("tensorboard"):
            values = [
                Summary.Value(tag=name, simple_value=value)
                for name, value in scalars(latest, self._names).items()
            ]
            self._add(Summary(value=values), step=latest.number)
            self._writer.flush()

    def _add(self, summary: Any, *, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def _text_summary(tag: str, text: str) -> Any:
    """Return a text for TensorBoard's text tab."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    plugin = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
    metadata = SummaryMetadata(plugin_data=plugin)
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


class MLflow:
    """A run in the experiment "fedbudget"; MLflow's active run is not changed."""

    def __init__(self, uri: str | None, shown: Parameters, names: Sequence[str]):
        with needed("tracker 'mlflow'", "mlflow-skinny", "track"):
            import mlflow
        self._mlflow: Any = mlflow
        self._uri, self._shown, self._names = uri, shown, names

    def __enter__(self) -> Self:
        with _named("mlflow"):
            self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            experiment = self._client.get_experiment_by_name(_PROJECT)
            experiment_id = (
                self._client.create_experiment(_PROJECT)
                if experiment is None
                else experiment.experiment_id
            )
            self._run = self._client.create_run(experiment_id).info.run_id
            for name, value in self._shown.items():
                self._client.log_param(self._run, name, value)
        return self

    def __call__(self, latest: Round) -> None:
        """Log a round's numbers."""
        with _named("mlflow"):
            now = int(1000 * time.time())  # milliseconds
            metrics = [
                self._mlflow.entities.Metric(
                    _mlflow_name(name), value, now, latest.number
                )
                for name, value in scalars(latest, self._names).items()
            ]
            self._client.log_batch(self._run, metrics=metrics)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = "FINISHED" if kind is None else "FAILED"
        with _named("mlflow"):
            self._client.set_terminated(self._run, status=status)


def _mlflow_name(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)


class WandB:
    """A run in a project; nothing is uploaded if WANDB_MODE is offline."""

    def __init__(self, project: str, shown: Parameters, names: Sequence[str]) -> None:
        with needed("tracker 'wandb'", "wandb", "track"):
            import wandb
        self._wandb: Any = wandb
        self._project, self._shown, self._names = project, shown, names

    def __enter__(self) -> Self:
        with _named("wandb"):
            self._run = self._wandb.init(
                project=self._project,
                config=dict(self._shown),
                reinit="create_new",
            )
        return self

    def __call__(self, latest: Round) -> None:
        """Log a round's numbers."""
        with _named("wandb"):
            self._run.log(scalars(latest, self._names), step=latest.number)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with _named("wandb"):
            self._run.finish(exit_code=0 if kind is None else 1)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn any exception of a tracker's package into a one-line TrackingError."""
    try:
        yield
    except Exception as error:  # each package has its own exceptions
        message = " ".join(str(error).split())[:300]
        raise TrackingError(
            f"tracker {name!r} failed ({type(error).__name__}: {message}): fix it, or "
            "train without it; a recorded run can be resumed"
        ) from error
