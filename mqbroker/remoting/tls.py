"""TLS on the port that serves everything: which connections are encrypted, and by which certificate.

As in the Java system, the first byte tells: a TLS handshake begins with 0x16, and no frame does, since it would be
longer than any may be. Creates and loads certificates; independent of the bytes on the connections.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.config import ClientAuth, TlsMode, TlsSettings
from mqbroker.config.system import StampedFiles
from mqbroker.errors import BadTls
from mqbroker.repeated_call import RepeatedCall

if TYPE_CHECKING:
    from OpenSSL.SSL import Connection, Context

    from mqbroker.remoting.connection import RemotingProtocol

log = Logger()

HANDSHAKE = 0x16
#: How often the files are looked at.
WATCH_SECONDS = 5.0
#: Endpoints have a time-out too, which shall not end what RemotingClient waits for.
ENDPOINT_TIMEOUT_S = 3600


@implementer(IOpenSSLServerConnectionCreator, IOpenSSLClientConnectionCreator)
@attrs.frozen
class _Creator:
    """Gives Twisted what encrypts one connection, all by one context."""

    context: Context

    def serverConnectionForTLS(self, protocol: object) -> Connection:  # noqa: N802 - Twisted's name
        return self._connection()

    def clientConnectionForTLS(self, protocol: object) -> Connection:  # noqa: N802 - Twisted's name
        return self._connection()

    def _connection(self) -> Connection:
        from OpenSSL import SSL

        return SSL.Connection(self.context, None)


class ServerTls:
    """What a server's connections are encrypted with."""

    def __init__(self, settings: TlsSettings, clock: IReactorTime) -> None:
        """Read the files, unless in test mode. Raises BadTls where they cannot be used."""
        self._settings = settings
        self._clock = clock
        self._files: StampedFiles[_Creator] | None = None
        self._creator: _Creator | None = None
        if self.has_files:
            paths = settings.server_cert_path, settings.server_key_path, settings.server_trust_cert_path
            self._files = StampedFiles(lambda: _Creator(server_context(settings)), *paths)
            self._creator = self._files.content
        elif settings.mode is TlsMode.ENFORCING:
            log.warn("tls.test.mode.enable=true: a generated certificate is used, which clients cannot verify")

    @property
    def has_files(self) -> bool:
        """Whether certificates are read from files, which may change."""
        return self._settings.has_server_files

    def watch(self, connection: RemotingProtocol) -> None:
        """Inspect the first bytes of a new connection: TLS or plain text."""
        connection.sniff = partial(self._first, connection)

    def _first(self, connection: RemotingProtocol, data: bytes) -> None:
        encrypted = data[0] == HANDSHAKE
        mode = self._settings.mode
        if encrypted and mode is TlsMode.DISABLED:
            connection.refuse("it wants TLS, and tls.server.mode=disabled")
        elif not encrypted and mode is TlsMode.ENFORCING:
            connection.refuse("it does not use TLS, and tls.server.mode=enforcing")
        elif encrypted:
            connection.encrypt(self._current(), data)
        else:
            connection.dataReceived(data)

    def _current(self) -> _Creator:
        if self._creator is None:
            self._creator = _Creator(self_signed_context(self._clock.seconds()))
        return self._creator

    def look(self, run: Callable[[Callable[[], Any]], Deferred[Any]]) -> Deferred[None]:
        """Read the files again where they changed; connections that are open stay as they are. Never fails.

        :param run: runs a function where it may wait for the disk.
        """
        files = self._files
        if files is None:
            return succeed(None)

        def failed(failure: Failure) -> None:
            files.note_failure(
                failure.value, lambda why: log.error("the certificate was not reloaded (trying again): {why}", why=why)
            )

        return run(files.read_if_changed).addCallbacks(self._apply, failed)

    def _apply(self, creator: _Creator | None) -> None:
        if creator is not None:
            self._creator = creator
            log.info("the certificate was reloaded from {path}", path=self._settings.server_cert_path)


class TlsWatch(Service):
    """Looks at the files of `tls` while it runs. `run` is as in ServerTls.look."""

    def __init__(self, tls: ServerTls, run: Callable[[Callable[[], Any]], Deferred[Any]], clock: IReactorTime) -> None:
        self._loop = RepeatedCall(tls.look, run, clock=clock)

    def startService(self) -> None:
        self._loop.start(WATCH_SECONDS, now=False)

    def stopService(self) -> None:
        if self._loop.running:
            self._loop.stop()


