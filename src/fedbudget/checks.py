"""Checks of arguments: each error names the argument, its value and the limit.

All other readers use these checks too: messages from the network and the policies of
owners add the exact types, and their own kind of error.
"""

import re
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.errors import InvalidInputError
from fedbudget.text import shown

Array: TypeAlias = NDArray[np.float64]
# One number for all devices, or one each; checked values are floats or arrays.
PerDevice: TypeAlias = "float | Sequence[float] | Array"

MAX_TEXT = 200  # characters
MAX_SEED = 2**64 - 1  # what the kernels' random numbers start from
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_TYPES = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bytes: "bytes",
    list: "a list",
    dict: "a table",
}
_Checked = ParamSpec("_Checked")
_Value = TypeVar("_Value")


def _keeps_the_name(check: Callable[_Checked, _Value]) -> Callable[_Checked, _Value]:
    """Let the errors of a check keep the argument's name, which comes first."""

    @wraps(check)
    def checked(*args: _Checked.args, **kwargs: _Checked.kwargs) -> _Value:
        try:
            return check(*args, **kwargs)
        except InvalidInputError as error:
            error.argument = str(args[0])
            raise

    return checked


def floats(value: ArrayLike) -> Array:
    """Return the value as a float64 array."""
    return np.asarray(value, dtype=np.float64)


@_keeps_the_name
def numbers(name: str, value: ArrayLike) -> float | Array:
    """Return a number as a float, and a sequence as a read-only float64 array."""
    try:
        given = np.asarray(value)
        # A text may look like a number, and truth like 1: neither was meant as one.
        loose = given.flat if given.dtype == "O" else ()
        if given.dtype.kind in "USb" or any(map(_is_no_number, loose)):
            raise TypeError
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{name} must be a number, or one number per device, got {shown(value)}"
        ) from None
    except OverflowError:  # a whole number that no float holds
        raise InvalidInputError(f"{name} must be finite, got a huge number") from None
    if array.ndim == 0:
        return float(array)
    if array.ndim != 1 or array.size == 0:
        raise InvalidInputError(
            f"{name} must be a number or a flat list with one number per device, "
            f"got shape {array.shape}"
        )
    array.setflags(write=False)
    return array


@_keeps_the_name
def within(
    name: str,
    value: ArrayLike,
    *,
    above: float = -np.inf,
    least: float = -np.inf,
    below: float = np.inf,
    most: float = np.inf,
    remedy: str = "",
    of: str = "device",
) -> float | Array:
    """Return the numbers if every one is finite and inside the limits.

    Of a list, the error says whose number is wrong: which device's, or nobody's if `of`
    is empty.
    """
    checked = numbers(name, value)
    array = np.asarray(checked)
    inside = (array > above) & (array >= least) & (array < below) & (array <= most)
    inside &= np.isfinite(array)
    if not inside.all():
        raise InvalidInputError(
            f"{name} must be {_limits(above, least, below, most)}, "
            f"got {_first(array, ~inside, of)}" + (f": {remedy}" if remedy else "")
        )
    return checked


@_keeps_the_name
def number(name: str, value: Any, **limits: Any) -> float:
    """Return the value as a float if it is one number inside the limits of `within`."""
    checked = within(name, value, **limits)
    if not isinstance(checked, float):
        raise InvalidInputError(f"{name} must be one number, got {shown(value)}")
    return checked


@_keeps_the_name
def whole(name: str, value: Any, *, least: int = 1, most: int = 2**53) -> int:
    """Return the value as an int if it is a whole number inside the limits."""
    try:
        number = int(value)
        exact = number == value
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact or isinstance(value, bool) or number < least:
        raise InvalidInputError(
            f"{name} must be a whole number of at least {least}, got {shown(value)}"
        )
    if number > most:
        raise InvalidInputError(f"{name} must be at most {most}, got {shown(value)}")
    return number


def seed_number(value: Any) -> int:
    """Return the value as an int if it can seed random numbers."""
    return whole("seed", value, least=0, most=MAX_SEED)


@_keeps_the_name
def one_of(name: str, value: Any, options: Collection[str]) -> str:
    """Return the value if it is one of the options."""
    if not isinstance(value, str) or value not in options:
        raise InvalidInputError(
            f"{name} {shown(value)} is not known: choose one of {', '.join(options)}"
        )
    return value


@_keeps_the_name
def text(name: str, value: Any) -> str:
    """Return the value if it is a short text on one line."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise InvalidInputError(
            f"{name} must be a printable text of at most {MAX_TEXT} characters, "
            f"got {shown(value)}"
        )
    return value


@_keeps_the_name
def identity(name: str, value: Any) -> str:
    """Return the value if it can name a device: in topics, and in names of files."""
    if not isinstance(value, str) or not _IDENTITY.match(value):
        raise InvalidInputError(
            f"{name} must be 1 to 64 letters, digits, '.', '_' or '-', "
            f"got {shown(value)}"
        )
    return value


@_keeps_the_name
def of_type(name: str, value: Any, *types: type) -> Any:
    """Return the value if it is exactly of one of the types: a truth value is no int.

    For what was read from a file or a network. The error names the first type.
    """
    if type(value) not in types:
        raise InvalidInputError(
            f"{name} must be {_TYPES[types[0]]}, got {shown(value)}"
        )
    return value


@_keeps_the_name
def per_device(name: str, value: ArrayLike, num_devices: int) -> Array:
    """Return one number per device; a single number stands for all of them."""
    array = floats(value)
    if array.shape not in ((), (num_devices,)):
        raise InvalidInputError(
            f"{name} has {array.size} values but there are {num_devices} devices: "
            "give one number, or one per device"
        )
    return np.broadcast_to(array, (num_devices,))


def _is_no_number(value: object) -> bool:
    return isinstance(value, str | bytes | bool)


def _limits(above: float, least: float, below: float, most: float) -> str:
    limits = [f"above {above:g}"] if above > -np.inf else []
    limits += [f"at least {least:g}"] if least > -np.inf else []
    limits += [f"below {below:g}"] if below < np.inf else []
    limits += [f"at most {most:g}"] if most < np.inf else []
    return " and ".join([*limits, "finite"])


def _first(array: Array, wrong: NDArray[np.bool_], of: str) -> str:
    """Show the first wrong value, and where it is in a list."""
    if array.ndim == 0:
        return f"{float(array):g}"
    index = int(np.argmax(wrong))
    return f"{array[index]:g}" + (f" for {of} {index}" if of else "")
