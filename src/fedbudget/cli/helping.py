"""Commands whose help shows a flag by its name alone, not as one that takes a value."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _plain(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class PlainCommand(TyperCommand):
    """A command; `--help` is among its flags too."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options and arguments."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options and arguments."""
        return _plain(super().get_params(ctx))
