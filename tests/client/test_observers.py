"""What an application hangs on sends and on consumption: called on every path, on each face."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from mqbroker.client import (
    BadArgument,
    BadMessage,
    ConnectionListener,
    ConsumeFrom,
    ConsumeObserver,
    ConsumeResult,
    Consumption,
    Forbidden,
    Message,
    MessageFilter,
    MessageQueue,
    ProducerOptions,
    PushOptions,
    RetryLater,
    RpcHook,
    Send,
    SendFailed,
    SendKind,
    SendObserver,
    SendResult,
    TransactionState,
)
from mqbroker.kernel import compiled
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.faults import Passage
from tests.client.loopback import Loopback

ON_EACH_BROKER = True

Q = MessageQueue("T", "a", 0)


class Notes(SendObserver, ConsumeObserver):
    """Notes what it sees, and adds a property to what is sent."""

    def __init__(self, name: str = "n") -> None:
        self.name = name
        self.seen: list[tuple[str, Any, Any]] = []
        self.ended: SimpleQueue[Any] = SimpleQueue()

    def before_send(self, send: Send) -> None:
        self.seen.append(("before", send.kind, [message.body for message in send.messages]))
        send.context[self] = self.name
        send.messages = [
            attrs.evolve(message, properties={**message.properties, "seen by": self.name}) for message in send.messages
        ]

    def after_send(self, send: Send, outcome: list[SendResult] | BaseException) -> None:
        assert send.context[self] == self.name
        assert send.took_s >= 0
        self.seen.append(("after", send.addr, outcome))

    def before_consume(self, consumption: Consumption) -> None:
        self.seen.append(("before", consumption.group, [message.body for message in consumption.messages]))
        consumption.messages = [attrs.evolve(message, tags=self.name) for message in consumption.messages]

    def after_consume(self, consumption: Consumption, outcome: Any) -> None:
        assert consumption.client_id
        self.seen.append(("after", consumption.took_s >= 0, outcome))
        self.ended.put(outcome)


def producer_with(face: Any, *observers: SendObserver, **options: Any) -> Any:
    return face.make("Producer", "pg", options=ProducerOptions(observers=observers, **options))


def test_every_way_of_sending_is_observed(face: Any, cluster: Loopback, consumer: Any) -> None:
    notes = Notes("n")
    with producer_with(face, notes) as producer:
        plain = producer.send(Message("T", b"1"))
        placed = producer.send(Message("T", b"2"), queue=Q)
        keyed = producer.send(Message("T", b"3"), key="k", timeout_s=3)
        selected = producer.send(Message("T", b"4"), selector=lambda queues, message: queues[0])
        batch = producer.send_batch([Message("T", b"5"), Message("T", b"6")], queue=Q)
        producer.send_oneway(Message("T", b"7"), queue=Q)
        if hasattr(producer, "send_async"):
            producer.send_async(Message("T", b"8"), queue=Q).result(10)
    kinds = [SendKind.SEND] * 4 + [SendKind.BATCH, SendKind.ONEWAY]
    befores = [(kind, bodies) for what, kind, bodies in notes.seen if what == "before"]
    bodies = [[b"1"], [b"2"], [b"3"], [b"4"], [b"5", b"6"], [b"7"]]
    assert befores[:6] == list(zip(kinds, bodies, strict=True))
    afters = [(addr, outcome) for what, addr, outcome in notes.seen if what == "after"]
    addr = cluster.broker_addr if hasattr(cluster, "broker_addr") else None
    sent = [[plain], [placed], [keyed], [selected], batch]
    assert afters[:6] == [*((addr, each) for each in sent), ("", [])]
    assert len(befores) == len(afters)
    while consumer.max_offset(Q) < 4:  # nobody says that a oneway one has arrived
        pass
    found = consumer.pull(Q, 0).messages
    assert {message.properties["seen by"] for message in found} == {"n"}


def test_observed_sends_are_plain_ones_too(face: Any, cluster: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    with producer_with(face, notes) as producer:
        producer.send(Message("T", b"first"), queue=Q)  # a heartbeat follows it
        if compiled is not None:
            monkeypatch.setattr("mqbroker.client.single_sends.prepare", None)  # of the general path
        sent = producer.send(Message("T", b"x")), producer.send(Message("T", b"y"), queue=Q)
    assert [each[2] for each in notes.seen if each[0] == "after"][1:] == [[result] for result in sent]
    assert [request.body for request in cluster.faults.asked(RequestCode.SEND_MESSAGE_V2)] == [b"first", b"x", b"y"]


class Replacing(SendObserver):
    """Puts what `make` returns in place of the messages."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def before_send(self, send: Send) -> None:
        send.messages = self.make(send.messages)


