"""Where clients have their name servers from: arguments, the environment, and an HTTP address server."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mqbroker.client import BadArgument, Message, NameServerUnreachable, ProducerOptions, address_server
from mqbroker.client.options import parse_name_servers
from mqbroker.client.routes import Routes
from tests.client.address_server import Listing
from tests.client.own_cluster import NAME_SERVER

OTHER = "10.0.0.77:9876"


@pytest.fixture
def listing() -> Iterator[Listing]:
    with Listing() as listing:
        yield listing


@pytest.mark.parametrize("name", ["Producer", "PullConsumer", "LitePullConsumer", "PushConsumer"])
def test_a_client_takes_its_name_servers_from_the_environment_or_an_address_server(
    face: Any, cluster: Any, listing: Listing, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    addr, listener = cluster.name_server, [print] if name == "PushConsumer" else []
    listing.lists(f"{addr}\r\nwhat follows is not read")
    for given, in_environment in ((None, addr), (listing.url, "127.0.0.1:1"), (None, listing.url)):
        monkeypatch.setattr(cluster, "name_server", given)
        monkeypatch.setenv("NAMESRV_ADDR", in_environment)
        client = face.make(name, "g", *listener)
        if listener:
            client.subscribe("T")
        with client:
            pass
    assert listing.asked == ["/rocketmq/nsaddr"] * 2


def test_clients_that_share_connections_ask_once_and_name_their_unit(
    face: Any, cluster: Any, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing.lists(cluster.name_server)
    monkeypatch.setattr(cluster, "name_server", listing.url)
    options = ProducerOptions(unit_name="north")
    with face.make("Producer", "a", options=options) as one, face.make("Producer", "b", options=options) as other:
        one.send(Message("T", b"x"))
        other.send(Message("T", b"x"))
    assert listing.asked == ["/rocketmq/nsaddr-north?nofix=1"]


def test_a_client_starts_again_when_the_address_server_lists_name_servers(
    face: Any, cluster: Any, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    addr = cluster.name_server
    monkeypatch.setattr(cluster, "name_server", listing.url)
    listing.response = b"HTTP/1.1 404 Not Found\r\n\r\n"
    producer = face.make("Producer", "pg")
    with pytest.raises(NameServerUnreachable, match=rf"{listing.url}: its response has the status 404"):
        producer.start()
    listing.lists(addr)
    with producer:
        producer.send(Message("T", b"x"))


BAD = [
    b"HTTP/1.1 500 Oops\r\n\r\n10.0.0.9:9876",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n<html>\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nhttp://127.0.0.1:1/x",
    b"HTTP/1.1 200 OK\r\n\r\n" + b"10.0.0.9:9876;" * 10_000,
    b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe:9876",
    b"SSH-2.0-OpenSSH\r\n\r\n10.0.0.9:9876",
    b"\x00",
    b"",
    None,
]


def test_a_bad_answer_keeps_the_last_list_and_is_logged_once(
    world: Any, listing: Listing, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_server, "_TIMEOUT_S", 0.2)
    caplog.set_level(logging.INFO, "mqbroker.client.address_server")
    net = world.net()
    routes = Routes(net, (listing.url,), age_s=None)
    listing.lists(f"{NAME_SERVER}\n")
    world.result(routes.check())
    for response in BAD:
        listing.response = response
        world.clock.advance(120.0)
        world.result(routes.check())
    assert len(listing.asked) == 1 + len(BAD)
    (line,) = [each.getMessage() for each in caplog.records if each.name == address_server.__name__]
    assert line.startswith("keeping the last list of name servers: No name server answers: http://127.0.0.1:")
    caplog.clear()
    listing.lists(OTHER)
    world.clock.advance(120.0)
    with pytest.raises(NameServerUnreachable, match=OTHER):
        world.result(routes.check())
    assert [each.getMessage() for each in caplog.records if each.name == address_server.__name__] == [
        f"{listing.url} lists other name servers: {OTHER}"
    ]
    world.result(net.close())
    world.clock.advance(1000.0)
    assert len(listing.asked) == 2 + len(BAD)


def test_an_address_server_is_a_url_given_alone() -> None:
    assert parse_name_servers("http://ns.example:8080/rocketmq/nsaddr") == ("http://ns.example:8080/rocketmq/nsaddr",)
    for wrong in ("http://", "http://:80/x", "http://a:99999/", "http://a/ b", "http://a/\r\nX: y", "https://a/b"):
        with pytest.raises(BadArgument, match=r"the address server must be http://host:port/path|must be host:port"):
            parse_name_servers(wrong)
    with pytest.raises(BadArgument, match="must be an address server alone"):
        parse_name_servers("http://a/b;10.0.0.9:9876")
