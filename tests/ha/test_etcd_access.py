"""Accounts and certificates of etcd, against a gateway that answers as etcd 3.4 does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from OpenSSL import SSL
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.web.server import NOT_DONE_YET, Site
from zope.interface import implementer

from mqbroker.errors import BadTls
from mqbroker.ha.etcd import EtcdAccess, EtcdClient, EtcdError, Put, Snapshot
from mqbroker.ha.etcd_http import check_access
from tests.ha.test_etcd import HEADER, Gateway, World, later
from tests.remoting.certificates import Authority

reactor: Any = _reactor


class Accounts:
    """Answers as an etcd whose accounts are enabled. `valid`: the tokens that it knows."""

    def __init__(self, password: str = "secret") -> None:
        self.password, self.valid, self.given = password, set[str](), 0
        self.revoked_at_once = False

    def __call__(self, request: Any) -> object:
        if request.path == b"/v3/auth/authenticate":
            request.content.seek(0)
            asked = json.loads(request.content.read())
            if asked != {"name": "mq", "password": self.password}:
                return self._error(request, 400, 3, "authentication failed, invalid user ID or password")
            self.given += 1
            token = f"token.{self.given}"
            if not self.revoked_at_once:
                self.valid.add(token)
            return {**HEADER, "token": token}
        token = request.getHeader("authorization")
        if token is None:
            return self._error(request, 400, 3, "user name is empty")
        if token not in self.valid:
            return self._error(request, 401, 16, "invalid auth token")
        return HEADER

    def _error(self, request: Any, status: int, code: int, why: str) -> object:
        request.setResponseCode(status)
        return {"error": f"etcdserver: {why}", "message": f"etcdserver: {why}", "code": code}


def world_of(answer: Callable[[Any], object], tmp_path: Path, password: str = "secret\n") -> World:
    file = tmp_path / "password"
    file.write_text(password)
    return World(answer, username="mq", password_file=str(file))


def paths(world: World) -> list[str]:
    return [path.removeprefix("/v3/") for path, _ in world.gateway.asked]


@ensureDeferred
async def test_an_account_gets_a_token_once_and_shows_it(tmp_path: Path) -> None:
    world = world_of(Accounts(), tmp_path)
    assert await world.client.read("/p/") == Snapshot(42, {})
    assert await world.client.read("/p/") == Snapshot(42, {})
    assert paths(world) == ["auth/authenticate", "kv/range", "kv/range"]
    await world.close()


@pytest.mark.parametrize("words", ["invalid auth token", "revision of auth store is old"])
@ensureDeferred
async def test_a_token_that_has_ended_is_replaced_and_the_request_sent_again(tmp_path: Path, words: str) -> None:
    accounts = Accounts()

    def answer(request: Any) -> object:
        if request.getHeader("authorization") == "token.0":
            return accounts._error(request, 400, 3, words)
        return accounts(request)

    world = world_of(answer, tmp_path)
    world.client._gateway._token, world.client._gateway._token_at = "token.0", -100.0
    assert await world.client.txn([], [Put("/p/a", b"")]) is None
    assert paths(world) == ["kv/txn", "auth/authenticate", "kv/txn"]
    await world.close()


@ensureDeferred
async def test_a_password_that_was_changed_is_read_again(tmp_path: Path) -> None:
    accounts = Accounts()
    world = world_of(accounts, tmp_path)
    await world.client.read("/p/")
    accounts.password = "other"
    accounts.valid.clear()
    world.client._gateway._token_at -= 100
    (tmp_path / "password").write_text("other")
    assert await world.client.read("/p/") == Snapshot(42, {})
    await world.close()


@ensureDeferred
async def test_a_wrong_password_is_told_and_tried_once_a_second(tmp_path: Path) -> None:
    world = world_of(Accounts(), tmp_path, "hunter2")
    for _ in range(5):
        with pytest.raises(EtcdError, match=r"check etcdUsername=mq and the password in .*/password") as caught:
            await world.client.read("/p/")
        assert "hunter2" not in str(caught.value)
    assert paths(world) == ["auth/authenticate"]
    await world.close()


@ensureDeferred
async def test_tokens_that_are_never_accepted_are_asked_for_once_a_second(tmp_path: Path) -> None:
    accounts = Accounts()
    accounts.revoked_at_once = True
    world = world_of(accounts, tmp_path)
    for _ in range(5):
        with pytest.raises(EtcdError, match="refuses a token that it has just given"):
            await world.client.read("/p/")
    assert paths(world) == ["auth/authenticate", "kv/range"]
    await world.close()


@ensureDeferred
async def test_an_etcd_that_wants_an_account_says_which_settings(tmp_path: Path) -> None:
    world = World(Accounts())
    with pytest.raises(EtcdError, match="set etcdUsername and etcdPasswordFile"):
        await world.client.read("/p/")
    await world.close()


@ensureDeferred
async def test_an_account_without_the_right_says_which_it_needs(tmp_path: Path) -> None:
    accounts = Accounts()

    def answer(request: Any) -> object:
        found = accounts(request)
        return accounts._error(request, 403, 7, "permission denied") if found == HEADER else found

    world = world_of(answer, tmp_path)
    with pytest.raises(EtcdError, match="may read and write all keys below /mqbroker/"):
        await world.client.read("/p/")
    await world.close()


@ensureDeferred
async def test_an_account_is_not_needed_where_etcd_has_none(tmp_path: Path) -> None:
    def answer(request: Any) -> object:
        if request.path != b"/v3/auth/authenticate":
            return HEADER
        request.setResponseCode(400)
        return {"error": "etcdserver: authentication is not enabled", "code": 9}

    world = world_of(answer, tmp_path)
    assert await world.client.read("/p/") == Snapshot(42, {})
    await world.close()


@pytest.mark.parametrize("token", ["", 7, None, "a\r\nb: c", "\u00e9"])
@ensureDeferred
async def test_what_is_no_token_is_sent_to_nobody(tmp_path: Path, token: object) -> None:
    world = world_of(lambda request: {**HEADER, "token": token}, tmp_path)
    with pytest.raises(EtcdError, match="answers without a token"):
        await world.client.read("/p/")
    assert set(paths(world)) == {"auth/authenticate"}
    await world.close()


@ensureDeferred
async def test_a_watch_shows_the_token_and_gives_one_up_that_has_ended(tmp_path: Path) -> None:
    accounts = Accounts()
    shown: list[object] = []

    def answer(request: Any) -> object:
        found = accounts(request)
        if request.path == b"/v3/watch" and found == HEADER:
            shown.append(request.getHeader("authorization"))
            request.write(b'{"result":{"created":true}}\n')
            return NOT_DONE_YET
        return found

    world = world_of(answer, tmp_path)
    await world.client.read("/p/")
    accounts.valid.clear()
    with pytest.raises(EtcdError, match="invalid auth token"):
        await world.client.watch("/p/", 1, lambda: None)
    watch = world.client.watch("/p/", 1, lambda: None)
    while not shown:
        await later()
    assert shown == ["token.2"]
    watch.cancel()
    watch.addErrback(lambda _: None)
    await world.close()


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file"), (b"", "the first line is empty"), (b"\nx", "is empty"), (b"\xff\n", "in UTF-8")],
)
def test_a_password_file_that_cannot_be_used_is_told_at_the_start(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    access = EtcdAccess(endpoints=("http://a:1",), username="mq", password_file=str(path))
    with pytest.raises(EtcdError, match=f"etcdPasswordFile: {path}: .*{why}"):
        EtcdClient(reactor, access)


def test_certificates_that_cannot_be_used_are_told_at_the_start(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    files: Any
    for files in ({"ca_file": str(bad)}, {"ca_file": str(tmp_path / "none")}, {"cert_file": str(bad), "key_file": "/"}):
        with pytest.raises(BadTls):
            check_access(EtcdAccess(endpoints=("https://a:1",), **files))


# Twisted gives pyOpenSSL what that calls deprecated since its version 24.3.
@pytest.mark.filterwarnings("ignore:Passing pyOpenSSL:DeprecationWarning")
@ensureDeferred
async def test_an_etcd_that_asks_for_certificates_is_shown_the_own_one(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    server = WantsCertificates(authority.issue("etcd", addresses=["127.0.0.1"]), authority)
    port = reactor.listenSSL(0, Site(Gateway(lambda request: HEADER)), server, interface="127.0.0.1")
    url = f"https://127.0.0.1:{port.getHost().port}"
    own, other = authority.issue("broker"), stranger.issue("other")

    async def read(certificate: tuple[str, str], ca_file: str = authority.path) -> Snapshot:
        access = EtcdAccess(endpoints=(url,), ca_file=ca_file, cert_file=certificate[0], key_file=certificate[1])
        client = EtcdClient(reactor, access)
        try:
            return await client.read("/p/")
        finally:
            await client.close()

    assert (await read(own)).revision == 42
    for certificate, ca_file in ((("", ""), authority.path), (other, authority.path), (own, stranger.path)):
        with pytest.raises(EtcdError):
            await read(certificate, ca_file)
    await port.stopListening()


@implementer(IOpenSSLServerConnectionCreator)
class WantsCertificates:
    """TLS of an etcd with --client-cert-auth."""

    def __init__(self, certificate: tuple[str, str], authority: Authority) -> None:
        self._context = SSL.Context(SSL.TLS_SERVER_METHOD)
        self._context.use_certificate_file(certificate[0])
        self._context.use_privatekey_file(certificate[1])
        self._context.load_verify_locations(authority.path)
        self._context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)

    def serverConnectionForTLS(self, protocol: object) -> SSL.Connection:  # noqa: N802
        return SSL.Connection(self._context, None)


@ensureDeferred
async def test_a_hung_endpoint_costs_a_quarter_of_the_time_and_then_nothing() -> None:
    hung = World(lambda request: NOT_DONE_YET)
    good = World(lambda request: HEADER)
    client = EtcdClient(reactor, EtcdAccess(endpoints=(hung.url, good.url), timeout_s=0.3))
    began = reactor.seconds()
    assert await client.read("/p/") == Snapshot(42, {})
    assert reactor.seconds() - began >= 0.1
    for _ in range(3):
        assert await client.read("/p/") == Snapshot(42, {})
    assert (len(hung.gateway.asked), len(good.gateway.asked)) == (1, 4)
    await client.close()
    await hung.close()
    await good.close()


@ensureDeferred
async def test_a_watch_ends_when_its_endpoint_does_not_answer_requests_any_more() -> None:
    hanging: list[bool] = []

    def answer(request: Any) -> object:
        if request.path == b"/v3/watch":
            request.write(b'{"result":{"created":true}}\n')
            opened.callback(None)
            return NOT_DONE_YET
        return NOT_DONE_YET if hanging else HEADER

    opened: Deferred[None] = Deferred()
    first, second = World(answer), World(lambda request: HEADER)
    client = EtcdClient(reactor, EtcdAccess(endpoints=(first.url, second.url), timeout_s=0.3))
    watch = client.watch("/p/", 1, lambda: None)
    await opened
    hanging.append(True)
    await later()
    assert not watch.called
    await client.read("/p/")
    await watch.addTimeout(5, reactor)
    await client.close()
    await first.close()
    await second.close()
