"""A relay between a client and its broker: it counts bytes, and breaks connections."""

import random
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass


@dataclass(eq=False)
class _Link:
    """One connection through the relay."""

    client: socket.socket
    broker: socket.socket
    frozen: bool = False
    bytes_left: int | None = None  # until it is cut; None: it is not

    def close(self) -> None:
        for end in (self.client, self.broker):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Relay:
    """Passes bytes on to a broker on a loopback port.

    Args:
        port: Of the broker.
        rng: If given, it cuts every connection after a random number of bytes.
        mean_bytes: Of these numbers.
        rate: Bytes per second to the client; None: as fast as it can.
    """

    def __init__(
        self,
        port: int,
        *,
        rng: random.Random | None = None,
        mean_bytes: int = 20_000,
        rate: float | None = None,
    ) -> None:
        self._rate = rate
        self._target, self._rng, self._mean_bytes = port, rng, mean_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.sent = self.received = self.cuts = 0  # bytes of the client; connections
        self._links: list[_Link] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections, and accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def freeze(self) -> None:
        """Pass nothing on any more, without a word: half-open connections.

        New connections work.
        """
        for link in list(self._links):  # threads remove some meanwhile
            link.frozen = True

    def cut(self) -> None:
        """End all connections."""
        for link in list(self._links):
            link.close()

    def heal(self) -> None:
        """Cut no more connections."""
        self._rng = None
        for link in list(self._links):
            link.bytes_left = None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                broker = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the broker is down
                client.close()
                continue
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, broker)
            rng = self._rng  # another thread may take it away
            if rng is not None:
                link.bytes_left = int(rng.expovariate(1 / self._mean_bytes))
            self._links.append(link)
            threading.Thread(target=self._pass_on, args=(link,), daemon=True).start()

    def _pass_on(self, link: _Link) -> None:
        ends = {link.client: link.broker, link.broker: link.client}
        with suppress(OSError, ValueError):  # closed by another thread
            while True:
                for source in select.select(list(ends), [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        raise ConnectionError
                    if not link.frozen:
                        self._pass(link, source, ends[source], data)
        link.close()
        self._links.remove(link)

    def _pass(
        self, link: _Link, source: socket.socket, target: socket.socket, data: bytes
    ) -> None:
        if link.bytes_left is not None:
            data = data[: link.bytes_left]
            link.bytes_left -= len(data)
        if source is link.client:
            self.sent += len(data)
        else:
            self.received += len(data)
        target.sendall(data)
        if self._rate is not None and source is link.broker:
            time.sleep(len(data) / self._rate)
        if link.bytes_left == 0:
            self.cuts += 1
            raise ConnectionError
