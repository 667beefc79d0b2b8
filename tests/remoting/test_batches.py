"""Requests of one read that are handled together."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire import strict_json
from mqbroker.wire.command import (
    JSON,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    ROCKETMQ,
    RemotingCommand,
    encode_command,
    encode_frame,
)
from tests.numbers import numbers
from tests.remoting.link import CLIENT, End, Link, Peer, raw_link, serve
from tests.remoting.requests import BATCH, ECHO, LATER, OTHER_BATCH, echo, request


def test_neighbours_come_together_and_codes_in_order(clock: Clock, batch_table: HandlerTable, calls: list[Any]) -> None:
    peer, link = raw_link(serve(clock, batch_table))
    codes = [BATCH, BATCH, OTHER_BATCH, LATER, BATCH, BATCH, BATCH, LATER, LATER, OTHER_BATCH]
    for opaque, code in enumerate(codes):
        peer.transport.write(request(code, opaque, b"%d" % opaque, x="y"))
    link.pump()
    assert calls == [
        (BATCH, [(0, b"0"), (1, b"1")]),
        (OTHER_BATCH, [(2, b"2")]),
        (LATER, 3),
        (BATCH, [(4, b"4"), (5, b"5"), (6, b"6")]),
        (LATER, 7),
        (LATER, 8),
        (OTHER_BATCH, [(9, b"9")]),
    ]
    assert [answer.opaque for answer in peer.answers] == list(range(10))


@given(st.lists(st.tuples(st.sampled_from([BATCH, OTHER_BATCH, LATER, 99]), st.sampled_from([JSON, ROCKETMQ])),
                max_size=30), numbers(1, 400))  # fmt: skip
def test_every_request_is_answered_in_order(requests: list[tuple[int, int]], chunk: int) -> None:
    clock, table = Clock(), HandlerTable()
    table.register(LATER, echo)
    for code in (BATCH, OTHER_BATCH):
        table.register_batch(
            code,
            lambda raws, connection: b"".join(
                encode_command(RemotingCommand(0, body=raw[3], opaque=raw[1], flag=RESPONSE_FLAG)) for raw in raws
            ),
        )
    peer, link = raw_link(serve(clock, table))
    for opaque, (code, serialize_type) in enumerate(requests):
        peer.transport.write(request(code, opaque, b"b", serialize_type=serialize_type, x="y"))
    link.pump(chunk)
    assert [answer.opaque for answer in peer.answers] == list(range(len(requests)))


def test_both_header_encodings_reach_a_batch_alike(clock: Clock) -> None:
    table, seen = HandlerTable(), []
    table.register_batch(BATCH, lambda requests, connection: seen.extend(requests) or b"")
    peer, link = raw_link(serve(clock, table))
    for serialize_type in (JSON, ROCKETMQ):
        peer.transport.write(request(BATCH, 8, b"body", flag=ONEWAY_FLAG, serialize_type=serialize_type, b="T", e="0"))
    link.pump()
    assert seen == [
        ({"b": "T", "e": "0"}, 8, ONEWAY_FLAG, b"body", JSON),
        ({"b": "T", "e": "0"}, 8, ONEWAY_FLAG, b"body", ROCKETMQ),
    ]


def test_a_batch_gets_requests_without_fields_too(clock: Clock) -> None:
    """Java leaves extFields out, or writes null, where there are none."""
    table, seen = HandlerTable(), []
    table.register_batch(BATCH, lambda requests, connection: seen.extend(requests) or b"")
    peer, link = raw_link(serve(clock, table))
    for header in ({"code": BATCH, "opaque": 1}, {"code": BATCH, "opaque": 2, "flag": 0, "extFields": None}):
        peer.transport.write(encode_frame(JSON, json.dumps(header).encode()))
    link.pump()
    assert seen == [({}, 1, 0, b"", JSON), ({}, 2, 0, b"", JSON)]


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (True, "true"), (1.5, "1.5"), (None, None)], ids=["int", "bool", "float", "null"]
)
def test_values_of_fields_reach_a_batch_as_text(clock: Clock, value: float | None, text: str | None) -> None:
    """Fastjson reads a number, or a boolean, into a map of texts as its text; so must both ways of ours."""
    table, seen = HandlerTable(), []
    table.register_batch(BATCH, lambda requests, connection: seen.extend(requests) or b"")
    peer, link = raw_link(serve(clock, table))
    header = {"code": BATCH, "opaque": 1, "flag": 0, "extFields": {"a": "x", "e": value}}
    peer.transport.write(encode_frame(JSON, json.dumps(header).encode()))
    link.pump()
    wanted = {"a": "x"} if text is None else {"a": "x", "e": text}
    assert [raw[0] for raw in seen] == [wanted]


def test_late_answers_of_a_batch(clock: Clock) -> None:
    table, held = HandlerTable(), list[Any]()

    def batch(requests: list[tuple[dict[str, str], int, int, bytes, int]], connection: IConnection) -> Deferred[Any]:
        held.append(([raw[1] for raw in requests], Deferred()))
        return held[-1][1]

    table.register_batch(BATCH, batch)
    table.register(ECHO, echo)
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(BATCH, 1, x="") + request(BATCH, 2, x="") + request(ECHO, 3))
    link.pump()
    peer.transport.write(request(BATCH, 4, x=""))
    link.pump()
    assert [answer.opaque for answer in peer.answers] == [3]
    for opaques, deferred in reversed(held):
        deferred.callback(b"".join(encode_command(RemotingCommand(0, opaque=n, flag=RESPONSE_FLAG)) for n in opaques))
    link.pump()
    assert [answer.opaque for answer in peer.answers] == [3, 4, 1, 2]


def test_late_answers_to_a_lost_connection_go_nowhere(clock: Clock) -> None:
    table, held = HandlerTable(), list[Any]()
    for code, register in ((LATER, table.register), (BATCH, table.register_batch)):
        register(code, lambda requests, connection: held.append(Deferred()) or held[-1])
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(LATER, 1) + request(BATCH, 2, x=""))
    link.pump()
    link.cut()
    held[0].callback(RemotingCommand(0))
    held[1].callback(b"bytes")
    assert peer.received == b""


class PromptEnd(End):
    """As an ImmediateWriteServer is; `how` records which way each write took."""

    def __init__(self, *addresses: IPv4Address) -> None:
        super().__init__(*addresses)
        self.how: list[Any] = []

    def write(self, data: bytes) -> None:
        self.how.append("next turn")
        super().write(data)

    def write_at_once(self, data: bytes) -> None:
        self.how.append("at once")
        super().write(data)


@pytest.mark.parametrize(("count", "how"), [(1, "at once"), (8, "at once"), (9, "next turn"), (50, "next turn")])
@pytest.mark.parametrize("code", [ECHO, BATCH])
def test_few_answers_are_sent_at_once_and_many_in_the_next_turn(
    clock: Clock, batch_table: HandlerTable, code: int, count: int, how: str
) -> None:
    peer = Peer()
    link = Link(peer, serve(clock, batch_table).buildProtocol(CLIENT), far_end=PromptEnd)
    peer.transport.write(request(code, 1, x="") * count)
    link.pump()
    assert set(cast(PromptEnd, link.ends[1]).how) == {how}
    assert len(peer.answers) == count


@pytest.mark.parametrize("code", [BATCH, LATER, 99])
@pytest.mark.parametrize("more", ["", ',"x":[[],[]]', ',"extFields":{"a":1}', ',"opaque":2147483648'])
def test_a_header_is_parsed_once(
    clock: Clock, batch_table: HandlerTable, monkeypatch: pytest.MonkeyPatch, code: int, more: str
) -> None:
    parsed: list[bytes] = []
    loads = strict_json.loads

    def count(text: bytes) -> Any:
        parsed.append(text)
        return loads(text)

    text = f'{{"code":{code},"opaque":1,"flag":0,"extFields":{{"x":"y"}}{more}}}'.encode()
    peer, link = raw_link(serve(clock, batch_table))
    monkeypatch.setattr(strict_json, "loads", count)
    peer.transport.write(encode_frame(JSON, text) * 2)
    link.pump()
    assert parsed == [text] * (1 if peer.lost else 2)
