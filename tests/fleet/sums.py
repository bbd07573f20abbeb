"""A fleet of secure sums without a network: real guards, a real coordinator.

Messages pass through `Loop`, a channel that hands them to the devices at once and in
order. Tests lose, repeat or change them there, and restart either side. Devices are in
this process, or processes of their own (`DeviceProcess`), which are killed.
"""

import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import fedbudget as fb
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.devices import offers_of
from fedbudget.fleet.coordinator.sum_devices import SumDevices
from fedbudget.fleet.demo import Child, Terms, wait_until, write_site
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.process import Device
from fedbudget.fleet.device.statement import verified
from fedbudget.fleet.device.unix_socket import HEAD
from fedbudget.fleet.secure.peers import Attempt, Member, Peers, Roster
from fedbudget.fleet.secure.protocol import SEALED_BYTES
from fedbudget.fleet.transport.certificates import identity_of, make_certificates
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.reply_signatures import ReplyKeys, ReplySigner
from fedbudget.fleet.wire import secure_messages, topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.framing import Outgoing, pack, unpack
from fedbudget.fleet.wire.messages import Declaration, Reply
from fedbudget.fleet.wire.secure_messages import (
    AttemptAnswers,
    AttemptConfirmation,
    AttemptOrder,
    AttemptRoster,
    Introduction,
    PeerList,
    RevealedShares,
    RevealOrder,
    SumTerms,
    pack_records,
    unpack_records,
)
from fedbudget.fleet.wire.signing import Signer
from fedbudget.planning.shared_noise import SumSchedule, shared_noise_plan

DIM, ROWS = 4, 60


def kind_of(payload: bytes) -> str:
    """Return the kind of a message, signed or not."""
    plain = decode(payload)
    if isinstance(plain, list):
        plain = decode(plain[0])
    return str(plain["kind"])


@dataclass
class Loop:
    """A channel to devices in this process."""

    devices: Mapping[str, Any]  # by name; see Handles
    retained: dict[str, bytes] = field(default_factory=dict)
    inbox: deque[Message] = field(default_factory=deque)
    # Return false to lose a message: (device, kind, payload).
    to_device: Callable[[str, str, bytes], bool] = lambda *_: True
    from_device: Callable[[str, str, bytes], bool] = lambda *_: True
    trouble: str = ""
    bytes_down: int = 0
    bytes_up: int = 0

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *_: object) -> None: ...

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if not payload:
            return
        for name in list(self.devices):
            if topic.split("/")[2] == "order" or topic.split("/")[3] == name:
                self.deliver(name, topic, payload)

    def deliver(self, name: str, topic: str, payload: bytes) -> None:
        if not self.to_device(name, kind_of(payload), payload):
            return
        self.bytes_down += len(payload)
        for outgoing in self.devices[name].handle(topic, payload):
            if self.from_device(name, kind_of(outgoing.payload), outgoing.payload):
                self.bytes_up += len(outgoing.payload)
                self.inbox.append(self.message(name, outgoing.payload))

    def message(self, name: str, payload: bytes) -> Message:
        """Return a message of a device, as the coordinator receives it."""
        return Message(topic=topics.reply(name), payload=payload, receiver="test")

    def keep(self, topic: str, payload: bytes) -> None:
        self.retained[topic] = payload
        self.publish(topic, payload, retain=True)

    def withdraw(self, topic: str) -> None:
        self.retained.pop(topic, None)

    def clear_at_death(self, topic: str) -> None: ...

    def reconnect(self) -> None: ...

    def flush(self, seconds: float) -> bool:
        return True

    def receive(self, seconds: float | None = None) -> Message | None:
        if not self.inbox and seconds:
            time.sleep(min(seconds, 0.05))
        return self.inbox.popleft() if self.inbox else None

    def acknowledge(self, *messages: Message) -> None: ...


class Handles(Protocol):
    """A device, here or in a process of its own."""

    def hello(self) -> list[Outgoing]: ...

    def handle(self, topic: str, payload: bytes) -> list[Outgoing]: ...

    def close(self) -> None: ...


