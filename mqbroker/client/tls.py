"""Client-side TLS: server verification, client certificates, and explanations of handshake errors.

The standard library's TLS, for the asyncio and the blocking API; `deferred_tls` is Twisted's. Nothing here
connects.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

from mqbroker.client.errors import TlsFailed
from mqbroker.config.system import StampedFiles
from mqbroker.errors import BadTls, ConnectionClosed, MQError
from mqbroker.wire.command import FRAME_BYTES_MAX

C = TypeVar("C")

#: Servers often have a smaller frame limit than this.
_LARGE_BYTES = 1024 * 1024

#: X509_V_ERR_* of OpenSSL.
_NOT_YET_VALID, _EXPIRED = 9, 10
OTHER_NAME, _OTHER_ADDRESS = 62, 64
_UNTRUSTED = {
    18: "it is signed by itself",
    19: "its chain ends with an authority that is not among the trusted ones",
    20: "its authority is not among the trusted ones",
    21: "its authority is not among the trusted ones",
}


@attrs.frozen(kw_only=True)
class ClientTls:
    """TLS settings of a client's connections to name servers and brokers. Files are PEM.

    The server's certificate must be signed by an authority in `ca_file`, or by one that the system trusts, and be for
    the name or address by which the server is reached, or for `server_name`. With `insecure` servers are not verified:
    the connection is encrypted, but possibly to an attacker. `cert_file`, with `key_file` unless it contains the key
    too, is presented to servers that request it. Raises BadTls if these contradict each other.
    """

    ca_file: str | None = None
    server_name: str | None = None
    insecure: bool = False
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.insecure and (self.ca_file or self.server_name):
            raise BadTls("insecure=True verifies nothing: leave out either insecure, or ca_file and server_name")
        if self.key_file and not self.cert_file:
            raise BadTls(f"{self.key_file}: a private key needs its certificate, and cert_file is not set")

    def name_of(self, host: str) -> str:
        """The name that the certificate of the server at `host` must have."""
        return self.server_name or host


class Contexts(Generic[C]):
    """The TLS context, created again when its files have changed."""

    def __init__(self, tls: ClientTls, make: Callable[[ClientTls], C]) -> None:
        """Raises BadTls if the files cannot be used."""
        self.tls = tls
        self._files = StampedFiles(lambda: make(tls), tls.ca_file, tls.cert_file, tls.key_file)

    def current(self) -> C:
        """Raises BadTls as long as none can be created from the files as they are."""
        self._files.read_if_changed()
        return self._files.content


def ssl_context(tls: ClientTls) -> ssl.SSLContext:
    """The standard library's context. Raises BadTls."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file:
        _check_readable(tls.ca_file)
        try:
            context.load_verify_locations(tls.ca_file)
        except ssl.SSLError:
            raise BadTls(f"{tls.ca_file}: no certificates can be read there; it must be a PEM file") from None
    else:
        context.load_default_certs()
    if tls.cert_file:
        _show_certificate(context, tls, tls.cert_file)
    return context


def _show_certificate(context: ssl.SSLContext, tls: ClientTls, cert_file: str) -> None:
    for path in (cert_file, tls.key_file):
        _check_readable(path or cert_file)
    try:
        # Without this callback OpenSSL would ask for a key's password on the terminal.
        context.load_cert_chain(cert_file, tls.key_file, lambda: tls.key_password or "")
    except (ssl.SSLError, ValueError):
        # The library's message may quote the content.
        raise BadTls(
            f"{tls.key_file or cert_file}: no private key of the certificate in {cert_file} can be read there with the"
            " password that is set; both must be PEM and belong together"
        ) from None


