"""The client of etcd's HTTP gateway, against a server that answers what a test wants."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as _reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from mqbroker.ha.etcd import Compare, EtcdAccess, EtcdClient, EtcdError, KeyValue, Put, Snapshot
from mqbroker.ha.etcd_http import ANSWER_BYTES_MAX

Answer = Callable[[Request], Any]
reactor: Any = _reactor


class Gateway(Resource):
    """Answers each request with what `answer` returns; keeps the requests, as (path, body)."""

    isLeaf = True  # noqa: N815

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[tuple[str, Any]] = []

    def render_POST(self, request: Any) -> Any:  # noqa: N802
        self.asked.append((request.path.decode(), json.loads(request.content.read())))
        found = self.answer(request)
        return found if found is NOT_DONE_YET or isinstance(found, bytes) else json.dumps(found).encode()


class World:
    """A gateway, a client, and an address where nobody listens."""

    def __init__(self, answer: Answer, **access: Any) -> None:
        self.gateway = Gateway(answer)
        self.port: Any = reactor.listenTCP(0, Site(self.gateway), interface="127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port.getHost().port}"
        self.client = EtcdClient(reactor, EtcdAccess(endpoints=(self.url,), **access))

    async def close(self) -> None:
        await self.client.close()
        await self.port.stopListening()


def b64(text: str) -> str:
    return b64encode(text.encode()).decode()


HEADER = {"header": {"cluster_id": "1", "revision": "42"}}


@ensureDeferred
async def test_a_read_is_of_all_keys_below_the_prefix() -> None:
    row = {
        "key": b64("/p/a"),
        "value": b64("x\0"),
        "create_revision": "7",
        "mod_revision": "9",
        "lease": "77",
        "version": "2",
    }
    world = World(lambda request: {**HEADER, "kvs": [row, {**row, "key": b64("/p/b"), "lease": "0"}], "count": "2"})
    found = await world.client.read("/p/")
    assert found == Snapshot(42, {"/p/a": KeyValue(b"x\0", 7, 9, 77), "/p/b": KeyValue(b"x\0", 7, 9)})
    assert world.gateway.asked == [("/v3/kv/range", {"key": b64("/p/"), "range_end": b64("/p0")})]
    world.gateway.answer = lambda request: HEADER  # empty fields are left out
    assert await world.client.read("/p/") == Snapshot(42, {})
    await world.close()


@ensureDeferred
async def test_a_transaction_says_at_which_revision_it_was_done() -> None:
    world = World(lambda request: {**HEADER, "succeeded": True})
    assert await world.client.txn([Compare("/p/a", 9)], [Put("/p/a", b"\xff", 5)]) == 42
    [(path, body)] = world.gateway.asked
    assert path == "/v3/kv/txn"
    assert body["compare"] == [{"key": b64("/p/a"), "target": "MOD", "result": "EQUAL", "mod_revision": "9"}]
    [put] = body["success"]
    assert b64decode(put["request_put"]["value"]) == b"\xff"
    assert put["request_put"]["lease"] == "5"
    world.gateway.answer = lambda request: HEADER
    assert await world.client.txn([], []) is None
    await world.close()


@ensureDeferred
async def test_leases() -> None:
    world = World(lambda request: {**HEADER, "ID": "7587", "TTL": "3"})
    assert await world.client.grant(3) == (7587, 3)
    world.gateway.answer = lambda request: {"result": {**HEADER, "ID": "7587", "TTL": "3"}}
    assert await world.client.keep_alive(7587) == 3
    world.gateway.answer = lambda request: {"result": {**HEADER, "ID": "7587"}}
    assert await world.client.keep_alive(7587) == 0
    world.gateway.answer = lambda request: HEADER
    await world.client.revoke(7587)
    assert [path for path, _ in world.gateway.asked] == [
        "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/keepalive", "/v3/lease/revoke",
    ]  # fmt: skip
    await world.close()


def failing(request: Any) -> object:
    request.setResponseCode(503)
    return {"error": "etcdserver: no leader", "code": 14}


@pytest.mark.parametrize(
    "answer",
    [
        failing,
        lambda request: b"no JSON",
        lambda request: b"[]",
        lambda request: b"",
        lambda request: b"\0" * 100,
        lambda request: {"header": 1},
        lambda request: {"header": {"revision": "-1"}},
        lambda request: {"header": {"revision": "9" * 30}},
        lambda request: {"header": {"revision": None}},
        lambda request: {**HEADER, "kvs": {}},
        lambda request: {**HEADER, "kvs": [1]},
        lambda request: {**HEADER, "kvs": [{"key": "!"}]},
        lambda request: {**HEADER, "kvs": [{"key": 1}]},
        lambda request: {**HEADER, "kvs": [{"mod_revision": "x"}]},
        lambda request: b" " * (ANSWER_BYTES_MAX + 1),
    ],
)
@ensureDeferred
async def test_what_is_no_answer(answer: Answer) -> None:
    world = World(answer)
    with pytest.raises(EtcdError):
        await world.client.read("/p/")
    await world.close()


@ensureDeferred
async def test_no_lease_was_granted() -> None:
    world = World(lambda request: HEADER)
    with pytest.raises(EtcdError, match="granted no lease"):
        await world.client.grant(3)
    await world.close()


@ensureDeferred
async def test_the_next_endpoint_is_asked_after_one_that_fails() -> None:
    world = World(lambda request: HEADER)
    client = EtcdClient(reactor, EtcdAccess(endpoints=("http://127.0.0.1:1", world.url)))
    assert await client.read("/p/") == Snapshot(42, {})
    assert await client.txn([], [Put("/p/a", b"")]) is None  # what was not sent may be sent to another
    await client.close()
    client = EtcdClient(reactor, EtcdAccess(endpoints=("http://127.0.0.1:1", "http://127.0.0.1:2")))
    with pytest.raises(EtcdError) as caught:
        await client.read("/p/")
    assert str(caught.value) == (
        "etcd at http://127.0.0.1:1, http://127.0.0.1:2 cannot be connected: Connection was refused by other side: "
        "111: Connection refused"
    )
    await client.close()
    await world.close()


@ensureDeferred
async def test_one_that_closes_without_an_answer_is_told_in_words() -> None:
    def close(request: Request) -> Any:
        request.transport.loseConnection()
        return NOT_DONE_YET

    world = World(close)
    with pytest.raises(EtcdError) as caught:
        await world.client.read("/p/")
    assert str(caught.value) == f"etcd at {world.url} does not answer: Connection was closed cleanly"
    await world.close()


@ensureDeferred
async def test_one_that_does_not_answer_is_given_up() -> None:
    world = World(lambda request: NOT_DONE_YET)
    with pytest.raises(EtcdError, match="does not answer"):
        await world.client.read("/p/")
    await world.close()


@ensureDeferred
async def test_a_watch_says_that_something_has_changed() -> None:
    streams: list[Any] = []

    def answer(request: Any) -> object:
        streams.append(request)
        request.write(b'{"result":{"created":true}}\n')
        return NOT_DONE_YET

    world = World(answer)
    changes: list[Deferred[None]] = [Deferred(), Deferred()]
    waiting = iter(changes)
    watch = world.client.watch("/p/", 41, lambda: next(waiting).callback(None))
    while not streams:
        await later()
    streams[0].write(b'{"result":{"events":[{"kv":')
    streams[0].write(b"{}}]}}\n")
    await changes[0]
    assert not watch.called
    [(path, body)] = world.gateway.asked
    assert (path, body["create_request"]["start_revision"]) == ("/v3/watch", "42")
    streams[0].write(b'{"result":{"canceled":true,"compact_revision":"50"}}\n')
    await watch
    await world.close()


@ensureDeferred
async def test_a_watch_is_ended() -> None:
    def answer(request: Any) -> object:
        request.write(b'{"result":{"created":true}}\n')
        gone.append(request.notifyFinish())
        return NOT_DONE_YET

    gone: list[Deferred[None]] = []
    world = World(answer)
    watch = world.client.watch("/p/", 0, lambda: None)
    while not gone:
        await later()
    await later()
    watch.cancel()
    with pytest.raises(CancelledError):
        await watch
    with pytest.raises(Exception, match="Connection"):
        await gone[0]
    await world.close()


def later() -> Deferred[None]:
    """Fires after the reactor's next turns."""
    done: Deferred[None] = Deferred()
    reactor.callLater(0.01, done.callback, None)
    return done
