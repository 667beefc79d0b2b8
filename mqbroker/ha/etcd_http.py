"""Requests to etcd's HTTP gateway: connections, certificates and accounts. What they ask is not known here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer, IPolicyForHTTPS
from zope.interface import implementer

from mqbroker.config.system import StampedFiles
from mqbroker.errors import BadTls
from mqbroker.ha.etcd_endpoints import EtcdError, NotDone
from mqbroker.remoting.tls import openssl_context, openssl_reasons, trust
from mqbroker.wire.names import is_ip

if TYPE_CHECKING:
    from OpenSSL.crypto import X509
    from OpenSSL.SSL import Connection, Context

log = Logger()

ANSWER_BYTES_MAX = 4 * 1024 * 1024
PASSWORD_BYTES_MAX = 4096
#: An account is authenticated at most once in so many seconds, whatever etcd says of the token.
AUTHENTICATE_SECONDS = 1.0
#: etcd's words for a token that is unknown, as after a restart, or too old, or from before accounts were changed.
_TOKEN_ENDED = ("invalid auth token", "revision of auth store is old")


@attrs.frozen(kw_only=True)
class EtcdAccess:
    """How etcd is reached. `endpoints`: URLs; `first`: the index of the one that is asked first. Files are PEM, and
    the password's is its first line; each may be ""."""

    endpoints: tuple[str, ...]
    first: int = 0
    timeout_s: float = 1.0
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


def check_access(access: EtcdAccess) -> None:
    """Read all files. Raises BadTls, EtcdError."""
    if access.password_file:
        _read_password(access.password_file)
    if access.ca_file or access.cert_file:
        _context(access)


