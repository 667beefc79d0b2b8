"""Pulls of a queue that follow each other on an asyncio loop: in which order they leave and are taken, and what ends
them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from mqbroker.client import Message, MessageQueue, PushOptions
from mqbroker.client.aio import Producer, PushConsumer
from mqbroker.client.aio_net import AioNet
from mqbroker.client.assigned_queues import AssignedQueue, PullFailures
from mqbroker.client.messages import RawPull
from mqbroker.client.options import ConsumeFrom
from mqbroker.client.pull_run import RUN_S, PullRun
from mqbroker.client.queue_requests import pull_from, pull_request, read_pull_answer
from mqbroker.client.subscription import subscribe_to
from mqbroker.errors import ConnectionClosed
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, decode_command
from mqbroker.wire.record import BadRecord, encode_record
from tests.client.loopback import Loopback
from tests.client.records import a_record

Q = MessageQueue("T", "a", 0)
SUBSCRIPTION = subscribe_to("T", "*", 1)
FIRST = pull_request(Q, 0, 32, group="g", subscription=SUBSCRIPTION, suspend_ms=15000)


def found(next_offset: int, *bodies: bytes, broker_id: int = 0, code: int = ResponseCode.SUCCESS) -> RemotingCommand:
    """The answer to a pull, whose messages end before `next_offset`."""
    fields = {"nextBeginOffset": next_offset, "minOffset": 0, "maxOffset": 1000, "suggestWhichBrokerId": broker_id}
    first = next_offset - len(bodies)
    records = [encode_record(a_record(body=body, queue_offset=first + n)) for n, body in enumerate(bodies)]
    return RemotingCommand(code, {name: str(value) for name, value in fields.items()}, b"".join(records))


@attrs.define
class Wire:
    """A connection whose writes, and the peer's responses, are the test's."""

    now: float = 0.0
    is_free: bool = True
    asked: list[RemotingCommand] = attrs.Factory(list)
    calls: list[Callable[[], None]] = attrs.Factory(list)
    pending: dict[int, Callable[[Any], object]] = attrs.Factory(dict)
    events: list[Any] = attrs.Factory(list)

    @property
    def loop(self) -> Any:
        """The running one, with the test's time."""
        return SimpleNamespace(time=lambda: self.now, create_future=asyncio.get_running_loop().create_future)

    def post(
        self, command: RemotingCommand, timeout_ms: int, complete: Any, encode: Callable[[int], bytes], owner: object
    ) -> int:
        opaque = 1000 + len(self.asked)
        [frame] = FrameDecoder().feed(encode(opaque))
        request = decode_command(*frame)
        assert request.opaque == opaque
        self.asked.append(request)
        self.pending[opaque] = complete
        self.events.append(("asked", int(request.ext_fields["queueOffset"])))
        return opaque

    def after_write(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def forget(self, opaque: int) -> None:
        self.pending.pop(opaque, None)

    def answer(self, result: Any) -> None:
        """The response to what was asked last."""
        complete = self.pending.pop(self.asked[-1].opaque)
        complete(result)

    def write(self) -> None:
        self.events.append("written")
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@attrs.define
class Puller:
    """Takes what is found, as long as `wants` is true."""

    events: list[Any]
    wants: bool = True
    error: Exception | None = None
    is_left: bool = False

    def goes_on(self, pulled: RawPull) -> bool:
        return self.wants

    def take(self, pulled: RawPull) -> bool:
        if self.is_left:
            return False
        self.events.append(("taken", pulled.next_offset))
        if self.error is not None:
            raise self.error
        return True


def run(test: Callable[[Wire, Puller, asyncio.Task[RemotingCommand]], Coroutine[Any, Any, None]]) -> Wire:
    """Have a test with a run that has begun."""

    async def main() -> Wire:
        wire = Wire()
        puller = Puller(wire.events)
        connection: Any = wire
        pulls = PullRun(connection, FIRST, 1000, puller, wire.loop)
        task = asyncio.create_task(pulls.ended())
        await asyncio.sleep(0)
        await test(wire, puller, task)
        return wire

    return asyncio.run(main())


def test_the_next_pull_leaves_before_messages_are_taken() -> None:
    async def test(wire: Wire, puller: Puller, task: asyncio.Task[RemotingCommand]) -> None:
        wire.answer(found(2, b"a", b"b"))
        wire.write()
        wire.answer(found(3, b"c"))
        wire.write()
        last = found(3, code=ResponseCode.PULL_NOT_FOUND)
        wire.answer(last)
        assert await task is last

    wire = run(test)
    assert wire.events == [
        ("asked", 0), ("asked", 2), "written", ("taken", 2), ("asked", 3), "written", ("taken", 3),
    ]  # fmt: skip
    assert not wire.pending


def test_a_pull_that_follows_differs_by_its_offset_alone() -> None:
    async def test(wire: Wire, puller: Puller, task: asyncio.Task[RemotingCommand]) -> None:
        wire.answer(found(7, b"a"))
        wire.answer(found(2**62, b"a"))
        task.cancel()

    wire = run(test)
    for request, offset in zip(wire.asked, (0, 7, 2**62), strict=True):
        assert attrs.evolve(request, opaque=0) == pull_from(FIRST, offset)


def wants_no_more(wire: Wire, puller: Puller) -> None:
    puller.wants = False


def is_late(wire: Wire, puller: Puller) -> None:
    wire.now = RUN_S


def is_not_free(wire: Wire, puller: Puller) -> None:
    wire.is_free = False


@pytest.mark.parametrize("change", [wants_no_more, is_late, is_not_free])
def test_what_it_does_not_go_on_with_is_left_to_who_began_it(change: Callable[[Wire, Puller], None]) -> None:
    async def test(wire: Wire, puller: Puller, task: asyncio.Task[RemotingCommand]) -> None:
        wire.answer(found(1, b"a"))
        wire.write()
        change(wire, puller)
        last = found(2, b"b")
        wire.answer(last)
        assert await task is last

    assert run(test).events == [("asked", 0), ("asked", 1), "written", ("taken", 1)]


@pytest.mark.parametrize("field", ["nextBeginOffset", "suggestWhichBrokerId"])
def test_a_response_that_cannot_be_read_is_left_too(field: str) -> None:
    async def test(wire: Wire, puller: Puller, task: asyncio.Task[RemotingCommand]) -> None:
        bad = found(1, b"a")
        bad.ext_fields[field] = "much"
        wire.answer(bad)
        assert await task is bad

    assert run(test).events == [("asked", 0)]


def test_an_error_ends_it() -> None:
    async def test(wire: Wire, puller: Puller, task: asyncio.Task[RemotingCommand]) -> None:
        wire.answer(found(1, b"a"))
        wire.write()
        wire.answer(ConnectionClosed("gone"))
        with pytest.raises(ConnectionClosed, match="gone"):
            await task

    run(test)


def test_messages_that_cannot_be_taken_end_it_and_the_next_ones_are_ignored() -> None:
    async def test(wire: Wire, puller: Puller, task: asyncio.Task[RemotingCommand]) -> None:
        puller.error = BadRecord("rotten")
        wire.answer(found(1, b"a"))
        wire.write()
        wire.answer(found(2, b"b"))  # came with the same read
        wire.write()
        with pytest.raises(BadRecord, match="rotten"):
            await task

    wire = run(test)
    assert wire.events == [("asked", 0), ("asked", 1), "written", ("taken", 1), "written"]
    assert not wire.pending


def test_cancelled_it_takes_nothing_more() -> None:
    async def test(wire: Wire, puller: Puller, task: asyncio.Task[RemotingCommand]) -> None:
        wire.answer(found(1, b"a"))
        [late] = wire.pending.values()
        task.cancel()
        wire.write()  # what was found is not taken any more
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not wire.pending
        late(found(2, b"b"))

    wire = run(test)
    assert wire.events == [("asked", 0), ("asked", 1), "written"]
    assert not wire.pending


class TestOfAQueue:
    """The pulls of an assigned queue."""

    @staticmethod
    def pull(answers: list[RemotingCommand], messages: int, **options: Any) -> tuple[Wire, list[Any], int | None]:
        """Answer the pulls of a queue, and take `messages` of those that it delivers; returns also the bodies, and the
        offset that would be committed."""

        async def main() -> tuple[Wire, list[Any], int | None]:
            wire = Wire()
            net = AioNet(no_requests, random.Random(1))
            got: list[Any] = []

            async def pull(queue: AssignedQueue, offset: int, broker_id: int) -> RawPull:
                connection: Any = wire
                pulls = PullRun(connection, pull_from(FIRST, offset), 1000, queue, wire.loop)
                return read_pull_answer(await pulls.ended())

            def deliver(queue: AssignedQueue, batch: Any, took_s: float) -> None:
                for index, message in enumerate(list(batch.messages)):
                    got.append(message.body)
                    if len(got) <= messages:
                        batch.done(index, 0.0)

            async def start(queue: MessageQueue) -> int:
                return 0

            assigned = AssignedQueue(
                net,
                Q,
                SUBSCRIPTION,
                PushOptions(**options),
                pause_s=0.0,
                find_start=start,
                pull=pull,
                deliver=deliver,
                failures=PullFailures(),
            )
            for answer in answers:
                await asyncio.sleep(0.0)
                await asyncio.sleep(0.0)
                if not wire.pending:
                    break
                wire.answer(answer)
                wire.write()
            for _ in range(3):
                await asyncio.sleep(0.0)
            committable = assigned.committable
            assigned.stop()
            await net.close()
            return wire, got, committable

        return asyncio.run(main())

    def test_what_is_found_is_delivered_and_committable_once_it_is_consumed(self) -> None:
        wire, got, committable = self.pull([found(2, b"a", b"b"), found(3, b"c"), found(4, b"d")], 3)
        assert got == [b"a", b"b", b"c", b"d"]
        assert committable == 3
        assert [event[1] for event in wire.events if event[0] == "asked"] == [0, 2, 3, 4]

    @pytest.mark.parametrize(
        "options",
        [
            {"queue_messages_max": 3, "pull_batch": 2},
            {"queue_bytes_max": 3},
            {"queue_span_max": 2, "pull_batch": 2},
        ],
    )
    def test_a_full_queue_is_not_pulled(self, options: dict[str, int]) -> None:
        answers = [found(2, b"a", b"b"), found(4, b"c", b"d"), found(6, b"e", b"f")]
        wire, got, committable = self.pull(answers, 0, **options)
        assert got == [b"a", b"b", b"c", b"d"]
        assert committable == 0
        assert not wire.pending

    def test_a_pull_that_fills_an_empty_queue_is_the_last_one(self) -> None:
        answers = [found(4, b"a", b"b", b"c", b"d"), found(5, b"e")]
        wire, got, _ = self.pull(answers, 0, queue_span_max=2, pull_batch=4)
        assert got == [b"a", b"b", b"c", b"d"]
        assert not wire.pending

    def test_a_broker_that_suggests_another_one_is_left(self) -> None:
        wire, got, _ = self.pull([found(1, b"a"), found(2, b"b", broker_id=1)], 2)
        events = wire.events
        # A run goes on before it takes what was found; here the last one is taken first.
        assert events == [("asked", 0), ("asked", 1), "written", "written", ("asked", 2)]
        assert got == [b"a", b"b"]


async def no_requests(request: RemotingCommand) -> None:
    return None


@pytest.mark.parametrize("expression", ["*", "even"])
def test_each_message_comes_once_and_in_order(server: Loopback, expression: str) -> None:
    server.add_topic("T", queues=4)
    server.add_topic("%RETRY%g", queues=1)
    count = 400
    got: list[Any] = []

    async def main() -> None:
        done = asyncio.Event()
        async with Producer(server.addr, "pg") as producer:
            for n in range(count):
                queue = MessageQueue("T", "a", n % 4)
                await producer.send(Message("T", b"%d" % n, tags="odd" if n // 4 % 2 else "even"), queue=queue)

        def listener(message: Any) -> None:
            got.append((message.queue.queue_id, int(message.body)))
            if len(got) == (count if expression == "*" else count // 2):
                done.set()

        options = PushOptions(consume_from=ConsumeFrom.FIRST, suspend_s=0, pull_batch=8)
        consumer = PushConsumer(server.addr, "g", listener, options=options)
        await consumer.subscribe("T", expression)
        async with consumer:
            await asyncio.wait_for(done.wait(), 30)

    asyncio.run(main())
    wanted = [n for n in range(count) if expression == "*" or not n // 4 % 2]
    assert sorted(n for _, n in got) == wanted
    for queue_id in range(4):
        assert [n for queue, n in got if queue == queue_id] == [n for n in wanted if n % 4 == queue_id]
    if expression == "*":
        pulls = server.faults.asked(RequestCode.PULL_MESSAGE)
        offsets = {int(pull.ext_fields["queueOffset"]) for pull in pulls if pull.ext_fields["topic"] == "T"}
        assert offsets == {*range(0, 100, 8), 100}


def test_what_is_not_taken_whole_is_left_and_the_next_ones_are_ignored() -> None:
    async def test(wire: Wire, puller: Puller, task: asyncio.Task[RemotingCommand]) -> None:
        wire.answer(found(1, b"a"))
        wire.write()
        puller.is_left = True
        left = found(9, b"b", b"c")
        wire.answer(left)
        wire.write()
        wire.answer(found(10, b"d"))
        wire.write()
        assert await task is left

    wire = run(test)
    assert [event for event in wire.events if event != "written"] == [
        ("asked", 0), ("asked", 1), ("taken", 1), ("asked", 9),
    ]  # fmt: skip
    assert not wire.pending
