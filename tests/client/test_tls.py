"""Encrypted connections on each face: which servers are taken for the right ones, and what is said of the others."""

import asyncio
import functools
import json
import os
import pickle
import ssl
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqbroker.client import (
    ClientTls,
    ConsumeFrom,
    Message,
    MessageQueue,
    ProducerOptions,
    PullOptions,
    PushOptions,
    aio,
    blocking,
    deferred,
)
from mqbroker.client.tls import Contexts, ssl_context
from mqbroker.errors import BadTls, ConnectionClosed, MQError
from tests.client.faults import Passage
from tests.client.loopback import Loopback
from tests.daemons.forks import ForkServer
from tests.daemons.processes import SOURCE
from tests.remoting.certificates import Authority

Q = MessageQueue("T", "a", 0)


@functools.cache
def forks() -> ForkServer:
    return ForkServer(SOURCE)


@pytest.fixture(scope="module", autouse=True)
def _forks_end() -> Iterator[None]:
    yield
    if forks.cache_info().currsize:
        forks().close()
        forks.cache_clear()


def on_twisted(addr: Any, tls: Any) -> Any:
    """In a process of its own: the reactor of this one has other work."""
    arguments = {name: getattr(tls, name) for name in tls.__slots__ if name[0] != "_"}
    command = ["-m", "tests.client.on_twisted", addr, json.dumps(arguments, default=str)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        done = forks().start(command, Path(SOURCE), dict(os.environ), out.fileno(), err.fileno())
        done.wait(60)
        out.seek(0)
        err.seek(0)
        assert err.read() == ""
        return out.read().strip()


def on_asyncio(addr: Any, tls: Any) -> Any:
    async def main() -> Any:
        async with aio.Producer(addr, "pg", options=ProducerOptions(tls=tls, retries=0)) as producer:
            return (await producer.send(Message("T", b"1"))).status.name

    try:
        return asyncio.run(main())
    except MQError as error:
        return f"{type(error).__name__} {error}"


def on_blocking(addr: Any, tls: Any) -> Any:
    try:
        with blocking.Producer(addr, "pg", options=ProducerOptions(tls=tls, retries=0)) as producer:
            return producer.send(Message("T", b"1")).status.name
    except MQError as error:
        return f"{type(error).__name__} {error}"


FACES = [on_blocking, on_asyncio, on_twisted]


@pytest.fixture
def authority(tmp_path: Path) -> Any:
    return Authority(tmp_path)


@pytest.fixture
def serve(authority: Any, tmp_path: Path) -> Any:
    """Starts a server with topic T whose certificate is for `hosts` and `addresses`."""
    servers: list[Any] = []

    def start(*, wants: Any = ssl.CERT_NONE, encrypted: Any = True, **issued: Any) -> Any:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("server", **({"addresses": ["127.0.0.1"]} | issued)))
        context.load_verify_locations(authority.path)
        context.verify_mode = wants
        server = Loopback(tmp_path / f"server-{len(servers)}", context if encrypted else None)
        server.add_topic("T", queues=1)
        server.add_topic("%RETRY%g", queues=1)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("face", FACES)
def test_a_server_that_a_named_authority_vouches_for(serve: Any, authority: Any, face: Any) -> None:
    assert face(serve().addr, ClientTls(ca_file=authority.path)) == "SEND_OK"


@pytest.mark.parametrize("face", FACES)
def test_a_server_that_nobody_vouches_for(serve: Any, face: Any) -> None:
    said = face(serve().addr, ClientTls())
    assert said.startswith("TlsFailed no encrypted connection to 127.0.0.1:")
    assert "its certificate is not trusted: " in said
    assert said.endswith("Name a file with its authority: ca_file of ClientTls, --tls-ca of mq")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("issued", [{"hosts": ["example.org"]}, {"addresses": ["127.0.0.2"]}, {"addresses": []}])
def test_a_certificate_of_another(serve: Any, authority: Any, face: Any, issued: Any) -> None:
    server = serve(**({"addresses": []} | issued))
    said = face(server.addr, ClientTls(ca_file=authority.path))
    assert "its certificate is not for 127.0.0.1. Connect by a name that it is for, or say which" in said
    assert server.faults.requests == []


@pytest.mark.parametrize("face", FACES)
def test_a_server_by_its_name_wherever_it_is(serve: Any, authority: Any, face: Any) -> None:
    server = serve(hosts=["mq.example.org"], addresses=[])
    assert face(server.addr, ClientTls(ca_file=authority.path, server_name="mq.example.org")) == "SEND_OK"
    said = face(server.addr, ClientTls(ca_file=authority.path, server_name="example.org"))
    assert "its certificate is not for example.org" in said


