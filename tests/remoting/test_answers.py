"""What becomes of a request at the end that answers it."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqbroker.errors import Refused
from mqbroker.remoting.handlers import UNEXPECTED_ERROR, HandlerTable, IConnection
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import FRAME_BYTES_MAX, JSON, ONEWAY_FLAG, ROCKETMQ, RemotingCommand
from mqbroker.wire.long_bodies import LONG_BODY_BYTES_MAX
from mqbroker.wire.requests import REQUESTS
from tests.remoting.link import raw_link, serve
from tests.remoting.logs import Logged
from tests.remoting.requests import BATCH, ECHO, LATER, echo, request


async def coroutine_handler(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
    await succeed(None)
    return echo(request, connection)


@pytest.mark.parametrize(
    "handler",
    [echo, lambda request, connection: succeed(echo(request, connection)), coroutine_handler],
    ids=["value", "deferred", "coroutine"],
)
def test_what_a_handler_may_return(clock: Clock, handler: Callable[..., Any]) -> None:
    table = HandlerTable()
    table.register(ECHO, handler)
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 9, b"body"))
    link.pump()
    assert [(answer.opaque, answer.body) for answer in peer.answers] == [(9, b"body")]


def test_a_handler_that_returns_none_answers_itself(clock: Clock) -> None:
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
def test_an_unknown_code_is_refused(clock: Clock, table: HandlerTable, serialize_type: int) -> None:
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(9999, 6, serialize_type=serialize_type))
    link.pump()
    (answer,) = peer.answers
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert (answer.opaque, answer.remark) == (6, " request type 9999 not supported")
    assert answer.serialize_type == serialize_type


def raising(error: Exception, how: str) -> Callable[..., Any]:
    """A handler, or a batch handler, that fails with `error`."""

    def at_once(
        request: RemotingCommand | list[tuple[dict[str, str], int, int, bytes, int]], connection: IConnection
    ) -> None:
        raise error

    def later(
        request: RemotingCommand | list[tuple[dict[str, str], int, int, bytes, int]], connection: IConnection
    ) -> Deferred[Any]:
        deferred = Deferred[Any]()
        deferred.errback(error)
        return deferred

    async def in_a_coroutine(request: RemotingCommand, connection: IConnection) -> None:
        raise error

    return {"at once": at_once, "later": later, "coroutine": in_a_coroutine}[how]


@pytest.mark.parametrize("how", ["at once", "later", "coroutine"])
def test_a_refusal_becomes_the_answer(clock: Clock, logged: Logged, how: str) -> None:
    table = HandlerTable()
    table.register(ECHO, raising(Refused(ResponseCode.TOPIC_NOT_EXIST, "no such topic"), how))
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 6))
    link.pump()
    (answer,) = peer.answers
    assert (answer.code, answer.remark, answer.opaque) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic", 6)
    assert logged.failures == []


@pytest.mark.parametrize("how", ["at once", "later", "coroutine"])
def test_an_error_of_ours_is_an_answer_without_its_traceback(clock: Clock, logged: Logged, how: str) -> None:
    table = HandlerTable()
    table.register(ECHO, raising(KeyError("oops"), how))
    table.register(LATER, echo)
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(ECHO, 6) + request(LATER, 7))
    link.pump()
    first, second = peer.answers
    assert (first.code, first.opaque, second.opaque) == (ResponseCode.SYSTEM_ERROR, 6, 7)
    assert first.remark == UNEXPECTED_ERROR
    assert [type(failure.value) for failure in logged.failures] == [KeyError]


@pytest.mark.parametrize("how", ["at once", "later"])
def test_a_failing_batch_answers_each_of_its_requests(clock: Clock, logged: Logged, how: str) -> None:
    table = HandlerTable()
    table.register_batch(BATCH, raising(KeyError("oops"), how))
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(BATCH, 1, x="") + request(BATCH, 2, flag=ONEWAY_FLAG, x="") + request(BATCH, 3, x=""))
    link.pump()
    assert [(answer.code, answer.opaque) for answer in peer.answers] == [(1, 1), (1, 3)]
    assert "Traceback" not in peer.answers[0].remark
    assert len(logged.failures) == 1  # not one for each request: there may be thousands


@pytest.mark.parametrize("how", ["at once", "later"])
def test_a_refusing_batch_is_not_our_error(clock: Clock, logged: Logged, how: str) -> None:
    table = HandlerTable()
    table.register_batch(BATCH, raising(Refused(ResponseCode.NO_PERMISSION, "no"), how))
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(BATCH, 1, x=""))
    link.pump()
    assert [(answer.code, answer.remark) for answer in peer.answers] == [(ResponseCode.NO_PERMISSION, "no")]
    assert logged.failures == []


def test_a_code_has_one_handler_of_each_kind() -> None:
    table = HandlerTable()
    table.register(ECHO, echo)
    table.register_batch(BATCH, lambda requests, connection: b"")
    with pytest.raises(ValueError, match="has a handler"):
        table.register(ECHO, echo)
    with pytest.raises(ValueError, match="has a batch handler"):
        table.register_batch(BATCH, lambda requests, connection: b"")
    assert table.codes == {ECHO, BATCH}


NOT_ENCODABLE = {
    "a lone surrogate": lambda asked: RemotingCommand.response(asked, remark="\ud800"),
    "a name of a field that is too long": lambda asked: RemotingCommand(0, {"n" * 40_000: ""}, serialize_type=ROCKETMQ),
    "a number that is too large": lambda asked: RemotingCommand(1 << 40, serialize_type=ROCKETMQ),
    "a header over its length field": lambda asked: RemotingCommand.response(asked, remark="x" * (1 << 24)),
    "a body of text": lambda asked: RemotingCommand.response(asked, body="text"),  # type: ignore[arg-type]
    "no command": lambda asked: "an answer",
}


@pytest.mark.parametrize("answer", NOT_ENCODABLE.values(), ids=NOT_ENCODABLE)
@pytest.mark.parametrize("how", ["at once", "later"])
def test_an_answer_that_cannot_be_encoded_ends_its_request(
    clock: Clock, logged: Logged, answer: Callable[..., Any], how: str
) -> None:
    def handler(asked: RemotingCommand, connection: IConnection) -> RemotingCommand | Deferred[Any]:
        made = answer(asked)
        return made if how == "at once" and isinstance(made, RemotingCommand) else succeed(made)

    table = HandlerTable()
    table.register(ECHO, handler)
    table.register(LATER, echo)
    peer, link = raw_link(factory := serve(clock, table))
    peer.transport.write(request(ECHO, 6) + request(ECHO, 8, flag=ONEWAY_FLAG) + request(LATER, 7))
    link.pump()
    failed, fine = peer.answers
    assert (failed.code, failed.opaque, fine.code, fine.opaque) == (ResponseCode.SYSTEM_ERROR, 6, 0, 7)
    assert failed.remark
    assert factory.load.requests == 0
    assert not peer.lost


@pytest.mark.parametrize("how", ["at once", "later"])
def test_a_batch_whose_failure_cannot_be_encoded_ends(clock: Clock, logged: Logged, how: str) -> None:
    table = HandlerTable()
    table.register_batch(BATCH, raising(Refused(ResponseCode.NO_PERMISSION, "\udfff"), how))
    peer, link = raw_link(factory := serve(clock, table))
    peer.transport.write(request(BATCH, 1, x="") + request(BATCH, 2, x=""))
    link.pump()
    assert [(answer.code, answer.opaque) for answer in peer.answers] == [(1, 1), (1, 2)]
    assert factory.load.requests == 0


def test_a_request_ends_where_its_answer_cannot_be_written(clock: Clock, logged: Logged) -> None:
    table = HandlerTable()
    table.register_batch(BATCH, lambda requests, connection: succeed("no bytes"))  # type: ignore[arg-type]
    table.register(LATER, lambda request, connection: succeed(echo(request, connection)))
    peer, link = raw_link(factory := serve(clock, table))

    def broken(data: bytes | str) -> None:
        raise RuntimeError("no more memory")

    link.protocols[1]._prompt_write = broken
    peer.transport.write(request(BATCH, 1, x="") + request(LATER, 2))
    link.pump()
    gc.collect(1)
    assert factory.load.requests == 0
    assert "Unhandled error in Deferred" in logged.lines[0]
    logged.clear()


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_who_only_asks_and_wants_no_answer_is_not_served(clock: Clock, serialize_type: int) -> None:
    table, seen = HandlerTable(), []
    for code in (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.UPDATE_CONSUMER_OFFSET):
        table.register(code, lambda asked, connection: seen.append(asked.code))
        peer, link = raw_link(serve(clock, table))
        peer.transport.write(request(code, 1, flag=ONEWAY_FLAG, serialize_type=serialize_type) * 3)
        peer.transport.write(request(code, 2, serialize_type=serialize_type))
        link.pump()
    assert seen == [206] + 4 * [15]


def test_every_code_has_a_bound_for_its_body(clock: Clock, logged: Logged) -> None:
    """What no real client sends is refused by its length, before anything is made of it."""
    for code in sorted(REQUESTS):
        table, seen = HandlerTable(), list[Any]()
        table.register(code, lambda asked, connection, seen=seen: seen.append(asked) or RemotingCommand.response(asked))  # type: ignore[misc]
        peer, link = raw_link(serve(clock, table))
        most = REQUESTS[code].body_bytes_max
        assert most in (FRAME_BYTES_MAX, LONG_BODY_BYTES_MAX) or most <= 256 * 1024
        if most == FRAME_BYTES_MAX:
            continue
        peer.transport.write(request(code, 1, bytes(most)) + request(code, 2, bytes(most + 1)))
        link.pump()
        assert [len(asked.body) for asked in seen] == [most]
        refused = peer.answers[-1]
        assert (refused.code, refused.opaque) == (ResponseCode.SYSTEM_ERROR, 2)
        assert refused.remark == f"a body of {most + 1} bytes: this request may have {most} at most"
