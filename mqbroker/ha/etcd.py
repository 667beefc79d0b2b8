"""The little of etcd that a group of brokers needs, over its HTTP gateway (API v3, etcd 3.4 and later): reads,
transactions, leases, and a watch that only says that something has changed.

Source: the JSON mapping in etcd's documentation, "Why gRPC gateway" of v3.4: keys and values in base64, 64-bit numbers
as texts, empty fields left out.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from mqbroker.errors import MQError

#: A request that a member of etcd does not answer in this time goes to the next one.
TIMEOUT_SECONDS = 1.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
REVISION_MAX = 2**63 - 1


class EtcdError(MQError):
    """etcd gave no usable answer. What was asked of it may have happened, or happen still."""


@attrs.frozen
class KeyValue:
    """`created`, `modified`: the revisions of etcd that did that. `lease`: 0 without one."""

    value: bytes
    created: int
    modified: int
    lease: int = 0


@attrs.frozen
class Snapshot:
    """All keys below a prefix at one revision."""

    revision: int
    items: Mapping[str, KeyValue]


@attrs.frozen
class Compare:
    """A condition of a transaction: the key was last changed at this revision; 0 for one that is not there."""

    key: str
    modified: int


@attrs.frozen
class Put:
    """A write of a transaction. `lease`: the key goes when that ends; 0 without one."""

    key: str
    value: bytes
    lease: int = 0


class IEtcd(Protocol):
    """What is needed of etcd. All raise EtcdError, then the outcome is unknown."""

    async def read(self, prefix: str) -> Snapshot:
        """All keys below the prefix, as the majority of etcd's members has them."""

    async def txn(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int | None:
        """Put all if all conditions hold; returns at which revision, None if they did not."""

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """A new lease and its time to live, which etcd may lengthen."""

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease; returns its time to live, 0 if it has expired."""

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys."""

    async def close(self) -> None:
        """Close all connections."""

    def watch(self, prefix: str, revision: int, on_change: Callable[[], None]) -> Deferred[None]:
        """Call `on_change` when a key below the prefix changes after `revision`. Fires or fails when the watch has
        ended; its cancellation ends it."""


class EtcdClient:
    """Asks the endpoints in turn, each until it fails.

    :param endpoints: URLs.
    """

    def __init__(self, reactor: Any, endpoints: Sequence[str]) -> None:
        self._clock = cast(IReactorTime, reactor)
        # It sends no POST twice: a transaction may have been done though nothing was answered.
        self._pool = HTTPConnectionPool(reactor)  # type: ignore[no-untyped-call]
        self._agent = Agent(reactor, connectTimeout=TIMEOUT_SECONDS, pool=self._pool)  # type: ignore[no-untyped-call]
        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._current = 0

    async def read(self, prefix: str) -> Snapshot:
        answer = await self._ask("kv/range", {"key": _text(prefix), "range_end": _text(_end_of(prefix))})
        items = {}
        for found in _rows(answer, "kvs"):
            modified, created = _number(found, "mod_revision"), _number(found, "create_revision")
            value = KeyValue(_bytes(found, "value"), created, modified, _number(found, "lease"))
            items[_bytes(found, "key").decode("utf-8", "replace")] = value
        return Snapshot(_number(_row(answer, "header"), "revision"), items)

    async def txn(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int | None:
        body = {
            "compare": [
                {"key": _text(each.key), "target": "MOD", "result": "EQUAL", "mod_revision": str(each.modified)}
                for each in compares
            ],
            "success": [
                {
                    "request_put": {
                        "key": _text(put.key),
                        "value": b64encode(put.value).decode(),
                        "lease": str(put.lease),
                    }
                }
                for put in puts
            ],
        }
        answer = await self._ask("kv/txn", body)
        return _number(_row(answer, "header"), "revision") if answer.get("succeeded") is True else None

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        answer = await self._ask("lease/grant", {"TTL": str(ttl_s), "ID": "0"})
        lease, ttl = _number(answer, "ID"), _number(answer, "TTL")
        if not (lease and ttl > 0):
            raise EtcdError("etcd granted no lease")
        return lease, ttl

    async def keep_alive(self, lease: int) -> int:
        answer = await self._ask("lease/keepalive", {"ID": str(lease)})
        return _number(_row(answer, "result"), "TTL")

    async def revoke(self, lease: int) -> None:
        await self._ask("lease/revoke", {"ID": str(lease)})

    def watch(self, prefix: str, revision: int, on_change: Callable[[], None]) -> Deferred[None]:
        return Deferred.fromCoroutine(self._watch(prefix, revision, on_change))

    async def _watch(self, prefix: str, revision: int, on_change: Callable[[], None]) -> None:
        request = {"key": _text(prefix), "range_end": _text(_end_of(prefix)), "start_revision": str(revision + 1)}
        response = await self._post("watch", {"create_request": request})
        changes = _Changes(on_change)
        response.deliverBody(changes)
        await changes.ended

    async def close(self) -> None:
        await self._pool.closeCachedConnections()  # type: ignore[no-untyped-call]

    async def _ask(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """The answer to a request. Raises EtcdError."""
        deadline = self._clock.seconds() + TIMEOUT_SECONDS
        response = await self._post(path, body)
        received = _Body()
        response.deliverBody(received)
        try:
            data = await received.ended.addTimeout(max(0.001, deadline - self._clock.seconds()), self._clock)
        except Exception as error:
            self._next()
            raise EtcdError(f"etcd breaks off its answer: {str(error) or type(error).__name__}") from None
        try:
            answer = orjson.loads(data)
        except ValueError:
            answer = None
        if response.code != 200 or not isinstance(answer, dict) or "error" in answer:
            said = answer.get("error", answer.get("message")) if isinstance(answer, dict) else None
            if path == "lease/keepalive" and isinstance(answer, dict) and response.code == 404:
                return {}
            self._next()
            raise EtcdError(f"etcd answers {response.code}: {str(said or data[:200])!r}")
        return answer

    async def _post(self, path: str, body: Mapping[str, object]) -> Any:
        endpoint = self._endpoints[self._current % len(self._endpoints)]
        headers = Headers({b"Content-Type": [b"application/json"]})
        asking: Deferred[Any] = self._agent.request(
            b"POST", f"{endpoint}/v3/{path}".encode(), headers, _Content(orjson.dumps(body))
        )
        try:
            return await asking.addTimeout(TIMEOUT_SECONDS, self._clock)
        except Exception as error:
            self._next()
            raise EtcdError(f"etcd at {endpoint} does not answer: {str(error) or type(error).__name__}") from None

    def _next(self) -> None:
        self._current += 1


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


class _Changes(TwistedProtocol):
    """Reads the messages of a watch, a line each."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._line = b""
        self.ended: Deferred[None] = Deferred(lambda _: cast(Any, self.transport).loseConnection())

    def dataReceived(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        if any(b'"events"' in line for line in lines):
            self._on_change()
        # A watch from a revision that etcd has compacted is canceled, and the next one begins at the present one.
        if len(self._line) > ANSWER_BYTES_MAX or any(b'"canceled"' in line for line in lines):
            cast(Any, self.transport).loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.ended.called:
            self.ended.callback(None)


def _end_of(prefix: str) -> str:
    """The end of the range of all keys that begin with the prefix, which ends in a slash."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _text(text: str) -> str:
    return b64encode(text.encode()).decode()


def _row(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = row.get(name, {})
    if not isinstance(found, dict):
        raise EtcdError(f"etcd's answer has no {name}")
    return found


def _rows(row: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = row.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise EtcdError(f"etcd's answer has no list of {name}")
    return found


def _bytes(row: Mapping[str, Any], name: str) -> bytes:
    try:
        return b64decode(row.get(name, ""), validate=True)
    except (ValueError, TypeError):
        raise EtcdError(f"etcd's answer has no {name} in base64") from None


def _number(row: Mapping[str, Any], name: str) -> int:
    text = row.get(name, "0")
    if not (isinstance(text, str | int) and str(text).isascii() and str(text).isdecimal()):
        raise EtcdError(f"etcd's answer has no number {name}")
    number = int(str(text)[:20])
    if number > REVISION_MAX:
        raise EtcdError(f"etcd's answer has no number {name}")
    return number
