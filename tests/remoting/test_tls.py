"""TLS on the port that serves everything: real handshakes over socket pairs, moved by the test."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import fail, maybeDeferred
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import classImplements

from mqbroker.config import ClientAuth, TlsMode, TlsSettings
from mqbroker.errors import BadTls
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.limits import Limits
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.remoting.tcp import ImmediateWriteServer
from mqbroker.remoting.tls import ServerTls, TlsWatch, tls_connector
from mqbroker.wire.command import FrameDecoder, RemotingCommand, encode_command
from tests.commands import decode_commands
from tests.remoting.certificates import Authority
from tests.remoting.logs import Logged
from tests.remoting.test_tcp import Reactor, read

ECHO = 10


def echo(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
    return RemotingCommand.response(request, body=request.body)


class Peer:
    """A client on the other end of a socket pair; `context` makes it speak TLS."""

    def __init__(self, reactor: Reactor, tls: ServerTls, context: ssl.SSLContext | None = None) -> None:
        self.reactor = reactor
        table = HandlerTable()
        table.register(ECHO, echo)
        table.register_batch(11, lambda raws, connection: b"".join(self._answers(raws)))
        self.factory = RemotingServerFactory(table, self.reactor, Limits(), tls=tls)
        self.served, self.socket = socket.socketpair()
        for each in (self.served, self.socket):
            each.setblocking(False)
        self.protocol = self.factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        self.server = ImmediateWriteServer(
            self.served, self.protocol, ("127.0.0.1", 1), None, 0, cast(Any, self.reactor)
        )
        self.server.setTcpNoDelay = lambda enabled: None
        self.protocol.makeConnection(self.server)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context and context.wrap_bio(self.incoming, self.outgoing)
        self.decoder = FrameDecoder()

    @staticmethod
    def _answers(raws: list[tuple[dict[str, str], int, int, bytes, int]]) -> Iterator[bytes]:
        for _, opaque, _, body, _ in raws:
            yield encode_command(RemotingCommand(0, body=body, opaque=opaque, flag=1))

    @property
    def closed(self) -> bool:
        self._serve()
        return self.protocol not in self.factory.connections

    def pump(self) -> None:
        """Carry bytes until nothing moves."""
        for _ in range(1000):
            data = self.outgoing.read()
            for at in range(0, len(data), 16384):
                self.socket.sendall(data[at : at + 16384])
                self._serve()
            before = self._serve()
            if not data and not before:
                return

    def _serve(self) -> bytes:
        if self.server in self.reactor.readers and self.server.connected:
            why = self.server.doRead()
            if why is not None:
                self.server.connectionLost(Failure(why))
        self.reactor.advance(0)
        for _ in range(1000):
            if self.server not in self.reactor.writers:
                break
            why = self.server.doWrite()
            if why is not None:
                self.server.connectionLost(Failure(why))
                break
        got = read(self.socket)
        self.incoming.write(got)
        return got

    def shake_hands(self) -> Peer:
        for _ in range(10):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.pump()
            else:
                break
        self.pump()
        return self

    def ask(self, *commands: RemotingCommand) -> list[RemotingCommand]:
        data = b"".join(encode_command(command) for command in commands)
        if self.tls is None:
            self.socket.sendall(data)
            self.pump()
            return decode_commands(self.decoder.feed(self.incoming.read()))
        self.tls.write(data)
        self.pump()
        found = b""
        while True:
            try:
                piece = self.tls.read(65536)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                break
            if not piece:
                break
            found += piece
        return decode_commands(self.decoder.feed(found))


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Peer]]:
    made = []
    reactor = Reactor()
    reactor.advance(1_700_000_000)
    # What encrypts gathers small writes until the reactor's next turn, and finds the reactor by itself.
    monkeypatch.setattr("twisted.protocols.tls._get_default_clock", lambda: reactor)

    def make(tls: ServerTls, context: ssl.SSLContext | None = None) -> Peer:
        made.append(Peer(reactor, tls, context))
        return made[-1]

    yield make
    for each in made:
        each.socket.close()
        each.served.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def trusting_nobody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def trusting(authority: Authority, cert: str | None = None, key: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority.path)
    if cert:
        context.load_cert_chain(cert, key)
    return context


def from_files(authority: Authority, clock: Clock, name: str = "server", **changes: Any) -> ServerTls:
    cert, key = authority.issue(name, changes.get("server_key_password"))
    return ServerTls(TlsSettings(test_mode=False, server_cert_path=cert, server_key_path=key, **changes), clock)


# --- who is let in


def test_permissive_serves_both_kinds(clock: Clock, connect: Callable[..., Peer], authority: Authority) -> None:
    tls = from_files(authority, clock)
    plain, encrypted = connect(tls), connect(tls, trusting(authority)).shake_hands()
    for peer in (plain, encrypted):
        (answer,) = peer.ask(RemotingCommand(ECHO, body=b"hello", opaque=3))
        assert (answer.opaque, answer.body) == (3, b"hello")
        answers = peer.ask(*(RemotingCommand(11, {"a": "b"}, b"%d" % n, opaque=n) for n in range(40)))
        assert [answer.body for answer in answers] == [b"%d" % n for n in range(40)]
    assert encrypted.tls.version() in ("TLSv1.2", "TLSv1.3")


def test_large_answers_come_whole(clock: Clock, connect: Callable[..., Peer], authority: Authority) -> None:
    peer = connect(from_files(authority, clock), trusting(authority)).shake_hands()
    body = bytes(range(256)) * 2000
    (answer,) = peer.ask(RemotingCommand(ECHO, body=body))
    assert answer.body == body


def test_nothing_readable_crosses_the_wire(clock: Clock, connect: Callable[..., Peer], authority: Authority) -> None:
    peer = connect(from_files(authority, clock), trusting(authority)).shake_hands()
    seen = []
    write = peer.incoming.write
    peer.incoming = type("Tap", (), {"write": lambda self, data: seen.append(data) or write(data)})()
    assert [answer.body for answer in peer.ask(RemotingCommand(ECHO, body=b"a secret text"))] == [b"a secret text"]
    assert seen
    assert b"secret" not in b"".join(seen)


def test_enforcing_closes_what_is_not_encrypted(
    clock: Clock, connect: Callable[..., Peer], authority: Authority, logged: Logged
) -> None:
    tls = from_files(authority, clock, mode=TlsMode.ENFORCING)
    plain = connect(tls)
    assert plain.ask(RemotingCommand(ECHO)) == []
    assert plain.closed
    assert [line for line in logged.lines if line.startswith("closing")] == [
        "closing 127.0.0.1:1: it does not use TLS, and tls.server.mode=enforcing"
    ]
    (answer,) = connect(tls, trusting(authority)).shake_hands().ask(RemotingCommand(ECHO, body=b"x"))
    assert answer.body == b"x"


def test_disabled_closes_what_is_encrypted(clock: Clock, connect: Callable[..., Peer], logged: Logged) -> None:
    tls = ServerTls(TlsSettings(mode=TlsMode.DISABLED, test_mode=False), clock)
    peer = connect(tls, trusting_nobody())
    peer.shake_hands()
    assert peer.closed
    assert [line for line in logged.lines if line.startswith("closing")] == [
        "closing 127.0.0.1:1: it wants TLS, and tls.server.mode=disabled"
    ]
    assert len(connect(tls).ask(RemotingCommand(ECHO))) == 1


def test_test_mode_makes_a_certificate_up(clock: Clock, connect: Callable[..., Peer], logged: Logged) -> None:
    tls = ServerTls(TlsSettings(mode=TlsMode.ENFORCING), clock)
    assert [line for line in logged.lines if "a generated certificate is used" in line]
    assert not tls.has_files
    first, second = (connect(tls, trusting_nobody()).shake_hands() for _ in range(2))
    assert len(first.ask(RemotingCommand(ECHO))) == 1
    assert first.tls.getpeercert(True) == second.tls.getpeercert(True)


def test_half_a_handshake_is_not_waited_for(clock: Clock, connect: Callable[..., Peer], authority: Authority) -> None:
    """Be it that its bytes still come."""
    tls = from_files(authority, clock)
    half, whole = connect(tls), connect(tls, trusting(authority)).shake_hands()
    half.socket.sendall(b"\x16\x03\x01\x02\x00\x01")
    half.pump()
    for _ in range(9):
        half.reactor.advance(1.0)
        half.socket.sendall(b"\x00")
        half.pump()
        assert half.protocol.overdue(half.reactor.seconds()) is None
    half.reactor.advance(1.0)
    assert half.protocol.overdue(half.reactor.seconds()) == "its TLS handshake was not done after 10 s"
    assert whole.protocol.overdue(half.reactor.seconds()) is None


@pytest.mark.parametrize("data", [b"\x16", b"\x16\x03\x01", b"\x16" * 300, b"\x16\x03\x01\x00\x05hello"])
def test_a_handshake_that_is_none_harms_nobody(
    clock: Clock, connect: Callable[..., Peer], authority: Authority, data: bytes
) -> None:
    tls = from_files(authority, clock)
    bad, good = connect(tls), connect(tls)
    bad.socket.sendall(data)
    bad.pump()
    assert len(good.ask(RemotingCommand(ECHO))) == 1
    if not bad.closed:  # it waits for the rest, and is idle
        bad.reactor.advance(200)
        assert bad.protocol.overdue(bad.reactor.seconds())


# --- certificates of clients


@pytest.mark.parametrize("shows", ["nothing", "own", "another's"])
@pytest.mark.parametrize("asked", list(ClientAuth))
@pytest.mark.parametrize("checked", [True, False])
def test_clients_show_certificates_as_wanted(
    clock: Clock,
    connect: Callable[..., Peer],
    authority: Authority,
    tmp_path: Path,
    shows: str,
    asked: ClientAuth,
    checked: bool,
) -> None:
    tls = from_files(
        authority, clock, server_need_client_auth=asked, server_auth_client=checked,
        server_trust_cert_path=authority.path,
    )  # fmt: skip
    (tmp_path / "other").mkdir()
    issuer = Authority(tmp_path / "other", "stranger") if shows == "another's" else authority
    cert = () if shows == "nothing" else issuer.issue("client")
    peer = connect(tls, trusting(authority, *cert))
    refused = (asked is ClientAuth.REQUIRE and shows == "nothing") or (
        asked is not ClientAuth.NONE and checked and shows == "another's"
    )
    try:
        answers = peer.shake_hands().ask(RemotingCommand(ECHO))
    except (ssl.SSLError, BrokenPipeError):
        answers = []
    assert len(answers) == (0 if refused else 1)
    assert peer.closed == refused


# --- files


def test_a_changed_certificate_is_shown_to_the_next(
    clock: Clock, connect: Callable[..., Peer], authority: Authority, logged: Logged
) -> None:
    tls = from_files(authority, clock)
    before = connect(tls, trusting(authority)).shake_hands()
    tls.look(maybeDeferred)
    authority.issue("server")
    tls.look(maybeDeferred)
    after = connect(tls, trusting(authority)).shake_hands()
    assert before.tls.getpeercert(True) != after.tls.getpeercert(True)
    assert len(before.ask(RemotingCommand(ECHO))) == len(after.ask(RemotingCommand(ECHO))) == 1
    assert len([line for line in logged.lines if "was reloaded" in line]) == 1


def test_half_a_change_leaves_the_former(
    clock: Clock, connect: Callable[..., Peer], authority: Authority, tmp_path: Path, logged: Logged
) -> None:
    tls = from_files(authority, clock)
    former = (tmp_path / "server-key.pem").read_bytes()
    authority.issue("server")
    (tmp_path / "server-key.pem").write_bytes(former)
    tls.look(maybeDeferred)
    tls.look(maybeDeferred)
    assert len(connect(tls, trusting(authority)).shake_hands().ask(RemotingCommand(ECHO))) == 1
    stays = [line for line in logged.lines if line.startswith("the certificate was not reloaded")]
    assert len(stays) == 1
    authority.issue("server")
    tls.look(maybeDeferred)
    assert len([line for line in logged.lines if "was reloaded" in line]) == 1


def test_the_watch_looks_while_it_runs(clock: Clock, authority: Authority, logged: Logged) -> None:
    tls = from_files(authority, clock)
    watch = TlsWatch(tls, lambda work: fail(RuntimeError("no disk")), clock)
    watch.startService()
    clock.advance(5)
    watch.stopService()
    clock.advance(50)
    assert [line for line in logged.lines if "not reloaded" in line] == [
        "the certificate was not reloaded (trying again): no disk"
    ]


def test_a_key_with_a_password(clock: Clock, connect: Callable[..., Peer], authority: Authority) -> None:
    tls = from_files(authority, clock, server_key_password="open sesame")
    assert len(connect(tls, trusting(authority)).shake_hands().ask(RemotingCommand(ECHO))) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"server_cert_path": ""}, "wants tls.server.certPath and tls.server.keyPath"),
        ({"server_cert_path": "/not/there"}, "/not/there: No such file or directory"),
        ({"server_key_path": "AUTHORITY"}, "authority.pem: "),
        ({"server_cert_path": "AUTHORITY"}, "in PEM, the first of it that of the key in "),
        ({"server_cert_path": "/dev/null"}, "/dev/null: "),
        ({"server_key_password": "wrong"}, "locked-key.pem: "),
        ({"server_auth_client": True, "server_trust_cert_path": "/not/there"}, "/not/there: no certificates"),
    ],
)
def test_files_that_cannot_be_used_stop_the_start(
    clock: Clock, authority: Authority, change: dict[str, Any], why: str
) -> None:
    cert, key = authority.issue("locked", "open sesame")
    change = {name: authority.path if value == "AUTHORITY" else value for name, value in change.items()}
    settings = {"server_cert_path": cert, "server_key_path": key, "server_key_password": "open sesame", **change}
    with pytest.raises(BadTls) as caught:
        ServerTls(TlsSettings(test_mode=False, **settings), clock)
    assert why in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_clients_certificate_that_cannot_be_used(authority: Authority) -> None:
    with pytest.raises(BadTls, match="no certificates can be read"):
        tls_connector(None, TlsSettings(test_mode=False, client_auth_server=True, client_trust_cert_path="/not/there"))


def test_a_client_reads_on_while_its_handshake_waits(clock: Clock) -> None:
    """What encrypts asks its user to pause from the first write on, until the handshake is over."""
    from twisted.internet.testing import StringTransport

    class Encrypting(StringTransport):
        pass

    classImplements(Encrypting, ISSLTransport)  # type: ignore[misc]
    protocol = RemotingServerFactory(HandlerTable(), clock).buildProtocol(None)
    transport = Encrypting()
    protocol.makeConnection(transport)
    assert transport.producer is None
    protocol.handshakeCompleted()
    protocol.handshakeCompleted()
    assert transport.producer is protocol


def test_a_client_goes_by_the_files_as_they_are_when_it_connects(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path, logged: Logged
) -> None:
    made = []
    monkeypatch.setattr("mqbroker.remoting.tls.wrapClientTLS", lambda creator, endpoint: made.append(creator))
    monkeypatch.setattr("mqbroker.remoting.tls.HostnameEndpoint", lambda *where, timeout: where)
    cert, key = authority.issue("client")
    settings = TlsSettings(test_mode=False, client_cert_path=cert, client_key_path=key)
    connect = tls_connector(None, settings)
    connect("127.0.0.1", 1)
    connect("127.0.0.1", 1)
    authority.issue("client")
    connect("127.0.0.1", 1)
    assert [creator is made[0] for creator in made] == [True, True, False]
    (tmp_path / "client-key.pem").write_text("none")
    connect("127.0.0.1", 1)
    connect("127.0.0.1", 1)
    assert made[2] is made[3] is made[4]
    assert len([line for line in logged.lines if "the client's certificate was not reloaded" in line]) == 1
