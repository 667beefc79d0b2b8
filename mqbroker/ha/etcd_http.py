"""HTTP client of etcd's JSON gateway: connections, certificates and accounts. Independent of the requests' content."""

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
from twisted.web.client import Agent, BrowserLikePolicyForHTTPS, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer, IPolicyForHTTPS
from zope.interface import implementer

from mqbroker.config.system import StampedFiles
from mqbroker.errors import BadTls
from mqbroker.ha.etcd_endpoints import EtcdError, NotDone
from mqbroker.remoting.tls import openssl_context, openssl_reasons, trust

if TYPE_CHECKING:
    from OpenSSL.crypto import X509, PKey

log = Logger()

ANSWER_BYTES_MAX = 4 * 1024 * 1024
PASSWORD_BYTES_MAX = 4096
#: Minimum interval between two authentications of an account, seconds, whatever etcd answers about the token.
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
        _Certificates.read(access)


class Gateway:
    """Sends requests to one endpoint or another; each answer is complete, or an error."""

    def __init__(self, reactor: Any, access: EtcdAccess) -> None:
        """Raises BadTls, EtcdError if files cannot be used."""
        check_access(access)
        self._clock, self._access = cast(IReactorTime, reactor), access
        # It sends no POST twice: a transaction may have been done though nothing was answered.
        self._pool = HTTPConnectionPool(reactor)  # type: ignore[no-untyped-call]
        policy = _Policy(access) if access.ca_file or access.cert_file else BrowserLikePolicyForHTTPS()  # type: ignore[no-untyped-call]
        self._agent = Agent(reactor, policy, connectTimeout=access.timeout_s, pool=self._pool)  # type: ignore[no-untyped-call]
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
        """The decoded body; the bytes if it is not JSON."""
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


@attrs.frozen
class _Certificates:
    """The client certificate of a connection, and the authorities that it trusts; None: the machine's."""

    authorities: list[X509] | None
    key: PKey | None
    chain: list[X509]

    @classmethod
    def read(cls, access: EtcdAccess) -> _Certificates:
        """Raises BadTls."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from OpenSSL.crypto import PKey

        # These say what is wrong with the files.
        trust(openssl_context(access.cert_file, access.key_file, ""), access.ca_file)
        authorities = _read_chain(access.ca_file) if access.ca_file else None
        if not access.cert_file:
            return cls(authorities, None, [])
        with open(access.key_file, "rb") as file:
            key = load_pem_private_key(file.read(), None)
        return cls(authorities, PKey.from_cryptography_key(cast(Any, key)), _read_chain(access.cert_file))

    def creator(self, host: str) -> IOpenSSLClientConnectionCreator:
        from twisted.internet.ssl import Certificate, optionsForClientTLS, platformTrust, trustRootFromCertificates

        options: dict[str, Any] = {}
        if self.key is not None:
            own, *more = self.chain
            options = {"privateKey": self.key, "certificate": own, "extraCertChain": more}
        root = platformTrust()  # type: ignore[no-untyped-call]
        if self.authorities is not None:
            root = trustRootFromCertificates([Certificate(each) for each in self.authorities])  # type: ignore[no-untyped-call]
        return optionsForClientTLS(host, root, extraCertificateOptions=options)


def _read_chain(path: str) -> list[X509]:
    """Raises BadTls."""
    from cryptography.x509 import load_pem_x509_certificates
    from OpenSSL.crypto import X509

    try:
        with open(path, "rb") as file:
            return [X509.from_cryptography(each) for each in load_pem_x509_certificates(file.read())]
    except OSError as error:
        raise BadTls(f"{path}: {error.strerror}") from None
    except ValueError:
        raise BadTls(f"{path}: no certificates can be read there; it must be a PEM file") from None


@implementer(IPolicyForHTTPS)
class _Policy:
    """Certificates by the files as they are; where these can no longer be used, the former ones stay."""

    def __init__(self, access: EtcdAccess) -> None:
        """Raises BadTls."""
        paths = access.ca_file, access.cert_file, access.key_file
        self._files = StampedFiles(lambda: _Certificates.read(access), *paths)

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:  # noqa: N802
        certificates = self._files.read_or_keep(
            lambda why: log.error("the certificates for etcd were not reloaded (trying again): {why}", why=why)
        )
        return certificates.creator(hostname.decode("ascii"))


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
