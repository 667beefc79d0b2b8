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
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from mqbroker.ha.etcd_endpoints import Endpoints, EtcdError, Reply
from mqbroker.ha.etcd_http import ANSWER_BYTES_MAX, EtcdAccess, Gateway

__all__ = [
    "TIMEOUT_SECONDS",
    "Compare",
    "EtcdAccess",
    "EtcdClient",
    "EtcdError",
    "IEtcd",
    "KeyValue",
    "Put",
    "Snapshot",
    "is_repeatable",
    "outcome",
]  # fmt: skip

#: A request that no member of etcd answers in this time has failed, or in less where the lease is short.
TIMEOUT_SECONDS = 1.0
REVISION_MAX = 2**63 - 1


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
    """The operations of etcd that elections need. All raise EtcdError; the outcome is unknown then."""

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


def is_repeatable(compares: Sequence[Compare], puts: Sequence[Put]) -> bool:
    """Whether a transaction may be sent twice: where each key that it writes is compared, it is done once at most."""
    return {put.key for put in puts} <= {compare.key for compare in compares}


def outcome(puts: Sequence[Put], found: Mapping[str, KeyValue], is_repeated: bool) -> int | None:
    """The outcome of a transaction whose conditions did not hold: the revision at which an earlier attempt was applied,
    None if none was. Raises EtcdError if that is unknown.

    :param found: the keys that it writes, as they are.
    :param is_repeated: another member was asked the same and has not answered: it may be why they did not hold.
    """
    if not is_repeated:
        return None
    revisions = set()
    for put in puts:
        item = found.get(put.key)
        is_written = item is not None and (item.value, item.lease) == (put.value, put.lease)
        revisions.add(item.modified if item is not None and is_written else 0)
    if len(revisions) == 1 and revisions != {0}:
        return revisions.pop()
    raise EtcdError("etcd was asked for the same change twice, and one of its members did not say what became of it")


class EtcdClient:
    """Asks one endpoint, and the others where that does not answer in time."""

    def __init__(self, reactor: Any, access: EtcdAccess) -> None:
        """Raises BadTls, EtcdError if files cannot be used."""
        self._clock = cast(IReactorTime, reactor)
        self._gateway = Gateway(reactor, access)
        endpoints = [endpoint.rstrip("/") for endpoint in access.endpoints]
        self._endpoints = Endpoints(self._clock, endpoints, access.first, access.timeout_s, self._moved)
        self._watches: set[_Changes] = set()

    async def read(self, prefix: str) -> Snapshot:
        answer = (await self._ask("kv/range", _range(prefix, _end_of(prefix)))).answer
        return Snapshot(_number(_row(answer, "header"), "revision"), _items(answer))

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
            "failure": [{"request_range": _range(put.key)} for put in puts],
        }
        reply = await self._ask("kv/txn", body, is_repeatable(compares, puts))
        if reply.answer.get("succeeded") is True:
            return _number(_row(reply.answer, "header"), "revision")
        found: dict[str, KeyValue] = {}
        for each in _rows(reply.answer, "responses"):
            found |= _items(_row(each, "response_range"))
        return outcome(puts, found, reply.is_repeated)

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        # Where it is asked for twice, the other lease expires by itself.
        answer = (await self._ask("lease/grant", {"TTL": str(ttl_s), "ID": "0"})).answer
        lease, ttl = _number(answer, "ID"), _number(answer, "TTL")
        if not (lease and ttl > 0):
            raise EtcdError("etcd granted no lease")
        return lease, ttl

    async def keep_alive(self, lease: int) -> int:
        answer = (await self._ask("lease/keepalive", {"ID": str(lease)}, missing={"result": {}})).answer
        return _number(_row(answer, "result"), "TTL")

    async def revoke(self, lease: int) -> None:
        await self._ask("lease/revoke", {"ID": str(lease)}, missing={})

    def watch(self, prefix: str, revision: int, on_change: Callable[[], None]) -> Deferred[None]:
        return Deferred.fromCoroutine(self._watch(prefix, revision, on_change))

    async def _watch(self, prefix: str, revision: int, on_change: Callable[[], None]) -> None:
        request = {**_range(prefix, _end_of(prefix)), "start_revision": str(revision + 1)}
        changes, endpoint = _Changes(on_change), self._endpoints.current
        opening = Deferred.fromCoroutine(self._gateway.stream(endpoint, "watch", {"create_request": request}, changes))
        try:
            await opening.addTimeout(self._endpoints.timeout_s, self._clock)
        except CancelledError:
            raise
        except Exception as error:
            self._endpoints.note_failed(endpoint)
            why = str(error) or "does not answer"
            raise EtcdError(f"etcd at {endpoint} {why}") from None
        if endpoint != self._endpoints.current:
            changes.end()
        self._watches.add(changes)
        try:
            await changes.ended
        finally:
            self._watches.discard(changes)

    def _moved(self) -> None:
        """A watch at a hung endpoint would say nothing, and not end."""
        for changes in list(self._watches):
            changes.end()

    async def close(self) -> None:
        await self._gateway.close()

    def _ask(
        self, path: str, body: Mapping[str, object], may_repeat: bool = True, missing: dict[str, Any] | None = None
    ) -> Deferred[Reply[dict[str, Any]]]:
        """Fails with EtcdError. `missing`: the answer where etcd has no such lease."""

        def send(endpoint: str) -> Deferred[dict[str, Any]]:
            return Deferred.fromCoroutine(self._gateway.call(endpoint, path, body, missing))

        return self._endpoints.ask(send, may_repeat)


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

    def end(self) -> None:
        cast(Any, self.transport).loseConnection()
        self.connectionLost()  # TLS waits for the peer before it closes

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.ended.called:
            self.ended.callback(None)


def _end_of(prefix: str) -> str:
    """The end of the range of all keys that begin with the prefix, which ends in a slash."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _range(key: str, end: str = "") -> dict[str, str]:
    """A request for one key, or for all keys from it up to `end`."""
    return {"key": _text(key), "range_end": _text(end)} if end else {"key": _text(key)}


def _items(row: Mapping[str, Any]) -> dict[str, KeyValue]:
    """The keys of an answer to such a request."""
    items = {}
    for found in _rows(row, "kvs"):
        modified, created = _number(found, "mod_revision"), _number(found, "create_revision")
        value = KeyValue(_bytes(found, "value"), created, modified, _number(found, "lease"))
        items[_bytes(found, "key").decode("utf-8", "replace")] = value
    return items


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