def test_messages_that_replace_others_have_their_systems_properties(face: Any, cluster: Loopback) -> None:
    replacing = Replacing(lambda messages: [Message(each.topic, each.body + b"!") for each in messages])
    options = ProducerOptions(observers=[replacing])
    with face.make("TransactionProducer", "tx", print, options=options) as producer:
        producer.send(Message("T", b"light").to_light_queues("%LMQ%a"))
        producer.send_in_transaction(Message("T", b"half"), lambda message: TransactionState.ROLLBACK)
    light, half = cluster.faults.asked(RequestCode.SEND_MESSAGE_V2)
    assert (light.body, half.body) == (b"light!", b"half!")
    assert "INNER_MULTI_DISPATCH\x01%LMQ%a" in light.ext_fields["i"]
    assert "TRAN_MSG\x01true\x02PGROUP\x01tx" in half.ext_fields["i"]
    assert int(half.ext_fields["f"]) & 4


@pytest.mark.parametrize(
    "make",
    [
        lambda messages: [],
        lambda messages: messages * 2,
        lambda messages: [Message("U", each.body) for each in messages],
        lambda messages: [each.body for each in messages],
    ],
)
def test_messages_that_replace_others_are_as_many_to_the_same_topics(face: Any, cluster: Loopback, make: Any) -> None:
    with producer_with(face, Replacing(make)) as producer:
        calls = [(producer.send, Message("T", b"1")), (producer.send_oneway, Message("T", b"1"))]
        for call, given in [*calls, (producer.send_batch, [Message("T", b"1"), Message("T", b"2")])]:
            with pytest.raises(BadArgument, match=r"Send.messages must be as many messages to the same topics"):
                call(given)
    assert not cluster.faults.asked(RequestCode.SEND_MESSAGE_V2)


def test_an_observer_sees_what_fails(face: Any, cluster: Loopback) -> None:
    cluster.faults.refuse[None, RequestCode.SEND_MESSAGE_V2] = refused
    notes = Notes()
    with producer_with(face, notes, retries=0) as producer:
        with pytest.raises(SendFailed) as failed:
            producer.send(Message("T", b"x"))
        with pytest.raises(BadMessage) as bad:
            producer.send(Message("T", b""))
    addr = failed.value.attempts[-1][1]
    assert [each for each in notes.seen if each[0] == "after"] == [
        ("after", addr, failed.value),
        ("after", "", bad.value),
    ]


def refused(passage: Passage) -> None:
    passage.answer(passage.request.response(passage.request, ResponseCode.SYSTEM_ERROR, "no"))


class Forbids(SendObserver):
    def before_send(self, send: Send) -> None:
        if send.messages[0].body == b"secret":
            raise Forbidden("secrets are not sent")


class Fails(SendObserver, ConsumeObserver):
    def before_send(self, send: Send) -> None:
        raise ValueError("before")

    def after_send(self, send: Send, outcome: object) -> None:
        raise ValueError("after")

    def before_consume(self, consumption: Consumption) -> None:
        raise ValueError("before")

    def after_consume(self, consumption: Consumption, outcome: object) -> None:
        raise ValueError("after")


def test_an_observer_may_forbid_a_send(face: Any, cluster: Loopback) -> None:
    with producer_with(face, Forbids()) as producer:
        producer.send(Message("T", b"open"))
        for method in ("send", "send_oneway"):
            with pytest.raises(Forbidden, match=r"secrets are not sent\. Nothing was sent"):
                getattr(producer, method)(Message("T", b"secret"))
    assert [request.body for request in cluster.faults.asked(RequestCode.SEND_MESSAGE_V2)] == [b"open"]