class Gateway:
    """Sends requests to one endpoint or another; each answer is complete, or an error."""

    def __init__(self, reactor: Any, access: EtcdAccess) -> None:
        """Raises BadTls, EtcdError if files cannot be used."""
        check_access(access)
        self._clock, self._access = cast(IReactorTime, reactor), access
        # It sends no POST twice: a transaction may have been done though nothing was answered.
        self._pool = HTTPConnectionPool(reactor)  # type: ignore[no-untyped-call]
        self._agent = Agent(reactor, _Policy(access), connectTimeout=access.timeout_s, pool=self._pool)  # type: ignore[no-untyped-call]
        self._token, self._token_at = "", 0.0
        self._why_refused, self._refused_at = "", -AUTHENTICATE_SECONDS

    async def close(self) -> None:
        await self._pool.closeCachedConnections()  # type: ignore[no-untyped-call]

    async def call(
        self, endpoint: str, path: str, body: Mapping[str, object], missing: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The answer to a request; `missing` where etcd answers 404, if it is given. Raises EtcdError."""
        token = await self._token_for(endpoint, "")
        code, answer = await self._exchange(endpoint, path, body, token)
        if token and _has_token_ended(code, answer):
            token = await self._token_for(endpoint, token)
            code, answer = await self._exchange(endpoint, path, body, token)
        if code == 404 and missing is not None and isinstance(answer, dict):
            return missing
        return self._checked(code, answer)

    async def stream(self, endpoint: str, path: str, body: Mapping[str, object], reader: TwistedProtocol) -> None:
        """Have `reader` get the bytes of the answer as they come. Raises EtcdError."""
        token = await self._token_for(endpoint, "")
        response = await self._post(endpoint, path, body, token)
        if response.code == 200:
            response.deliverBody(reader)
            return
        code, answer = response.code, await self._whole(response)
        if token and token == self._token and _has_token_ended(code, answer):
            self._token = ""  # the next request gets one
        self._checked(code, answer)

    # --- accounts

    async def _token_for(self, endpoint: str, ended: str) -> str:
        """The account's token, other than the one that has `ended`; "" without an account. Raises EtcdError."""
        access = self._access
        if not access.username:
            return ""
        if self._token and self._token != ended:
            return self._token
        if ended and ended == self._token and self._clock.seconds() - self._token_at < AUTHENTICATE_SECONDS:
            self._refuse("refuses a token that it has just given")
        # A wrong password must not keep etcd busy: it hashes slowly, on purpose.
        if 0 <= self._clock.seconds() - self._refused_at < AUTHENTICATE_SECONDS:
            raise NotDone(self._why_refused)
        account = {"name": access.username, "password": _read_password(access.password_file)}
        code, answer = await self._exchange(endpoint, "auth/authenticate", account, "")
        if code != 200 and "authentication is not enabled" in _said(answer):
            return ""
        try:
            token = self._checked(code, answer).get("token")
        except NotDone as error:
            self._refuse(str(error))
            raise
        if not (isinstance(token, str) and token and token.isascii() and token.isprintable()):
            raise NotDone("answers without a token")
        self._token, self._token_at = token, self._clock.seconds()
        return token

    def _refuse(self, why: str) -> None:
        self._token, self._why_refused, self._refused_at = "", why, self._clock.seconds()

    def _checked(self, code: int, answer: Any) -> dict[str, Any]:
        """The answer, if it is one. Raises EtcdError."""
        if code == 200 and isinstance(answer, dict) and "error" not in answer:
            return answer
        said = _said(answer)
        hint = ""
        if "user name is empty" in said:
            hint = "; it wants an account: set etcdUsername and etcdPasswordFile"
        elif "authentication failed" in said:
            hint = f"; check etcdUsername={self._access.username} and the password in {self._access.password_file}"
        elif "permission denied" in said:
            hint = "; the account needs a role that may read and write all keys below /mqbroker/"
        kind = NotDone if 400 <= code < 500 else EtcdError
        raise kind(f"answers {code}: {said!r}{hint}")

    # --- HTTP

    async def _exchange(self, endpoint: str, path: str, body: Mapping[str, object], token: str) -> tuple[int, Any]:
        response = await self._post(endpoint, path, body, token)
        return response.code, await self._whole(response)

    async def _whole(self, response: Any) -> Any:
        """The decoded body; bytes where it is no JSON."""
        received = _Body()
        response.deliverBody(received)
        try:
            data = await received.ended
        except Exception as error:
            raise EtcdError(f"breaks off its answer: {_why(error)}") from None
        try:
            return orjson.loads(data)
        except ValueError:
            return data

    async def _post(self, endpoint: str, path: str, body: Mapping[str, object], token: str) -> Any:
        headers = {b"Content-Type": [b"application/json"]}
        if token:
            headers[b"Authorization"] = [token.encode()]
        url = f"{endpoint}/v3/{path}".encode()
        asking: Deferred[Any] = self._agent.request(b"POST", url, Headers(headers), _Content(orjson.dumps(body)))
        try:
            return await asking
        except (ConnectError, DNSLookupError) as error:
            raise NotDone(f"cannot be connected: {_why(error)}") from None
        except Exception as error:
            raise EtcdError(f"does not answer: {_why(error)}") from None


def _said(answer: Any) -> str:
    found = answer
    if isinstance(answer, dict):
        found = answer.get("error", answer.get("message", ""))
    return found.decode("utf-8", "replace")[:200] if isinstance(found, bytes) else str(found)[:200]


def _has_token_ended(code: int, answer: Any) -> bool:
    said = _said(answer)
    return code != 200 and any(words in said for words in _TOKEN_ENDED)


def _why(error: BaseException | None) -> str:
    """What an error of Twisted's HTTP client is about, in words."""
    reasons = getattr(error, "reasons", None) or ()
    inner = [reason.value for reason in reasons if isinstance(reason, Failure)]
    if inner:
        return "; ".join(dict.fromkeys(map(_why, inner)))
    words = openssl_reasons(error) if isinstance(error, Exception) else ""
    if "certificate verify failed" in words:
        return f"{words}; etcdCaFile must name the authority of etcd's certificates, which must be for these addresses"
    if "alert" in words and "certificate" in words:
        return f"{words}; etcd wants a client's certificate that it trusts: set etcdCertFile and etcdKeyFile"
    return words or str(error).rstrip(".") or type(error).__name__


def _read_password(path: str) -> str:
    """Raises EtcdError."""
    try:
        with open(path, "rb") as file:
            line = file.read(PASSWORD_BYTES_MAX).partition(b"\n")[0].rstrip(b"\r").decode()
    except OSError as error:
        raise NotDone(f"etcdPasswordFile: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NotDone(f"etcdPasswordFile: {path}: the first line must be the password, in UTF-8") from None
    if not line:
        raise NotDone(f"etcdPasswordFile: {path}: the first line is empty, and must be the password")
    return line


# --- certificates


def _context(access: EtcdAccess) -> Context:
    """Raises BadTls."""
    context = openssl_context(access.cert_file, access.key_file, "")
    trust(context, access.ca_file)
    return context


@implementer(IOpenSSLClientConnectionCreator)
@attrs.frozen
class _Creator:
    """Makes connections to a host, whose certificate must be for its name or address."""

    context: Context
    host: str

    def clientConnectionForTLS(self, protocol: object) -> Connection:  # noqa: N802 - Twisted's name
        from OpenSSL import SSL

        connection = SSL.Connection(self.context, None)
        if not is_ip(self.host):
            connection.set_tlsext_host_name(self.host.encode("idna"))
        connection.set_verify(SSL.VERIFY_PEER, self._verify)
        return connection

    def _verify(self, connection: Connection, certificate: X509, _: int, depth: int, is_good: int) -> bool:
        """Called for each certificate of the peer's chain; the last is its own, at depth 0."""
        from service_identity.exceptions import CertificateError, VerificationError
        from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
        from service_identity.pyopenssl import extract_patterns

        if not is_good or depth:
            return bool(is_good)
        try:
            expected = IPAddress_ID(self.host) if is_ip(self.host) else DNS_ID(self.host)
            verify_service_identity(extract_patterns(certificate), [expected], [])
        except (VerificationError, CertificateError, ValueError):
            return False
        return True


@implementer(IPolicyForHTTPS)
class _Policy:
    """Certificates by the files as they are; where these can no longer be used, the former ones stay."""

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._files = StampedFiles(access.ca_file, access.cert_file, access.key_file)
        self._context: Context | None = None

    def creatorForNetloc(self, hostname: bytes, port: int) -> _Creator:  # noqa: N802 - Twisted's name
        if self._files.have_changed() or self._context is None:
            try:
                self._context = _context(self._access)
            except BadTls as error:
                if self._context is None:
                    raise
                log.error("the certificates for etcd were not reloaded: {why}", why=str(error))
        return _Creator(self._context, hostname.decode("ascii").strip("[]"))


# --- bodies


@implementer(IBodyProducer)
class _Content:
    """The body of a request, sent at once."""

    def __init__(self, data: bytes) -> None:
        self._data, self.length = data, len(data)

    def startProducing(self, consumer: Any) -> Deferred[None]:
        consumer.write(self._data)
        done: Deferred[None] = Deferred()
        done.callback(None)
        return done

    def pauseProducing(self) -> None:
        """All of it was sent."""

    def resumeProducing(self) -> None:
        """All of it was sent."""

    def stopProducing(self) -> None:
        """All of it was sent."""


class _Body(TwistedProtocol):
    """Collects the body of an answer; `ended` fires with it, or fails."""

    def __init__(self) -> None:
        self._data = b""
        self.ended: Deferred[bytes] = Deferred(lambda _: cast(Any, self.transport).loseConnection())

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > ANSWER_BYTES_MAX:
            cast(Any, self.transport).loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.ended.called:
            return
        if reason.check(ResponseDone) and len(self._data) <= ANSWER_BYTES_MAX:  # type: ignore[no-untyped-call]
            self.ended.callback(self._data)
        else:
            self.ended.errback(reason)
