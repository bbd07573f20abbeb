"""The messages between devices and the coordinator, and their bytes.

    Declaration   device -> coordinator, retained: the sizes, prices and budgets that
                  the owner makes public
    RunOffer      coordinator -> one device, signed, once per run: the settings of a run
    RoundOrder    coordinator -> all devices, signed, retained: the model of a round
    Reply         device -> coordinator: the new model, or a refusal
    Notice        coordinator -> one device, signed: why it does not take part

A round order carries the model and little else, so that one order serves all devices.
The offer has the settings that differ between devices or stay the same in all rounds.

Every message is a canonical CBOR map with its kind and the version of this schema.
Readers are strict: an unknown key, a wrong type or a number out of range is an error.
An optional key can be added within a version: older messages stay valid, and older
readers refuse a message that has it. So a device declares which messages it reads, as
a number (`WIRE`), and a coordinator sends it no others. A message that its receiver
cannot read gets an answer that names both sides: a device replies ``unsupported``, a
coordinator sends a notice.

The type and the range of every field are checked: messages come from a network.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np

from fedbudget.budget import LEAST_DELTA, MOST_EPSILON
from fedbudget.checks import Array, identity, number, of_type, one_of, text, whole
from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.wire.codec import MAX_BYTES, decode, encode
from fedbudget.losses import LOSSES
from fedbudget.text import shown

MAX_COUNT = 1 << 40
MOST_DEVICES = 1 << 24  # of one run
# The largest value that an owner may declare: far above any use, and far below where a
# fleet's plan would overflow.
MOST_DECLARED = MOST_EPSILON  # as of a budget; also of cost, prices and noise
MOST_DELTA = 0.5
MAX_NOTICE = 1000  # characters

Check: TypeAlias = Callable[[str, Any], Any]


def _field(check: Callable[..., Any], *types: type, **limits: Any) -> Check:
    """Return a check for a field that must be exactly of one of the types."""
    return lambda name, value: check(name, of_type(name, value, *types), **limits)


def whole_field(*, least: int = 1, most: int = MAX_COUNT) -> Check:
    """Return a check for whole numbers."""
    return _field(whole, int, least=least, most=most)


def number_field(*, least: float, most: float = math.inf) -> Check:
    """Return a check for finite numbers."""
    return _field(number, float, int, least=least, most=most)


def one_of_field(*options: str) -> Check:
    """Return a check for one of these strings."""
    return _field(one_of, str, options=options)


def bytes_field(*, least: int, most: int) -> Check:
    """Return a check for bytes with limits on their length."""

    def check(name: str, value: bytes) -> bytes:
        if not least <= len(value) <= most:
            raise InvalidInputError(
                f"{name} must be {least} to {most} bytes, got {len(value)}"
            )
        return value

    return _field(check, bytes)


def hex_field(digits: int) -> Check:
    """Return a check for a text of so many hexadecimal digits."""

    def check(name: str, value: str) -> str:
        if len(value) != digits or not set(value) <= set("0123456789abcdef"):
            raise InvalidInputError(
                f"{name} must be {digits} hexadecimal digits, got {shown(value)}"
            )
        return value

    return _field(check, str)


def optional(check: Check) -> Check:
    """Return a check that also accepts a missing field."""
    return lambda name, value: None if value is None else check(name, value)


TEXT = _field(text, str)
_NOTICE = _field(text, str, most=MAX_NOTICE)
IDENTITY = _field(identity, str)

VERSION = 1  # of the schema; a reader refuses any other
# What this release reads. 1: as of 0.1.0's first files. 2: offers with the device's
# index, and orders for some of the devices.
WIRE = 2
LEDGER_DIGITS = 32  # hexadecimal, of a ledger's identity
RUN_BYTES = 16  # of a run's random identity

Precision: TypeAlias = Literal["float32", "float64"]
PRECISIONS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}

# Codes of a refusal. The reason after the code is for people. Neither reveals how much
# of a budget remains.
REFUSALS = (
    "untrusted",  # not signed by a coordinator that the owner trusts
    "policy",  # outside what the owner allows
    "wrong-round",  # not a round of the run, or one that is over
    "bad-model",  # wrong size, or not finite
    "privacy-budget",  # would overdraw it; what remains stays private
    "cost-budget",
    "already-charged",  # charged before, but the answer was lost in a crash
    "data-changed",  # the rows of the run have changed or are missing
    "device-trouble",  # a full disk or a damaged ledger; nothing was released
    "unsupported",  # an offer or an order of a release that this one cannot read
)
ACCEPTED = "accepted"  # the reply to an offer, as round 0
ANSWERED = "answered"


@dataclass(frozen=True, kw_only=True)
class Message:
    """The base of all messages; a field that is None is left out of the bytes."""

    kind: ClassVar[str]
    checks: ClassVar[Mapping[str, Check]]

    def __post_init__(self) -> None:
        for name, check in self.checks.items():
            try:
                value = check(name, getattr(self, name))
            except InvalidInputError as error:
                raise MessageError(str(error)) from None
            object.__setattr__(self, name, value)

    def to_bytes(self) -> bytes:
        """Return the message as canonical CBOR."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        present = {name: value for name, value in plain.items() if value is not None}
        return encode({"kind": self.kind, "v": VERSION, **present})

    @classmethod
    def from_bytes(cls, data: bytes, *, limit: int = MAX_BYTES) -> Self:
        """Read a message from an untrusted source.

        Raises:
            MessageError: The bytes are not one valid message of this kind.
        """
        return cls.from_value(decode(data, limit=limit))

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Read a message from decoded CBOR."""
        if not isinstance(value, dict):
            raise MessageError(f"not a message: {type(value).__name__}, not a map")
        plain = dict(value)
        version, kind = plain.pop("v", None), plain.pop("kind", None)
        if type(version) is not int or version != VERSION:
            raise MessageError(
                f"version {shown(version)} is not supported, only {VERSION}: "
                "install the same release on both sides"
            )
        if kind != cls.kind:
            raise MessageError(f"kind must be {cls.kind!r}, got {shown(kind)}")
        unknown = [key for key in plain if key not in cls.checks]
        if unknown:
            raise MessageError(f"{cls.kind} has the unknown key {shown(unknown[0])}")
        if any(field is None for field in plain.values()):
            raise MessageError(f"{cls.kind} has a key without a value")
        return cls(**{name: plain.get(name) for name in cls.checks})


_LOSS = one_of_field(*LOSSES)
_DECLARED = number_field(least=0, most=MOST_DECLARED)
_RUN = bytes_field(least=RUN_BYTES, most=RUN_BYTES)
_SHAPE: Mapping[str, Check] = {
    "num_samples": whole_field(),
    "dim": whole_field(most=1 << 26),
    "loss": _LOSS,
    "num_classes": whole_field(most=1 << 16),
}


@dataclass(frozen=True, kw_only=True)
class Declaration(Message):
    """The public facts about a device that a plan needs."""

    device: str
    num_samples: int  # rows available to a run
    dim: int  # columns of a row
    loss: str
    num_classes: int  # as in a plan: 1 unless the loss is softmax
    epsilon: float  # the owner is willing to spend on a run; not what remains
    delta: float
    cost: float
    communication_price: float  # c1, per round
    computation_price: float  # c2, per step
    accountant: str  # of the device's ledger
    least_noise_multiplier: float  # that the owner accepts
    info: str = ""  # any other text of the owner
    # Releases before WIRE 2 declare none of the following.
    wire: int | None = None  # which messages the device reads, see `WIRE`
    software: str | None = None  # release of the device's software
    # Of the columns, their order, bounds and categories, and the label's values; None
    # for files of ready rows.
    schema: str | None = None
    ledger: str | None = None  # random: the ledger's permanent identity
    # Of a device that answers evaluations; see `device.evaluation`.
    evaluation_epsilon: float | None = None  # of all of a period
    evaluation_samples: int | None = None  # rows that no run trains on
    # Of a device that signs its replies (`transport.reply_signatures`), as DER.
    certificate: bytes | None = None
    secure_round_price: float | None = None  # c1 of a secure sum; None: the same

    def round_price(self, trust: str) -> float:
        """Return the price of a round, besides its steps."""
        if trust == "uploads" or self.secure_round_price is None:
            return self.communication_price
        return self.secure_round_price

    kind: ClassVar[str] = "declaration"
    checks: ClassVar[Mapping[str, Check]] = {
        "device": IDENTITY,
        **_SHAPE,
        "epsilon": _DECLARED,
        "delta": number_field(least=LEAST_DELTA, most=MOST_DELTA),
        "cost": _DECLARED,
        "communication_price": _DECLARED,
        "computation_price": _DECLARED,
        "accountant": one_of_field("gdp", "zcdp"),
        "least_noise_multiplier": _DECLARED,
        "info": TEXT,
        "wire": optional(whole_field(most=1 << 16)),
        "software": optional(TEXT),
        "schema": optional(hex_field(64)),  # SHA-256
        "ledger": optional(hex_field(LEDGER_DIGITS)),
        "evaluation_epsilon": optional(_DECLARED),
        "evaluation_samples": optional(whole_field()),
        "certificate": optional(bytes_field(least=1, most=2048)),
        "secure_round_price": optional(_DECLARED),
    }


@dataclass(frozen=True, kw_only=True)
class RunOffer(Message):
    """The settings of a run for one device; sent once, signed.

    Devices use full batches, or draw fixed-size ones without replacement: their ledgers
    claim no amplification by sampling.
    """

    run: bytes  # random: the run's permanent identity
    name: str  # for people, and for the owner's list of runs to join
    device: str  # the receiver
    tau: int  # steps in each round
    rounds: int
    learning_rate: float
    sampling: str  # full | fixed
    num_samples: int  # rows of the device that take part
    batch_size: int
    noise_std: float  # per coordinate of a mean gradient, in round 1
    loss: str
    num_classes: int
    l2: float
    dim: int
    precision: Precision  # of the models in messages
    # The server's momentum, if devices apply drift correction; see `device.drift`.
    drift_momentum: float | None = None
    # The noise of a round over that of the round before; None: constant noise.
    noise_decay: float | None = None
    # Terms of a run whose server sees only sums (`secure_messages.SumTerms`). Then
    # `noise_std` is that of this device's share, per coordinate of its upload.
    sum_terms: bytes | None = None
    index: int | None = None  # of the device in the plan; orders select by it

    kind: ClassVar[str] = "offer"
    checks: ClassVar[Mapping[str, Check]] = {
        "run": _RUN,
        "name": TEXT,
        "device": IDENTITY,
        "tau": whole_field(most=1 << 20),
        "rounds": whole_field(most=1 << 30),
        "learning_rate": number_field(least=0),
        "sampling": one_of_field("full", "fixed"),
        "batch_size": whole_field(),
        "noise_std": number_field(least=0),
        "l2": number_field(least=0),
        "precision": one_of_field(*PRECISIONS),
        "drift_momentum": optional(number_field(least=0, most=1)),
        "noise_decay": optional(_field(number, float, above=0, below=1)),
        "sum_terms": optional(bytes_field(least=1, most=1024)),
        "index": optional(whole_field(least=0, most=MOST_DEVICES)),
        **_SHAPE,
    }

    @property
    def num_params(self) -> int:
        """The length of the model."""
        return self.dim * (self.num_classes if self.loss == "softmax" else 1)

    def noise_std_of(self, round: int) -> float:
        """Return the noise of a round, counted from 1."""
        return self.noise_std * (self.noise_decay or 1.0) ** (round - 1)


@dataclass(frozen=True, kw_only=True)
class RoundOrder(Message):
    """One round for every device that has an offer of the run; signed."""

    run: bytes
    round: int  # from 1
    theta: bytes  # the model to start from, in the offer's precision
    # Bit i, from the lowest of the first byte: the device of index i carries the order
    # out. None: all do.
    selected: bytes | None = None

    kind: ClassVar[str] = "order"
    checks: ClassVar[Mapping[str, Check]] = {
        "run": _RUN,
        "round": whole_field(most=1 << 30),
        "theta": bytes_field(least=4, most=MAX_BYTES),
        "selected": optional(bytes_field(least=1, most=MOST_DEVICES // 8)),
    }

    def selects(self, index: int | None) -> bool:
        """Return whether the device of this index is to carry the order out."""
        if self.selected is None or index is None:
            return self.selected is None
        byte, bit = divmod(index, 8)
        return byte < len(self.selected) and bool(self.selected[byte] >> bit & 1)


@dataclass(frozen=True, kw_only=True)
class Reply(Message):
    """A device's answer to an order, or (round 0) to an offer."""

    device: str
    run: bytes
    round: int
    code: str  # "answered", "accepted", or one of REFUSALS
    theta: bytes | None = None  # of an answer only
    reason: str | None = None  # of a refusal, for people
    # The last round of the run that was charged before this one; of an accepted offer,
    # the last one so far. A copy of a device does not know it.
    previous: int | None = None

    kind: ClassVar[str] = "reply"
    checks: ClassVar[Mapping[str, Check]] = {
        "device": IDENTITY,
        "run": _RUN,
        "round": whole_field(least=0, most=1 << 30),
        "code": one_of_field(ANSWERED, ACCEPTED, *REFUSALS),
        "theta": optional(bytes_field(least=4, most=MAX_BYTES)),
        "reason": optional(TEXT),
        "previous": optional(whole_field(least=0, most=1 << 30)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.theta is not None) != (self.code == ANSWERED):
            verb = "needs" if self.code == ANSWERED else "must come without"
            raise MessageError(f"code {self.code!r} {verb} a model")
        if self.reason is not None and self.code not in REFUSALS:
            raise MessageError(f"code {self.code!r} must come without a reason")

    @property
    def refused(self) -> bool:
        """Whether the device refused."""
        return self.code in REFUSALS


class AnswerReader:
    """Reads the answers to one round: all are alike but for name and model.

    An answer is recognised by the bytes around its model, which are those that
    `Reply.to_bytes` returns; then all its fields are known to be valid. Whatever looks
    different is left to `Reply.from_bytes`, which takes ten times as long.
    """

    def __init__(self, run: bytes, round: int, model_bytes: int) -> None:
        self._run, self._round, self._size = run, round, model_bytes
        self._parts = {
            previous: self._around_model_and_name(previous)
            for previous in (None, round - 1)
        }

    def _around_model_and_name(self, previous: int | None) -> list[bytes]:
        """Return the bytes before the model, those after it, and those after a name."""
        model, name = bytes(self._size), "x"
        data = Reply(
            device=name,
            run=self._run,
            round=self._round,
            code=ANSWERED,
            theta=model,
            previous=previous,
        ).to_bytes()
        head, device = encode("theta") + encode(model), encode("device")
        start = data.index(head) + len(head) - self._size
        before, after = data[:start], data[start + self._size :]
        between, last = after.split(device + encode(name))
        return [before, between + device, last]

    def read(self, device: str, payload: bytes) -> Reply | None:
        """Return the usual answer of a device; none if it is anything else."""
        name = encode(device)
        for previous, (before, between, last) in self._parts.items():
            stop = len(before) + self._size
            if (
                not payload.startswith(before)
                or payload[stop:] != between + name + last
            ):
                continue
            reply = object.__new__(Reply)
            reply.__dict__.update(
                device=device,
                run=self._run,
                round=self._round,
                code=ANSWERED,
                theta=payload[len(before) : stop],
                reason=None,
                previous=previous,
            )
            return reply
        return None


@dataclass(frozen=True, kw_only=True)
class Notice(Message):
    """Why a device does not take part, for its owner; signed."""

    device: str
    reason: str

    kind: ClassVar[str] = "notice"
    checks: ClassVar[Mapping[str, Check]] = {"device": IDENTITY, "reason": _NOTICE}


def run_of(body: bytes, kind: str) -> tuple[bytes, int] | None:
    """Return run and round of an offer or an order of any version, if it has them.

    For the answer to a message that cannot be read.
    """
    try:
        value = decode(body)
        if value["kind"] != kind:
            return None
        run, round = _RUN("run", value["run"]), value.get("round", 0)
        return run, whole_field(least=0, most=1 << 30)("round", round)
    except (MessageError, InvalidInputError, TypeError, KeyError, AttributeError):
        return None


def theta_to_bytes(theta: Array, precision: str) -> bytes:
    """Return a model as little-endian bytes.

    Raises:
        MessageError: A number is not finite, or too large for the precision.
    """
    with np.errstate(over="ignore"):
        converted = np.asarray(theta, dtype=PRECISIONS[precision])
    if not np.isfinite(converted).all():
        raise MessageError(f"the model does not fit {precision}: it is not finite")
    return converted.tobytes()


def theta_from_bytes(data: bytes, precision: str, num_params: int) -> Array:
    """Return a model from untrusted bytes; shape (num_params,), float64.

    Raises:
        MessageError: It has another length, or a number that is not finite.
    """
    kind = PRECISIONS[precision]
    if len(data) != num_params * kind.itemsize:
        raise MessageError(
            f"the model has {len(data)} bytes, not the {num_params * kind.itemsize} of "
            f"{num_params} parameters in {precision}"
        )
    theta = np.frombuffer(data, dtype=kind).astype(np.float64)
    if not np.isfinite(theta).all():
        raise MessageError("the model has a number that is not finite")
    return theta
