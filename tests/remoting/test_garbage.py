"""Bytes that are no frames, and headers that are none: they end their own connection, and nothing else."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import Limits
from mqbroker.wire.command import JSON, ROCKETMQ, encode_frame
from tests.numbers import numbers
from tests.remoting.link import raw_link, serve
from tests.remoting.logs import Logged
from tests.remoting.requests import BATCH, ECHO, echo, request

MANY_FIELDS = {"code": BATCH, "opaque": 1, "flag": 0, "extFields": {str(i): "" for i in range(10_000)}}
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(16),
    "ones": b"\xff" * 64,
    "length 3": struct.pack(">i", 3) + b"abc",
    "negative length": struct.pack(">i", -1) + bytes(20),
    "one over the limit": struct.pack(">i", 16 * 1024 * 1024 + 1),
    "header over the frame": struct.pack(">iI", 20, 17) + bytes(16),
    "header over its bound": struct.pack(">II", 1 << 23, 1 << 22) + b'{"code":2,"x":[' + b"[]," * 20,
    "binary header over its bound": struct.pack(">II", 1 << 23, ROCKETMQ << 24 | 1 << 22) + bytes(200),
    "unknown serialize type": encode_frame(7, b"{}"),
    "no json": encode_frame(JSON, b"{code"),
    "json null": encode_frame(JSON, b"null"),
    "json array": encode_frame(JSON, b"[1,2]"),
    "json number": encode_frame(JSON, b"7"),
    "json text": encode_frame(JSON, b'"code"'),
    "empty header": encode_frame(JSON, b""),
    "deep": encode_frame(JSON, b'{"code":1,"extFields":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": encode_frame(JSON, b'{"x":' * 2000 + b"1" + b"}" * 2000),
    "nan": encode_frame(JSON, b'{"code":NaN}'),
    "huge code": encode_frame(JSON, b'{"code":99999999999999999999999999}'),
    "float code": encode_frame(JSON, b'{"code":2.0,"opaque":1,"flag":0,"extFields":{}}'),
    "code as text": encode_frame(JSON, b'{"code":"2"}'),
    "code as list": encode_frame(JSON, b'{"code":[2]}'),
    "huge opaque": encode_frame(JSON, b'{"code":2,"opaque":4294967296,"flag":0,"extFields":{}}'),
    "opaque as text": encode_frame(JSON, b'{"code":2,"opaque":"1","flag":0,"extFields":{}}'),
    "flag as float": encode_frame(JSON, b'{"code":2,"opaque":1,"flag":0.5,"extFields":{}}'),
    "huge flag": encode_frame(JSON, b'{"code":2,"opaque":1,"flag":99999999999,"extFields":{}}'),
    "fields as list": encode_frame(JSON, b'{"code":2,"opaque":1,"flag":0,"extFields":["a"]}'),
    "a field as object": encode_frame(JSON, b'{"code":2,"opaque":1,"flag":0,"extFields":{"a":{}}}'),
    "a field as list": encode_frame(JSON, b'{"code":2,"opaque":1,"flag":0,"extFields":{"a":[]}}'),
    "too many fields": encode_frame(JSON, json.dumps(MANY_FIELDS).encode()),
    "surrogate": encode_frame(JSON, b'{"code":2,"opaque":1,"flag":0,"extFields":{"a":"\\ud800"}}'),
    "not utf-8": encode_frame(JSON, b'{"code":1,"remark":"\xff"}'),
    "remark as list": encode_frame(JSON, b'{"code":1,"remark":[]}'),
    "short binary": encode_frame(ROCKETMQ, b"\0\1\0"),
    "binary, negative text": encode_frame(ROCKETMQ, struct.pack(">hbhiii", 1, 0, 0, 1, 0, -5) + bytes(8)),
    "binary, long text": encode_frame(ROCKETMQ, struct.pack(">hbhiii", 1, 0, 0, 1, 0, 1 << 30) + bytes(8)),
}  # fmt: skip


@pytest.mark.parametrize("chunk", [1 << 30, 5])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_closes_its_connection_with_a_line_and_no_other(
    clock: Clock, batch_table: HandlerTable, logged: Logged, name: str, chunk: int
) -> None:
    factory = serve(clock, batch_table)
    good, good_link = raw_link(factory)
    bad, bad_link = raw_link(factory)
    data = GARBAGE[name]
    bad.transport.write(data if chunk > 5 else data[:400])
    if chunk == 5 and len(data) > 400:
        bad.transport.loseConnection()
    good.transport.write(request(ECHO, 1, b"before"))
    good_link.pump()
    bad_link.pump(chunk)
    assert bad.lost
    assert bad.received == b""
    if chunk > 5 or len(data) <= 400:
        assert [line for line in logged.lines if line.startswith("closing 10.0.0.2:40000: ")]
    assert len(factory.connections) == 1
    assert logged.failures == []
    good.transport.write(request(ECHO, 2, b"after") + request(BATCH, 3, b"too", x=""))
    good_link.pump()
    assert [answer.body for answer in good.answers] == [b"before", b"after", b"too"]


def test_requests_before_garbage_in_one_read(clock: Clock, table: HandlerTable) -> None:
    """They are answered or not, but the connection ends in any case."""
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 1) + encode_frame(JSON, b"null"))
    link.pump()
    assert peer.lost


def test_a_large_frame_is_refused_before_it_is_collected(clock: Clock, table: HandlerTable) -> None:
    peer, link = raw_link(serve(clock, table, Limits(frame_bytes_max=1000)))
    peer.transport.write(struct.pack(">i", 1001))
    link.pump()
    assert peer.lost


def test_a_cut_frame_is_not_answered(clock: Clock, table: HandlerTable) -> None:
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 1)[:-1])
    peer.transport.loseConnection()
    link.pump()
    assert peer.lost
    assert peer.received == b""


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_random_bytes_never_raise(parts: list[bytes]) -> None:
    clock, table = Clock(), HandlerTable()
    table.register(ECHO, echo)
    peer, link = raw_link(serve(clock, table))
    for part in parts:
        peer.transport.write(part)
        link.pump()
    assert all(answer.is_response for answer in peer.answers)


_json_values = st.recursive(
    st.none() | st.booleans() | numbers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={name: _json_values | st.sampled_from([0, 1, 2, 3]) for name in
                  ("code", "opaque", "flag", "extFields", "language", "version", "remark")},
    )
)  # fmt: skip
def test_random_headers_are_answered_or_closed(fields: dict[str, Any]) -> None:
    clock, table = Clock(), HandlerTable()
    table.register(ECHO, echo)
    seen = []
    table.register_batch(BATCH, lambda requests, connection: seen.extend(requests) or b"")
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(encode_frame(JSON, json.dumps(fields).encode()))
    link.pump()
    for ext, opaque, flag, _, _ in seen:
        assert all(type(value) is str for value in ext.values())
        assert -(2**31) <= opaque < 2**31
        assert -(2**31) <= flag < 2**31
