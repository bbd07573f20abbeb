"""The life of a run: waiting, running, then finished, failed, stopped or cancelled.

    OUT/status.json      the last status, also after the end
    OUT/cancelled.json   the request to cancel; such a run never resumes

No run leaves an order behind that a device could still pay for. At any end, offers and
the order are withdrawn from the broker. If the coordinator is killed, the broker itself
withdraws the order (the coordinator's last will). When a run has ended for good, a
signed `RunEnd` tells every device, whose ledger then refuses the run's orders for ever.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from fedbudget.errors import RecordError, TrainingError
from fedbudget.files import whole_file
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.transport.channel import Channel, Message
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.framing import split
from fedbudget.fleet.wire.signing import Signer
from fedbudget.fleet.wire.withdrawals import RunEnd

CHECKPOINTS, STATUS, CANCELLED = "coordinator.sqlite", "status.json", "cancelled.json"
_LOOK = 1.0  # seconds between two looks for a request to cancel
_FLUSH = 10.0  # seconds to send what ends a run


class State(StrEnum):
    """The state of a run."""

    WAITING = "waiting"  # for devices
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"  # the same command resumes it
    STOPPED = "stopped"  # by a signal, or killed; the same command resumes it
    CANCELLED = "cancelled"


class CancelledError(TrainingError):
    """The run was cancelled; it does not resume."""


def withdraw(
    channel: Channel,
    checkpoints: Checkpoints,
    *,
    signer: Signer | None = None,
    reason: str = "",
) -> bool:
    """Withdraw the offers and the order of a run: nobody is charged for them later.

    Returns whether the broker has confirmed it.

    Args:
        channel: To the devices.
        checkpoints: Of the run.
        signer: If the run has ended for good: signs the message that says so.
        reason: Of that end.
    """
    run = checkpoints.run()
    if run is None:
        return True
    order = topics.order(run.run)
    last_order = checkpoints.last_order() or b""
    retained = set(channel.retained) | {topic for topic, _ in split(order, last_order)}
    if checkpoints.sum_messages(0, 0):
        retained.add(topics.peers(run.run))
    devices = [device for device, _ in checkpoints.offers()]
    for device, payload in checkpoints.offers():
        retained |= {topic for topic, _ in split(topics.offer(device), payload)}
    for topic in sorted(retained):
        channel.withdraw(topic)
    # A repeated order is not retained, but waits for devices that are away: of several
    # messages on one topic they take the newest.
    for device in devices:
        for topic, _ in split(topics.order_again(device), last_order):
            channel.publish(topic, b"")
    if signer is not None:
        notice = signer.sign(RunEnd(run=run.run, reason=reason or "finished"))
        channel.publish(order, notice)
        for device in devices:
            channel.publish(topics.order_again(device), notice)
    return channel.flush(_FLUSH)


def cancel_request(folder: Path) -> dict[str, Any] | None:
    """Return the request to cancel a run; none if there is none."""
    try:
        request: dict[str, Any] = json.loads((folder / CANCELLED).read_text())
        return request
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{folder / CANCELLED} cannot be read ({error}): remove it only if the run "
            "was not cancelled"
        ) from None


def request_cancel(folder: Path, reason: str) -> None:
    """Ask for the end of a run; when this returns, the request is on disk."""
    with whole_file(folder / CANCELLED, permissions=0o600) as file:
        json.dump({"at": int(time.time()), "reason": reason}, file)


def check_cancelled(folder: Path) -> None:
    """Raise if a run is to be cancelled.

    Raises:
        CancelledError: It is.
    """
    request = cancel_request(folder)
    if request is not None:
        raise CancelledError(
            f"the run in {folder} was cancelled ({request.get('reason', '')}): use "
            "another folder for a new one"
        )


class _Watched:
    """A channel that ends a wait when its run is cancelled."""

    def __init__(self, channel: Channel, folder: Path) -> None:
        self._channel, self._folder = channel, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def __enter__(self) -> object:
        return self._channel.__enter__()

    def __exit__(self, *details: object) -> None:
        self._channel.__exit__(*details)

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message; none if there is none in time."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            remaining = _LOOK if end is None else end - time.monotonic()
            message = self._channel.receive(max(0.0, min(_LOOK, remaining)))
            if message is not None or seconds == 0:
                return message
            check_cancelled(self._folder)
            if end is not None and time.monotonic() >= end:
                return None


def watched(channel: Channel, folder: Path) -> Channel:
    """Return a channel whose `receive` raises `CancelledError` soon after a request."""
    return cast(Channel, _Watched(channel, folder))


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a folder, for `fedbudget server list`."""

    folder: Path
    state: State
    status: dict[str, Any]  # as of status.json; empty for old folders

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"folder": str(self.folder), **self.status, "state": str(self.state)}