def _check_readable(path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise BadTls(f"{path}: {error.strerror}") from None


# --- what went wrong


#: Parts of the alerts that servers send where they want another certificate, or one at all.
_ABOUT_CERTIFICATES = ("certificate", "handshake failure", "unknown ca", "access denied")


def is_alert(error: OSError) -> bool:
    """Whether it is an alert of the peer, which closes the connection."""
    return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")


def ssl_failed(addr: str, tls: ClientTls, error: OSError) -> MQError:
    """Explain an error of the standard library, in a handshake or after it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return not_trusted(addr, tls, error.verify_code)
    if isinstance(error, ssl.SSLError):
        return tls_failed(addr, tls, (error.reason or "").replace("_", " ").lower())
    return tls_failed(addr, tls, "")


def tls_failed(addr: str, tls: ClientTls, reason: str) -> MQError:
    """Explain OpenSSL's `reason`, in lower case; empty if the server closed the connection."""
    if not reason or "unexpected eof" in reason:
        # A server that stops does so, too: trying again can help, and unencrypted is not what was asked for.
        return ConnectionClosed(
            f"the connection to {addr} was closed during the TLS handshake: the server may be stopping, or may not"
            " accept TLS (tls.server.mode=disabled)"
        )
    _, is_alert, alert = reason.partition("alert ")
    if not is_alert:
        return TlsFailed(
            addr,
            f"it does not speak TLS ({reason})",
            "Have the server accept it (tls.server.mode=permissive or enforcing), or check the address and port",
        )
    if not any(word in alert for word in _ABOUT_CERTIFICATES):
        return TlsFailed(addr, f"it refuses the connection ({alert})", "Look for the reason in the server's log")
    if tls.cert_file:
        return TlsFailed(
            addr, f"it refuses this client's certificate ({alert})", "Show one whose authority the server trusts"
        )
    return TlsFailed(
        addr,
        f"it wants a certificate of the client ({alert})",
        "Show one: cert_file and key_file of ClientTls, --tls-cert and --tls-key of mq",
    )


def not_trusted(addr: str, tls: ClientTls, verify_code: int) -> TlsFailed:
    """The error for a server's certificate that failed verification, by OpenSSL's reason."""
    if verify_code in (OTHER_NAME, _OTHER_ADDRESS):
        return TlsFailed(
            addr,
            f"its certificate is not for {tls.name_of(addr.rpartition(':')[0].strip('[]'))}",
            "Connect by a name that it is for, or say which: server_name of ClientTls, --tls-server-name of mq",
        )
    if verify_code in (_NOT_YET_VALID, _EXPIRED):
        why = "has expired" if verify_code == _EXPIRED else "is not valid yet"
        return TlsFailed(addr, f"its certificate {why}", "Renew it, or check the clocks")
    return TlsFailed(
        addr,
        f"its certificate is not trusted: {_UNTRUSTED.get(verify_code, f'OpenSSL gives reason {verify_code}')}",
        "Name a file with its authority: ca_file of ClientTls, --tls-ca of mq",
    )


def why_lost(
    addr: str, *, tls: ClientTls | None, error: BaseException | None, has_answered: bool, request_bytes: int
) -> MQError:
    """The error of a connection that ended with `error`, None if the peer closed it; see `connection_lost`."""
    if tls is not None and isinstance(error, OSError) and is_alert(error):
        return ssl_failed(addr, tls, error)
    text = f"the connection to {addr} was lost: {error or 'closed'}"
    return connection_lost(text, tls, has_answered=has_answered, request_bytes=request_bytes)


def connection_lost(text: str, tls: ClientTls | None, *, has_answered: bool, request_bytes: int) -> ConnectionClosed:
    """The error of an established connection that was lost, for no known fault of this side.

    :param has_answered: whether the peer has ever sent anything on it.
    :param request_bytes: the size of the largest request on it that was not answered.
    """
    if request_bytes > FRAME_BYTES_MAX:
        return ConnectionClosed(
            f"{text}; a request of {request_bytes} bytes was on it, and servers end connections for frames above"
            f" {FRAME_BYTES_MAX} (com.rocketmq.remoting.frameMaxLength in Java's): send less at once"
        )
    if has_answered or (tls is not None and tls.cert_file is not None):
        return ConnectionClosed(text)
    if tls is not None:
        return ConnectionClosed(f"{text}; it may want a certificate of the client")
    size = f"no frames of {request_bytes} bytes, or " if request_bytes >= _LARGE_BYTES else ""
    return ConnectionClosed(f"{text}; it may take {size}only encrypted ones (ClientTls, --tls of mq)")
