"""Pieces of messages: values in one short line, and counts that agree with nouns."""

import reprlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

LONGEST = 80  # characters of a value
_PICTURE = reprlib.Repr()
_PICTURE.maxlevel = 3


def shown(value: Any) -> str:
    """Return any value on one short line, however long or deeply nested it is.

    >>> shown([[[[[1]]]]])
    '[[[[...]]]]'
    """
    try:
        line = " ".join(_PICTURE.repr(value).split())
        return line if len(line) <= LONGEST else f"{line[: LONGEST - 4]} ..."
    except ValueError:  # an integer of thousands of digits, which Python won't print
        return f"a very long {type(value).__name__}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "device"), counted(2, "device")
    ('1 device', '2 devices')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def span(values: ArrayLike) -> str:
    """Return the only value, or the least and the most.

    >>> span([2, 2.0]), span([1, 2.5])
    ('2', '1 to 2.5')
    """
    least, most = f"{np.min(values):.4g}", f"{np.max(values):.4g}"
    return least if least == most else f"{least} to {most}"


def listed(names: list[str]) -> str:
    """Return names as a list in words.

    >>> listed(["low", "high"])
    "'low' and 'high'"
    """
    return " and ".join(map(shown, names))
