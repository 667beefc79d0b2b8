"""Methods marked as handlers: what they are given, and which answer carries what they return."""

from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest
from twisted.internet.defer import Deferred

from mqbroker.errors import Refused
from mqbroker.remoting.handlers import Answered, Call, HandlerTable, IConnection, PlainHandler, PlainRead, answers
from mqbroker.wire.admin_bodies import GroupList
from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader
from tests.remoting.link import result

FIELDS = {"topic": "T", "queueId": "3"}
PEER = cast(IConnection, "peer")


@attrs.frozen
class Family:
    returned: Any = None
    calls: list = attrs.field(factory=list)

    @answers(Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET)
    def of_queue(self, call: Call) -> Any:
        self.calls.append(call)
        return self.returned

    @answers(Code.CLEAN_UNUSED_TOPIC)
    async def later(self, call: Call) -> bytes | Deferred[Any] | None:
        self.calls.append(call)
        return await self.returned

    def unmarked(self, call: Call) -> None:
        raise AssertionError


def served(returned: Any = None) -> tuple[HandlerTable, Family]:
    table, family = HandlerTable(), Family(returned)
    table.serve(family)
    return table, family


def test_the_header_is_that_of_the_row() -> None:
    table, family = served()
    assert table.codes == {Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.CLEAN_UNUSED_TOPIC}
    request = RemotingCommand(Code.GET_MAX_OFFSET, FIELDS)
    table.handle(request, PEER)
    assert family.calls == [Call(GetMaxOffsetRequestHeader(topic="T", queue_id=3), request, PEER)]


def test_a_wrong_header_is_refused_before_the_method_is_called() -> None:
    table, family = served()
    answer = table.handle(RemotingCommand(Code.GET_MAX_OFFSET, {"topic": "T"}), PEER)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the custom field <queueId> is null")
    assert family.calls == []


@pytest.mark.parametrize(
    ("returned", "fields", "body"),
    [
        (None, {}, b""),
        (b"body", {}, b"body"),
        (GroupList(frozenset({"CG"})), {}, b'{"groupList":["CG"]}'),
        (GetMaxOffsetResponseHeader(offset=7), {"offset": "7"}, b""),
    ],
)
def test_what_is_returned_is_the_answers(
    returned: bytes | GroupList | GetMaxOffsetResponseHeader | None, fields: dict[str, str], body: bytes
) -> None:
    table, _ = served(returned)
    request = RemotingCommand(Code.GET_MAX_OFFSET, FIELDS, opaque=9)
    answer = table.handle(request, PEER)
    assert (answer.code, answer.opaque, answer.ext_fields, answer.body) == (0, 9, fields, body)


def test_an_answer_that_is_whole_is_left_as_it_is() -> None:
    whole = RemotingCommand(ResponseCode.QUERY_NOT_FOUND)
    table, _ = served(whole)
    assert table.handle(RemotingCommand(Code.GET_MAX_OFFSET, FIELDS), PEER) is whole


@pytest.mark.parametrize("fails", [False, True])
def test_a_coroutine_answers_when_it_ends(fails: bool) -> None:
    waited = Deferred[Any]()
    table, family = served(waited)
    answer = table.handle(RemotingCommand(Code.CLEAN_UNUSED_TOPIC), PEER)
    assert family.calls[0].header is None
    assert not answer.called
    if fails:
        waited.errback(Refused(ResponseCode.NO_PERMISSION, "no"))
    else:
        waited.callback(b"body")
    command = result(cast(Deferred[Any], answer))
    assert (command.code, command.body) == ((16, b"") if fails else (0, b"body"))


def test_what_is_bounded_goes_through_what_bounds_it() -> None:
    class Bounded:
        @answers(Code.CLEAN_UNUSED_TOPIC, bounded=True)
        async def much(self, call: Call) -> bytes:
            return b"much"

    with pytest.raises(ValueError, match="nothing bounds the handler of code 316"):
        HandlerTable().serve(Bounded())
    bounded, table = [], HandlerTable()
    table.serve(Bounded(), lambda handler: bounded.append(handler) or handler)
    assert result(cast(Deferred[Any], table.handle(RemotingCommand(Code.CLEAN_UNUSED_TOPIC), PEER))).body == b"much"
    assert len(bounded) == 1


def test_a_second_method_for_a_code_is_refused() -> None:
    table, family = served()
    with pytest.raises(ValueError, match="has a handler"):
        table.serve(family)


def test_the_plain_handler_that_took_requests_is_asked_first() -> None:
    table, asked = HandlerTable(), list[int]()

    def taking(code: int, what: bytes) -> PlainHandler:
        def take(reads: Sequence[PlainRead]) -> Answered | None:
            asked.append(code)
            return ([(1, 1)], [b""]) if reads[0][0] == what else None

        return take

    for code, what in ((10, b"a"), (11, b"b")):
        table.register_plain(code, taking(code, what))
    for what in (b"a", b"b", b"b", b"a", b"c"):
        asked.append(0)
        assert (table.take_plain([(what, 0, cast(Any, None))]) is None) == (what == b"c")
    assert asked == [0, 10, 0, 10, 11, 0, 11, 0, 11, 10, 0, 10, 11]
    table.refuse([10], Refused(1, "no"))
    assert [*table.plain] == [11]
