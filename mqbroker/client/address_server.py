"""Name servers that an HTTP address server lists, as Java's TopAddressing asks for them."""

from __future__ import annotations

import logging
import socket
import time
from functools import partial
from urllib.parse import urlsplit

from mqbroker.client.errors import BadArgument, NameServerUnreachable
from mqbroker.client.net import Net, Task, every
from mqbroker.errors import MQError

log = logging.getLogger(__name__)

_PERIOD_S = 120.0
_TIMEOUT_S = 3.0
_BYTES_MAX = 64 * 1024


def is_url(name_server: str) -> bool:
    """Whether it is the URL of an address server."""
    return name_server.startswith("http://")


def address_of(url: str) -> tuple[str, int]:
    """The host and port of an address server. Raises BadArgument on a bad URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise BadArgument("the address server", "http://host:port/path", url)
    return host, port


class AddressServer:
    """The name servers that an address server listed last. It is asked on the first use, and every two minutes from
    then on."""

    def __init__(self, net: Net, url: str, unit_name: str) -> None:
        self._net = net
        self._url = f"{url}-{unit_name}?nofix=1" if unit_name else url
        self._addrs: tuple[str, ...] = ()
        self._lock = net.lock()
        self._has_failed = False
        #: Requests the list regularly.
        self.task: Task | None = None

    async def name_servers(self) -> tuple[str, ...]:
        """The list. Raises NameServerUnreachable as long as none has come."""
        async with self._lock:
            if not self._addrs:
                await self._ask()
        if self.task is None:
            self.task = self._net.spawn(every(self._net, _PERIOD_S, self._ask_again))
        return self._addrs

    async def _ask(self) -> None:
        # Not there: options has it on this module.
        from mqbroker.client.options import parse_name_servers

        try:
            found = parse_name_servers(await self._net.on_thread(partial(_first_line, self._url)))
            if is_url(found[0]):
                raise MQError("it names another address server")
        except (OSError, MQError) as error:
            raise NameServerUnreachable([(self._url, str(error) or type(error).__name__)]) from None
        if self._addrs and found != self._addrs:
            log.info("%s lists other name servers: %s", self._url, ", ".join(found))
        self._addrs = found

    async def _ask_again(self) -> None:
        try:
            await self._ask()
            self._has_failed = False
        except NameServerUnreachable as error:
            level = logging.DEBUG if self._has_failed else logging.WARNING  # once, until it answers again
            self._has_failed = True
            log.log(level, "keeping the last list of name servers: %s", error.describe())


def _first_line(url: str) -> str:
    """What the URL shows, up to the end of its first line. Raises OSError or MQError, after `_TIMEOUT_S` whatever the
    server does."""
    until = time.monotonic() + _TIMEOUT_S
    host, port = address_of(url)
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # A simple protocol, which is over when the connection is: no part of a response has a time of its own.
    request = f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: */*\r\n\r\n"
    data = b""
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        connection.sendall(request.encode())
        while len(data) <= _BYTES_MAX:
            connection.settimeout(max(0.001, until - time.monotonic()))
            more = connection.recv(_BYTES_MAX)
            if not more:
                break
            data += more
    head, _, body = data.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].split(maxsplit=2)
    if len(data) > _BYTES_MAX or len(status) < 2 or not status[0].startswith(b"HTTP/1."):
        raise MQError("its response is not HTTP, or too long")
    if status[1] != b"200":
        raise MQError(f"its response has the status {status[1][:20].decode(errors='replace')}, and should have 200")
    line = body.strip().splitlines()[:1]
    if not line:
        raise MQError("its response is empty: it should be host:port, several joined by ';'")
    if not line[0].isascii():
        raise MQError("its response is not text")
    return line[0].decode()
