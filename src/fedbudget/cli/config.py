"""`fedbudget.toml`: a table, its public columns, budgets and prices, in one file.

A command that is given such a file takes its options from there; what is given on the
command line as well counts instead. Every error names the key and the line.
"""

import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from fedbudget.data import Schema
from fedbudget.data.columns import check_name
from fedbudget.errors import DataError, NotPrivateWarning

_TEXT, _NUMBER, _WHOLE, _TRUTH = "a text", "a number", "a whole number", "true or false"
_EITHER = "a text or a number"
_TYPES: Mapping[str, tuple[type, ...]] = {
    _TEXT: (str,),
    _NUMBER: (int, float),
    _WHOLE: (int,),
    _TRUTH: (bool,),
    _EITHER: (str, int, float),
}

# Section, key, what it must be, and the option it stands for ("" is none).
_KEYS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "data": {
        "table": (_TEXT, ""),
        "device": (_TEXT, "device"),
        "partition": (_TEXT, "partition"),
        "missing": (_TEXT, "missing"),
        "intercept": (_TRUTH, ""),
        "public_bounds": (_TRUTH, ""),
    },
    "budget": {name: (_NUMBER, name) for name in ("epsilon", "delta", "cost")},
    "prices": {
        "communication": (_NUMBER, "communication_price"),
        "computation": (_NUMBER, "computation_price"),
        "computation_per_sample": (_NUMBER, "computation_price_per_sample"),
    },
    "plan": {
        "planner": (_TEXT, "planner"),
        "accountant": (_TEXT, "accountant"),
        "weights": (_TEXT, "weights"),
        "target": (_TEXT, "target"),
        "loss": (_TEXT, "loss"),
        "l2": (_NUMBER, "l2"),
        "dissimilarity": (_EITHER, "dissimilarity"),
        "batch_size": (_WHOLE, "batch_size"),
        "sampling": (_TEXT, "sampling"),
        "learning_rate": (_NUMBER, "learning_rate"),
    },
    "train": {
        "seed": (_WHOLE, "seed"),
        "participation": (_NUMBER, "participation"),
        "personal": (_TRUTH, "personal"),
        "out": (_TEXT, "out"),
    },
}
_SECTIONS = (*_KEYS, "label", "features", "devices")
_OF_A_DEVICE = (*_KEYS["budget"], *_KEYS["prices"])
_TRAIN_ONLY = ("participation", "personal", "out")

_HEADER = re.compile(r"""^\s*\[\s*("[^"]*"|'[^']*'|[^\[\]]+?)\s*\]\s*(#.*)?$""")
_ENTRY = re.compile(r"""^\s*("(?:[^"\\]|\\.)*"|'[^']*'|[\w-]+)\s*=""")


