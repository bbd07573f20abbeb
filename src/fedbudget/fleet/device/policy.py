"""The policy of a device's owner: one TOML file.

docs/fleet-device.md shows a complete one. Paths are relative to the policy's folder.
Every error names the file and the key.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

from fedbudget.budget import LEAST_DELTA, Budget
from fedbudget.checks import identity, number, of_type, one_of, text, whole
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.availability import ALWAYS, Availability, parse_hours
from fedbudget.fleet.transport.address import TLS_PORT, BrokerAddress
from fedbudget.fleet.transport.certificates import Identity
from fedbudget.fleet.wire.messages import MOST_DECLARED, MOST_DELTA
from fedbudget.fleet.wire.signing import read_public_key
from fedbudget.losses import LOSSES
from fedbudget.privacy.runs import UNITS
from fedbudget.text import shown

_REQUIRED = object()  # the default of a key without a default
_ACCOUNTANTS = ("gdp", "zcdp")


class _Section:
    """One table of the file; records which of its keys were read."""

    def __init__(self, path: Path, name: str, plain: dict[str, Any]) -> None:
        self.plain = plain
        self._path, self._name = path, name
        self._used: set[str] = set()

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Raise, naming the file and the key."""
        raise InvalidInputError(
            f"policy {str(self._path)!r}: {self._full_name(key)} {reason}"
        )

    def _full_name(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def section(self, key: str, *, optional: bool = False) -> "_Section":
        """Return a table inside this one."""
        default = {} if optional else _REQUIRED
        plain = self.get(key, kinds=(dict,), default=default)
        return _Section(self._path, self._full_name(key), plain)

    def get(
        self, key: str, *, kinds: tuple[type, ...], default: Any = _REQUIRED
    ) -> Any:
        """Return a value of one of these types."""
        self._used.add(key)
        if key not in self.plain:
            if default is _REQUIRED:
                self.refuse(key, "is missing")
            return default
        return self._checked(of_type, key, self.plain[key], *kinds)

    def number(self, key: str, *, default: Any = _REQUIRED, **limits: float) -> float:
        """Return a finite number inside limits."""
        value = self.get(key, kinds=(float, int), default=default)
        return float(self._checked(number, key, value, **limits))

    def whole(self, key: str, *, default: Any = _REQUIRED, **limits: int) -> int:
        """Return a whole number inside limits."""
        value = self.get(key, kinds=(int,), default=default)
        return int(self._checked(whole, key, value, **limits))

    def whole_or_none(self, key: str, **limits: int) -> int | None:
        """Return a whole number inside limits; None without the key."""
        value = self.get(key, kinds=(int,), default=None)
        return None if value is None else self.whole(key, **limits)

    def one_of(self, key: str, options: tuple[str, ...], *, default: str) -> str:
        """Return one of these strings."""
        value = self.get(key, kinds=(str,), default=default)
        return str(self._checked(one_of, key, value, options))

    def text(self, key: str, *, default: Any = _REQUIRED) -> str:
        """Return a short text on one line."""
        value = self.get(key, kinds=(str,), default=default)
        return str(self._checked(text, key, value))

    def identity(self, key: str) -> str:
        """Return the name of a device."""
        return str(self._checked(identity, key, self.get(key, kinds=(str,))))

    def texts(self, key: str, *, default: Any = _REQUIRED) -> tuple[str, ...]:
        """Return a non-empty list of strings."""
        value = self.get(key, kinds=(list,), default=default)
        if not value or not all(isinstance(item, str) for item in value):
            self.refuse(
                key, f"must be a list of texts, at least one, got {shown(value)}"
            )
        return tuple(value)

    def path(self, key: str, folder: Path, *, default: Any = _REQUIRED) -> Path:
        """Return a path; a relative one is inside the policy's folder."""
        return folder / str(self.get(key, kinds=(str,), default=default))

    def _checked(
        self, check: Callable[..., Any], key: str, *values: Any, **limits: Any
    ) -> Any:
        """Return the result of a check; its error also names the file and the table."""
        try:
            return check(key, *values, **limits)
        except InvalidInputError as error:
            self.refuse(key, str(error).removeprefix(f"{key} "))

    def finish(self) -> None:
        """Refuse unknown keys."""
        for key in self.plain:
            if key not in self._used:
                allowed = ", ".join(sorted(self._used))
                self.refuse(key, f"is not known: use only {allowed}")


@dataclass(frozen=True, kw_only=True)
class DataPolicy:
    """The rows that the device trains on."""

    file: Path  # .csv, .csv.gz or .npz
    schema: Path | Mapping[str, Any] | None  # for tables; none for .npz
    label: str | None  # must be the schema's, if given
    loss: str
    classes: int  # of an .npz file's labels
    lineage: str  # the data set's permanent name in the ledger


@dataclass(frozen=True, kw_only=True, eq=False)
class BudgetPolicy:
    """The budget for the whole lifetime of the data set."""

    epsilon: float
    delta: float
    cost: float
    accountant: str

    @property
    def budget(self) -> Budget:
        """The budget of a `Ledger`."""
        return Budget(epsilon=self.epsilon, delta=self.delta, cost=self.cost)


@dataclass(frozen=True, kw_only=True)
class PricePolicy:
    """The cost of a round and of a step, in the unit of the budget."""

    communication: float
    computation: float
    secure_round: float | None = None  # instead of communication, for sums

    @property
    def sum_round(self) -> float:
        """The price of a round of a secure sum, besides its steps."""
        usual = self.communication
        return usual if self.secure_round is None else self.secure_round


@dataclass(frozen=True, kw_only=True)
class PublicPolicy:
    """What the owner makes public: the budget for one run, and a number of rows."""

    epsilon: float
    cost: float
    num_samples: int | None  # None: that of the first start
    info: str


@dataclass(frozen=True, kw_only=True)
class EvaluationPolicy:
    """What the owner grants for measuring a model; see `evaluation`."""

    epsilon: float  # of all evaluations of a period together
    num_samples: int  # rows that no run trains on, after those that are declared


@dataclass(frozen=True, kw_only=True)
class SumPolicy:
    """Under which conditions the device takes part in secure sums."""

    trust: str  # any | sum: refuse runs whose server sees uploads
    unit: str  # what epsilon must protect: sample | device
    least_answers: int  # t: never help to see a sum of fewer answers
    colluders: int  # c: devices on the server's side that the noise must survive
    identity: Identity  # this device's certificate, and the authority of its peers


@dataclass(frozen=True, kw_only=True)
class OrderPolicy:
    """Whose orders are carried out, within which limits."""

    trusted: tuple[str, ...]
    recovery: tuple[str, ...]  # keys that may withdraw a trusted one, and nothing else
    runs: tuple[str, ...]  # patterns of run names, with * and ? as in a shell
    least_noise_multiplier: float
    most_tau: int
    most_rounds: int
    most_learning_rate: float
    most_l2: float

    def joins(self, name: str) -> bool:
        """Whether the owner joins runs of this name."""
        return any(fnmatchcase(name, pattern) for pattern in self.runs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """All decisions of an owner."""

    device: str
    data: DataPolicy
    budget: BudgetPolicy
    prices: PricePolicy
    public: PublicPolicy
    orders: OrderPolicy
    ledger: Path
    broker: BrokerAddress | None  # None: orders come over the socket
    socket: Path | None  # over which local programs deliver orders
    # Rows of a period: the budget renews for the next ones. None: one period, or those
    # that the owner starts.
    period_rows: int | None = None
    evaluation: EvaluationPolicy | None = None  # None: none is answered
    availability: Availability = ALWAYS
    sums: SumPolicy | None = None  # None: no run whose server sees only sums

    @property
    def held_out(self) -> int:
        """The number of rows that no run trains on."""
        return 0 if self.evaluation is None else self.evaluation.num_samples

    @property
    def identity(self) -> Identity | None:
        """The certificate with which the device signs, if it has one."""
        if self.broker is not None:
            return self.broker.identity
        return None if self.sums is None else self.sums.identity


def read_policy(path: str | Path) -> Policy:
    """Read and check a policy.

    Raises:
        InvalidInputError: It cannot be read, or a key is missing, unknown or invalid;
            the message names the file and the key.
    """
    path = Path(path)
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"policy {str(path)!r} cannot be read: {error.strerror or error}"
        ) from None
    except (ValueError, RecursionError) as error:  # also too many digits or brackets
        raise InvalidInputError(f"policy {str(path)!r} is not TOML: {error}") from None
    top = _Section(path, "", plain)
    budget = _budget(top.section("budget"))
    over_mqtt = "socket" not in plain
    if not over_mqtt and "broker" in plain:
        top.refuse("socket", "cannot be combined with broker: use one of them")
    policy = Policy(
        device=top.identity("device"),
        data=_data(top.section("data"), path.parent),
        budget=budget,
        prices=_prices(top.section("prices")),
        public=_public(top.section("public", optional=True), budget),
        orders=_orders(top.section("orders")),
        ledger=_ledger(top.section("ledger", optional=True), path.parent),
        broker=_broker(top.section("broker"), path.parent) if over_mqtt else None,
        socket=None if over_mqtt else _socket(top.section("socket"), path.parent),
        period_rows=_period_rows(top.section("renewal", optional=True)),
        evaluation=_evaluation(top, budget) if "evaluation" in plain else None,
        availability=_availability(
            top.section("availability", optional=True), path.parent
        ),
    )
    if "sums" in plain:
        sums = _sums(top.section("sums"), path.parent, policy.identity)
        policy = replace(policy, sums=sums)
        for name in ("renewal", "evaluation"):
            if sums.unit == "device" and name in plain:
                top.refuse(name, "counts single rows: not with sums.unit 'device'")
    top.finish()
    _check_period(top, policy)
    return policy


def _data(section: _Section, folder: Path) -> DataPolicy:
    file = section.path("file", folder)
    schema = section.get("schema", kinds=(str, dict), default=None)
    if file.suffix != ".npz" and schema is None:
        section.refuse("schema", "is missing: a table needs a public schema")
    if file.suffix == ".npz" and schema is not None:
        section.refuse(
            "schema", "cannot be combined with .npz, whose rows are already encoded"
        )
    policy = DataPolicy(
        file=file,
        schema=folder / schema if isinstance(schema, str) else schema,
        label=section.get("label", kinds=(str,), default=None),
        loss=section.one_of("loss", tuple(LOSSES), default="logistic"),
        classes=section.whole("classes", least=2, default=2),
        lineage=section.text("lineage", default=file.name),
    )
    section.finish()
    return policy


def _budget(section: _Section) -> BudgetPolicy:
    policy = BudgetPolicy(
        epsilon=section.number("epsilon", above=0, most=MOST_DECLARED),
        delta=section.number("delta", least=LEAST_DELTA, most=MOST_DELTA),
        cost=section.number("cost", above=0, most=MOST_DECLARED),
        accountant=section.one_of("accountant", _ACCOUNTANTS, default="gdp"),
    )
    section.finish()
    return policy


def _prices(section: _Section) -> PricePolicy:
    policy = PricePolicy(
        communication=section.number("communication", least=0, most=MOST_DECLARED),
        computation=section.number("computation", least=0, most=MOST_DECLARED),
        secure_round=None
        if section.get("secure_round", kinds=(float, int), default=None) is None
        else section.number("secure_round", least=0, most=MOST_DECLARED),
    )
    if policy.communication == policy.computation == 0:
        section.refuse(
            "communication", "and computation are both 0: one must be above 0"
        )
    section.finish()
    return policy


def _public(section: _Section, budget: BudgetPolicy) -> PublicPolicy:
    policy = PublicPolicy(
        epsilon=section.number(
            "epsilon", above=0, most=budget.epsilon, default=budget.epsilon
        ),
        cost=section.number("cost", above=0, most=budget.cost, default=budget.cost),
        num_samples=section.whole_or_none("num_samples"),
        info=section.text("info", default=""),
    )
    section.finish()
    return policy


def _period_rows(section: _Section) -> int | None:
    rows = section.whole_or_none("rows", least=1)
    section.finish()
    return rows


def _evaluation(top: _Section, budget: BudgetPolicy) -> EvaluationPolicy:
    section = top.section("evaluation")
    policy = EvaluationPolicy(
        epsilon=section.number("epsilon", above=0, most=budget.epsilon),
        num_samples=section.whole("num_samples", least=1),
    )
    section.finish()
    return policy


def _availability(section: _Section, folder: Path) -> Availability:
    hours = section.get("hours", kinds=(str,), default=None)
    try:
        window = None if hours is None else parse_hours(hours)
    except InvalidInputError as error:
        section.refuse("hours", str(error))
    availability = Availability(
        hours=window,
        on_mains=bool(section.get("on_mains", kinds=(bool,), default=False)),
        pause_file=section.path("pause_file", folder, default="paused"),
    )
    section.finish()
    return availability


def _check_period(top: _Section, policy: Policy) -> None:
    """Refuse periods that are too short for the declared and the held-out rows."""
    size, declared = policy.period_rows, policy.public.num_samples
    if size is not None and size < (declared or 1) + policy.held_out:
        top.section("renewal").refuse(
            "rows",
            f"must be at least {(declared or 1) + policy.held_out}, the sum of "
            f"public.num_samples and evaluation.num_samples, got {size}",
        )


def _sums(section: _Section, folder: Path, usual: Identity | None) -> SumPolicy:
    """Return the conditions for sums; files are the broker's unless they are given."""
    files = {} if usual is None else vars(usual)
    for key, name in (("ca", "peers"), ("certificate", "certificate"), ("key", "key")):
        if name in section.plain or key not in files:
            files = {**files, key: section.path(name, folder)}
        else:
            section.get(name, kinds=(str,), default=None)
    policy = SumPolicy(
        trust=section.one_of("trust", ("any", "sum"), default="any"),
        unit=section.one_of("unit", UNITS, default="sample"),
        least_answers=section.whole("least_answers", least=2),
        colluders=section.whole("colluders", least=0, default=0),
        identity=Identity(**files),
    )
    if policy.colluders >= policy.least_answers:
        section.refuse(
            "colluders",
            f"must be below least_answers {policy.least_answers}, got "
            f"{policy.colluders}",
        )
    section.finish()
    return policy


def _orders(section: _Section) -> OrderPolicy:
    trusted = section.texts("trusted")
    recovery = section.texts("recovery") if "recovery" in section.plain else ()
    for name, keys in (("trusted", trusted), ("recovery", recovery)):
        for key in keys:
            try:
                read_public_key(key)
            except InvalidInputError as error:
                section.refuse(name, f"is invalid: {error}")
    policy = OrderPolicy(
        trusted=trusted,
        recovery=recovery,
        runs=section.texts("runs", default=["*"]),
        # Below 1, the noise is smaller than one sample's share of a mean gradient.
        least_noise_multiplier=section.number(
            "least_noise_multiplier", above=0, most=MOST_DECLARED, default=1.0
        ),
        most_tau=section.whole("most_tau", default=1000),
        most_rounds=section.whole("most_rounds", default=10_000),
        most_learning_rate=section.number("most_learning_rate", above=0, default=100.0),
        most_l2=section.number("most_l2", least=0, default=1.0),
    )
    section.finish()
    return policy


def _ledger(section: _Section, folder: Path) -> Path:
    path = section.path("file", folder, default="ledger.sqlite")
    section.finish()
    return path


def _socket(section: _Section, folder: Path) -> Path:
    path = section.path("file", folder)
    section.finish()
    return path


def _broker(section: _Section, folder: Path) -> BrokerAddress:
    names = ("ca", "certificate", "key")
    files = {
        name: section.path(name, folder) for name in names if name in section.plain
    }
    if files and (missing := [name for name in names if name not in files]):
        section.refuse(missing[0], "is missing: TLS needs ca, certificate and key")
    certificates = Identity(**files) if files else None
    host = section.get("host", kinds=(str,))
    port = section.whole("port", default=TLS_PORT, most=65535)
    section.finish()
    try:
        address = BrokerAddress(host=host, port=port, identity=certificates)
    except InvalidInputError as error:
        section.refuse("host", f"is invalid: {error}")
    if certificates is None and not address.is_local:
        section.refuse(
            "ca", "is missing: only a broker on this machine works without TLS"
        )
    return address
