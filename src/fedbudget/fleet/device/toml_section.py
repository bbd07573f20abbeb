"""A table of a TOML file, read key by key; every mistake names the file and the key."""

from pathlib import Path
from typing import Any, NoReturn

from fedbudget.checks import choice, whole, within
from fedbudget.errors import InvalidInputError, MessageError

_NOTHING = object()


class Section:
    """One table of the file; knows which of its keys were used."""

    def __init__(self, path: Path, name: str, plain: dict[str, Any]) -> None:
        self.plain = plain
        self._path, self._name = path, name
        self._used: set[str] = set()

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise, naming the file and the key."""
        where = f"{self._name}.{key}" if self._name else key
        raise InvalidInputError(f"policy {str(self._path)!r}: {where} {why}")

    def section(self, key: str, *, optional: bool = False) -> "Section":
        """Return a table inside this one."""
        default = {} if optional else _NOTHING
        plain = self.get(key, kinds=(dict,), default=default)
        name = f"{self._name}.{key}" if self._name else key
        return Section(self._path, name, plain)

    def get(self, key: str, *, kinds: tuple[type, ...], default: Any = _NOTHING) -> Any:
        """Return a value of one of these types."""
        self._used.add(key)
        if key not in self.plain:
            if default is _NOTHING:
                self.refuse(key, "is missing")
            return default
        value = self.plain[key]
        if not isinstance(value, kinds) or (isinstance(value, bool)):
            words = {str: "a text", dict: "a table", list: "a list", int: "a number"}
            self.refuse(key, f"must be {words[kinds[0]]}, got {value!r}")
        return value

    def checked(self, key: str, check: Any, default: Any = _NOTHING) -> Any:
        """Return a text that passes a check of messages."""
        value = self.get(key, kinds=(str,), default=default)
        try:
            return check(key, value)
        except MessageError as error:
            self.refuse(key, str(error).removeprefix(f"{key} "))

    def number(self, key: str, *, default: Any = _NOTHING, **limits: float) -> float:
        """Return a finite number inside limits."""
        value = self.get(key, kinds=(int, float), default=default)
        try:
            return float(within(key, value, **limits))  # type: ignore[arg-type]
        except InvalidInputError as error:
            self.refuse(key, str(error).removeprefix(f"{key} "))

    def whole(self, key: str, *, default: Any = _NOTHING, **limits: int) -> int:
        """Return a whole number inside limits."""
        value = self.get(key, kinds=(int,), default=default)
        try:
            return whole(key, value, **limits)
        except InvalidInputError as error:
            self.refuse(key, str(error).removeprefix(f"{key} "))

    def choice(self, key: str, options: tuple[str, ...], *, default: str) -> str:
        """Return one of a few words."""
        value = self.get(key, kinds=(str,), default=default)
        try:
            return choice(key, value, options)
        except InvalidInputError as error:
            self.refuse(key, str(error).removeprefix(f"{key} "))

    def texts(self, key: str, *, default: Any = _NOTHING) -> tuple[str, ...]:
        """Return a list of texts, at least one."""
        value = self.get(key, kinds=(list,), default=default)
        if not value or not all(isinstance(item, str) for item in value):
            self.refuse(key, f"must be a list of texts, at least one, got {value!r}")
        return tuple(value)

    def path(self, key: str, folder: Path, *, default: Any = _NOTHING) -> Path:
        """Return a path, relative to the policy."""
        return folder / str(self.get(key, kinds=(str,), default=default))

    def finish(self) -> None:
        """Refuse keys that mean nothing."""
        for key in self.plain:
            if key not in self._used:
                known = ", ".join(sorted(self._used))
                self.refuse(key, f"is not known: use only {known}")
