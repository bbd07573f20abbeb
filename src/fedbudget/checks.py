"""Checks of arguments: each error names the argument, its value and the limit.

Readers of messages from the network and of owners' policies use these checks too. They
add checks of exact types, and raise their own kind of error.
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
# One number for all devices, or one per device; checked values are floats or arrays.
PerDevice: TypeAlias = float | Sequence[float] | Array

MAX_TEXT = 200  # characters
MAX_SEED = 2**64 - 1  # the kernels' random state is 64 bits
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


def _adds_argument(check: Callable[_Checked, _Value]) -> Callable[_Checked, _Value]:
    """Set `argument` of the check's errors to the name, its first argument."""

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


@_adds_argument
def numbers(name: str, value: ArrayLike) -> float | Array:
    """Return a number as a float, and a sequence as a read-only float64 array."""
    try:
        raw = np.asarray(value)
        # NumPy would convert text such as "5", and booleans.
        objects = raw.flat if raw.dtype == "O" else ()
        if raw.dtype.kind in "USb" or any(map(_is_not_a_number, objects)):
            raise TypeError
        array = np.array(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{name} must be a number, or one number per device, got {shown(value)}"
        ) from None
    except OverflowError:  # a whole number above the largest float
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


@_adds_argument
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

    For a list, the error names the position of the first invalid number: "for device
    1", with `of` as the noun. No position is named if `of` is empty.
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


@_adds_argument
def number(name: str, value: Any, **limits: Any) -> float:
    """Return the value as a float if it is one number inside the limits of `within`."""
    checked = within(name, value, **limits)
    if not isinstance(checked, float):
        raise InvalidInputError(f"{name} must be one number, got {shown(value)}")
    return checked


@_adds_argument
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


@_adds_argument
def one_of(name: str, value: Any, options: Collection[str]) -> str:
    """Return the value if it is one of the options."""
    if not isinstance(value, str) or value not in options:
        raise InvalidInputError(
            f"{name} {shown(value)} is not known: choose one of {', '.join(options)}"
        )
    return value


@_adds_argument
def text(name: str, value: Any, *, most: int = MAX_TEXT) -> str:
    """Return the value if it is a short text on one line."""
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise InvalidInputError(
            f"{name} must be a printable text of at most {most} characters, "
            f"got {shown(value)}"
        )
    return value


@_adds_argument
def identity(name: str, value: Any) -> str:
    """Return the value if it can name a device, in topics and in file names."""
    if not isinstance(value, str) or not _IDENTITY.match(value):
        raise InvalidInputError(
            f"{name} must be 1 to 64 letters, digits, '.', '_' or '-', "
            f"got {shown(value)}"
        )
    return value


@_adds_argument
def of_type(name: str, value: Any, *types: type) -> Any:
    """Return the value if it is exactly of one of the types: a bool is not an int.

    For values read from a file or a network. The error names the first type.
    """
    if type(value) not in types:
        raise InvalidInputError(
            f"{name} must be {_TYPES[types[0]]}, got {shown(value)}"
        )
    return value


@_adds_argument
def per_device(name: str, value: ArrayLike, num_devices: int) -> Array:
    """Return one number per device; a single number is repeated for all of them."""
    array = floats(value)
    if array.shape not in ((), (num_devices,)):
        raise InvalidInputError(
            f"{name} has {array.size} values but there are {num_devices} devices: "
            "give one number, or one per device"
        )
    return np.broadcast_to(array, (num_devices,))


def _is_not_a_number(value: object) -> bool:
    return isinstance(value, str | bytes | bool)


def _limits(above: float, least: float, below: float, most: float) -> str:
    limits = [f"above {above:g}"] if above > -np.inf else []
    limits += [f"at least {least:g}"] if least > -np.inf else []
    limits += [f"below {below:g}"] if below < np.inf else []
    limits += [f"at most {most:g}"] if most < np.inf else []
    return " and ".join([*limits, "finite"])


def _first(array: Array, invalid: NDArray[np.bool_], of: str) -> str:
    """Show the first invalid value, and its position in a list."""
    if array.ndim == 0:
        return f"{float(array):g}"
    index = int(np.argmax(invalid))
    return f"{array[index]:g}" + (f" for {of} {index}" if of else "")
