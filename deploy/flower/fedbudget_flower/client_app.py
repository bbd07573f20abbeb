"""The ClientApp: hands bytes to the guard of this machine, and its answer back.

It needs nothing but Flower. A server could send any other code in its place, so nothing
here is trusted: the guard is a process of another user, and reads signed orders only.
"""

import socket
import struct

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

PARCEL = "parcel"
HEAD = struct.Struct(">I")  # length of what follows
PATIENCE = 600.0  # seconds: a slow device may train for long

app = ClientApp()


@app.query()
def carry(message: Message, context: Context) -> Message:
    """Carry one parcel; an empty one comes back if no guard is there."""
    guard = str(context.node_config["guard"])  # by the SuperNode's owner
    try:
        answer = exchange(guard, message.content[PARCEL][PARCEL])
    except OSError as error:
        print(f"no guard at {guard}: {error}")
        answer = b""
    return Message(
        RecordDict({PARCEL: ConfigRecord({PARCEL: answer})}), reply_to=message
    )


def exchange(path: str, parcel: bytes) -> bytes:
    """Return a guard's answer to a parcel."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guard:
        guard.settimeout(PATIENCE)
        guard.connect(path)
        guard.sendall(HEAD.pack(len(parcel)) + parcel)
        with guard.makefile("rb") as file:
            head = file.read(HEAD.size)
            answer = file.read(HEAD.unpack(head)[0]) if len(head) == HEAD.size else b""
    return answer
