"""What listeners return, by one rule: unknown verdicts send the message back, and what cannot work is refused."""

import asyncio
import functools
import threading
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqbroker.client import (
    BadListener,
    ClientClosed,
    ConsumeResult,
    NoSubscription,
    PushOptions,
    RetryLater,
    aio,
    blocking,
    deferred,
)
from mqbroker.client.listeners import TELL_EVERY_S, ListenerResults, check_listener
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.options import ConsumeFrom
from mqbroker.wire.admin_bodies import ConsumeMessageDirectlyResult
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode
from tests.client.loopback import Loopback
from tests.client.member import Member, Q
from tests.client.records import a_record
from tests.client.world import World

FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST, suspend_s=0, concurrency=1)


def a_message() -> Any:
    return ReceivedMessage.of_record(a_record(queue_offset=1, physical_offset=2, store_host=("1.2.3.4", 6)), "a")


async def unawaited(message: Any) -> None:
    raise AssertionError("nobody runs this")


TAKEN = [None, True, ConsumeResult.SUCCESS]
REJECTED = [False, ConsumeResult.RETRY]
UNKNOWN = [0, 1, 1.0, "RETRY", "", b"", ValueError("no"), RetryLater, ConsumeResult, ..., [], {}]


@pytest.mark.parametrize("verdict", TAKEN)
def test_what_takes_a_message(verdict: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert ListenerResults(print, lambda: 0.0).delay_level(verdict, a_message()) is None
    assert not caplog.records


@pytest.mark.parametrize("verdict", REJECTED)
def test_what_sends_a_message_back(verdict: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert ListenerResults(print, lambda: 0.0).delay_level(verdict, a_message()) == 0
    assert not caplog.records


@pytest.mark.parametrize("verdict", UNKNOWN, ids=repr)
def test_all_else_sends_it_back_and_is_told(verdict: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert ListenerResults(unawaited, lambda: 0.0).delay_level(verdict, a_message()) == 0
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "the listener unawaited returned" in record.message
    assert type(verdict).__name__ in record.message
    assert "returning None, True or ConsumeResult.SUCCESS" in record.message


def test_a_returned_retry_later_counts_as_raised_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert ListenerResults(print, lambda: 0.0).delay_level(RetryLater(5), a_message()) == 5
    assert "RetryLater, which is to be raised" in caplog.text


def test_a_coroutine_is_closed_so_that_nothing_warns_of_it(caplog: pytest.LogCaptureFixture) -> None:
    coroutine = unawaited(None)
    assert ListenerResults(print, lambda: 0.0).delay_level(coroutine, a_message()) == 0
    with pytest.raises(RuntimeError, match="cannot reuse"):
        coroutine.send(None)
    assert "the coroutine unawaited, which nothing awaits" in caplog.text


def test_unknown_verdicts_are_told_once_a_minute_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    verdicts = ListenerResults(print, lambda: now[0])
    for _ in range(10_000):
        verdicts.delay_level(0, a_message())
    assert len(caplog.records) == 1
    now[0] = TELL_EVERY_S
    verdicts.delay_level(0, a_message())
    verdicts.delay_level(0, a_message())
    assert len(caplog.records) == 2
    assert "9999 times more" in caplog.records[1].message


def test_a_verdict_whose_repr_fails_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __repr__(self) -> None:
            raise ValueError("boo")

    assert ListenerResults(print, lambda: 0.0).delay_level(Broken(), a_message()) == 0
    assert "Broken" in caplog.text


@pytest.mark.parametrize("level", [-2, 19, "3", 1.0, True, None])
def test_a_delay_level_that_cannot_be_is_refused_where_it_is_written(level: Any) -> None:
    with pytest.raises(ValueError, match="from -1 to 18"):
        RetryLater(level)


@pytest.mark.parametrize("unknown", [0, "RETRY", ValueError("no")], ids=repr)
@pytest.mark.parametrize("wrap", [lambda value: value, succeed], ids=["at once", "by a Deferred"])
def test_a_member_sends_messages_with_unknown_verdicts_back(
    one_queue: World, name_server: str, unknown: Any, wrap: Any
) -> None:
    for n in range(3):
        one_queue.cluster.store(Q, b"%d" % n)
    Member(one_queue, name_server, listener=lambda message: wrap(unknown)).start()
    assert [header.delay_level for header in one_queue.cluster.sent_back] == [0, 0, 0]


# --- what is refused at the start


class AsyncCallable:
    async def __call__(self, message: Any) -> None: ...


def yields(message: Any) -> Any:
    yield


async def yields_later(message: Any) -> Any:
    yield


def name(listener: Any) -> Any:
    """An id that is the same in each process, which pytest-xdist needs: without addresses."""
    if isinstance(listener, functools.partial):
        return f"partial({name(listener.func)})"
    if listener is None or isinstance(listener, str | int):
        return repr(listener)
    return getattr(listener, "__name__", type(listener).__name__)


@pytest.mark.parametrize("listener", [None, "on_message", 7, Deferred, yields, yields_later], ids=name)
@pytest.mark.parametrize("may_await", [True, False])
def test_what_can_never_handle_a_message(listener: Any, may_await: Any) -> None:
    with pytest.raises(BadListener):
        check_listener(listener, may_await=may_await)


@pytest.mark.parametrize("listener", [unawaited, functools.partial(unawaited), AsyncCallable()], ids=name)
def test_coroutine_functions_are_for_those_who_await(listener: Any) -> None:
    check_listener(listener, may_await=True)
    with pytest.raises(BadListener, match=r"mqbroker\.client\.aio"):
        check_listener(listener, may_await=False)


def started(kind: Any, listener: Any, subscribe: Any = True) -> Any:
    """What a face says of `listener` before it connects to anything."""
    if kind == "deferred":
        consumer = deferred.PushConsumer(Clock(), "127.0.0.1:1", "g", listener)
        found: list[Any] = []
        if subscribe:
            consumer.subscribe("T")
        consumer.start().addErrback(found.append)
        return found[0].value
    face = blocking if kind == "blocking" else aio
    consumer = face.PushConsumer("127.0.0.1:1", "g", listener)
    if subscribe:
        consumer.subscribe("T")
    with pytest.raises((BadListener, NoSubscription)) as caught:
        consumer.start() if kind == "blocking" else asyncio.run(consumer.start())
    return caught.value


@pytest.mark.parametrize("kind", ["aio", "blocking", "deferred"])
def test_a_start_that_could_do_nothing_is_refused(kind: Any) -> None:
    threads = threading.active_count()
    assert "there is no listener" in str(started(kind, None))
    error = started(kind, print, subscribe=False)
    assert isinstance(error, NoSubscription)
    assert "subscribe(topic) before start()" in str(error)
    assert threading.active_count() == threads
    if kind == "blocking":
        assert "coroutine function" in str(started(kind, unawaited))


def test_after_a_refused_start_it_can_be_made_good(server: Loopback) -> None:
    server.add_topic("T", queues=1)
    consumer = blocking.PushConsumer(server.addr, "g", print)
    with pytest.raises(NoSubscription):
        consumer.start()
    consumer.subscribe("T")
    with consumer:
        assert Q in consumer.assigned
    with pytest.raises(ClientClosed):
        consumer.start()


# --- over a real server


@pytest.fixture
def topic(server: Loopback) -> Any:
    server.add_topic("T", queues=1)
    server.add_topic("%RETRY%g", queues=1)
    return server


@pytest.fixture
def sent_back(topic: Loopback) -> Any:
    """Set once a message went back to the broker."""
    found = threading.Event()

    def note(passage: Any) -> None:
        passage.pass_on()
        found.set()

    topic.faults.refuse[None, RequestCode.CONSUMER_SEND_MSG_BACK] = note
    return found


@pytest.mark.parametrize("verdict", ["coroutine", "exit"])
def test_a_blocking_listener_whose_work_nobody_did_has_its_message_again(
    topic: Loopback, sent_back: Any, verdict: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic.store(Q, b"0")

    def listener(message: Any) -> Any:
        if verdict == "coroutine":
            return unawaited(message)
        raise SystemExit(3)

    consumer = blocking.PushConsumer(topic.addr, "g", listener, options=FROM_FIRST)
    consumer.subscribe("T")
    with consumer:
        assert sent_back.wait(10)
    assert len(topic.sent_back) == 1
    assert ("which nothing awaits" if verdict == "coroutine" else "raised SystemExit") in caplog.text


def test_on_asyncio_to_await_subscribe_is_left_to_the_caller(topic: Loopback) -> None:
    topic.add_topic("U", queues=1)
    got = []
    topic.store(Q, b"0")

    async def main() -> None:
        both = asyncio.Event()

        async def listener(message: Any) -> None:
            got.append((message.topic, message.body))
            if len(got) == 2:
                both.set()

        consumer = aio.PushConsumer(topic.addr, "g", listener, options=FROM_FIRST)
        consumer.subscribe("T")
        async with consumer:
            topic.store(MessageQueue("U", "a", 0), b"1")
            consumer.subscribe("U")
            await asyncio.wait_for(both.wait(), 10)
            await consumer.subscribe("U")

    asyncio.run(main())
    assert sorted(got) == [("T", b"0"), ("U", b"1")]


def test_on_asyncio_what_was_cancelled_inside_the_listener_is_its_failure(topic: Loopback, sent_back: Any) -> None:
    topic.store(Q, b"0")

    async def main() -> None:
        async def listener(message: Any) -> None:
            inner = asyncio.ensure_future(asyncio.sleep(60))
            inner.cancel()
            await inner

        consumer = aio.PushConsumer(topic.addr, "g", listener, options=FROM_FIRST)
        consumer.subscribe("T")
        async with consumer:
            assert await asyncio.to_thread(sent_back.wait, 10)

    asyncio.run(main())
    assert len(topic.sent_back) == 1


def test_an_administrator_is_told_that_an_unknown_verdict_is_no_success(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server, listener=lambda message: 0).start()
    result = one_queue.result(member.core.consume_directly(a_message()))
    assert isinstance(result, ConsumeMessageDirectlyResult)
    assert result.consume_result == "CR_LATER"