def write_status(folder: Path, status: dict[str, Any]) -> None:
    """Write the status of a run, for whoever asks later."""
    with whole_file(folder / STATUS, permissions=0o600) as file:
        json.dump({**status, "at": int(time.time())}, file)


def read_summary(folder: Path) -> RunSummary:
    """Return the state of the run in a folder.

    Raises:
        RecordError: There is none.
    """
    path = folder / CHECKPOINTS
    if not path.is_file():
        raise RecordError(
            f"{folder} has no {CHECKPOINTS}: name the folder of fedbudget server"
        )
    try:
        status = json.loads((folder / STATUS).read_text())
    except FileNotFoundError:
        status = {}
    except (OSError, ValueError) as error:
        raise RecordError(f"{folder / STATUS} cannot be read: {error}") from None
    return RunSummary(folder=folder, state=_state(folder, status), status=status)


def _state(folder: Path, status: dict[str, Any]) -> State:
    if is_in_use(folder / CHECKPOINTS):
        waits = status.get("state") == State.WAITING
        return State.WAITING if waits else State.RUNNING
    if cancel_request(folder) is not None:
        return State.CANCELLED
    if (folder / "run" / "model.npz").exists():
        return State.FINISHED
    failed = status.get("state") == State.FAILED
    return State.FAILED if failed else State.STOPPED  # or killed


def is_in_use(path: Path) -> bool:
    """Return whether a coordinator holds the lock on its checkpoints."""
    database = sqlite3.connect(f"file:{path.resolve()}?mode=rw", uri=True, timeout=0)
    try:
        database.execute("BEGIN IMMEDIATE")
        database.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    finally:
        database.close()
    return False


def runs_below(root: Path) -> Iterator[RunSummary]:
    """Yield the runs in a folder and in its folders, sorted by path."""
    for path in sorted(root.rglob(CHECKPOINTS)):
        yield read_summary(path.parent)


def cancel(
    folder: Path,
    reason: str,
    *,
    signer: Signer,
    connect: Callable[[], Channel],
    seconds: float,
) -> None:
    """Cancel a run for ever, whether its coordinator runs or not.

    Args:
        folder: Of the run.
        reason: For people.
        signer: The coordinator's key.
        connect: Returns a channel to the devices; called if no coordinator runs.
        seconds: To wait for a running coordinator, or for a connection.

    Raises:
        RecordError: There is no run, or it is finished.
        TrainingError: The order could not be withdrawn yet.
    """
    summary = read_summary(folder)
    if summary.state == State.FINISHED:
        raise RecordError(
            f"the run in {folder} is finished: there is nothing to cancel"
        )
    if cancel_request(folder) is None:
        request_cancel(folder, reason)
    end = time.monotonic() + seconds
    while is_in_use(folder / CHECKPOINTS):
        if time.monotonic() > end:
            raise TrainingError(
                f"the coordinator of {folder} has not ended after {seconds:g} s: it "
                "will as soon as it looks; run the same command to see"
            )
        time.sleep(0.2)
    # Also after a coordinator that has withdrawn everything: it may have been killed.
    checkpoints, channel = Checkpoints(folder / CHECKPOINTS), connect()
    try:
        with channel:
            sent = withdraw(channel, checkpoints, signer=signer, reason=reason)
            trouble = channel.trouble
    finally:
        checkpoints.close()
    if not sent:
        raise TrainingError(
            f"the run in {folder} never resumes, but its order may still be at the "
            f"broker ({trouble or 'no confirmation'}): run the same command again"
        )
    write_status(folder, {**summary.status, "state": State.CANCELLED, "reason": reason})