@dataclass(frozen=True, kw_only=True, eq=False)
class Config:
    """A file that was read: its values, and the line of every key."""

    path: Path
    values: dict[str, Any]  # section -> key -> value
    lines: dict[tuple[str, str], int]  # (section, key) -> line; key "": the header

    @property
    def table(self) -> str:
        """The table's path; a relative one is relative to the file."""
        return str(self.path.parent / self.values["data"]["table"])

    @property
    def schema(self) -> Schema:
        """The public bounds and categories; warns where they were only read off."""
        if not self.values["data"].get("public_bounds", False):
            warnings.warn(
                f"{self._at('data', 'public_bounds')}: bounds and categories may still "
                "be those read from the rows, and no privacy guarantee covers them; "
                "replace them by what is publicly known, then set it to true",
                NotPrivateWarning,
                stacklevel=2,
            )
        return Schema.from_dict(
            {
                "label": self.values["label"],
                "features": self.values["features"],
                "intercept": self.values["data"].get("intercept", True),
            }
        )

    @property
    def options(self) -> dict[str, Any]:
        """The values of the command line's options, by their names."""
        found = {"label": self.values["label"]["name"], "schema": str(self.path)}
        for section, keys in _KEYS.items():
            for key, value in self.values.get(section, {}).items():
                if keys[key][1]:
                    found[keys[key][1]] = value
        return found

    @property
    def devices(self) -> dict[str, dict[str, float]]:
        """Budgets and prices of single devices, by name; they stand before all."""
        found: dict[str, dict[str, float]] = self.values.get("devices", {})
        return found

    def check_devices(self, names: Sequence[str]) -> None:
        """Refuse budgets of a device that is not there."""
        for name in self.devices:
            if name not in names:
                raise self._wrong(
                    "devices",
                    name,
                    f"is not one of the {len(names)} devices, such as {names[0]!r}: "
                    "correct the name, in quotes",
                )

    def located(self, error: Exception, told: Mapping[str, Any]) -> Exception:
        """Return the error with the key and the line that it is about.

        Messages begin by naming the thing: the key they name first is the one. A key
        that the command line overruled (`told` has another value) is not to blame.
        """
        message = str(error)
        places = [(message.find(name), *at) for name, at in self._names()]
        for section, keys in _KEYS.items():
            for key, value in self.values.get(section, {}).items():
                match = re.search(rf"(?<![\w-]){key}(?![\w-])", message)
                if match and told.get(keys[key][1], value) == value:
                    places.append((match.start(), section, key))
        named = sorted(place for place in places if place[0] >= 0)
        if not named:
            return error
        _, section, key = named[0]
        return type(error)(f"{self._at(section, key)}: {message}")

    def _names(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yield the table and its columns as messages quote them, and their places."""
        yield repr(self.table), ("data", "table")
        yield repr(self.values["label"]["name"]), ("label", "name")
        yield repr(self.values["data"].get("device")), ("data", "device")
        for name in self.values["features"]:
            yield repr(name), ("features", name)

    def _at(self, section: str, key: str) -> str:
        line = self.lines.get((section, key), self.lines.get((section, "")))
        place = "" if line is None else f", line {line}"
        return f"{self.path}{place}, {section}.{key}".rstrip(".")

    def _wrong(self, section: str, key: str, what: str) -> DataError:
        return DataError(f"{self._at(section, key)} {what}")


def read_config(path: str | Path) -> Config:
    """Read a file and check its keys and their types.

    Raises:
        DataError: It cannot be read, or a key is wrong; the message has its line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f", line {place[1]}, column {place[2]}" if place else ""
        said = str(error).split(" (at ")[0]
        raise DataError(
            f"{path}{where}: {said[:1].lower()}{said[1:]}: write TOML, key = value"
        ) from None
    except FileNotFoundError:
        raise DataError(
            f"config {str(path)!r} is not there: check the path, or write one with "
            "fedbudget init"
        ) from None
    except OSError as error:
        raise DataError(
            f"config {str(path)!r} cannot be read, {error.strerror or error}: check "
            "its permissions"
        ) from None
    except UnicodeDecodeError:
        raise DataError(
            f"config {str(path)!r} is not text in UTF-8: save it as such, or name "
            "another file"
        ) from None
    config = Config(path=Path(path), values=values, lines=key_lines(text))
    _check(config)
    return config


def key_lines(text: str) -> dict[tuple[str, str], int]:
    r"""Return the line of every section and key, counted from 1.

    >>> key_lines("[budget]\ncost = 5")
    {('budget', ''): 1, ('budget', 'cost'): 2}
    """
    lines: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            first, _, rest = header[1].partition(".")
            first, rest = first.strip().strip("\"'"), rest.strip().strip("\"'")
            lines.setdefault((first, rest), number)
            section = f"{first}.{rest}" if rest else first
        elif entry := _ENTRY.match(line):
            lines.setdefault((section, entry[1].strip("\"'")), number)
    return lines


def options_from(context: typer.Context, value: str | None) -> str | None:
    """Take the options of a command from a config, if that is what its data are."""
    if value is None or not value.endswith(".toml"):
        return value
    config, command = read_config(value), context.info_name
    if config.devices and command not in ("plan", "train"):
        raise config._wrong(
            "devices",
            "",
            f"sets budgets of single devices, which {command} cannot honour: leave the "
            "section out, or use plan or train",
        )
    left_out = () if command == "train" else _TRAIN_ONLY
    context.default_map = {
        name: held for name, held in config.options.items() if name not in left_out
    }
    return config.table


def _check(config: Config) -> None:
    """Refuse unknown or missing keys, and values of another type."""
    for section, values in config.values.items():
        if section not in _SECTIONS:
            place = ("", section) if not isinstance(values, dict) else (section, "")
            raise config._wrong(
                *place, f"is not known: use only {', '.join(_SECTIONS)}"
            )
        if not isinstance(values, dict):
            raise config._wrong(section, "", f"must be a section: write [{section}]")
    for section, key in (("data", "table"), ("label", "name"), ("features", "")):
        inside = config.values.get(section)
        if inside is None or (key and key not in inside):
            named = f"{section}.{key}".rstrip(".")
            raise DataError(
                f"{config.path}: {named} is missing: fedbudget init writes a whole file"
            )
    for section, keys in _KEYS.items():
        for key, value in config.values.get(section, {}).items():
            _check_known(config, (section, key), key, tuple(keys))
            kind = keys[key][0]
            fits = isinstance(value, _TYPES[kind])
            if not fits or (isinstance(value, bool) and kind != _TRUTH):
                raise config._wrong(section, key, f"must be {kind}, got {value!r}")
    for name, held in config.devices.items():
        if not isinstance(held, dict):
            raise config._wrong("devices", name, "must be a section of its own")
        for key, value in held.items():
            _check_known(config, ("devices", name), key, _OF_A_DEVICE)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            free = key in _KEYS["prices"]
            if not number or value < 0 or (value == 0 and not free):
                least = "zero or more" if free else "above 0"
                raise config._wrong(
                    "devices", name, f"has {key} {value!r}: give a number {least}"
                )


def _check_known(
    config: Config, place: tuple[str, str], key: str, keys: tuple[str, ...]
) -> None:
    """Refuse a key that means nothing here, and say which is near."""
    try:
        check_name(keys, key)
    except DataError as error:
        hint = str(error).rsplit(": ", 1)[1]
        named = "" if place[1] == key else f"has the key {key!r}, which "
        raise config._wrong(
            *place, f"{named}is not known, use one of {', '.join(keys)}: {hint}"
        ) from None


def with_prices(text: str, prices: Mapping[str, tuple[float, str]]) -> str:
    r"""Return the file with these prices, each with its comment; all else stays.

    >>> with_prices("[prices]\ncommunication = 1  # old", {"communication": (2, "new")})
    '[prices]\ncommunication = 2  # new\n'
    """
    lines, places = text.splitlines(), key_lines(text)
    if ("prices", "") not in places:
        lines += ["", "[prices]"]
        places[("prices", "")] = len(lines)
    added = []
    for key, (value, comment) in prices.items():
        line = f"{key} = {value:.6g}  # {comment}"
        if ("prices", key) in places:
            lines[places["prices", key] - 1] = line
        else:
            added.append(line)
    header = places["prices", ""]
    return "\n".join([*lines[:header], *added, *lines[header:]]) + "\n"
