"""Hooks around requests, listeners to connections and filters of messages, of each kind of client on each face."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from queue import SimpleQueue
from typing import Any

import pytest
from twisted.python.failure import Failure

from mqbroker.client import (
    BadArgument,
    ConnectionListener,
    ConsumeFrom,
    Counters,
    Forbidden,
    HookFailed,
    LitePullOptions,
    Message,
    MessageFilter,
    MessageQueue,
    MQError,
    NameServerUnreachable,
    ProducerOptions,
    PullOptions,
    PushOptions,
    RemotingCommand,
    RpcHook,
    SendResult,
)
from mqbroker.client.faces import net_of
from mqbroker.client.hooks import Hooks
from mqbroker.errors import Refused
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.asking import INFO
from tests.client.faults import SILENT

ON_EACH_BROKER = True

Q = MessageQueue("T", "a", 0)
SEND = RequestCode.SEND_MESSAGE_V2
FIRST: dict[str, Any] = {"consume_from": ConsumeFrom.FIRST}
PUSH: dict[str, Any] = {**FIRST, "takeover_pause_s": 0.0}
#: Text of every kind: all of one byte and of two in UTF-16, some of four, and what JSON escapes.
TEXT = "".join(map(chr, [*range(0x300), 0x2028, 0xD7FF, 0xE000, 0xFFFF, 0x1F600, 0x10FFFF])) + '"\\/'


class Marks(RpcHook):
    """Notes what it sees, and adds a field to each request."""

    def __init__(self, name: str = "mark", value: str = "1") -> None:
        self.field = {name: value}
        self.before: list[tuple[str, int]] = []
        self.after: list[tuple[int, int | None]] = []

    def before_request(self, addr: str, request: RemotingCommand) -> None:
        self.before.append((addr, request.code))
        request.ext_fields.update(self.field)

    def after_response(self, addr: str, request: RemotingCommand, response: RemotingCommand | None) -> None:
        assert response is None or request.ext_fields.items() >= self.field.items()
        self.after.append((request.code, None if response is None else response.code))


def inner(called: Any) -> Any:
    """The client of asyncio or Twisted that does the work of one."""
    client = called._client
    return client._parts()[1] if hasattr(client, "_parts") else client


def producer_with(face: Any, *observers: Any, **options: Any) -> Any:
    return face.make("Producer", "pg", options=ProducerOptions(observers=observers, **options))


def sent_in_time(face: Any, cluster: Any, producer: Any, **options: Any) -> Any:
    """What a send comes to that takes time, which on Twisted passes as the test says."""
    message = Message("T", b"x")
    if face.module.__name__ != "mqbroker.client.deferred":
        try:
            return producer.send(message, **options)
        except MQError as error:
            return error
    ended: list[Any] = []
    producer._client.send(message, **options).addBoth(ended.append)
    for _ in range(100):
        for _ in range(20):  # a broker on a thread of its own has time to answer
            if not ended:
                cluster.settle()
        if not ended:
            cluster.advance(0.1)
    return ended[0].value if isinstance(ended[0], Failure) else ended[0]


def pushed(face: Any, count: int, *observers: Any, group: str = "g") -> list[bytes]:
    """The bodies of the first messages that a push consumer gets."""
    got: SimpleQueue[Any] = SimpleQueue()
    options = PushOptions(observers=observers, **PUSH)
    member = face.make("PushConsumer", group, lambda message: got.put(message.body), options=options)
    member.subscribe("T")
    with member:
        found: list[Any] = [face.get(got) for _ in range(count)]
    return [*found, *(got.get() for _ in range(got.qsize()))]


def polled(reader: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in reader.poll(max_count=count - len(found))]
    return found


def test_no_request_of_any_client_passes_a_hook_by(face: Any, cluster: Any) -> None:
    hook = Marks("mark", TEXT)
    with producer_with(face, hook) as producer:
        for n in range(5):
            producer.send(Message("T", b"%d" % n))
        producer.send(Message("T", b"5"), queue=Q)
        producer.send_batch([Message("T", b"6"), Message("T", b"7")])
        producer.send_oneway(Message("T", b"8"), key="k")
        if hasattr(producer, "send_async"):
            producer.send_async(Message("T", b"9")).result(10)
        else:
            producer.send(Message("T", b"9"))
        with face.make("PullConsumer", "cg", options=PullOptions(observers=[hook])) as consumer:
            queues = consumer.queues("T")
            while sum(high for _, high in consumer.bounds(queues)) < 10:  # nobody says that a oneway one has arrived
                pass
            consumer.fetch_many([(queue, 0, 32) for queue in queues])
            consumer.commit(Q, 1)
    assert sorted(pushed(face, 10, hook)) == [b"%d" % n for n in range(10)]
    reader = face.make("LitePullConsumer", "lg", options=LitePullOptions(observers=[hook], **FIRST))
    reader.subscribe("T")
    with reader:
        assert sorted(polled(reader, 10)) == [b"%d" % n for n in range(10)]
    asked = [request for _, request in cluster.faults.requests]
    codes = Counter(request.code for request in asked)
    assert len(codes) >= 9
    assert [request.describe() for request in asked if request.ext_fields.get("mark") != TEXT] == []
    # The notice that the membership has changed is the broker's request.
    seen = {addr for addr, _ in cluster.faults.requests}  # not the name server of the broker in memory
    notice = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    mine = Counter(code for addr, code in hook.before if code != notice and addr in seen)
    assert mine == codes
    assert Counter(code for code, _ in hook.after) == Counter(code for _, code in hook.before)
    answered = {code for code, response in hook.after if response is not None}
    assert RequestCode.HEART_BEAT in answered
    assert RequestCode.PULL_MESSAGE in answered


def test_without_hooks_the_compiled_path_is_taken_and_with_them_not(face: Any, cluster: Any) -> None:
    addr = cluster.broker_addr
    with producer_with(face, ConnectionListener()) as plain, producer_with(face, Marks()) as hooked:
        for producer in (plain, hooked):
            producer.send(Message("T", b"x"), queue=Q)
            producer.send(Message("T", b"x"), queue=Q)
        assert net_of(inner(plain)).free_connection(addr) is not None
        assert net_of(inner(hooked)).free_connection(addr) is None
        assert net_of(inner(hooked)).lines.free_connection(addr) is None


def test_clients_with_other_hooks_share_no_connections(face: Any, cluster: Any) -> None:
    hook = Marks()
    with producer_with(face, hook) as one, producer_with(face, hook) as two, producer_with(face, Marks()) as three:
        lines = [net_of(inner(each)).lines for each in (one, two, three)]
    assert lines[0] is lines[1] is not lines[2]


class Does(RpcHook):
    """Does something to the first request, or response, of a code."""

    def __init__(self, code: int, before: Any = None, after: Any = None) -> None:
        self.code, self.acts = code, {"before": before, "after": after}

    def _act(self, when: str, code: int, given: Any) -> Any:
        act = self.acts[when]
        if code == self.code and act is not None:
            self.acts[when] = None
            return act(given)
        return None

    def before_request(self, addr: str, request: RemotingCommand) -> Any:
        return self._act("before", request.code, request)

    def after_response(self, addr: str, request: RemotingCommand, response: Any) -> Any:
        return self._act("after", request.code, response)


def raises(error: BaseException) -> Any:
    def act(given: Any) -> None:
        raise error

    return act


@pytest.mark.parametrize("error", [Forbidden("not on Sundays"), Refused(ResponseCode.MESSAGE_ILLEGAL, "no")], ids=str)
def test_a_hook_may_refuse_a_request(face: Any, cluster: Any, error: MQError) -> None:
    marks = Marks()
    with producer_with(face, marks, Does(SEND, before=raises(error)), Marks("never", "1")) as producer:
        with pytest.raises(type(error), match=str(error)):
            producer.send(Message("T", b"x"))
        assert cluster.faults.asked(SEND) == []
        assert marks.after[-1] == (SEND, None)  # who has seen it is told
        producer.send(Message("T", b"x"))
    assert [request.ext_fields["mark"] for request in cluster.faults.asked(SEND)] == ["1"]


def test_a_refusal_that_may_pass_is_sent_again(face: Any, cluster: Any) -> None:
    busy = Does(SEND, before=raises(Refused(ResponseCode.SYSTEM_BUSY, "later")))
    with producer_with(face, busy) as producer:
        assert isinstance(sent_in_time(face, cluster, producer), SendResult)
    assert len(cluster.faults.asked(SEND)) == 1


def sets(name: Any, value: Any) -> Any:
    return lambda command: command.ext_fields.update({name: value})


def has(attribute: str, value: Any) -> Any:
    return lambda command: setattr(command, attribute, value)


async def coroutine(given: Any) -> None:
    """What nobody awaits."""


NONSENSE = {
    "raises": raises(ValueError("as ordered")),
    "exits": raises(SystemExit(1)),
    "cancels": raises(asyncio.CancelledError()),
    "is a coroutine": coroutine,
    "refuses with nothing": raises(Refused(None, None)),
    "sets a number": sets("x", 5),
    "sets None": sets("x", None),
    "sets bytes": sets("x", b"x"),
    "names by number": sets(5, "x"),
    "sets half a pair": sets("x", "\ud800"),
    "names by half a pair": sets("\udfff", "x"),
    "sets too many": lambda command: command.ext_fields.update({str(n): "x" for n in range(1025)}),
    "has no fields": has("ext_fields", None),
    "has a list of fields": has("ext_fields", [("a", "b")]),
    "has no body": has("body", None),
    "has text for a body": has("body", "text"),
    "has no code": has("code", None),
    "has a long code": has("code", 2**31),
    "has a number for a remark": has("remark", 5),
}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_that_fails_fails_its_request_alone(
    face: Any, cluster: Any, consumer: Any, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add_topic("T")
    hook, marks, last = Does(SEND), Marks(), Marks()
    with producer_with(face, marks, hook, last) as producer:
        for count, (name, act) in enumerate(NONSENSE.items(), 1):
            hook.acts[when] = act
            with pytest.raises(
                HookFailed, match=rf"the RPC hook Does\.{when}_re\w+ failed: .*\. The log has"
            ) as failed:
                producer.send(Message("T", b"x"), queue=Q)
            assert failed.value.hook.startswith("Does."), name
            assert consumer.max_offset(Q) == (0 if when == "before" else count), name
            assert Counter(code for code, _ in marks.after) == Counter(code for _, code in marks.before), name
            assert Counter(code for code, _ in last.after) == Counter(code for _, code in last.before), name
        assert producer.send(Message("T", b"y"), queue=Q).queue_offset == (0 if when == "before" else count)
    logged = [record.getMessage() for record in caplog.records if record.name == "mqbroker.client.observers"]
    assert logged == [f"the RPC hook {failed.value.hook} failed; the request fails"]  # others within the minute
    caplog.clear()


def test_what_a_hook_changes_is_sent_and_read(face: Any, cluster: Any, consumer: Any) -> None:
    cluster.add_topic("T")
    hidden = Does(SEND, before=lambda request: setattr(request, "body", request.body[::-1]))
    with producer_with(face, hidden) as producer:
        producer.send(Message("T", b"abc"), queue=Q)
        assert consumer.pull(Q, 0).messages[0].body == b"cba"
        moved = Does(RequestCode.GET_MAX_OFFSET, after=sets("offset", "77"))
        with face.make("PullConsumer", "cg", options=PullOptions(observers=[moved])) as reader:
            assert [reader.max_offset(Q) for _ in range(2)] == [77, 1]


def test_what_hooks_change_is_changed_in_a_copy() -> None:
    """Heartbeats go to several brokers as one request, and a response may be read by others."""
    command, answer = RemotingCommand(1, {"a": "b"}), RemotingCommand(0, {"c": "d"})

    async def send(request: RemotingCommand) -> RemotingCommand:
        assert request.ext_fields == {"a": "b", "mark": "1"}
        return answer

    hooks = Hooks([Marks(), Does(1, after=sets("e", "f"))])
    response = asyncio.run(hooks.around("host:1", command, send))
    assert response == RemotingCommand(0, {"c": "d", "e": "f"})
    assert (command.ext_fields, answer.ext_fields) == ({"a": "b"}, {"c": "d"})


def test_a_field_that_is_too_long_fails_its_request_alone(face: Any, cluster: Any) -> None:
    with producer_with(face, Does(SEND, before=sets("x", "x" * 2**24))) as producer:
        with pytest.raises(MQError, match=r"header of .* bytes"):
            producer.send(Message("T", b"x"))
        producer.send(Message("T", b"x"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_requests_of_brokers_pass_the_hooks(
    face: Any, cluster: Any, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add_topic("T")
    hook, marks = Does(INFO.code), Marks()
    options = PushOptions(observers=[hook, marks], **PUSH)
    member = face.make("PushConsumer", "g", lambda message: None, options=options)
    member.subscribe("T")
    acts = [
        (None, ResponseCode.SUCCESS),
        (raises(Refused(99, "not today")), 99),
        (raises(ValueError("as ordered")), ResponseCode.SYSTEM_ERROR),
        (sets("x", 5), ResponseCode.SYSTEM_ERROR),
    ]
    with member:
        for act, code in acts:
            hook.acts[when] = act
            del marks.before[:]
            answers = cluster.ask_client([INFO, INFO])
            found: list[Any] = [face.get(answers) for _ in range(2)]
            assert [(answer.opaque, answer.code) for answer in found] == [(1000, code), (1001, ResponseCode.SUCCESS)]
            seen = [code for _, code in marks.before].count(INFO.code)
            assert seen == (2 if act is None or when == "after" else 1)
    caplog.clear()


def test_a_hook_may_add_to_what_is_signed(face: Any, cluster: Any) -> None:
    from mqbroker.client import Credentials

    with producer_with(face, Marks("mark", TEXT), credentials=Credentials("key", "secret")) as producer:
        producer.send(Message("T", b"x"))
    (request,) = cluster.faults.asked(SEND)
    fields = {name: value for name, value in request.ext_fields.items() if name not in ("Signature", "AccessKey")}
    Credentials("key", "secret").sign(fields, request.body)
    assert fields["Signature"] == request.ext_fields["Signature"]
    assert request.ext_fields["mark"] == TEXT


# --- connections


class Events(ConnectionListener):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def connected(self, addr: str) -> None:
        self.seen.append(("connected", addr))

    def closed(self, addr: str) -> None:
        self.seen.append(("closed", addr))

    def idle(self, addr: str, why: str) -> None:
        self.seen.append(("idle", addr, why))

    def failed(self, addr: str, why: str) -> None:
        self.seen.append(("failed", addr, why))

    def of(self, addr: str) -> list[str]:
        return [event for event, at, *_ in self.seen if at == addr]


class Faulty(ConnectionListener):
    def connected(self, addr: str) -> None:
        raise SystemExit("as ordered")

    closed = connected


def test_a_listener_sees_connections_open_and_end(face: Any, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    with producer_with(face, Faulty(), events) as producer:
        producer.send(Message("T", b"x"))
        producer.send(Message("T", b"x"))
        assert events.seen == [
            ("connected", addr) for addr in dict.fromkeys((cluster.name_server, cluster.broker_addr))
        ]
    for addr in {cluster.name_server, cluster.broker_addr}:
        assert events.of(addr) == ["connected", "closed"]
    logged = [record.getMessage() for record in caplog.records if record.name == "mqbroker.client.observers"]
    assert logged == ["the connection listener Faulty.connected failed; the operation continues"]
    caplog.clear()


def test_a_listener_sees_an_address_that_nobody_answers(
    face: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "name_server", "127.0.0.1:1")
    events = Events()
    producer = producer_with(face, events)
    with pytest.raises(NameServerUnreachable):
        producer.start()
    producer.close()
    assert events.of("127.0.0.1:1") == ["failed"]
    assert "connect to 127.0.0.1:1 failed" in events.seen[0][2]


def test_a_listener_sees_a_connection_break(face: Any, cluster: Any) -> None:
    events = Events()
    broken: list[Any] = []

    def break_once(passage: Any) -> None:
        if broken:
            passage.pass_on()
        else:
            broken.append(passage)
            passage.connection.write(b"\xff" * 8)

    cluster.faults.refuse[None, SEND] = break_once
    with producer_with(face, events) as producer:
        assert isinstance(sent_in_time(face, cluster, producer), SendResult)
    found = [event for event in events.seen if event[0] != "failed" or "frame length" in event[2]]
    at = next(n for n, event in enumerate(found) if event[0] == "failed")
    assert found[at][1] == cluster.broker_addr
    assert found[at + 1 :][0] == ("closed", cluster.broker_addr)
    assert found[at + 2] == ("connected", cluster.broker_addr)
    counts = Counter(event for event, *_ in events.seen)
    assert counts["closed"] == counts["connected"] == 2 + (cluster.name_server != cluster.broker_addr)


def test_a_listener_sees_silence(face: Any, cluster: Any) -> None:
    events = Events()
    with producer_with(face, events, retries=0, avoid_slow_brokers=False) as producer:
        producer.send(Message("T", b"x"))
        if face.module.__name__ == "mqbroker.client.deferred":
            cluster.advance(0.1)  # what was heard before is older than the next request
        cluster.faults.refuse[None, SEND] = SILENT
        assert isinstance(sent_in_time(face, cluster, producer, timeout_s=0.2), MQError)
    assert "idle" in events.of(cluster.broker_addr)
    assert any("nothing came" in event[2] for event in events.seen if event[0] == "idle")


# --- filters


class Odd(MessageFilter):
    """Accepts odd numbers, and does something else to some."""

    def __init__(self, **acts: Any) -> None:
        self.acts = acts
        self.seen: list[tuple[str, str]] = []

    def accepts(self, group: str, message: Any) -> Any:
        self.seen.append((group, message.topic))
        act = self.acts.get(f"at_{message.body.decode()}")
        return act(message) if act is not None else int(message.body) % 2 == 1


def test_filters_pick_what_consumers_get(face: Any, cluster: Any, producer: Any) -> None:
    for n in range(8):
        producer.send(Message("T", b"%d" % n), queue=Q)
    odd = [b"1", b"3", b"5", b"7"]
    assert pushed(face, 4, Odd()) == odd
    assert cluster.parts().offsets.by_queue("g", "T")[0] == 8
    with face.make("PullConsumer", "cg", options=PullOptions(observers=[Odd()])) as consumer:
        found = consumer.pull(Q, 0)
        assert ([message.body for message in found.messages], found.next_offset) == (odd, 8)
    reader = face.make("LitePullConsumer", "lg", options=LitePullOptions(observers=[Odd()], **FIRST))
    reader.subscribe("T")
    with reader:
        assert polled(reader, 4) == odd
        reader.commit()
        assert reader.committed(Q) == 8


def test_a_filter_that_fails_accepts(face: Any, cluster: Any, producer: Any, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(6):
        producer.send(Message("T", b"%d" % n), queue=Q)
    faulty = Odd(at_0=raises(ValueError("as ordered")), at_2=lambda _: None, at_4=coroutine)
    assert pushed(face, 6, faulty) == [b"%d" % n for n in range(6)]
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert logged == ["the message filter Odd.accepts failed; the message is accepted"]
    caplog.clear()


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(ProducerOptions, MessageFilter()), (PullOptions, Counters()), (PushOptions, 5), (LitePullOptions, [object()])],
)
def test_what_cannot_be_called_is_refused(kind: Any, wrong: Any) -> None:
    with pytest.raises(BadArgument, match=rf"{kind.__name__}\.observers must be several of .*RpcHook"):
        kind(observers=wrong if isinstance(wrong, int) else [wrong] if not isinstance(wrong, list) else wrong)
