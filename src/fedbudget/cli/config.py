"""`fedbudget.toml`: a table, its public columns, budgets and prices, in one file.

A command reads its options from such a file; options on the command line override it.
Every error names the key and the line.
"""

import re
import tomllib
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from fedbudget.data import Schema
from fedbudget.data.columns import nearest
from fedbudget.data.schema import schema_from_config
from fedbudget.errors import (
    DataError,
    InvalidInputError,
    NotPrivateWarning,
    needed,
)
from fedbudget.files import whole_file

_TEXT, _NUMBER, _WHOLE, _TRUTH = "a text", "a number", "a whole number", "true or false"
_EITHER = "a text or a number"
_TYPES: Mapping[str, tuple[type, ...]] = {
    _TEXT: (str,),
    _NUMBER: (int, float),
    _WHOLE: (int,),
    _TRUTH: (bool,),
    _EITHER: (str, int, float),
}

_PERSONAL_BUDGETS = ("epsilon", "delta", "cost")  # may differ between devices
# Section, key, its type, and the option that it sets ("" is none).
_KEYS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "data": {
        "table": (_TEXT, ""),
        "device": (_TEXT, "device"),
        "partition": (_TEXT, "partition"),
        "missing": (_TEXT, "missing"),
        "order": (_TEXT, "order"),
        "intercept": (_TRUTH, ""),
        "public_bounds": (_TRUTH, ""),
    },
    "budget": {
        **{name: (_NUMBER, name) for name in _PERSONAL_BUDGETS},
        "trust": (_TEXT, "trust"),
        "unit": (_TEXT, "unit"),
        "least_answers": (_WHOLE, "least_answers"),
        "colluders": (_WHOLE, "colluders"),
    },
    "prices": {
        "communication": (_NUMBER, "communication_price"),
        "computation": (_NUMBER, "computation_price"),
        "computation_per_sample": (_NUMBER, "computation_price_per_sample"),
        "secure_round": (_NUMBER, "secure_round_price"),
    },
    "plan": {
        "planner": (_TEXT, "planner"),
        "accountant": (_TEXT, "accountant"),
        "weights": (_TEXT, "weights"),
        "target": (_TEXT, "target"),
        "loss": (_TEXT, "loss"),
        "l2": (_NUMBER, "l2"),
        "dissimilarity": (_EITHER, "dissimilarity"),
        "features": (_TEXT, "features"),
        "batch_size": (_WHOLE, "batch_size"),
        "sampling": (_TEXT, "sampling"),
        "learning_rate": (_NUMBER, "learning_rate"),
    },
    "train": {
        "seed": (_WHOLE, "seed"),
        "participation": (_NUMBER, "participation"),
        "personal": (_TRUTH, "personal"),
        "keep": (_TRUTH, "keep"),
        "scale": (_TEXT, "scale"),
        "threshold": (_EITHER, "threshold"),
        "class_weight": (_TEXT, "class_weight"),
        "class_shares": (_TEXT, "class_shares"),
        "new_devices": (_WHOLE, "new_devices"),
        "measure_every": (_WHOLE, "measure_every"),
        "out": (_TEXT, "out"),
    },
}
_SECTIONS = (*_KEYS, "label", "features", "windows", "expansion", "devices")
_DEVICE_KEYS = (*_PERSONAL_BUDGETS, *_KEYS["prices"])
_TRAIN_ONLY = tuple(option for _, option in _KEYS["train"].values() if option != "seed")