@pytest.mark.parametrize("face", FACES)
def test_insecure_takes_any(serve: Any, face: Any) -> None:
    assert face(serve(hosts=["example.org"], addresses=[]).addr, ClientTls(insecure=True)) == "SEND_OK"


@pytest.mark.parametrize("face", FACES)
def test_an_expired_certificate(serve: Any, authority: Any, face: Any) -> None:
    said = face(serve(expired=True).addr, ClientTls(ca_file=authority.path))
    assert "its certificate has expired. Renew it, or check the clocks" in said


@pytest.mark.parametrize("face", FACES)
def test_a_server_that_does_not_encrypt(serve: Any, authority: Any, face: Any) -> None:
    said = face(serve(encrypted=False).addr, ClientTls(ca_file=authority.path))
    assert "was closed during the TLS handshake: the server may be stopping" in said
    assert "Leave TLS out" not in said


@pytest.mark.parametrize("face", FACES)
def test_a_server_that_wants_a_certificate(serve: Any, authority: Any, tmp_path: Path, face: Any) -> None:
    addr = serve(wants=ssl.CERT_REQUIRED).addr
    said = face(addr, ClientTls(ca_file=authority.path))
    assert "it wants a certificate of the client (certificate required)" in said
    assert "--tls-cert and --tls-key of mq" in said
    (tmp_path / "other").mkdir()
    strange, key = Authority(tmp_path / "other", "stranger").issue("client")
    said = face(addr, ClientTls(ca_file=authority.path, cert_file=strange, key_file=key))
    assert "it refuses this client's certificate (unknown ca)" in said
    cert, key = authority.issue("client", "open sesame")
    mine = ClientTls(ca_file=authority.path, cert_file=cert, key_file=key, key_password="open sesame")
    assert face(addr, mine) == "SEND_OK"


@pytest.mark.parametrize("face", FACES[:2])
def test_without_encryption_a_server_that_wants_it_is_named_as_what_it_may_be(serve: Any, face: Any) -> None:
    assert "it may take only encrypted ones (ClientTls, --tls of mq)" in face(serve().addr, None)


def test_a_connection_that_was_used_is_not_said_to_want_encryption(serve: Any) -> None:
    server = serve(encrypted=False)
    with blocking.PullConsumer(server.addr, "g") as consumer:
        consumer.min_offset(Q)
        server.faults.refuse[None, None] = Passage.cut
        with pytest.raises(ConnectionClosed) as caught:
            consumer.min_offset(Q)
    assert "encrypted" not in str(caught.value)


# --- beyond the first request


def test_an_encrypted_connection_is_kept(serve: Any, authority: Any) -> None:
    server = serve()
    with blocking.PullConsumer(
        server.addr, "g", options=PullOptions(tls=ClientTls(ca_file=authority.path))
    ) as consumer:
        for _ in range(5):
            consumer.min_offset(Q)
        answers = consumer.fetch_many([(Q, n, 1) for n in range(200)])
    assert len(answers) == 200
    assert len(server.connections) == 1


def test_an_idle_encrypted_connection_that_has_ended_is_not_used_again(serve: Any, authority: Any) -> None:
    server = serve()
    with blocking.PullConsumer(
        server.addr, "g", options=PullOptions(tls=ClientTls(ca_file=authority.path))
    ) as consumer:
        consumer.min_offset(Q)
        server.close()
        with pytest.raises(MQError, match=r"connect to .* failed|the connection to .* was lost: closed"):
            consumer.min_offset(Q)


def test_a_closed_client_on_asyncio_leaves_no_connection_behind(serve: Any, authority: Any) -> None:
    addr = serve().addr

    async def main() -> Any:
        producer = aio.Producer(addr, "pg", options=ProducerOptions(tls=ClientTls(ca_file=authority.path)))
        await producer.start()
        await producer.send(Message("T", b"1"))
        await producer.close()
        return [connection.is_lost for connection in producer._net._lines.connections.values()]

    assert asyncio.run(main()) == [True] * 2


def test_a_server_that_does_not_part_is_left(serve: Any, authority: Any) -> None:
    server, over = serve(), threading.Event()

    async def main() -> Any:
        options = ProducerOptions(tls=ClientTls(ca_file=authority.path), close_timeout_s=0.4)
        producer = aio.Producer(server.addr, "pg", options=options)
        await producer.start()
        await producer.queues("T")
        server.faults.refuse[None, None] = lambda passage: over.wait(10)
        await producer.send_oneway(Message("T", b"1"))
        await producer.close()
        return [connection.is_lost for connection in producer._net._lines.connections.values()]

    try:
        assert asyncio.run(main()) == [True] * 2
    finally:
        over.set()


