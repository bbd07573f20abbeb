"""The policy of a device's owner: one TOML file, and every mistake in it named.

docs/fleet-device.md shows a whole one. Paths are relative to the policy's folder.

Every mistake in the file names the file and the key.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

from fedbudget.budget import LEAST_DELTA, Budget
from fedbudget.checks import identity, number, of_type, one_of, text, whole
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.transport.address import TLS_PORT, BrokerAddress
from fedbudget.fleet.transport.certificates import Identity
from fedbudget.fleet.wire.messages import MOST_DECLARED, MOST_DELTA
from fedbudget.fleet.wire.signing import read_public_key
from fedbudget.losses import LOSSES
from fedbudget.text import shown

_NOTHING = object()


class _Section:
    """One table of the file; knows which of its keys were used."""

    def __init__(self, path: Path, name: str, plain: dict[str, Any]) -> None:
        self.plain = plain
        self._path, self._name = path, name
        self._used: set[str] = set()

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise, naming the file and the key."""
        where = f"{self._name}.{key}" if self._name else key
        raise InvalidInputError(f"policy {str(self._path)!r}: {where} {why}")

    def section(self, key: str, *, optional: bool = False) -> "_Section":
        """Return a table inside this one."""
        default = {} if optional else _NOTHING
        plain = self.get(key, kinds=(dict,), default=default)
        name = f"{self._name}.{key}" if self._name else key
        return _Section(self._path, name, plain)

    def get(self, key: str, *, kinds: tuple[type, ...], default: Any = _NOTHING) -> Any:
        """Return a value of one of these types."""
        self._used.add(key)
        if key not in self.plain:
            if default is _NOTHING:
                self.refuse(key, "is missing")
            return default
        return self._checked(of_type, key, self.plain[key], *kinds)

    def number(self, key: str, *, default: Any = _NOTHING, **limits: float) -> float:
        """Return a finite number inside limits."""
        value = self.get(key, kinds=(float, int), default=default)
        return float(self._checked(number, key, value, **limits))

    def whole(self, key: str, *, default: Any = _NOTHING, **limits: int) -> int:
        """Return a whole number inside limits."""
        value = self.get(key, kinds=(int,), default=default)
        return int(self._checked(whole, key, value, **limits))

    def one_of(self, key: str, options: tuple[str, ...], *, default: str) -> str:
        """Return one of a few words."""
        value = self.get(key, kinds=(str,), default=default)
        return str(self._checked(one_of, key, value, options))

    def text(self, key: str, *, default: Any = _NOTHING) -> str:
        """Return a short text on one line."""
        value = self.get(key, kinds=(str,), default=default)
        return str(self._checked(text, key, value))

    def identity(self, key: str) -> str:
        """Return the name of a device."""
        return str(self._checked(identity, key, self.get(key, kinds=(str,))))

    def texts(self, key: str, *, default: Any = _NOTHING) -> tuple[str, ...]:
        """Return a list of texts, at least one."""
        value = self.get(key, kinds=(list,), default=default)
        if not value or not all(isinstance(item, str) for item in value):
            self.refuse(
                key, f"must be a list of texts, at least one, got {shown(value)}"
            )
        return tuple(value)

    def path(self, key: str, folder: Path, *, default: Any = _NOTHING) -> Path:
        """Return a path, relative to the policy."""
        return folder / str(self.get(key, kinds=(str,), default=default))

    def _checked(
        self, check: Callable[..., Any], key: str, *given: Any, **limits: Any
    ) -> Any:
        """Return what a check returns; its error names the file and the table too."""
        try:
            return check(key, *given, **limits)
        except InvalidInputError as error:
            self.refuse(key, str(error).removeprefix(f"{key} "))

    def finish(self) -> None:
        """Refuse keys that mean nothing."""
        for key in self.plain:
            if key not in self._used:
                known = ", ".join(sorted(self._used))
                self.refuse(key, f"is not known: use only {known}")


_ACCOUNTANTS = ("gdp", "zcdp")


@dataclass(frozen=True, kw_only=True)
class DataPolicy:
    """Which rows the device trains on."""

    file: Path  # .csv, .csv.gz or .npz
    schema: Path | Mapping[str, Any] | None  # for tables; none for .npz
    label: str | None  # only to be checked against the schema's
    loss: str
    classes: int  # of an .npz file's labels
    lineage: str  # the data set's name in the ledger, for as long as it lives


@dataclass(frozen=True, kw_only=True, eq=False)
class BudgetPolicy:
    """What may be spent over the whole life of the data set."""

    epsilon: float
    delta: float
    cost: float
    accountant: str

    @property
    def budget(self) -> Budget:
        """The same, for a ledger."""
        return Budget(epsilon=self.epsilon, delta=self.delta, cost=self.cost)


@dataclass(frozen=True, kw_only=True)
class PricePolicy:
    """What a round and a step cost the device, in the unit of its budget."""

    communication: float
    computation: float


@dataclass(frozen=True, kw_only=True)
class PublicPolicy:
    """What the owner is willing to spend on one run, and says so."""

    epsilon: float
    cost: float
    info: str