def server_context(settings: TlsSettings) -> Context:
    """A server's context from its files. Raises BadTls."""
    from OpenSSL import SSL

    if not settings.server_cert_path or not settings.server_key_path:
        raise BadTls("tls.test.mode.enable=false wants tls.server.certPath and tls.server.keyPath")
    context = openssl_context(settings.server_cert_path, settings.server_key_path, settings.server_key_password)
    if settings.server_auth_client:
        trust(context, settings.server_trust_cert_path)
    asked = {
        ClientAuth.NONE: SSL.VERIFY_NONE,
        ClientAuth.OPTIONAL: SSL.VERIFY_PEER,
        ClientAuth.REQUIRE: SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
    }
    checked = settings.server_auth_client
    context.set_verify(asked[settings.server_need_client_auth], lambda *found: bool(found[-1]) or not checked)
    # No session resumption: the client's certificate would have to be stored with the session.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET)
    context.set_session_id(b"mqbroker")
    return context


def client_context(settings: TlsSettings) -> Context:
    """What a client connects with. Raises BadTls.

    In test mode, or without tls.client.authServer, it accepts any server certificate, as Java's does.
    """
    from OpenSSL import SSL

    if settings.test_mode:
        return openssl_context("", "", "")
    context = openssl_context(settings.client_cert_path, settings.client_key_path, settings.client_key_password)
    if settings.client_auth_server:
        trust(context, settings.client_trust_cert_path)
        context.set_verify(SSL.VERIFY_PEER)
    return context


def self_signed_context(now_seconds: float) -> Context:
    """The context of a new key, and of a certificate for it that lasts ten years. For trials: nobody can verify it."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mqbroker")])
    now = datetime.fromtimestamp(now_seconds, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    context = openssl_context("", "", "")
    context.use_privatekey(key)
    context.use_certificate(certificate)
    return context


def tls_connector(reactor: Any, settings: TlsSettings) -> Callable[[str, int], IStreamClientEndpoint]:
    """Makes a client's connections encrypted ones, by the files as they are when one is made; where these can no longer
    be used, the former context stays. Raises BadTls."""
    paths = settings.client_cert_path, settings.client_key_path, settings.client_trust_cert_path
    files = StampedFiles(lambda: _Creator(client_context(settings)), *paths)

    def connect(host: str, port: int) -> IStreamClientEndpoint:
        creator = files.read_or_keep(
            lambda why: log.error("the client's certificate was not reloaded (trying again): {why}", why=why)
        )
        return wrapClientTLS(creator, HostnameEndpoint(reactor, host, port, timeout=ENDPOINT_TIMEOUT_S))

    return connect


def openssl_context(cert_path: str, key_path: str, password: str) -> Context:
    """A context for TLS 1.2 and up, with a certificate chain and its key (PEM) unless both are "". Raises BadTls."""
    from OpenSSL import SSL

    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    if not cert_path and not key_path:
        return context
    if not cert_path or not key_path:
        raise BadTls(f"{cert_path or key_path}: a certificate and its key go together, and the other is not set")
    key = _read_key(key_path, password)
    try:
        with open(cert_path, "rb"):  # for a readable reason where it cannot be
            pass
        context.use_certificate_chain_file(cert_path)
        context.use_privatekey(key)
        context.check_privatekey()
    except OSError as error:
        raise BadTls(f"{cert_path}: {error.strerror}") from None
    except SSL.Error as error:
        what = f"it must hold a certificate chain in PEM, the first of it that of the key in {key_path}"
        raise BadTls(f"{cert_path}: {openssl_reasons(error) or 'it cannot be used'}; {what}") from None
    return context


def _read_key(path: str, password: str) -> Any:
    """The private key in a PEM file. Raises BadTls."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with open(path, "rb") as file:
            return load_pem_private_key(file.read(), password.encode() if password else None)
    except OSError as error:
        raise BadTls(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's message may quote the file's content.
        raise BadTls(f"{path}: no private key can be read there with the password that is set") from None


def trust(context: Context, path: str) -> None:
    """Have the authorities in the file (PEM) trusted, or with "" those that the system trusts. Raises BadTls."""
    from OpenSSL import SSL

    if not path:
        context.set_default_verify_paths()
        return
    try:
        context.load_verify_locations(path)
    except SSL.Error as error:
        raise BadTls(f"{path}: no certificates can be read there ({openssl_reasons(error)})") from None


def openssl_reasons(error: Exception) -> str:
    """The reasons of an OpenSSL error, which come as a list of (library, function, reason); "" where it has none."""
    found = [str(each[-1]) for each in (error.args[0] if error.args else []) if isinstance(each, tuple)]
    return "; ".join(dict.fromkeys(found))