def test_encrypted_clients_can_be_pickled(serve: Any, authority: Any) -> None:
    server = serve()
    producer = blocking.Producer(server.addr, "pg", options=ProducerOptions(tls=ClientTls(ca_file=authority.path)))
    with pickle.loads(pickle.dumps(producer)) as copy:
        assert copy.send(Message("T", b"1")).status.name == "SEND_OK"


def test_a_consumer_on_threads_is_encrypted(serve: Any, authority: Any) -> None:
    server = serve()
    server.store(Q, b"hello")
    got, came = [], threading.Event()

    def listen(message: Any) -> None:
        got.append(message.body)
        came.set()

    options = PushOptions(tls=ClientTls(ca_file=authority.path), consume_from=ConsumeFrom.FIRST, suspend_s=0)
    consumer = blocking.PushConsumer(server.addr, "g", listen, options=options)
    consumer.subscribe("T")
    with consumer:
        assert came.wait(10)
    assert got == [b"hello"]


def test_new_files_count_for_new_connections(serve: Any, authority: Any, tmp_path: Path) -> None:
    server = serve()
    trusted = tmp_path / "trusted.pem"
    (tmp_path / "other").mkdir()
    trusted.write_bytes((tmp_path / "authority.pem").read_bytes())
    with blocking.Producer(
        server.addr, "pg", options=ProducerOptions(tls=ClientTls(ca_file=str(trusted)), retries=0)
    ) as producer:
        trusted.write_text((tmp_path / Authority(tmp_path / "other", "stranger").path).read_text())
        with pytest.raises(MQError, match="its certificate is not trusted"):
            producer.send(Message("T", b"1"))
        trusted.write_bytes((tmp_path / "authority.pem").read_bytes())
        producer.send(Message("T", b"1"))


def test_files_that_cannot_be_used_any_more_count_until_they_can(authority: Any, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((tmp_path / "authority.pem").read_bytes())
    contexts = Contexts(ClientTls(ca_file=str(trusted)), ssl_context)
    first = contexts.current()
    assert contexts.current() is first
    trusted.write_text("nothing")
    for _ in range(2):
        with pytest.raises(BadTls, match="no certificates can be read there"):
            contexts.current()
    trusted.write_bytes((tmp_path / "authority.pem").read_bytes())
    assert contexts.current() is not first


# --- files


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"insecure": True, "ca_file": "CA"}, "insecure=True verifies nothing"),
        ({"insecure": True, "server_name": "x"}, "insecure=True verifies nothing"),
        ({"key_file": "KEY"}, "cert_file is not set"),
    ],
)
def test_contradictions_are_told_at_once(given: Any, why: Any) -> None:
    with pytest.raises(BadTls, match=why):
        ClientTls(**given)


@pytest.mark.parametrize("make", [blocking.Producer, aio.Producer, partial(deferred.Producer, Clock())])
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ca_file": "/not/there"}, "/not/there: No such file"),
        ({"ca_file": "KEY"}, "client-key.pem: no certificates can be read there"),
        ({"cert_file": "/not/there"}, "/not/there: No such file"),
        ({"cert_file": "CERT", "key_file": "/not/there"}, "/not/there: No such file"),
        ({"cert_file": "CERT", "key_file": "KEY"}, "client-key.pem: no private key of the certificate in"),
        ({"cert_file": "CERT", "key_file": "KEY", "key_password": "mellon"}, "client-key.pem: no private key"),
        ({"cert_file": "CERT"}, "client-cert.pem: no private key"),
        ({"cert_file": "CA", "key_file": "KEY", "key_password": "open sesame"}, "client-key.pem: no private key"),
    ],
)
def test_files_that_cannot_be_used_are_named(authority: Any, make: Any, given: Any, why: Any) -> None:
    cert, key = authority.issue("client", "open sesame")
    paths = {"CERT": cert, "KEY": key, "CA": authority.path}
    tls = ClientTls(**{name: paths.get(value, value) for name, value in given.items()})
    with pytest.raises(BadTls) as caught:
        make("127.0.0.1:1", "g", options=ProducerOptions(tls=tls)).start()
    assert why in str(caught.value)
    assert "sesame" not in str(caught.value) + repr(tls)
