"""Why a TLS connection fails, in words; against real sockets."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from fedbudget.fleet.transport import tls_reasons
from fedbudget.fleet.transport.certificates import identity_of, make_certificates
from fedbudget.fleet.transport.mqtt import _tls
from fedbudget.fleet.transport.tls_reasons import in_words, probe


class Listener:
    """A TLS server that answers one connection after the other."""

    def __init__(
        self, folder: Path, name: str = "broker", *, plain: bool = False
    ) -> None:
        identity = identity_of(folder, name)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(identity.certificate, identity.key)
        self._context.load_verify_locations(cafile=identity.ca)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._plain = plain
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.node = ("localhost", int(self._socket.getsockname()[1]))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with link:
                try:
                    if self._plain:
                        link.recv(10)
                        link.sendall(b"HTTP/1.0 400\r\n\r\n")
                    else:
                        with self._context.wrap_socket(link, server_side=True) as inner:
                            inner.recv(1)
                except OSError:
                    continue

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the answer of a busy machine: every one of these servers gives one."""
    monkeypatch.setattr(tls_reasons, "_PROBE", 60.0)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "keys", ["oven"])
    return tmp_path / "keys"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        ("another authority", "of another authority than ca.pem"),
        ("other hosts", "for other host names"),
        ("a client's certificate", "not one for brokers"),
        ("no TLS", "does not speak TLS on this port"),
        ("nobody", "nothing listens there"),
    ],
)
def test_a_broker_that_is_not_trusted(
    tmp_path: Path, fleet: Path, make: str, says: str
) -> None:
    other, name = fleet, "broker"
    if make == "another authority":
        make_certificates(other := tmp_path / "other", [])
    if make == "other hosts":
        (fleet / "broker.pem").unlink()
        make_certificates(fleet, [], hosts=["broker.example"])
    if make == "a client's certificate":
        name = "oven"
    listener = Listener(other, name, plain=make == "no TLS")
    with socket.socket() as bound:  # a port of its own, on which nobody listens
        bound.bind(("127.0.0.1", 0))
        unheard = ("localhost", int(bound.getsockname()[1]))
        node = unheard if make == "nobody" else listener.node
        reason = probe(node, _tls(identity_of(fleet, "oven")))
    assert says in reason
    listener.close()


def test_a_client_that_is_not_trusted(tmp_path: Path, fleet: Path) -> None:
    make_certificates(tmp_path / "other", ["oven"])
    context = _tls(identity_of(tmp_path / "other", "oven"))
    context.load_verify_locations(cafile=fleet / "ca.pem")
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    listener = Listener(fleet)
    assert "does not know the authority" in probe(listener.node, context)
    listener.close()


def test_errors_that_are_not_of_tls() -> None:
    assert in_words(None) == ""
    assert in_words(TimeoutError()) == "it does not answer"
    assert in_words(socket.gaierror(-2, "x")) == "the host name is not known"
    assert in_words(OSError("no route")) == "no route"