class DeviceProcess:
    """`fedbudget device` as a process, behind the socket of its policy."""

    def __init__(self, policy: Path) -> None:
        self._socket = Path(str(read_policy(policy).socket))
        self._child = Child(("device", str(policy)), policy.with_name("log")).start()

    def _wait(self) -> None:
        wait_until(self._socket.exists, "the guard", child=self._child, seconds=600)

    def _exchange(self, messages: list[tuple[str, bytes]]) -> list[Outgoing]:
        self._wait()
        parcel = pack(messages)
        with socket.socket(socket.AF_UNIX) as guard, guard.makefile("rb") as file:
            guard.settimeout(120)
            guard.connect(str(self._socket))
            guard.sendall(HEAD.pack(len(parcel)) + parcel)
            (length,) = HEAD.unpack(file.read(HEAD.size))
            replies = unpack(file.read(length), limit=1 << 24)
        return [Outgoing(topic, payload, False) for topic, payload in replies]

    def hello(self) -> list[Outgoing]:
        return self._exchange([])

    def handle(self, topic: str, payload: bytes) -> list[Outgoing]:
        replies = self._exchange([(topic, payload)])
        return [r for r in replies if topics.parse(r.topic)[0] == "reply"]

    def close(self) -> None:
        """Kill it, like a power failure."""
        self._child.kill()
        self._socket.unlink(missing_ok=True)


@dataclass
class SumFleet:
    """Devices with rows, ledgers and policies on disk, and their coordinator."""

    folder: Path
    count: int
    least_answers: int
    colluders: int = 0
    rounds: int = 2
    unit: str = "sample"
    epsilon: float = 4.0
    deadline: float = 0.3
    policy_least: int | None = None  # of the owners; None: the plan's
    processes: bool = False  # each device is a process
    held_out: int = 0  # rows of each device; 0: it answers no evaluation

    def __post_init__(self) -> None:
        width = len(str(self.count - 1))  # sorted by their names
        self.names = tuple(f"device-{m:0{width}}" for m in range(self.count))
        self.certs = self.folder / "certs"
        if not self.certs.exists():
            make_certificates(self.certs, self.names)
        self.paths = {name: self._site(m, name) for m, name in enumerate(self.names)}
        self.devices = {name: self.device(name) for name in self.names}
        self.loop = Loop(self.devices)
        self.checkpoints: Checkpoints | None = None
        try:
            self.coordinator = self.coordinate()
        except BaseException:
            self.close()  # no process outlives a fleet that did not come about
            raise

    def _site(self, m: int, name: str) -> Path:
        rng = np.random.default_rng(m)
        x = rng.normal(size=(ROWS, DIM))
        x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
        y = (x[:, 0] > 0).astype(np.int64)
        terms = Terms(epsilon=100.0, delta=1e-4, cost=1e6, least_noise_multiplier=1e-3)
        orders: Any = {"port": 1}
        if self.processes:  # in a short path, as sockets need it
            orders = {"socket": Path(tempfile.mkdtemp(prefix="fb-")) / "guard.sock"}
        path = write_site(
            self.folder / name, name, (x, y), terms, certs=self.certs, **orders
        )
        least = self.policy_least or self.least_answers
        own = identity_of(self.certs, name)
        files = {"peers": own.ca, "certificate": own.certificate, "key": own.key}
        path.write_text(
            path.read_text()
            + f"\n[sums]\nleast_answers = {least}\ncolluders = {self.colluders}\n"
            + "".join(f'{key} = "{f.resolve()}"\n' for key, f in files.items())
            + self._evaluation()
        )
        return path

    def _evaluation(self) -> str:
        if not self.held_out:
            return ""
        return f"\n[evaluation]\nepsilon = 2.0\nnum_samples = {self.held_out}\n"

    def device(self, name: str) -> Handles:
        if self.processes:
            return DeviceProcess(self.paths[name])
        return Device(read_policy(self.paths[name]))

    def restart(self, name: str) -> None:
        """Kill a device, and start it again from its files."""
        self.devices[name].close()
        self.devices[name] = self.device(name)

    def plan(self, **changes: Any) -> fb.Plan:
        problem = fb.Problem(num_samples=[ROWS - self.held_out] * self.count, dim=DIM)
        schedule = {
            "tau": 3,
            "rounds": self.rounds,
            "learning_rate": 1.0,
            "least_answers": self.least_answers,
            "colluders": self.colluders,
            "unit": self.unit,
        }
        return shared_noise_plan(
            problem,
            fb.Budget(epsilon=self.epsilon, delta=1e-4, cost=1e6),
            fb.Prices(communication=100, computation=1),
            SumSchedule(**(schedule | changes)),  # type: ignore[arg-type]
        )

    def coordinate(self) -> SumDevices:
        """Return a new coordinator; the last one is gone, as after a kill."""
        if self.checkpoints is not None:
            self.checkpoints.close()
        self.loop.inbox.clear()
        self.checkpoints = Checkpoints(self.folder / "coordinator.sqlite")
        self.coordinator = SumDevices(
            self.loop,
            self.declarations(),
            signer=Signer.read(self.certs / "coordinator.sign"),
            checkpoints=self.checkpoints,
            deadline=self.deadline,
            patience=2,
            precision="float64",
            authority=self.certs / "ca.pem",
        )
        return self.coordinator

    def declarations(self) -> Sequence[Declaration]:
        return [
            Declaration.from_bytes(device.hello()[0].payload)
            for device in self.loop.devices.values()
        ]

    def train(self, **changes: Any) -> fb.Run:
        return fb.train(self.plan(**changes), self.coordinator)

    def entries(self, name: str, kind: str) -> list[Any]:
        """Return the verified ledger's entries of a kind."""
        ledger = verified(self.folder / name / "ledger.sqlite")
        return [entry for entry in ledger if entry.kind == kind]

    def close(self) -> None:
        for device in self.devices.values():
            device.close()
        if self.checkpoints is not None:
            self.checkpoints.close()


