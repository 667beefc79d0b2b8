"""TLS of the Twisted face: endpoints whose connections are complete once the server's certificate is verified."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import attrs
from OpenSSL import SSL
from service_identity.exceptions import CertificateError, VerificationError
from service_identity.pyopenssl import verify_hostname, verify_ip_address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import (
    IAddress,
    IHandshakeListener,
    IOpenSSLClientConnectionCreator,
    IProtocolFactory,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.client.errors import TlsFailed
from mqbroker.client.tls import OTHER_NAME, ClientTls, Contexts, not_trusted, ssl_context, tls_failed, why_lost
from mqbroker.errors import MQError
from mqbroker.remoting.tls import ENDPOINT_TIMEOUT_S, openssl_context, openssl_reasons, trust
from mqbroker.wire.names import is_ip, join_address

_CONTROL_FLOW = (SSL.WantReadError, SSL.ZeroReturnError, SSL.SysCallError)


class TlsConnector:
    """Makes the endpoints of connections by `tls`."""

    def __init__(self, reactor: Any, tls: ClientTls) -> None:
        """Raises BadTls if files cannot be used; so does a later call."""
        self._tls = tls
        self._reactor = reactor
        self._contexts = Contexts(tls, _context)

    def __call__(self, host: str, port: int) -> IStreamClientEndpoint:
        tcp = HostnameEndpoint(self._reactor, host, port, timeout=ENDPOINT_TIMEOUT_S)
        return _TlsEndpoint(tcp, self._contexts.current(), _Server(host, port, self._tls))

    def why_lost(self, addr: str, *, error: BaseException | None, has_answered: bool, request_bytes: int) -> MQError:
        """As `tls.why_lost`. With TLS 1.3 a server verifies the client's certificate after the client's part of the
        handshake."""
        words = _words(error)
        if words:
            return tls_failed(addr, self._tls, words)
        return why_lost(addr, tls=self._tls, error=error, has_answered=has_answered, request_bytes=request_bytes)


@attrs.frozen
class _Server:
    """The expected server, and the check of its certificate's name."""

    host: str
    port: int
    tls: ClientTls

    @property
    def addr(self) -> str:
        return join_address(self.host, self.port)

    def check_name(self, connection: SSL.Connection) -> None:
        """Raise TlsFailed where the certificate is for another name."""
        if self.tls.insecure:
            return
        name = self.tls.name_of(self.host)
        try:
            (verify_ip_address if is_ip(name) else verify_hostname)(connection, name)
        except (VerificationError, CertificateError):
            raise not_trusted(self.addr, self.tls, OTHER_NAME) from None

    def why(self, reason: Failure, verify_code: int) -> MQError:
        """Explain a failed handshake; `verify_code` is OpenSSL's, 0 for a certificate that passed."""
        if verify_code:
            return not_trusted(self.addr, self.tls, verify_code)
        return tls_failed(self.addr, self.tls, _words(reason.value))


@implementer(IOpenSSLClientConnectionCreator)
@attrs.frozen
class _Creator:
    context: SSL.Context
    server: _Server

    def clientConnectionForTLS(self, protocol: object) -> SSL.Connection:  # noqa: N802 - Twisted's name
        connection = SSL.Connection(self.context, None)
        name = self.server.tls.name_of(self.server.host)
        if not is_ip(name):
            connection.set_tlsext_host_name(name.encode("idna"))
        return connection


@implementer(IStreamClientEndpoint)
@attrs.frozen
class _TlsEndpoint:
    tcp: IStreamClientEndpoint
    context: SSL.Context
    server: _Server

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:  # noqa: N803 - Twisted's name
        handshakes = _Handshakes(protocolFactory, self.server)
        made = wrapClientTLS(_Creator(self.context, self.server), self.tcp).connect(handshakes)
        return made.addCallback(lambda handshake: cast(_Handshake, handshake).done)


class _Handshakes(Factory):
    noisy = False

    def __init__(self, factory: IProtocolFactory, server: _Server) -> None:
        self._factory = factory
        self._server = server

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return _Handshake(partial(self._factory.buildProtocol, cast(Any, addr)), self._server)


@implementer(IHandshakeListener)
class _Handshake(Protocol):
    """Protocol of a new connection during the handshake; `done` fires with the real protocol once the server is
    verified."""

    def __init__(self, make: Callable[[], Any], server: _Server) -> None:
        self.done: Deferred[Any] = Deferred(lambda _: self._abort())
        self.verify_code = 0
        self._make = make
        self._server = server

    def handshakeCompleted(self) -> None:
        transport = cast(Any, self.transport)
        if self.done.called:
            return
        try:
            self._server.check_name(transport.getHandle())
        except TlsFailed as error:
            self.done.errback(error)
            self._abort()
            return
        inner = self._make()
        # The TLS layer talks to the real protocol from now on, without this one in between.
        transport.wrappedProtocol = inner
        inner.makeConnection(transport)
        self.done.callback(inner)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.done.called:
            self.done.errback(self._server.why(reason, self.verify_code))

    def _abort(self) -> None:
        cast(ITCPTransport, self.transport).abortConnection()


def _context(tls: ClientTls) -> SSL.Context:
    """As `ssl_context`, for Twisted. Raises BadTls."""
    ssl_context(tls)  # reports faults of the files with the same text on every face
    context = openssl_context(tls.cert_file or "", tls.key_file or tls.cert_file or "", tls.key_password or "")
    if not tls.insecure:
        trust(context, tls.ca_file or "")
        context.set_verify(SSL.VERIFY_PEER, _note)
    return context


def _note(connection: SSL.Connection, _: object, verify_code: int, __: int, is_good: int) -> bool:
    """Record why verification failed: the error that follows does not say."""
    if not is_good:
        # Twisted stores the TLS protocol here, which refers to the protocol above it.
        cast(Any, connection.get_app_data()).wrappedProtocol.verify_code = verify_code
    return bool(is_good)


def _words(error: BaseException | None) -> str:
    """OpenSSL's reasons in lower case; empty for other causes."""
    if not isinstance(error, SSL.Error) or isinstance(error, _CONTROL_FLOW):
        return ""
    return openssl_reasons(error).lower()
