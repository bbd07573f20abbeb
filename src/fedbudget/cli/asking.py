"""From options on the command line to the arguments of a command."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

from fedbudget.cli.config import read_config
from fedbudget.cli.options import PANELS
from fedbudget.errors import InvalidInputError


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its question, in place of its first argument."""
    first, *own = inspect.signature(command, eval_str=True).parameters.values()
    question = first.annotation
    hints = get_type_hints(question, include_extras=True)
    shared = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default,
            annotation=hints[item.name],
        )
        for item in fields(question)
    ]

    def asked(**values: Any) -> None:
        told = {item.name: values[item.name] for item in shared}
        rest = {name: value for name, value in values.items() if name not in told}
        try:
            command(question(**told), **rest)
        except InvalidInputError as error:
            if not str(told["schema"]).endswith(".toml"):
                raise
            raise read_config(told["schema"]).located(error, values) from None

    signature = inspect.Signature(sorted([*own, *shared], key=_place))
    asked.__name__, asked.__doc__ = command.__name__, command.__doc__
    asked.__annotations__ = {n: p.annotation for n, p in signature.parameters.items()}
    asked.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
    return asked


def _place(option: inspect.Parameter) -> int:
    """Return where help shows an option: its panels come in the order of PANELS."""
    (told,) = option.annotation.__metadata__
    return PANELS.index(told.rich_help_panel) if told.rich_help_panel else -1


def numbers(name: str, text: str) -> list[float]:
    """Read a list of numbers, such as ``1,2,4,10``.

    >>> numbers("--epsilons", "1, 2.5")
    [1.0, 2.5]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError(
            f"{name} {text!r} is not a list of numbers: write them as 1,2,4,10"
        ) from None