# The argument that an error names (the library's or the option's), and its key.
_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "data": ("data", "table"),
    "source": ("data", "table"),
    "label": ("label", "name"),
} | {
    name: (section, key)
    for section, keys in _KEYS.items()
    for key, (_, option) in keys.items()
    for name in (key, option or key)
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Config:
    """A config file: its text and its values."""

    path: Path
    text: str
    values: dict[str, Any]  # section -> key -> value

    @property
    def table(self) -> str:
        """The path of the table; a relative path starts at the config's folder."""
        return str(self.path.parent / self.values["data"]["table"])

    @property
    def caveats(self) -> tuple[str, ...]:
        """What no privacy guarantee covers, unless the config declares it public."""
        if self.values["data"].get("public_bounds", False):
            return ()
        return (
            "NOT covered: the bounds and categories, which may have been read from "
            "the rows (public_bounds = false)",
        )

    @property
    def schema(self) -> Schema:
        """The bounds and categories; warns unless the config declares them public."""
        if not self.values["data"].get("public_bounds", False):
            warnings.warn(
                f"{self._at('data', 'public_bounds')}: bounds and categories may still "
                "be those read from the rows, and no privacy guarantee covers them; "
                "replace them by what is publicly known, then set this key to true",
                NotPrivateWarning,
                stacklevel=2,
            )
        return schema_from_config(self.values)

    @property
    def options(self) -> dict[str, Any]:
        """The values of the options, by name."""
        options = {"label": self.values["label"]["name"], "schema": str(self.path)}
        for section, keys in _KEYS.items():
            for key, value in self.values.get(section, {}).items():
                kind, option = keys[key]
                if option:  # a number may stand for a text
                    options[option] = str(value) if kind == _EITHER else value
        return options

    @property
    def devices(self) -> dict[str, dict[str, float]]:
        """Budgets and prices of single devices, by name; they override all others."""
        devices: dict[str, dict[str, float]] = self.values.get("devices", {})
        return devices

    def check_devices(self, names: Sequence[str]) -> None:
        """Raise if a section names a device that does not exist."""
        for name in self.devices:
            if name not in names:
                raise self._error(
                    "devices",
                    name,
                    f"is not one of the {len(names)} devices, such as {names[0]!r}: "
                    "correct the name, in quotes",
                )

    def located(
        self, error: InvalidInputError, options: Mapping[str, Any]
    ) -> InvalidInputError:
        """Return the error with the key and the line that caused it.

        The error names its argument or its column. A key that the command line
        overrides (`options` has another value) is not the cause.
        """
        section, key = self._key_of(error)
        if key not in self.values.get(section, {}):
            return error
        option = _KEYS.get(section, {}).get(key, ("", ""))[1]
        if option and options.get(option) != self.options[option]:
            return error
        return type(error)(
            f"{self._at(section, key)}: {error}",
            argument=error.argument,
            column=error.column,
        )

    def _key_of(self, error: InvalidInputError) -> tuple[str, str]:
        """Return the section and the key of an error's column or argument."""
        if error.column is None:
            return _ARGUMENTS.get(error.argument or "", ("", ""))
        if error.column == self.values["label"]["name"]:
            return "label", "name"
        if error.column == self.values["data"].get("device"):
            return "data", "device"
        return "features", error.column

    def _at(self, section: str, key: str) -> str:
        """Return file, line and key; if the key is missing, the line of its section."""
        line = line_of(self.text, (section, key)) or line_of(self.text, (section,))
        position = "" if line is None else f", line {line}"
        return f"{self.path}{position}, {'.'.join(filter(None, (section, key)))}"

    def _error(self, section: str, key: str, text: str) -> DataError:
        return DataError(f"{self._at(section, key)} {text}")


def read_config(path: str | Path) -> Config:
    """Read a file and check its keys and their types.

    Raises:
        DataError: The file cannot be read, or a key is invalid; names the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        position = f", line {match[1]}, column {match[2]}" if match else ""
        reason = str(error).split(" (at ")[0]
        raise DataError(
            f"{path}{position}: {reason[:1].lower()}{reason[1:]}: write TOML, "
            "key = value"
        ) from None
    except FileNotFoundError:
        raise DataError(
            f"config {str(path)!r} does not exist: check the path, or write one with "
            "fedbudget init"
        ) from None
    except OSError as error:
        raise DataError(
            f"config {str(path)!r} cannot be read, {error.strerror or error}: check "
            "its permissions"
        ) from None
    except UnicodeDecodeError:
        raise DataError(
            f"config {str(path)!r} is not UTF-8 text: save it as UTF-8, or name "
            "another file"
        ) from None
    config = Config(path=Path(path), text=text, values=values)
    _check(config)
    return config


def line_of(text: str, keys: Sequence[str]) -> int | None:
    r"""Return the line, counted from 1, on which a key or a section begins.

    The TOML parser itself decides which lines hold the key, in any spelling.

    >>> line_of("[budget]\ncost = 5", ("budget", "cost"))
    2
    """
    lines = text.split("\n")

    def parse_up_to(count: int) -> tuple[int, dict[str, Any]]:
        while True:  # the cut is inside a multi-line value: end before it
            try:
                return count, tomllib.loads("\n".join(lines[:count]))
            except tomllib.TOMLDecodeError:
                count -= 1

    def has_key(count: int) -> bool:
        _, values = parse_up_to(count)
        for key in filter(None, keys):
            if not isinstance(values, dict) or key not in values:
                return False
            values = values[key]
        return True

    last = bisect_left(range(len(lines) + 1), True, key=has_key)
    return parse_up_to(last - 1)[0] + 1 if last <= len(lines) else None


def options_from(context: typer.Context, value: str | None) -> str | None:
    """Read the options of a command from a config, if its data argument names one."""
    if value is None or not value.endswith(".toml"):
        return value
    config, command = read_config(value), context.info_name
    if config.devices and command not in ("plan", "train"):
        raise config._error(
            "devices",
            "",
            f"sets budgets of single devices, which {command} does not support: remove "
            "the section, or use plan or train",
        )
    ignored = () if command == "train" else _TRAIN_ONLY
    context.default_map = {
        name: option for name, option in config.options.items() if name not in ignored
    }
    return config.table


def _check(config: Config) -> None:
    """Raise for unknown or missing keys, and for values of another type."""
    for section, values in config.values.items():
        if section not in _SECTIONS:
            position = ("", section) if not isinstance(values, dict) else (section, "")
            raise config._error(
                *position, f"is not known: use only {', '.join(_SECTIONS)}"
            )
        if not isinstance(values, dict):
            raise config._error(section, "", f"must be a section: write [{section}]")
    for section, key in (("data", "table"), ("label", "name"), ("features", "")):
        keys_in_file = config.values.get(section)
        if keys_in_file is None or (key and key not in keys_in_file):
            name = f"{section}.{key}".rstrip(".")
            raise DataError(
                f"{config.path}: {name} is missing: fedbudget init writes a full file"
            )
    for section, keys in _KEYS.items():
        for key, value in config.values.get(section, {}).items():
            _check_known(config, (section, key), key, tuple(keys))
            kind = keys[key][0]
            valid = isinstance(value, _TYPES[kind])
            if not valid or (isinstance(value, bool) and kind != _TRUTH):
                raise config._error(section, key, f"must be {kind}, got {value!r}")
    for name, values in config.devices.items():
        if not isinstance(values, dict):
            raise config._error("devices", name, "must be a section of its own")
        for key, value in values.items():
            _check_known(config, ("devices", name), key, _DEVICE_KEYS)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            may_be_zero = key in _KEYS["prices"]
            if not number or value < 0 or (value == 0 and not may_be_zero):
                limit = "of at least 0" if may_be_zero else "above 0"
                raise config._error(
                    "devices", name, f"has {key} {value!r}: give a number {limit}"
                )


def _check_known(
    config: Config, position: tuple[str, str], key: str, keys: tuple[str, ...]
) -> None:
    """Raise for an unknown key, and suggest a similar one."""
    if key in keys:
        return
    subject = "" if position[1] == key else f"has the key {key!r}, which "
    raise config._error(
        *position,
        f"{subject}is not known, use one of {', '.join(keys)}: {nearest(keys, key)}",
    )


def names_the_key(command: Callable[..., None]) -> Callable[..., None]:
    """Let the errors of a command name the invalid key of its config."""

    @wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except InvalidInputError as error:
            if not str(options["schema"]).endswith(".toml"):
                raise
            raise read_config(options["schema"]).located(error, options) from None

    return run


def with_prices(text: str, prices: Mapping[str, tuple[float, str]]) -> str:
    r"""Return the file with these prices, each with its comment; the rest is unchanged.

    >>> with_prices("[prices]\ncommunication = 1  # old", {"communication": (2, "new")})
    '[prices]\ncommunication = 2.0  # new'
    """
    with needed("writing prices into a config", "tomlkit"):
        import tomlkit
        from tomlkit.items import InlineTable
    document = tomlkit.parse(text)
    table: Any = document.setdefault("prices", tomlkit.table())
    for key, (value, comment) in prices.items():
        item = tomlkit.item(float(f"{value:.6g}"))
        if not isinstance(table, InlineTable):  # a comment would end an inline table
            item.comment(comment)
            item.trivia.comment_ws = "  "
        table[key] = item
    return tomlkit.dumps(document)


def write_prices(path: str | Path, prices: Mapping[str, tuple[float, str]]) -> None:
    """Write prices into a config; its line ends are unchanged."""
    text = Path(path).read_bytes().decode("utf-8")
    line_end = "\r\n" if "\r\n" in text else "\n"
    changed = with_prices(text.replace("\r\n", "\n"), prices)
    with whole_file(path) as file:
        file.write(changed.replace("\n", line_end))
