"""Why a TLS connection fails, in words: what is wrong, and what to do."""

import socket
import ssl

_PROBE = 3.0  # seconds

# Parts of OpenSSL's texts, and what they mean for a fleet. The first match counts.
_ALERTS = (
    ("CERTIFICATE_EXPIRED", "the broker says that this certificate has expired: renew"),
    ("CERTIFICATE_REVOKED", "this certificate is revoked: enrol this machine again"),
    ("UNKNOWN_CA", "the broker does not know the authority of this certificate"),
    ("CERTIFICATE_REQUIRED", "the broker wants a certificate, and got none"),
    ("BAD_CERTIFICATE", "the broker does not accept this certificate"),
    ("HANDSHAKE_FAILURE", "the broker and this machine have no TLS settings in common"),
    ("WRONG_VERSION_NUMBER", "the broker does not speak TLS on this port"),
    ("UNEXPECTED_EOF", "the broker ended the connection during the TLS handshake"),
    ("PROTOCOL_VERSION", "the broker speaks only an older TLS than 1.2"),
)
# X509_V_ERR_* of a broker's certificate.
_VERIFY = {
    3: "crl.pem is of another authority than the broker's certificate: copy ca.pem and "
    "crl.pem again",
    9: "the broker's certificate is not valid yet: check this machine's clock",
    10: "the broker's certificate has expired: renew it (fedbudget certs renew), or "
    "check this machine's clock",
    11: "the list of revoked certificates is not valid yet: check this machine's clock",
    12: "the list of revoked certificates has expired: run fedbudget certs renew and "
    "copy ca.pem and crl.pem, or check this machine's clock",
    18: "the broker's certificate is self-signed, not of this fleet",
    19: "the broker's certificate is of another authority than ca.pem",
    20: "the broker's certificate is of another authority than ca.pem",
    23: "the broker's certificate is revoked",
    26: "the broker's certificate is not one for brokers",
    62: "the broker's certificate is for other host names than the one in use",
    64: "the broker's certificate is for other addresses than the one in use",
}


def in_words(error: BaseException | None) -> str:
    """Return why a connection failed; empty if it is not known.

    >>> in_words(ConnectionRefusedError())
    'nothing listens there'
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY.get(error.verify_code, error.verify_message)
    if isinstance(error, ssl.SSLError):
        text = f"{error.reason or ''} {error}".upper().replace(" ", "_")
        for part, words in _ALERTS:
            if part in text:
                return words
        return f"TLS fails ({error.reason or error})"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return "" if error is None else str(error)


def probe(node: tuple[str, int], context: ssl.SSLContext) -> str:
    """Connect once, and return in words why that fails; empty if it does not.

    With TLS 1.3, a broker refuses a client's certificate after the handshake: the
    reason comes with the first read.
    """
    host, _ = node
    try:
        with (
            socket.create_connection(node, timeout=_PROBE) as plain,
            context.wrap_socket(plain, server_hostname=host) as link,
        ):
            link.settimeout(_PROBE)
            if link.recv(1):
                return ""
    except TimeoutError:
        return ""  # it waits for a first message, as it should
    except OSError as error:
        return in_words(error)
    return "the broker ended the connection: it may not accept this certificate"
