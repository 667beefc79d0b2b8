"""The port that Prometheus reads, attacked: what a peer can use of it is bounded."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqbroker.spark import metrics_server
from mqbroker.spark.metrics_server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, MetricsServer
from tests.daemons.processes import wait_for

ASK = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
def serve() -> Iterator[Callable[..., MetricsServer]]:
    running = []

    def start(text: Callable[[], str] = lambda: "up 1\n", **options: Any) -> MetricsServer:
        running.append(MetricsServer(("127.0.0.1", 0), text, **options))
        return running[-1]

    yield start
    for server in running:
        server.close()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 30)


def ask(server: MetricsServer, request: bytes = ASK) -> bytes:
    """All of the response; none where the connection is closed or reset."""
    with connect(server) as peer:
        try:
            peer.sendall(request)
            return b"".join(iter(lambda: peer.recv(65536), b""))
        except ConnectionError:
            return b""


def test_a_get_has_the_text(serve: Callable[..., MetricsServer]) -> None:
    head, body = ask(serve()).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"\r\nContent-Length: 5\r\n" in head
    assert body == b"up 1\n"


@pytest.mark.parametrize("request_", [b"POST /metrics HTTP/1.1\r\n\r\n", b"\xff\x00\r\n\r\n", b"GET http://x\r\n\r\n"])
def test_other_requests_are_refused(serve: Callable[..., MetricsServer], request_: bytes) -> None:
    assert ask(serve(), request_).startswith(b"HTTP/1.0 405 ")


def test_a_huge_header_is_not_kept(serve: Callable[..., MetricsServer]) -> None:
    server = serve()
    answer = ask(server, b"GET / HTTP/1.1\r\nX: " + b"x" * (REQUEST_BYTES_MAX + 1))
    assert answer.startswith(b"HTTP/1.0 431 ") or not answer
    assert ask(server, b"GET / HTTP/1.1\r\nX: " + b"x" * (16 << 20)).count(b"up 1") == 0
    assert ask(server).endswith(b"up 1\n")


def test_half_a_request_is_forgotten_with_its_connection(serve: Callable[..., MetricsServer]) -> None:
    server = serve()
    for _ in range(4 * CONNECTIONS_MAX):
        with connect(server) as peer:
            peer.sendall(ASK[:-2])
    wait_for(lambda: ask(server).endswith(b"up 1\n"), "a response")


def test_a_peer_that_sends_byte_by_byte_is_cut_off(serve: Callable[..., MetricsServer]) -> None:
    times = iter([0.0, 1.0, *(metrics_server.SECONDS_MAX + n for n in range(9))])
    server = serve(now=lambda: next(times))
    with connect(server) as peer:
        peer.sendall(ASK[:1])
        assert peer.recv(1) == b""


def test_many_connections_are_closed_at_once(serve: Callable[..., MetricsServer]) -> None:
    server = serve()
    idle = [connect(server) for _ in range(CONNECTIONS_MAX)]
    try:
        for _ in range(100):
            assert ask(server, b"") == b""
    finally:
        for peer in idle:
            peer.close()
    wait_for(lambda: ask(server).endswith(b"up 1\n"), "a response")


def test_peers_that_never_read_are_cut_off(serve: Callable[..., MetricsServer]) -> None:
    texts = iter(["x" * (16 << 20)] * CONNECTIONS_MAX)
    server = serve(lambda: next(texts, "up 1\n"), seconds_max=0.2)
    peers = [connect(server) for _ in range(CONNECTIONS_MAX)]
    try:
        for peer in peers:
            peer.sendall(ASK)
        wait_for(lambda: ask(server).endswith(b"up 1\n"), "a response")
    finally:
        for peer in peers:
            peer.close()
