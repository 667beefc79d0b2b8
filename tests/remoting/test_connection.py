"""One connection, both ends of it ours, or one of them raw bytes."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.limits import Limits
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode_command
from mqbroker.wire.frame import JSON, ROCKETMQ, encode_frame
from tests.remoting.link import CLIENT, End, Link, NoOwner, Peer, protocol_link, raw_link, result, serve, waiting

# Any that are classified.
ECHO, BATCH, OTHER_BATCH, LATER = 10, 11, 12, 14


def echo(request, connection):
    return RemotingCommand.response(request, body=request.body)


@pytest.fixture
def table():
    table = HandlerTable()
    table.register(ECHO, echo)
    return table


def request(code, opaque=0, body=b"", *, serialize_type=JSON, flag=0, **ext):
    return encode_command(RemotingCommand(code, ext, body, opaque=opaque, flag=flag, serialize_type=serialize_type))


# --- asking


def test_a_connection_is_what_handlers_expect(clock, table):
    near, _ = protocol_link(clock, serve(clock, table))
    assert verifyObject(IConnection, near)
    assert near.remote_addr == "10.0.0.1:10911"
    assert near.remote_host == bytes([10, 0, 0, 1]) + struct.pack(">i", 10911)
    assert near.transport.no_delay


@pytest.mark.parametrize("chunk", [1, 3, 7, 1 << 30])
@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_a_request_is_answered(clock, table, chunk, serialize_type):
    near, link = protocol_link(clock, serve(clock, table))
    asked = [
        near.invoke(RemotingCommand(ECHO, body=str(i).encode(), serialize_type=serialize_type), 1000) for i in range(5)
    ]
    link.pump(chunk)
    answers = [result(deferred) for deferred in asked]
    assert [answer.body for answer in answers] == [b"0", b"1", b"2", b"3", b"4"]
    assert {answer.serialize_type for answer in answers} == {serialize_type}
    assert all(answer.is_response for answer in answers)
    assert clock.getDelayedCalls()[1:] == []  # only the server's watch is left


def test_either_end_may_ask(clock, table):
    factory = serve(clock)
    _, link = protocol_link(clock, factory, table)
    (far,) = factory.connections
    asked = far.invoke(RemotingCommand(ECHO, body=b"from the server"), 1000)
    link.pump()
    assert result(asked).body == b"from the server"


def test_answers_are_told_apart_in_any_order(clock):
    table, held = HandlerTable(), []

    def hold(request, connection):
        held.append((request, Deferred()))
        return held[-1][1]

    table.register(LATER, hold)
    near, link = protocol_link(clock, serve(clock, table))
    asked = [near.invoke(RemotingCommand(LATER, body=bytes([i])), 1000) for i in range(3)]
    link.pump()
    for came, deferred in reversed(held):
        deferred.callback(echo(came, None))
        link.pump()
    assert [result(deferred).body for deferred in asked] == [b"\0", b"\1", b"\2"]


def test_no_answer_in_time(clock, table):
    near, link = protocol_link(clock, serve(clock, table))
    link.paused = True
    asked = near.invoke(RemotingCommand(ECHO), 1500)
    clock.advance(1.4)
    assert not asked.called
    clock.advance(0.1)
    error = result(asked)
    assert isinstance(error, RequestTimedOut)
    assert "1500 ms" in str(error)
    assert "10.0.0.1:10911" in str(error)
    link.paused = False
    link.pump()  # the late answer is nobody's
    assert not near.closed
    again = near.invoke(RemotingCommand(ECHO, body=b"x"), 1500)
    link.pump()
    assert result(again).body == b"x"


def test_a_cancelled_request_is_forgotten(clock, table):
    near, link = protocol_link(clock, serve(clock, table))
    asked = near.invoke(RemotingCommand(ECHO), 1000)
    asked.cancel()
    assert isinstance(result(asked), CancelledError)
    link.pump()
    clock.advance(2)
    assert not near.closed


def test_a_lost_connection_fails_each_waiting_request_once(clock, table):
    near, link = protocol_link(clock, serve(clock, table))
    link.paused = True
    failures = []
    for i in range(4):
        near.invoke(RemotingCommand(ECHO), 1000).addErrback(lambda failure, i=i: failures.append((i, failure.value)))
    gone = []
    near.notify_closed(lambda: gone.append("gone"))
    link.cut()
    assert [i for i, _ in failures] == [0, 1, 2, 3]
    assert {type(error) for _, error in failures} == {ConnectionClosed}
    assert "10.0.0.1:10911" in str(failures[0][1])
    assert gone == ["gone"]
    clock.advance(2)  # no time-out of theirs is left to fire
    assert len(failures) == 4


def test_a_request_made_by_a_failing_one_fails_too(clock, table):
    near, link = protocol_link(clock, serve(clock, table))
    link.paused = True
    again = []
    near.invoke(RemotingCommand(ECHO), 1000).addErrback(lambda _: again.append(near.invoke(RemotingCommand(ECHO), 5)))
    link.cut()
    assert isinstance(result(again[0]), ConnectionClosed)


def test_a_failing_request_may_cancel_another(clock, table):
    factory = serve(clock, table)
    near, link = protocol_link(clock, factory)
    link.paused = True
    asked = [near.invoke(RemotingCommand(ECHO), 1000) for _ in range(3)]
    asked[0].addErrback(lambda _: asked[1].cancel())
    link.cut()
    assert isinstance(result(asked[1]), CancelledError)
    assert isinstance(result(asked[2]), ConnectionClosed)
    assert not factory.connections


def test_a_closed_connection_takes_nothing(clock, table):
    near, link = protocol_link(clock, serve(clock, table))
    link.cut()
    assert isinstance(result(near.invoke(RemotingCommand(ECHO), 1000)), ConnectionClosed)
    near.invoke_oneway(RemotingCommand(ECHO))
    near.send(RemotingCommand(ECHO))
    near.write(b"x")
    near.close("again")
    gone = []
    near.notify_closed(lambda: gone.append("at once"))
    assert gone == ["at once"]


def test_a_request_that_cannot_be_encoded_leaves_nothing_behind(clock, table):
    near, _ = protocol_link(clock, serve(clock, table))
    before = len(clock.getDelayedCalls())
    with pytest.raises(Exception, match="UTF-8"):
        near.invoke(RemotingCommand(ECHO, {"topic": "\ud800"}), 1000)
    assert len(clock.getDelayedCalls()) == before


def test_oneway_gets_no_answer(clock):
    table, seen = HandlerTable(), []
    table.register(ECHO, lambda request, connection: seen.append(request) or echo(request, connection))
    table.register(LATER, lambda request, connection: seen.append(request) or succeed(echo(request, connection)))
    near, link = protocol_link(clock, serve(clock, table))
    near.invoke_oneway(RemotingCommand(ECHO))
    near.invoke_oneway(RemotingCommand(LATER))
    near.invoke_oneway(RemotingCommand(77))
    link.pump()
    assert [command.code for command in seen] == [ECHO, LATER]
    assert all(command.is_oneway for command in seen)
    assert link.ends[1].written == b""


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_an_answer_to_nothing_is_ignored(clock, table, serialize_type):
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(0, 12345, flag=RESPONSE_FLAG, serialize_type=serialize_type))
    peer.transport.write(request(ECHO, 5, b"on we go", serialize_type=serialize_type))
    link.pump()
    assert [(answer.opaque, answer.body) for answer in peer.answers] == [(5, b"on we go")]


def test_an_answer_is_never_taken_for_a_request(clock):
    """Also where its code is one that has a batch handler."""
    table, seen = HandlerTable(), []
    table.register_batch(BATCH, lambda requests, connection: seen.append(requests) or b"")
    peer, link = raw_link(serve(clock, table))
    for serialize_type in (JSON, ROCKETMQ):
        peer.transport.write(request(BATCH, 1, flag=RESPONSE_FLAG, serialize_type=serialize_type, x="y"))
    link.pump()
    assert seen == []
    assert not peer.lost


# --- answering


async def coroutine_handler(request, connection):
    await succeed(None)
    return echo(request, connection)


@pytest.mark.parametrize(
    "handler",
    [echo, lambda request, connection: succeed(echo(request, connection)), coroutine_handler],
    ids=["value", "deferred", "coroutine"],
)
def test_what_a_handler_may_return(clock, handler):
    table = HandlerTable()
    table.register(ECHO, handler)
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 9, b"body"))
    link.pump()
    assert [(answer.opaque, answer.body) for answer in peer.answers] == [(9, b"body")]


def test_a_handler_that_returns_none_answers_itself(clock):
    table, seen = HandlerTable(), []
    table.register(LATER, lambda request, connection: seen.append((request, connection)))
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(LATER, 3))
    link.pump()
    assert peer.answers == []
    came, connection = seen[0]
    connection.send(RemotingCommand.response(came, body=b"now"))
    link.pump()
    assert [(answer.opaque, answer.body) for answer in peer.answers] == [(3, b"now")]


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_an_unknown_code_is_refused(clock, table, serialize_type):
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(9999, 6, serialize_type=serialize_type))
    link.pump()
    (answer,) = peer.answers
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert (answer.opaque, answer.remark) == (6, " request type 9999 not supported")
    assert answer.serialize_type == serialize_type


def raising(error, how):
    """A handler, or a batch handler, that fails with `error`."""

    def at_once(request, connection):
        raise error

    def later(request, connection):
        deferred = Deferred()
        deferred.errback(error)
        return deferred

    async def in_a_coroutine(request, connection):
        raise error

    return {"at once": at_once, "later": later, "coroutine": in_a_coroutine}[how]


@pytest.mark.parametrize("how", ["at once", "later", "coroutine"])
def test_a_refusal_becomes_the_answer(clock, logged, how):
    table = HandlerTable()
    table.register(ECHO, raising(Refused(ResponseCode.TOPIC_NOT_EXIST, "no such topic"), how))
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 6))
    link.pump()
    (answer,) = peer.answers
    assert (answer.code, answer.remark, answer.opaque) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic", 6)
    assert logged.failures == []


@pytest.mark.parametrize("how", ["at once", "later", "coroutine"])
def test_an_error_of_ours_is_an_answer_without_its_traceback(clock, logged, how):
    table = HandlerTable()
    table.register(ECHO, raising(KeyError("oops"), how))
    table.register(LATER, echo)
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 6) + request(LATER, 7))
    link.pump()
    first, second = peer.answers
    assert (first.code, first.opaque, second.opaque) == (ResponseCode.SYSTEM_ERROR, 6, 7)
    assert first.remark == "KeyError: 'oops'"
    assert [type(failure.value) for failure in logged.failures] == [KeyError]


@pytest.mark.parametrize("how", ["at once", "later"])
def test_a_failing_batch_answers_each_of_its_requests(clock, logged, how):
    table = HandlerTable()
    table.register_batch(BATCH, raising(KeyError("oops"), how))
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(BATCH, 1, x="") + request(BATCH, 2, flag=ONEWAY_FLAG, x="") + request(BATCH, 3, x=""))
    link.pump()
    assert [(answer.code, answer.opaque) for answer in peer.answers] == [(1, 1), (1, 3)]
    assert "Traceback" not in peer.answers[0].remark
    assert len(logged.failures) == 1  # not one for each request: there may be thousands


@pytest.mark.parametrize("how", ["at once", "later"])
def test_a_refusing_batch_is_not_our_error(clock, logged, how):
    table = HandlerTable()
    table.register_batch(BATCH, raising(Refused(ResponseCode.NO_PERMISSION, "no"), how))
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(BATCH, 1, x=""))
    link.pump()
    assert [(answer.code, answer.remark) for answer in peer.answers] == [(ResponseCode.NO_PERMISSION, "no")]
    assert logged.failures == []


def test_a_code_has_one_handler_of_each_kind():
    table = HandlerTable()
    table.register(ECHO, echo)
    table.register_batch(BATCH, lambda requests, connection: b"")
    with pytest.raises(ValueError, match="has a handler"):
        table.register(ECHO, echo)
    with pytest.raises(ValueError, match="has a batch handler"):
        table.register_batch(BATCH, lambda requests, connection: b"")
    assert table.codes == {ECHO, BATCH}


# --- batches


@pytest.fixture
def calls():
    return []


@pytest.fixture
def batch_table(table, calls):
    """ECHO one by one; two codes in batches. `calls` records them all, in order."""

    def batch(code):
        def handler(requests, connection):
            calls.append((code, [(raw[1], raw[3]) for raw in requests]))
            return b"".join(
                encode_command(RemotingCommand(0, body=raw[3], opaque=raw[1], flag=RESPONSE_FLAG))
                for raw in requests
                if not raw[2] & ONEWAY_FLAG
            )

        return handler

    def single(request, connection):
        calls.append((LATER, request.opaque))
        return echo(request, connection)

    table.register(LATER, single)
    for code in (BATCH, OTHER_BATCH):
        table.register_batch(code, batch(code))
    return table


def test_neighbours_come_together_and_codes_in_order(clock, batch_table, calls):
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
                max_size=30), st.integers(1, 400))  # fmt: skip
def test_every_request_is_answered_in_order(requests, chunk):
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


def test_both_header_encodings_reach_a_batch_alike(clock):
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


def test_a_batch_gets_requests_without_fields_too(clock):
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
def test_values_of_fields_reach_a_batch_as_text(clock, value, text):
    """Fastjson reads a number, or a boolean, into a map of texts as its text; so must both ways of ours."""
    table, seen = HandlerTable(), []
    table.register_batch(BATCH, lambda requests, connection: seen.extend(requests) or b"")
    peer, link = raw_link(serve(clock, table))
    header = {"code": BATCH, "opaque": 1, "flag": 0, "extFields": {"a": "x", "e": value}}
    peer.transport.write(encode_frame(JSON, json.dumps(header).encode()))
    link.pump()
    wanted = {"a": "x"} if text is None else {"a": "x", "e": text}
    assert [raw[0] for raw in seen] == [wanted]


def test_late_answers_of_a_batch(clock):
    table, held = HandlerTable(), []

    def batch(requests, connection):
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


def test_late_answers_to_a_lost_connection_go_nowhere(clock):
    table, held = HandlerTable(), []
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
    """As a PromptServer is; `how` records which way each write took."""

    def __init__(self, *addresses):
        super().__init__(*addresses)
        self.how = []

    def write(self, data):
        self.how.append("next turn")
        super().write(data)

    def write_at_once(self, data):
        self.how.append("at once")
        super().write(data)


@pytest.mark.parametrize(("count", "how"), [(1, "at once"), (8, "at once"), (9, "next turn"), (50, "next turn")])
@pytest.mark.parametrize("code", [ECHO, BATCH])
def test_few_answers_are_sent_at_once_and_many_in_the_next_turn(clock, batch_table, code, count, how):
    peer = Peer()
    link = Link(peer, serve(clock, batch_table).buildProtocol(CLIENT), far_end=PromptEnd)
    peer.transport.write(request(code, 1, x="") * count)
    link.pump()
    assert set(link.ends[1].how) == {how}
    assert len(peer.answers) == count


# --- bounds


def later_table():
    table, held = HandlerTable(), []

    def hold(request, connection):
        held.append(Deferred())
        return held[-1]

    table.register(LATER, hold)
    table.register_batch(BATCH, hold)
    return table, held


def test_as_many_requests_as_allowed_in_flight_pause_reading(clock):
    table, held = later_table()
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=3)))
    for opaque in range(5):
        peer.transport.write(request(LATER, opaque))
        link.pump()
    assert len(held) == 3
    assert not link.ends[1].reading
    held[0].callback(RemotingCommand(0))
    link.pump()
    assert len(held) >= 4
    for deferred in held[1:]:
        deferred.callback(RemotingCommand(0))
    link.pump()
    for deferred in held:
        if not deferred.called:
            deferred.callback(RemotingCommand(0))
    link.pump()
    assert link.ends[1].reading
    assert len(held) == 5
    assert len(peer.answers) == 5


def test_a_batch_counts_for_each_of_its_requests(clock):
    table, held = later_table()
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=3)))
    peer.transport.write(request(BATCH, 1, x="") * 2)
    link.pump()
    assert link.ends[1].reading
    peer.transport.write(request(BATCH, 1, x=""))
    link.pump()
    assert not link.ends[1].reading
    held[0].callback(b"")
    assert link.ends[1].reading
    held[1].errback(MQError("no"))
    assert len(peer.answers) == 0
    link.pump()
    assert len(peer.answers) == 1


def test_unread_answers_pause_reading(clock, table):
    peer, link = raw_link(serve(clock, table))
    link.ends[0].reading = False  # the peer writes, and never reads
    for _ in range(20):
        peer.transport.write(request(ECHO, 1, bytes(10_000)))
        link.pump()
    assert not link.ends[1].reading
    assert len(link.ends[1].outbox) < 100_000
    assert len(link.ends[0].outbox) > 100_000
    link.ends[0].reading = True
    link.pump()
    assert link.ends[1].reading
    assert len(peer.answers) == 20


def test_both_reasons_to_pause_must_be_gone(clock):
    table, held = later_table()
    table.register(ECHO, echo)
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=1)))
    link.ends[0].reading = False
    peer.transport.write(request(ECHO, 1, bytes(70_000)) + request(LATER, 2))
    link.pump()
    assert not link.ends[1].reading
    held[0].callback(None)
    assert not link.ends[1].reading
    link.ends[0].reading = True
    link.pump()
    assert link.ends[1].reading


def test_an_end_while_paused_is_quiet(clock):
    table, held = later_table()
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=1)))
    peer.transport.write(request(LATER, 1))
    link.pump()
    link.cut()
    held[0].callback(RemotingCommand(0))  # resuming a transport that is gone would raise


# --- hostile bytes

MANY_FIELDS = {"code": BATCH, "opaque": 1, "flag": 0, "extFields": {str(i): "" for i in range(100_000)}}
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(16),
    "ones": b"\xff" * 64,
    "length 3": struct.pack(">i", 3) + b"abc",
    "negative length": struct.pack(">i", -1) + bytes(20),
    "one over the limit": struct.pack(">i", 16 * 1024 * 1024 + 1),
    "header over the frame": struct.pack(">iI", 20, 17) + bytes(16),
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
def test_garbage_closes_its_connection_with_a_line_and_no_other(clock, batch_table, logged, name, chunk):
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


def test_requests_before_garbage_in_one_read(clock, table):
    """They are answered or not, but the connection ends in any case."""
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 1) + encode_frame(JSON, b"null"))
    link.pump()
    assert peer.lost


def test_a_large_frame_is_refused_before_it_is_collected(clock, table):
    peer, link = raw_link(serve(clock, table, Limits(frame_bytes_max=1000)))
    peer.transport.write(struct.pack(">i", 1001))
    link.pump()
    assert peer.lost


def test_a_cut_frame_is_not_answered(clock, table):
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 1)[:-1])
    peer.transport.loseConnection()
    link.pump()
    assert peer.lost
    assert peer.received == b""


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_random_bytes_never_raise(parts):
    clock, table = Clock(), HandlerTable()
    table.register(ECHO, echo)
    peer, link = raw_link(serve(clock, table))
    for part in parts:
        peer.transport.write(part)
        link.pump()
    assert all(answer.is_response for answer in peer.answers)


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
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
def test_random_headers_are_answered_or_closed(fields):
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


# --- who is there


class Address:
    def __init__(self, host=None, port=0):
        if host is not None:
            self.host, self.port = host, port


@pytest.mark.parametrize(
    ("address", "text", "host"),
    [
        (Address("::ffff:10.1.2.3", 5), "10.1.2.3:5", bytes([10, 1, 2, 3, 0, 0, 0, 5])),
        (Address("::1", 5), "[::1]:5", bytes(15) + b"\1" + bytes([0, 0, 0, 5])),
        (Address("fe80::1%eth0", 5), "[fe80::1%eth0]:5", bytes([0, 0, 0, 0, 0, 0, 0, 5])),
        (Address(), "local", bytes([127, 0, 0, 1, 0, 0, 0, 0])),
    ],
    ids=["mapped", "v6", "scoped", "unix"],
)
def test_how_a_peer_is_called(clock, table, address, text, host):
    protocol = RemotingProtocol(table, clock, Limits(), NoOwner())
    Link(Peer(), protocol, near_address=address)
    assert (protocol.remote_addr, protocol.remote_host) == (text, host)


def test_waiting_is_told_apart(clock, table):
    near, link = protocol_link(clock, serve(clock, table))
    asked = near.invoke(RemotingCommand(ECHO), 1000)
    assert result(asked) is waiting
    link.pump()