@dataclass(frozen=True, kw_only=True)
class OrderPolicy:
    """Whose orders are carried out, and within which limits."""

    trusted: tuple[str, ...]
    runs: tuple[str, ...]  # patterns for the names of runs, * and ? as in a shell
    least_noise_multiplier: float
    most_tau: int
    most_rounds: int
    most_learning_rate: float
    most_l2: float

    def joins(self, name: str) -> bool:
        """Whether the owner lists a run of this name."""
        return any(fnmatchcase(name, pattern) for pattern in self.runs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """All that an owner decides."""

    device: str
    data: DataPolicy
    budget: BudgetPolicy
    prices: PricePolicy
    public: PublicPolicy
    orders: OrderPolicy
    ledger: Path
    broker: BrokerAddress | None  # none: orders come over the socket
    socket: Path | None  # where programs on this machine bring orders


def read_policy(path: str | Path) -> Policy:
    """Read and check a policy.

    Raises:
        InvalidInputError: It cannot be read, or a key is missing, unknown or wrong; the
            message names the file and the key.
    """
    path = Path(path)
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"policy {str(path)!r} cannot be read: {error.strerror or error}"
        ) from None
    except (ValueError, RecursionError) as error:  # also of endless digits or brackets
        raise InvalidInputError(f"policy {str(path)!r} is not TOML: {error}") from None
    top = _Section(path, "", plain)
    budget = _budget(top.section("budget"))
    over_mqtt = "socket" not in plain
    if not over_mqtt and "broker" in plain:
        top.refuse("socket", "does not go with broker: orders come over one of them")
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
    )
    top.finish()
    return policy


def _data(section: _Section, folder: Path) -> DataPolicy:
    file = section.path("file", folder)
    schema = section.get("schema", kinds=(str, dict), default=None)
    if file.suffix != ".npz" and schema is None:
        section.refuse("schema", "is missing: a table needs its public schema")
    if file.suffix == ".npz" and schema is not None:
        section.refuse("schema", "does not go with .npz, whose rows are encoded")
    found = DataPolicy(
        file=file,
        schema=folder / schema if isinstance(schema, str) else schema,
        label=section.get("label", kinds=(str,), default=None),
        loss=section.one_of("loss", tuple(LOSSES), default="logistic"),
        classes=section.whole("classes", least=2, default=2),
        lineage=section.text("lineage", default=file.name),
    )
    section.finish()
    return found


def _budget(section: _Section) -> BudgetPolicy:
    found = BudgetPolicy(
        epsilon=section.number("epsilon", above=0, most=MOST_DECLARED),
        delta=section.number("delta", least=LEAST_DELTA, most=MOST_DELTA),
        cost=section.number("cost", above=0, most=MOST_DECLARED),
        accountant=section.one_of("accountant", _ACCOUNTANTS, default="gdp"),
    )
    section.finish()
    return found


def _prices(section: _Section) -> PricePolicy:
    found = PricePolicy(
        communication=section.number("communication", least=0, most=MOST_DECLARED),
        computation=section.number("computation", least=0, most=MOST_DECLARED),
    )
    if found.communication == found.computation == 0:
        section.refuse("communication", "and computation are both 0: one must cost")
    section.finish()
    return found


def _public(section: _Section, budget: BudgetPolicy) -> PublicPolicy:
    found = PublicPolicy(
        epsilon=section.number(
            "epsilon", above=0, most=budget.epsilon, default=budget.epsilon
        ),
        cost=section.number("cost", above=0, most=budget.cost, default=budget.cost),
        info=section.text("info", default=""),
    )
    section.finish()
    return found


def _orders(section: _Section) -> OrderPolicy:
    trusted = section.texts("trusted")
    for key in trusted:
        try:
            read_public_key(key)
        except InvalidInputError as error:
            section.refuse("trusted", f"is wrong: {error}")
    found = OrderPolicy(
        trusted=trusted,
        runs=section.texts("runs", default=["*"]),
        # Noise below one sample's share of a mean gradient hides it poorly.
        least_noise_multiplier=section.number(
            "least_noise_multiplier", above=0, most=MOST_DECLARED, default=1.0
        ),
        most_tau=section.whole("most_tau", default=1000),
        most_rounds=section.whole("most_rounds", default=10_000),
        most_learning_rate=section.number("most_learning_rate", above=0, default=100.0),
        most_l2=section.number("most_l2", least=0, default=1.0),
    )
    section.finish()
    return found


def _ledger(section: _Section, folder: Path) -> Path:
    found = section.path("file", folder, default="ledger.sqlite")
    section.finish()
    return found


def _socket(section: _Section, folder: Path) -> Path:
    found = section.path("file", folder)
    section.finish()
    return found


def _broker(section: _Section, folder: Path) -> BrokerAddress:
    names = ("ca", "certificate", "key")
    files = {
        name: section.path(name, folder) for name in names if name in section.plain
    }
    if files and (lacking := [name for name in names if name not in files]):
        section.refuse(lacking[0], "is missing: TLS needs ca, certificate and key")
    certificates = Identity(**files) if files else None
    host = section.get("host", kinds=(str,))
    port = section.whole("port", default=TLS_PORT, most=65535)
    section.finish()
    try:
        address = BrokerAddress(host=host, port=port, identity=certificates)
    except InvalidInputError as error:
        section.refuse("host", f"is wrong: {error}")
    if certificates is None and not address.is_local:
        section.refuse("ca", "is missing: only a broker on this machine goes without")
    return address
