"""A Unix socket for the guard, over which a local program delivers orders.

One exchange per connection: the client sends a parcel; the guard returns a parcel with
its declaration and its replies. Four bytes before a parcel give its length. The client
is untrusted, such as code that a server has sent to a Flower SuperNode: an order has no
effect without a trusted coordinator's signature. The client must run as another user
than the guard, because a program of the guard's user can read the rows and rewrite the
ledger.
"""

import errno
import logging
import os
import socket
import stat
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.wire.framing import Outgoing, pack, unpack

_log = logging.getLogger(__name__)

HEAD = struct.Struct(">I")  # length of the parcel that follows
_TIMEOUT = 10.0  # seconds to receive a parcel, and to send the replies
_MODE = 0o660  # the client's user gets access by the group


class SocketDevice(Protocol):
    """The interface of a device that is served over a socket."""

    REFRESH: float  # seconds between two checks of the data file
    most_bytes: int  # of a parcel

    def hello(self) -> list[Outgoing]:
        """Return the first messages of every exchange."""
        ...

    def handle(self, topic: str, payload: bytes) -> list[Outgoing]:
        """Return the replies to a message."""
        ...

    def refresh(self) -> list[Outgoing]:
        """Check the data file."""
        ...


def serve_socket(device: SocketDevice, path: Path, stop: threading.Event) -> None:
    """Answer parcels until `stop` is set.

    Raises:
        InvalidInputError: The socket cannot be created at this path.
    """
    listener = _listen(path)
    warned, checked = False, time.monotonic()
    try:
        while not stop.is_set():
            if time.monotonic() - checked >= device.REFRESH:
                device.refresh()  # the next exchange sends the declaration
                checked = time.monotonic()
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                warned = warned or _warn_of_peer(connection)
                try:
                    _exchange(device, connection)
                except (OSError, MessageError) as error:
                    _log.warning("an exchange is aborted: %s", error)
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The first name is short (an address has at most 108 bytes) and random: guards in
    # containers may share a folder, and have one process number.
    unready = path.with_name(f".{os.urandom(4).hex()}")
    try:
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "the file is no socket")
        # Where the socket's file is, it accepts: a client that waits for the file is
        # not refused.
        listener.bind(str(unready))
        os.chmod(unready, _MODE)
        listener.listen(8)
        # The guard holds its ledger's lock: an existing socket is left from a crash.
        unready.rename(path)
    except OSError as error:
        listener.close()
        with suppress(OSError):
            unready.unlink()
        raise InvalidInputError(
            f"socket.file {str(path)!r} cannot be used ({error}): choose a short path "
            "in a folder that the guard may write to"
        ) from None
    listener.settimeout(1.0)
    return listener


def _exchange(device: SocketDevice, connection: socket.socket) -> None:
    end = time.monotonic() + _TIMEOUT
    (length,) = HEAD.unpack(_read(connection, HEAD.size, end))
    if length > device.most_bytes:
        raise MessageError(f"{length} bytes are above the limit of {device.most_bytes}")
    messages = unpack(_read(connection, length, end), limit=device.most_bytes)
    replies = [reply for message in messages for reply in device.handle(*message)]
    answer = pack((out.topic, out.payload) for out in [*device.hello(), *replies])
    connection.settimeout(_TIMEOUT)
    connection.sendall(HEAD.pack(len(answer)) + answer)


def _read(connection: socket.socket, count: int, end: float) -> bytes:
    """Return `count` bytes, if all of them arrive before `end`."""
    data = bytearray()
    while len(data) < count:
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError(f"only {len(data)} of {count} bytes came in time")
        connection.settimeout(remaining)
        piece = connection.recv(min(1 << 20, count - len(data)))
        if not piece:
            raise MessageError(f"cut off after {len(data)} of {count} bytes")
        data += piece
    return bytes(data)


def _warn_of_peer(connection: socket.socket) -> bool:
    """Warn if the client runs as the guard's user or root; return whether it does."""
    if not hasattr(socket, "SO_PEERCRED"):  # Linux only
        return False
    layout = struct.Struct("3i")  # process, user, group
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    _, user, _ = layout.unpack(peer)
    if user not in (0, os.getuid()):
        return False
    _log.warning(
        "orders come from a program of user %d, which can read the rows and rewrite "
        "the ledger: run it as another user than the guard",
        user,
    )
    return True
