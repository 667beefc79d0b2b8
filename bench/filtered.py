"""Pulls that want a part of the messages, by tag or by SQL92: how many messages a second a broker looks through, on one
connection."""

import json
import socket
import statistics
import struct
from collections.abc import Sequence
from contextlib import ExitStack, closing

import attrs

from bench.rmqload import LoadFailed, Shape
from bench.servers import Bench, Kind, Server
from bench.table import Table, divided, number

TOPIC = "filtered"
QUEUES = 4
COUNT = 400_000
BODY = b"x" * 128
RATIO_WANTED = 1.0
_PIPELINED = 64
_LENGTHS = struct.Struct(">II")


@attrs.frozen
class Filter:
    """What a consumer wants; `share` of the messages is that."""

    name: str
    kind: str
    expression: str
    share: float


FILTERS = (
    Filter("tag, 1 in 10", "TAG", "t3", 0.1),
    Filter("tag, 1 in 2", "TAG", "t0 || t1 || t2 || t3 || t4", 0.5),
    Filter("SQL92, 1 in 10", "SQL92", "price BETWEEN 30 AND 39", 0.1),
    Filter("SQL92, 1 in 2", "SQL92", "price < 50 AND region IN ('north', 'south')", 0.5),
    Filter("SQL92, none", "SQL92", "price > 200 OR missing IS NOT NULL", 0.0),
)


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int, factor: float) -> None:
    """Fill both brokers and print the table: messages looked through a second, on one connection."""
    count = max(QUEUES * 1000, int(COUNT * factor)) // QUEUES * QUEUES
    with ExitStack() as running:
        servers = [running.enter_context(bench.server(kind, enablePropertyFilter="true")) for kind in kinds]
        for server in servers:
            fill(server, count)
        table.head(f"{'filtered pulls':18}{'ours':>11} {'Java':>11} {'ratio':>6}   messages looked through a second")
        for wanted in FILTERS:
            for server in servers:  # which warms it up
                look_through(server, wanted, count)
            rates: dict[Kind, list[float]] = {server.kind: [] for server in servers}
            for _ in range(rounds):
                for server in servers:
                    rates[server.kind].append(look_through(server, wanted, count))
            medians = {kind: statistics.median(found) for kind, found in rates.items()}
            ours, java = medians.get("ours"), medians.get("java")
            ratio = divided(ours, java)
            cells = f"{number(ours):>11} {number(java):>11} {number(ratio, 2):>6}"
            table.wanted_row(wanted.name, cells, ratio, at_least=RATIO_WANTED)


def fill(server: Server, count: int) -> None:
    """Send the messages: tags t0 to t9, prices 0 to 99, a region. Raises LoadFailed."""
    with closing(_connect(server)) as sock, sock.makefile("rb") as answers:
        for start in range(0, count, _PIPELINED):
            numbers = range(start, min(start + _PIPELINED, count))
            sock.sendall(b"".join([_send(i) for i in numbers]))
            for _ in numbers:
                header, _ = _answer(answers.read)
                if b'"code":0,' not in header:
                    raise LoadFailed(f"{server.process.name}: {header!r}")


def look_through(server: Server, wanted: Filter, count: int) -> float:
    """Pull all that is wanted of all queues; messages looked through a second. Raises LoadFailed."""
    shape = Shape(wanted.name, "pull", 1, 1, len(BODY), count, wanted.expression, wanted.kind)
    result = server.load(TOPIC, shape)
    size = result.mib_rate * 2**20 / result.rate
    if not wanted.share * len(BODY) <= size <= wanted.share * 4 * len(BODY):
        raise LoadFailed(f"{server.process.name} gave {size:.0f} bytes a message for {wanted.name}")
    return result.rate


def _connect(server: Server) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _send(i: int) -> bytes:
    region = ("north", "south", "east", "west")[i // 100 % 4] if i % 100 >= 50 else ("north", "south")[i % 2]
    properties = {"UNIQ_KEY": f"7F0000010000000000000000{i:08X}", "WAIT": "true", "TAGS": f"t{i // 7 % 10}"}
    properties |= {"price": str(i // QUEUES * 37 % 100), "region": region, "buyerId": str(i)}
    fields = {"a": "PG", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(i % QUEUES), "f": "0"}
    fields |= {"g": "1700000000000", "h": "0", "j": "0", "k": "false", "l": "0", "m": "false"}
    fields["i"] = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return _frame(310, fields, BODY)


def _frame(code: int, fields: dict[str, str], body: bytes) -> bytes:
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1, "version": 401}
    text = json.dumps({**header, "serializeTypeCurrentRPC": "JSON"}).encode()
    return _LENGTHS.pack(4 + len(text) + len(body), len(text)) + text + body


def _answer(read) -> tuple[bytes, bytes]:  # type: ignore[no-untyped-def]
    lengths = read(8)
    if len(lengths) < 8:
        raise LoadFailed("the broker closed the connection")
    size, header_size = _LENGTHS.unpack(lengths)
    return read(header_size), read(size - 4 - header_size)