REPLIES = {
    message.kind: message for message in (Reply, Introduction, *secure_messages.REPLIES)
}


class Hostile:
    """A coordinator that sends devices what it likes, signed with a trusted key."""

    def __init__(
        self,
        fleet: SumFleet,
        *,
        run: bytes = bytes(range(16)),
        changed: Callable[[str, SumTerms], SumTerms] = lambda _, terms: terms,
    ) -> None:
        self.fleet, self.run_id = fleet, run
        self.signer = Signer.read(fleet.certs / "coordinator.sign")
        self.sent: list[Any] = []  # all that devices have sent
        plan = fleet.plan()
        declarations = fleet.declarations()
        self.reply_keys = ReplyKeys(declarations, None)
        self.introductions: dict[str, Any] = {}
        for offer in offers_of(
            plan, declarations, run=run, name="demo", precision="float64"
        ):
            assert offer.sum_terms is not None
            terms = SumTerms.from_bytes(offer.sum_terms)
            self.terms = terms.common
            signed = self.signer.sign(
                replace(offer, sum_terms=changed(offer.device, terms).to_bytes())
            )
            for reply in self.deliver(offer.device, topics.offer(offer.device), signed):
                if isinstance(reply, Introduction):
                    self.introductions[offer.device] = reply
        self.colluders = plan.colluders

    def deliver(self, name: str, topic: str, payload: bytes) -> list[Any]:
        """Return the replies of one device to any message."""
        outgoing = self.fleet.loop.devices[name].handle(topic, payload)
        opened = [self.reply_keys.open(name, item.payload) for item in outgoing]
        replies = [REPLIES[kind_of(plain)].from_bytes(plain) for plain in opened]
        self.sent += replies
        return replies

    def order(self, name: str, message: Any) -> Any:
        """Send a signed order to one device; return its reply, or None."""
        topic = topics.order_again(name)
        replies = self.deliver(name, topic, self.signer.sign(message))
        return replies[0] if replies else None

    def lie(self, name: str, message: Any) -> None:
        """Let a device send what it has made up, signed with its own key."""
        signed = ReplySigner(identity_of(self.fleet.certs, name)).sign(
            message.to_bytes()
        )
        self.fleet.loop.inbox.append(self.fleet.loop.message(name, signed))

    def meet(self, names: Sequence[str] | None = None) -> None:
        """Introduce the devices to each other."""
        for name in names or self.fleet.names:
            assert self.order(name, self.peer_list()) is None

    def peer_list(self, introductions: Sequence[Any] | None = None) -> PeerList:
        listed = introductions or list(self.introductions.values())
        return PeerList.of(self.run_id, listed)

    @property
    def peers(self) -> Peers:
        members = tuple(
            Member(name=i.device, verify_key=i.verify_key, share_key=i.share_key)
            for i in self.introductions.values()
        )
        return Peers.for_sums(
            self.run_id,
            members,
            least_answers=self.fleet.least_answers,
            colluders=self.colluders,
            terms=self.terms,
        )

    def where(self, round: int, attempt: int) -> dict[str, Any]:
        return {"run": self.run_id, "round": round, "attempt": attempt}

    def attempt(self, round: int = 1, attempt: int = 1, theta: Any = None) -> Any:
        model = np.zeros(DIM) if theta is None else theta
        return AttemptOrder(**self.where(round, attempt), theta=model.tobytes())

    def keys(
        self, names: Sequence[str], round: int = 1, attempt: int = 1
    ) -> dict[str, Any]:
        order = self.attempt(round, attempt)
        return {name: self.order(name, order) for name in names}

    def roster(self, keys: dict[str, Any], round: int = 1, attempt: int = 1) -> Any:
        index = {name: m for m, name in enumerate(self.introductions)}
        return AttemptRoster.of_roster(
            Roster(
                peers=self.peers,
                attempt=Attempt(self.run_id, round, attempt),
                keys={index[name]: message.key for name, message in keys.items()},
            )
        )

    def answers(self, indices: Sequence[int], round: int = 1, attempt: int = 1) -> Any:
        packed = b"".join(index.to_bytes(4) for index in indices)
        return AttemptAnswers(**self.where(round, attempt), answered=packed)

    def reveal(
        self,
        name: str,
        keys: dict[str, Any],
        confirmations: dict[int, bytes],
        round: int = 1,
        attempt: int = 1,
    ) -> RevealOrder:
        index = {name: m for m, name in enumerate(self.introductions)}
        sealed = {}
        for sender, message in keys.items():
            records = unpack_records(message.sealed, SEALED_BYTES)
            if index[name] in records:
                sealed[index[sender]] = records[index[name]]
        return RevealOrder(
            **self.where(round, attempt),
            device=name,
            confirmations=pack_records(confirmations),
            sealed=pack_records(sealed),
        )

    def up_to_uploads(self, round: int = 1, attempt: int = 1) -> Any:
        """Run a round with all devices up to their uploads; return keys, uploads."""
        names = self.fleet.names
        keys = self.keys(names, round, attempt)
        roster = self.roster(keys, round, attempt)
        return keys, {name: self.order(name, roster) for name in names}

    def confirmed(
        self, answered: Sequence[int], round: int = 1, attempt: int = 1
    ) -> dict[int, bytes]:
        """Return the signatures of one list by all devices that sign it."""
        order = self.answers(answered, round, attempt)
        replies = [self.order(name, order) for name in self.introductions]
        return {
            m: reply.signature
            for m, reply in enumerate(replies)
            if isinstance(reply, AttemptConfirmation)
        }

    def revealed(self, name: str) -> dict[tuple[int, int], set[bytes]]:
        """Return all shares that a device has revealed, by round and peer."""
        shares: dict[tuple[int, int], set[bytes]] = {}
        for message in self.sent:
            if isinstance(message, RevealedShares) and message.device == name:
                for peer, share in unpack_records(message.shares, 32).items():
                    shares.setdefault((message.round, peer), set()).add(share)
        return shares
