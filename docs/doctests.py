"""What docstrings lack on the library's page: code blocks, and comments on fields."""

import re
from pathlib import Path
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(>>> .*(?:\n(?!$).*)*)", re.MULTILINE)


def fenced(text: str) -> str:
    """Return a docstring whose examples are code; else `>>>` would be a quotation."""
    return _EXAMPLE.sub(r"```pycon\n\1\n```", text)


def comment(line: str) -> str:
    """Return the comment at the end of a line.

    >>> comment("tau: int  # local steps between two uploads")
    'Local steps between two uploads.'
    """
    _, _, text = line.partition("  # ")
    return f"{text[0].upper()}{text[1:].strip()}." if text else ""


class Doctests(griffe.Extension):
    """Goes through all that the page shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object, or make one of its comment."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
        elif obj.is_attribute and obj.lineno and isinstance(obj.filepath, Path):
            line = obj.filepath.read_text(encoding="utf-8").splitlines()[obj.lineno - 1]
            if text := comment(line):
                obj.docstring = griffe.Docstring(text, parent=obj)