class Ends(SendObserver):
    """Sees only how sends end."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []

    def after_send(self, send: Send, outcome: object) -> None:
        self.outcomes.append(outcome)


def test_observers_before_the_one_that_forbids_a_send_see_its_end_and_those_behind_do_not(face: Any) -> None:
    before, behind = Ends(), Ends()
    with producer_with(face, before, Forbids(), behind) as producer:
        producer.send(Message("T", b"open"))
        with pytest.raises(Forbidden):
            producer.send(Message("T", b"secret"))
    assert [type(outcome) for outcome in before.outcomes] == [list, Forbidden]
    assert [type(outcome) for outcome in behind.outcomes] == [list]


def test_an_observer_that_fails_changes_nothing_and_is_logged_once(
    face: Any, consumer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes("n")
    with producer_with(face, Fails(), notes) as producer:
        for _ in range(5):
            producer.send(Message("T", b"x"), queue=Q)
    assert len(notes.seen) == 10
    logged = [record for record in caplog.records if record.name == "mqbroker.client.observers"]
    assert [record.getMessage() for record in logged] == [
        "the observer Fails.before_send failed; the operation continues"
    ]
    assert logged[0].levelno == logging.ERROR
    caplog.clear()


def test_observers_are_called_in_order_before_and_in_reverse_after(face: Any) -> None:
    order: list[str] = []

    class Ordered(SendObserver):
        def __init__(self, name: str) -> None:
            self.name = name

        def before_send(self, send: Send) -> None:
            order.append(f"before {self.name}")

        def after_send(self, send: Send, outcome: object) -> None:
            order.append(f"after {self.name}")

    with producer_with(face, Ordered("1"), Ordered("2")) as producer:
        producer.send(Message("T", b"x"))
    assert order == ["before 1", "before 2", "after 2", "after 1"]


@pytest.mark.parametrize("is_awaited", [False, True])
def test_consumption_is_observed(face: Any, producer: Any, is_awaited: bool, caplog: pytest.LogCaptureFixture) -> None:
    bodies = [b"none", b"false", b"retry", b"raise"]
    for body in bodies:
        producer.send(Message("T", body), queue=Q)
    notes, got = Notes("n"), {}

    def listener(message: Any) -> Any:
        got[message.body] = message.tags
        if message.body == b"retry":
            raise RetryLater(3)
        if message.body == b"raise":
            raise ValueError("as ordered")
        return False if message.body == b"false" else None

    async def coroutine(message: Any) -> Any:
        return listener(message)

    if is_awaited and face.module.__name__ == "mqbroker.client.blocking":
        pytest.skip("listeners of the blocking face are plain functions")
    options = PushOptions(
        consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0, concurrency=1, observers=(Fails(), notes)
    )
    member = face.make("PushConsumer", "g", coroutine if is_awaited else listener, options=options)
    member.subscribe("T")
    with member:
        outcomes = [face.get(notes.ended) for _ in bodies]
    assert outcomes[:3] == [ConsumeResult.SUCCESS, ConsumeResult.RETRY, ConsumeResult.RETRY]
    assert isinstance(outcomes[3], ValueError)
    assert [each for each in notes.seen if each[0] == "before"] == [("before", "g", [body]) for body in bodies]
    assert got == dict.fromkeys(bodies, "n")
    names = [record.getMessage() for record in caplog.records if "listener" in record.getMessage()]
    assert any("listener" in name and "failed on message" in name for name in names)
    caplog.clear()


def test_observers_and_hooks_are_called_on_the_threads_that_the_guide_names(face: Any, producer: Any) -> None:
    where: dict[str, set[str]] = {}

    def note(what: str) -> None:
        where.setdefault(what, set()).add(threading.current_thread().name)

    class Everything(SendObserver, ConsumeObserver, RpcHook, ConnectionListener, MessageFilter):
        def before_send(self, send: Send) -> None:
            note("before_send")

        def after_send(self, send: Send, outcome: Any) -> None:
            note("after_send")

        def before_request(self, addr: str, request: Any) -> None:
            note("before_request")

        def after_response(self, addr: str, request: Any, response: Any) -> None:
            note("after_response")

        def connected(self, addr: str) -> None:
            note("connected")

        def accepts(self, group: str, message: Any) -> bool:
            note("accepts")
            return True

        def before_consume(self, consumption: Consumption) -> None:
            note("listener's")

        def after_consume(self, consumption: Consumption, outcome: Any) -> None:
            note("listener's")
            ended.put(outcome)

    ended: SimpleQueue[Any] = SimpleQueue()
    observers = [Everything()]
    with producer_with(face, *observers) as observed:
        observed.send(Message("T", b"0"), queue=Q)
        observed.send_batch([Message("T", b"1")], queue=Q)
        if hasattr(observed, "send_async"):
            observed.send_async(Message("T", b"2")).result(10)
    options = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0, observers=observers)
    member = face.make("PushConsumer", "g", lambda message: note("listener's"), options=options)
    member.subscribe("T")
    with member:
        face.get(ended)
        face.get(ended)
    called = where.pop("listener's")
    assert len(where) == 6
    (loops,) = set.union(*where.values())
    if face.module.__name__ == "mqbroker.client.blocking":
        assert loops == "mq-client"
        assert all(name.startswith("mq-listen") for name in called)
    else:
        assert called == {loops}


def test_an_observer_of_consumption_that_blocks_holds_up_one_listener_of_the_blocking_face(
    face: Any, producer: Any
) -> None:
    if face.module.__name__ != "mqbroker.client.blocking":
        pytest.skip("observers must not block the event loop")
    go_on, got = threading.Event(), SimpleQueue[bytes]()

    class Slow(ConsumeObserver):
        def before_consume(self, consumption: Consumption) -> None:
            if consumption.messages[0].body == b"slow":
                assert go_on.wait(20)

    producer.send(Message("T", b"slow"), queue=Q)
    producer.send(Message("T", b"quick"), queue=Q)
    options = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0, concurrency=2, observers=[Slow()])
    member = face.make("PushConsumer", "g", lambda message: got.put(message.body), options=options)
    member.subscribe("T")
    with member:
        assert face.get(got) == b"quick"
        assert producer.send(Message("T", b"sent"), queue=Q).queue_offset == 2
        go_on.set()
        assert {face.get(got), face.get(got)} == {b"slow", b"sent"}


@pytest.mark.parametrize("kind", [ProducerOptions, PushOptions])
@pytest.mark.parametrize("wrong", [None, "text", [object()], Notes(), 5])
def test_observers_are_checked(kind: Any, wrong: Any) -> None:
    with pytest.raises(BadArgument, match=rf"{kind.__name__}\.observers must be several of "):
        kind(observers=wrong)
