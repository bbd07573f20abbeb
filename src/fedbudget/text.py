"""Parts of messages: values on one short line, counts with their nouns."""

import reprlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

MAX_LENGTH = 80  # characters of a value
_REPR = reprlib.Repr()
_REPR.maxlevel = 3


def shown(value: Any) -> str:
    """Return any value on one short line, however long or deeply nested it is.

    >>> shown([[[[[1]]]]])
    '[[[[...]]]]'
    """
    try:
        line = " ".join(_REPR.repr(value).split())
        return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 4]} ..."
    except ValueError:  # Python does not print integers of thousands of digits
        return f"a very long {type(value).__name__}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "device"), counted(2, "device")
    ('1 device', '2 devices')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def span(values: ArrayLike) -> str:
    """Return the only value, or the minimum and the maximum.

    >>> span([2, 2.0]), span([1, 2.5])
    ('2', '1 to 2.5')
    """
    low, high = f"{np.min(values):.4g}", f"{np.max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def listed(names: list[str]) -> str:
    """Return quoted names, joined by "and".

    >>> listed(["low", "high"])
    "'low' and 'high'"
    """
    return " and ".join(map(shown, names))
