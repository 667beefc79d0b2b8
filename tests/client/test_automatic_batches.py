"""Automatic batches: sends that are under way at the same time travel together, and end as if each were alone."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqbroker.client import BadMessage, Message, ProducerOptions, SendResult, SendStatus
from mqbroker.client.aio import Producer
from mqbroker.client.automatic_batches import size_of
from mqbroker.errors import Refused
from mqbroker.wire.batch import decode_batch
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode, SysFlag
from tests.client import test_deferred_sends
from tests.client.faults import SILENT, Passage
from tests.client.loopback import Loopback
from tests.client.test_plain_sends import all_of, with_producer
from tests.client.world import World

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
Q = MessageQueue("T", "a", 0)


class Sender(test_deferred_sends.Sender):
    """A producer with `linger_s` on a clock that stands still, and what its sends came to."""

    def send(self, body: bytes, **fields: Any) -> Deferred[Any]:
        chosen = {name: fields.pop(name) for name in ("queue", "key", "timeout_s") if name in fields}
        return self.producer.send(Message("T", body, **fields), **chosen).addBoth(self.found.append)

    def wait(self, seconds: float) -> None:
        self.world.cluster.reactor.advance(seconds)
        self.world.cluster.settle()

    def sent(self) -> list[list[bytes]]:
        """The bodies of each batch."""
        return [[entry.body for entry in decode_batch(each.body)] for each in self.world.faults.asked(BATCH)]

    def alone(self) -> list[bytes]:
        """The bodies of sends that were not batches, without the first, whose topic had no route yet."""
        return [request.body for request in self.world.faults.asked(SEND)[1:]]


@pytest.fixture
def sender(one_queue: World) -> Iterator[Sender]:
    sender = Sender(one_queue, linger_s=0.005, send_timeout_s=3.0)
    yield sender
    sender.check_idle()


def test_sends_wait_for_others_and_each_gets_its_own_result(sender: Sender) -> None:
    for n in range(5):
        sender.send(b"%d" % n, keys=f"k{n}", tags="t", properties={"n": "é" if n == 3 else str(n)})
    sender.wait(0.004)
    assert (sender.sent(), sender.found) == ([], [])
    sender.wait(0.002)
    assert sender.sent() == [[b"0", b"1", b"2", b"3", b"4"]]
    assert [result.queue_offset for result in sender.found] == [1, 2, 3, 4, 5]
    assert (
        len({result.msg_id for result in sender.found}) == len({result.offset_msg_id for result in sender.found}) == 5
    )
    stored = sender.world.cluster.stored(Q)[1:]
    assert [record.body for record in stored] == [b"0", b"1", b"2", b"3", b"4"]
    found = [record.properties for record in stored]
    assert [each["UNIQ_KEY"] for each in found] == [result.msg_id for result in sender.found]
    assert [(each["KEYS"], each["TAGS"], each["n"]) for each in found] == [
        (f"k{n}", "t", "é" if n == 3 else str(n)) for n in range(5)
    ]


def test_they_leave_sooner_when_they_are_enough(one_queue: World) -> None:
    sender = Sender(one_queue, linger_s=5.0, batch_bytes_max=4_000, sends_in_flight_max=8)
    for n in range(3):
        sender.send(b"%d" % n * 1_500)
    sender.world.cluster.settle()
    assert [len(each) for each in sender.sent()] == [2], "they are 4,000 bytes together"
    for _ in range(7):
        sender.send(b"x")
    sender.world.cluster.settle()
    assert [len(each) for each in sender.sent()] == [2, 8], "no more may be in flight"
    assert all(isinstance(result, SendResult) for result in sender.found)
    sender.check_idle()


def test_what_cannot_be_in_a_batch_goes_alone(sender: Sender) -> None:
    sender.send(b"delayed", delay_level=1)
    sender.send(b"z" * 5_000)
    sender.send(b"timed", timeout_s=1.0)
    sender.send(b"kept")
    sender.send(b"quick", wait_stored=False)
    sender.wait(0.006)
    assert sender.sent() == [[b"kept"], [b"quick"]]
    assert len(sender.alone()) == 3
    assert all(isinstance(result, SendResult) for result in sender.found)


def queues_of(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, "a", n) for n in range(4)]


def inflated(record: Any) -> bytes:
    return zlib.decompress(record.body) if record.sys_flag & SysFlag.COMPRESSED else bytes(record.body)


def test_messages_of_a_key_keep_their_order(world: World) -> None:
    world.cluster.add_topic("T", queues=4, brokers=["a"])
    sender = Sender(world, linger_s=0.005)
    for n in range(30):
        sender.send(b"%02d" % n * (3_000 if n % 10 == 5 else 1), key=f"k{n % 3}")
    for _ in range(5):
        sender.wait(0.05)
    assert len(sender.found) == 30
    stored = [
        [int(inflated(each)[:2]) for each in sender.world.cluster.stored(queue) if each.body != b"first"]
        for queue in queues_of("T")
    ]
    for key in range(3):
        of_key = [[n for n in numbers if n % 3 == key and n < 30] for numbers in stored]
        assert [each for each in of_key if each] == [list(range(key, 30, 3))]


def test_a_refused_batch_is_sent_one_by_one(sender: Sender) -> None:
    def refuse(passage: Passage) -> None:
        passage.answer(passage.request.response(passage.request, ResponseCode.MESSAGE_ILLEGAL, "not this one"))

    def refuse_bad(passage: Passage) -> None:
        refuse(passage) if passage.request.body == b"bad" else passage.pass_on()

    sender.world.faults.refuse[None, BATCH] = refuse
    sender.world.faults.refuse[None, SEND] = refuse_bad
    for body in (b"1", b"bad", b"2"):
        sender.send(body)
    sender.wait(0.006)
    results = [each for each in sender.found if isinstance(each, SendResult)]
    failures = [each.value for each in sender.found if isinstance(each, Failure)]
    assert (len(results), [type(each) for each in failures]) == (2, [Refused])


def test_a_batch_that_fails_is_sent_again(sender: Sender) -> None:
    def once(passage: Passage) -> None:
        if len(sender.world.faults.asked(BATCH)) > 1:
            passage.pass_on()
        else:
            passage.answer(passage.request.response(passage.request, ResponseCode.SYSTEM_BUSY, "busy"))

    sender.world.faults.refuse[None, BATCH] = once
    for body in (b"1", b"2"):
        sender.send(body)
    sender.wait(0.006)
    for _ in range(10):
        sender.wait(0.1)
    assert sender.sent() == [[b"1", b"2"]] * 2
    assert [result.queue_offset for result in sender.found] == [1, 2]


def test_each_send_of_a_batch_that_never_arrives_fails(sender: Sender) -> None:
    sender.world.faults.refuse[None, BATCH] = SILENT
    for body in (b"1", b"2"):
        sender.send(body)
    cancelled = sender.send(b"3")
    sender.wait(0.006)
    cancelled.cancel()
    sender.wait(3.0)
    assert [type(each.value).__name__ for each in sender.found] == ["CancelledError", "SendFailed", "SendFailed"]
    assert all("topic T" in str(each.value) for each in sender.found[1:])


def test_a_send_that_is_cancelled_on_its_way_keeps_no_other_from_its_result(sender: Sender) -> None:
    held: list[Passage] = []
    sender.world.faults.refuse[None, BATCH] = held.append
    first = sender.send(b"1")
    sender.send(b"2")
    sender.wait(0.006)
    first.cancel()
    held[0].pass_on()
    sender.wait(0)
    assert isinstance(sender.found[0], Failure)
    assert [each.queue_offset for each in sender.found[1:]] == [2]


def test_cancelled_sends_do_not_leave(sender: Sender) -> None:
    first, second = sender.send(b"1"), sender.send(b"2")
    first.cancel()
    sender.wait(0.006)
    assert sender.sent() == [[b"2"]]
    third = sender.send(b"3")
    third.cancel()
    sender.wait(0.006)
    assert len(sender.sent()) == 1
    assert second.called


def test_what_waits_leaves_when_the_producer_is_closed(one_queue: World) -> None:
    sender = Sender(one_queue, linger_s=5.0)
    sender.send(b"1")
    sender.producer.close()
    sender.world.cluster.settle()
    assert sender.sent() == [[b"1"]]
    assert len(sender.found) == 1


def test_an_empty_body_is_refused_as_without(sender: Sender) -> None:
    sender.send(b"")
    sender.send(b"x", properties={"p": "y" * 32_767})
    sender.wait(0.006)
    assert [type(each.value) for each in sender.found] == [BadMessage, BadMessage]


def test_a_thousand_at_once_on_asyncio(server: Loopback) -> None:
    server.add_topic("T", queues=4)

    async def use(producer: Any) -> Any:
        return await all_of(*(producer.send(Message("T", b"%d" % n)) for n in range(1_000)))

    found = with_producer(server, use, linger_s=0)
    assert len({(result.queue, result.queue_offset) for result in found}) == 1_000
    assert len(server.faults.asked(BATCH)) < 20
    assert {queue.queue_id for queue in (result.queue for result in found)} <= {0, 1, 2, 3}


def batches_of(server: Loopback) -> list[list[bytes]]:
    return [[entry.body for entry in decode_batch(each.body)] for each in server.faults.asked(BATCH)]


def one_by_one(server: Loopback) -> list[bytes]:
    """The bodies of sends that were not batches, without the first send of `with_producer`."""
    return [request.body for request in server.faults.asked(SEND)[1:]]


def on_asyncio(server: Loopback, use: Any, **options: Any) -> Any:
    server.add_topic("T", queues=1)
    return with_producer(server, use, linger_s=0.01, **options)


def test_each_gets_its_own_result_on_asyncio(server: Loopback) -> None:
    async def use(producer: Any) -> Any:
        own = [
            Message("T", b"own", unique_key="mine"),
            Message("T", b"%", keys=("k",), tags="t", properties={"a": "b"}),
        ]
        sent = [producer.send(each) for each in (*own, *(Message("T", b"%d" % n) for n in range(5)))]
        found = await all_of(*sent)
        other = await all_of(*(producer.send(Message("T", text, properties={"p": "é"})) for text in (b"x", b"y")))
        return found + other

    found = on_asyncio(server, use)
    stored = server.stored(Q)[1:]
    assert [record.body for record in stored] == [b"own", b"%", b"0", b"1", b"2", b"3", b"4", b"x", b"y"]
    assert [result.queue_offset for result in found] == [*range(1, 10)]
    assert [result.msg_id for result in found] == [record.properties["UNIQ_KEY"] for record in stored]
    assert found[0].msg_id == "mine"
    assert len({result.offset_msg_id for result in found}) == 9
    assert len({result.msg_id for result in found}) == 9
    assert {(result.queue, result.status) for result in found} == {(Q, SendStatus.SEND_OK)}
    assert (stored[1].properties["KEYS"], stored[1].properties["TAGS"], stored[1].properties["a"]) == ("k", "t", "b")
    assert stored[8].properties["p"] == "é"
    assert [len(each) for each in batches_of(server)] == [7, 2]


def test_batches_on_asyncio_have_bounds(server: Loopback) -> None:
    async def use(producer: Any) -> Any:
        large = await all_of(*(producer.send(Message("T", b"%d" % n * 1_500)) for n in range(3)))
        properties = await all_of(*(producer.send(Message("T", b"p", properties={"p": "x" * 1_000})) for _ in range(5)))
        return large + properties + await all_of(*(producer.send(Message("T", b"x")) for n in range(20)))

    found = on_asyncio(server, use, batch_bytes_max=4_000, sends_in_flight_max=8)
    assert sorted(result.queue_offset for result in found) == [*range(1, 29)]
    sizes = [len(each) for each in batches_of(server)]
    assert sizes[:4] == [2, 1, 3, 2]
    assert max(sizes[4:]) == 8


@pytest.mark.parametrize("more", [0, 1])
def test_a_batch_on_asyncio_is_full_to_the_byte(server: Loopback, more: int) -> None:
    messages = [Message("T", b"%d" % n * 1_000, keys="k", properties={"name": "value"}) for n in range(3)]

    async def use(producer: Any) -> Any:
        return await all_of(*(producer.send(message) for message in messages))

    on_asyncio(server, use, batch_bytes_max=sum(map(size_of, messages)) - more)
    assert [len(each) for each in batches_of(server)] == ([2, 1] if more else [3])


def test_sends_that_begin_together_have_the_same_bounds(server: Loopback) -> None:
    async def use(producer: Any) -> Any:
        waiters = [asyncio.get_running_loop().create_future() for _ in range(5)]
        assert producer._core.sends.take_all([Message("T", b"%d" % n * 1_500) for n in range(5)], waiters)
        return await all_of(*waiters)

    found = on_asyncio(server, use, batch_bytes_max=4_000)
    assert [len(each) for each in batches_of(server)] == [2, 2, 1]
    assert [result.queue_offset for result in found] == [*range(1, 6)]


def test_cancelled_sends_on_asyncio_do_not_leave(server: Loopback) -> None:
    async def use(producer: Any) -> Any:
        sends = [asyncio.ensure_future(producer.send(Message("T", b"%d" % n))) for n in range(6)]
        await asyncio.sleep(0)
        for n in (0, 3, 5):
            sends[n].cancel()
        return await all_of(*sends)

    found = on_asyncio(server, use)
    assert [n for n, each in enumerate(found) if isinstance(each, asyncio.CancelledError)] == [0, 3, 5]
    assert batches_of(server) == [[b"1", b"2", b"4"]]
    assert [found[n].queue_offset for n in (1, 2, 4)] == [1, 2, 3]


def test_a_send_on_asyncio_that_is_cancelled_on_its_way_keeps_no_other_from_its_result(server: Loopback) -> None:
    async def use(producer: Any) -> Any:
        loop, left = asyncio.get_running_loop(), asyncio.Event()
        held: list[Passage] = []

        def hold(passage: Passage) -> None:
            held.append(passage)
            loop.call_soon_threadsafe(left.set)

        server.faults.refuse[None, BATCH] = hold
        sends = [asyncio.ensure_future(producer.send(Message("T", b"%d" % n))) for n in range(3)]
        await left.wait()
        sends[1].cancel()
        await asyncio.sleep(0)
        assert sends[1].cancelled()
        with server.lock:
            held[0].pass_on()
            server.settle()
        return await all_of(*sends)

    first, cancelled, last = on_asyncio(server, use)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert (first.queue_offset, last.queue_offset) == (1, 3)


def test_a_refused_batch_on_asyncio_is_sent_one_by_one(server: Loopback) -> None:
    def refuse(passage: Passage) -> None:
        passage.answer(passage.request.response(passage.request, ResponseCode.MESSAGE_ILLEGAL, "not this one"))

    async def use(producer: Any) -> Any:
        server.faults.refuse[None, BATCH] = refuse
        return await all_of(*(producer.send(Message("T", b"%d" % n)) for n in range(3)))

    assert sorted(result.queue_offset for result in on_asyncio(server, use)) == [1, 2, 3]
    assert sorted(one_by_one(server)) == [b"0", b"1", b"2"]


def test_each_topic_has_batches_of_its_own_on_asyncio(server: Loopback) -> None:
    server.add_topic("U", queues=1)

    async def use(producer: Any) -> Any:
        await producer.send(Message("U", b"first"), timeout_s=60)
        more = [producer.send(Message(topic, b"%d" % n)) for n in range(4) for topic in ("T", "U")]
        quick = [producer.send(Message("T", b"quick", wait_stored=False)) for _ in range(2)]
        keyed = [producer.send(Message("T", b"keyed"), key="k") for _ in range(2)]
        delayed = producer.send(Message("T", b"delayed", delay_level=1))
        return await all_of(*more, *quick, *keyed, delayed)

    found = on_asyncio(server, use)
    assert all(isinstance(result, SendResult) for result in found)
    assert sorted(batches_of(server)) == [[b"0", b"1", b"2", b"3"]] * 2 + [[b"keyed"] * 2, [b"quick"] * 2]
    assert one_by_one(server)[1:] == [b"delayed"]


def test_what_waits_on_asyncio_leaves_when_the_producer_is_closed(server: Loopback) -> None:
    server.add_topic("T", queues=1)

    async def main() -> Any:
        async with Producer(server.addr, "pg", options=ProducerOptions(linger_s=5.0)) as producer:
            await producer.send(Message("T", b"first"), timeout_s=60)
            sent = [asyncio.ensure_future(producer.send(Message("T", b"%d" % n))) for n in range(2)]
            await asyncio.sleep(0)
        return await all_of(*sent)

    assert len(asyncio.run(main())) == 2
    assert batches_of(server) == [[b"0", b"1"]]


def test_the_same_on_each_api(face: Any, cluster: Any, consumer: Any) -> None:
    with face.make("Producer", "pg", options=ProducerOptions(linger_s=0)) as producer:
        results = [producer.send(Message("T", b"%d" % n), key="k") for n in range(5)]
    (queue,) = {result.queue for result in results}
    assert [m.body for m in consumer.pull(queue, 0).messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(cluster.faults.asked(BATCH)) >= 1
