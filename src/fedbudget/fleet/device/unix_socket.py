"""A guard behind a Unix socket, for orders that another program on its machine carries.

One exchange per connection: a parcel goes in, the device's declaration and its replies
come out, each after four bytes that tell its length. The program that carries them may
be anybody's, such as code that a server has sent to a Flower SuperNode. It gets no more
than any other network would: orders that no trusted coordinator has signed do nothing.
But it must run as another user than the guard, for a program of the guard's own user
can read the rows and rewrite the ledger without asking.
"""

import logging
import os
import socket
import stat
import struct
import threading
import time
from pathlib import Path
from typing import Protocol

from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.wire.framing import Outgoing, pack, unpack

_log = logging.getLogger(__name__)

HEAD = struct.Struct(">I")  # length of what follows
_PATIENCE = 10.0  # seconds for a parcel to come in, and for the replies to go out
_MODE = 0o660  # the owner gives the carrying user its group


class CarriedDevice(Protocol):
    """What is asked of a device whose messages another program carries."""

    REFRESH: float  # seconds between two looks at the data file
    most_bytes: int  # of a parcel

    def hello(self) -> list[Outgoing]:
        """Return what every exchange says first."""
        ...

    def handle(self, topic: str, payload: bytes) -> list[Outgoing]:
        """Return the answers to a message."""
        ...

    def refresh(self) -> list[Outgoing]:
        """Look at the data file."""
        ...


def serve_socket(device: CarriedDevice, path: Path, stop: threading.Event) -> None:
    """Answer parcels until told to stop.

    Raises:
        InvalidInputError: The socket cannot be made there.
    """
    listener = _listen(path)
    warned, looked = False, time.monotonic()
    try:
        while not stop.is_set():
            if time.monotonic() - looked >= device.REFRESH:
                device.refresh()  # the next exchange declares it anyway
                looked = time.monotonic()
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                warned = warned or _warn_of_peer(connection)
                try:
                    _exchange(device, connection)
                except (OSError, MessageError) as error:
                    _log.warning("an exchange is given up: %s", error)
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Our ledger's lock is held: a socket that is there was left by a crash.
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
        listener.bind(str(path))
        os.chmod(path, _MODE)  # nobody can connect before listen
        listener.listen(8)
    except OSError as error:
        listener.close()
        raise InvalidInputError(
            f"socket.file {str(path)!r} cannot be used ({error}): choose a short path "
            "in a folder that the guard may write to"
        ) from None
    listener.settimeout(1.0)
    return listener


def _exchange(device: CarriedDevice, connection: socket.socket) -> None:
    end = time.monotonic() + _PATIENCE
    (length,) = HEAD.unpack(_read(connection, HEAD.size, end))
    if length > device.most_bytes:
        raise MessageError(f"{length} bytes are above the limit of {device.most_bytes}")
    messages = unpack(_read(connection, length, end), limit=device.most_bytes)
    replies = [reply for message in messages for reply in device.handle(*message)]
    answer = pack((out.topic, out.payload) for out in [*device.hello(), *replies])
    connection.settimeout(_PATIENCE)
    connection.sendall(HEAD.pack(len(answer)) + answer)


def _read(connection: socket.socket, count: int, end: float) -> bytes:
    """Return so many bytes, if they come before the end, however slowly."""
    found = bytearray()
    while len(found) < count:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{len(found)} of {count} bytes came in time")
        connection.settimeout(left)
        piece = connection.recv(min(1 << 20, count - len(found)))
        if not piece:
            raise MessageError(f"cut off after {len(found)} of {count} bytes")
        found += piece
    return bytes(found)


def _warn_of_peer(connection: socket.socket) -> bool:
    """Tell once if the other program has the rights of the guard; return if so."""
    if not hasattr(socket, "SO_PEERCRED"):  # only Linux tells
        return False
    kind = struct.Struct("3i")  # process, user, group
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, kind.size)
    _, user, _ = kind.unpack(told)
    if user not in (0, os.getuid()):
        return False
    _log.warning(
        "orders are brought by a program of user %d, which can read the rows and "
        "rewrite the ledger without asking: run it as another user than the guard",
        user,
    )
    return True
