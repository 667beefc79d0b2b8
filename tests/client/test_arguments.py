"""Options and arguments that cannot be used: refused at once, by name, before any broker is asked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mqbroker.client
from mqbroker.client import (
    BadArgument,
    BadMessage,
    ClientTls,
    ConsumeFrom,
    Message,
    MessageQueue,
    MQError,
    ProducerOptions,
    PullOptions,
    PushOptions,
    ReceivedMessage,
    Topic,
    aio,
    blocking,
    deferred,
)
from tests.client.called_faces import OnAsyncio, OnSockets, OnTwisted
from tests.client.loopback import Loopback
from tests.client.records import a_record

Q = MessageQueue("T", "a", 0)
MESSAGE = Message("T", b"x")

OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    (PushOptions, {"consume_from": "FIRST"}),
    (PushOptions, {"consume_from": None}),
    (PushOptions, {"heartbeat_s": -1}),
    (PushOptions, {"heartbeat_s": 0}),
    (PushOptions, {"heartbeat_s": 120.0}),
    (PushOptions, {"heartbeat_s": math.nan}),
    (PushOptions, {"heartbeat_s": math.inf}),
    (PushOptions, {"suspend_s": -0.005}),
    (PushOptions, {"suspend_s": 30}),
    (PushOptions, {"suspend_s": 15, "pull_timeout_s": 10}),
    (PushOptions, {"request_timeout_s": 0}),
    (PushOptions, {"concurrency": "4"}),
    (PushOptions, {"concurrency": True}),
    (PushOptions, {"pull_batch": 1025}),
    (PushOptions, {"consume_from_time": "now"}),
    (PushOptions, {"takeover_pause_s": -0.1}),
    (PushOptions, {"consume_timeout_s": 0.0}),
    (PushOptions, {"credentials": ("key", "secret")}),
    (ProducerOptions, {"send_timeout_s": "3"}),
    (ProducerOptions, {"send_timeout_s": float("nan")}),
    (ProducerOptions, {"send_timeout_s": timedelta(seconds=-1)}),
    (PushOptions, {"consume_from_time": datetime(2026, 1, 1)}),
    (ProducerOptions, {"retries": -1}),
    (ProducerOptions, {"compress_level": 10}),
    (ProducerOptions, {"avoid_slow_brokers": 1}),
    (ProducerOptions, {"tls": True}),
    (ProducerOptions, {"route_age_s": 0}),
    (PullOptions, {"read_from": 64}),
    (PullOptions, {"pull_timeout_s": None}),
]


@pytest.mark.parametrize(("kind", "wrong"), OPTIONS, ids=[f"{kind.__name__}-{wrong}" for kind, wrong in OPTIONS])
def test_an_option_that_cannot_be_used_is_named(kind: Any, wrong: Any) -> None:
    with pytest.raises(BadArgument) as error:
        kind(**wrong)
    name = next(iter(wrong))
    assert re.match(rf"{kind.__name__}\.{name} must be [^{{}}<>]+, not ", str(error.value))


def test_options_at_their_bounds_are_taken() -> None:
    PushOptions(heartbeat_s=100, suspend_s=0, pull_batch=1024, takeover_pause_s=0, consume_from=ConsumeFrom.TIMESTAMP)
    assert ProducerOptions(send_timeout_s=timedelta(milliseconds=1500)).send_timeout_s == 1.5
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert PushOptions(consume_from_time=when).consume_from_time == when.timestamp() * 1000
    ProducerOptions(retries=0, send_timeout_s=0.001, compress_level=0, tls=ClientTls())
    PullOptions(read_from=63, route_age_s=1)


@pytest.fixture(params=[OnTwisted, OnAsyncio, OnSockets], ids=["twisted", "asyncio", "blocking"])
def face(request: Any, tmp_path: Path) -> Iterator[Any]:
    cluster = Loopback(tmp_path)
    cluster.add_topic("T", queues=1)
    face = request.param(cluster)
    yield face
    face.close()
    cluster.close()


def test_a_client_cannot_be_made_of_what_is_no_address_group_or_options(face: Any, monkeypatch: Any) -> None:
    for name, *listener in (("Producer",), ("PullConsumer",), ("PushConsumer", print)):
        for group in (None, 7, "", " ", "a b", "g" * 256):
            with pytest.raises(BadArgument, match=r"^group must be text of at most 255 characters"):
                face.make(name, group, *listener)
        others: dict[str, Any] = {
            "Producer": PullOptions(),
            "PullConsumer": PushOptions(),
            "PushConsumer": ProducerOptions(),
        }
        wrong: list[Any] = [others[name], {}, "none"]
        for options in wrong:
            with pytest.raises(BadArgument, match=r"^options must be "):
                face.make(name, "g", *listener, options=options)
        for address in (None, 9876, b"127.0.0.1:9876", [9876], [None], "", "here", "127.0.0.1", "a:1;b:0", ["a:99999"]):
            with monkeypatch.context() as patch:
                patch.setattr(face.cluster, "name_server", address)
                with pytest.raises(BadArgument, match=r"^(name_servers|each name server) must be host:port"):
                    face.make(name, "g", *listener)


SENDS: list[dict[str, Any]] = [
    {"key": 5},
    {"key": b"k"},
    {"selector": 5},
    {"selector": lambda queues, message: 0},
    {"selector": lambda queues, message: None},
    {"timeout_s": "1s"},
    {"timeout_s": -0.005},
    {"timeout_s": 0},
    {"queue": 0},
    {"queue": MessageQueue("T", "a", -1)},
    {"queue": MessageQueue("U", "a", 0)},
]


def test_a_send_is_refused_whose_arguments_cannot_be_used(face: Any) -> None:
    with face.make("Producer", "pg") as producer:
        for wrong in SENDS:
            with pytest.raises(BadArgument, match=r"must be .+, not "):
                producer.send(MESSAGE, **wrong)
        for wrong in ({"key": 5}, {"timeout_s": "1s"}, {"queue": MessageQueue("U", "a", 0)}):
            with pytest.raises(BadArgument):
                producer.send_batch([MESSAGE], **wrong)
        for messages in (MESSAGE, 5, None):
            with pytest.raises(BadArgument, match=r"^messages must be several messages"):
                producer.send_batch(messages)
        with pytest.raises(BadArgument):
            producer.send_oneway(MESSAGE, key=5)
        # A generator is as good as a list.
        results = producer.send_batch(Message("T", b"%d" % n) for n in range(3))
        assert len({result.msg_id for result in results}) == 3
    assert len(face.cluster.stored(Q)) == 3


def test_arguments_that_are_missing_or_unknown_are_told_with_the_name_of_the_method(face: Any) -> None:
    with face.make("Producer", "pg") as producer, face.make("PullConsumer", "cg") as consumer:
        for call, what in (
            (producer.send, "Producer.send() missing 1 required positional argument: 'message'"),
            (producer.queues, "Producer.queues() missing 1 required positional argument: 'topic'"),
            (consumer.pull, "PullConsumer.pull() missing 2 required positional arguments: 'queue' and 'offset'"),
            (consumer.offset_by_time, "offset_by_time() missing 2 required positional arguments: 'queue' and 'time'"),
            (consumer.message, "Client.message() missing 2 required positional arguments: 'topic' and 'msg_id'"),
        ):
            with pytest.raises(TypeError, match=f"^{re.escape(what)}$"):
                call()
        with pytest.raises(TypeError, match=r"^Producer\.send\(\) got an unexpected keyword argument 'tag'$"):
            producer.send(MESSAGE, tag="a")


def test_a_pull_is_refused_whose_arguments_cannot_be_used(face: Any) -> None:
    with face.make("PullConsumer", "cg") as consumer:
        for arguments in ((Q, "0"), (Q, -1), (Q, 0, -1), (Q, 0, 0), (Q, 0, "32"), ("T", 0), (Q, True)):
            with pytest.raises(BadArgument):
                consumer.pull(*arguments)
        with pytest.raises(BadArgument, match=r"^suspend_s must be"):
            consumer.pull(Q, 0, suspend_s=-1)
        for offset in (-1, 2**63, "0", None):
            with pytest.raises(BadArgument, match=r"^offset must be a whole number from 0 to"):
                consumer.commit(Q, offset)


# --- messages


@pytest.mark.parametrize("topic", ["", " ", "a b", "../etc", "ä", "t" * 128, None, 7])
def test_a_topic_that_no_broker_takes_is_refused(topic: Any) -> None:
    with pytest.raises(BadMessage, match=r"^topic must be text"):
        Message(topic, b"x")
    with pytest.raises(BadMessage, match=r"^topic must be text"):
        Message(topic, b"x", tags="a")


@pytest.mark.parametrize("tags", ["a || b", "a||b", " a", "a ", "*", "\t"])
def test_a_tag_that_no_subscription_can_name_is_refused(tags: str) -> None:
    with pytest.raises(BadMessage, match="tags must be a tag that a subscription can name"):
        Message("T", b"x", tags=tags)


@pytest.mark.parametrize("tags", [None, "a", "a b", "a|b", "ä", "k=5"])
def test_other_tags_are_taken(tags: str | None) -> None:
    assert Message("T", b"x", tags=tags).tags == tags


def test_a_received_message_is_forwarded_without_what_the_system_added() -> None:
    properties = {
        "TAGS": "t", "KEYS": "k1 k2", "UNIQ_KEY": "0A", "CLUSTER": "c", "WAIT": "true", "DELAY": "3", "mine": "yes",
    }  # fmt: skip
    (received,), *_ = ReceivedMessage.read(_encoded(a_record(body=b"x", properties=properties, flag=7)), "a")
    assert received.user_properties == {"mine": "yes"}
    message = Message.from_received(received, topic="U")
    assert message == Message("U", b"x", tags="t", keys=("k1", "k2"), properties={"mine": "yes"}, flag=7)
    assert Message.from_received(received).topic == received.topic


@pytest.mark.parametrize("keys", ["a  b", " a b", "a b ", "a\tb", "a\u3000b"])
def test_keys_of_other_producers_are_forwarded(keys: str) -> None:
    (received,), *_ = ReceivedMessage.read(_encoded(a_record(body=b"x", properties={"KEYS": keys})), "a")
    assert Message.from_received(received).keys == ("a", "b")


def test_a_body_that_cannot_be_decompressed_is_neither_forwarded_nor_read() -> None:
    (received,), *_ = ReceivedMessage.read(_encoded(a_record(body=b"no zlib", properties={}, sys_flag=1)), "a")
    assert received.body_error is not None
    with pytest.raises(BadMessage, match=f"message {received.msg_id}: the body cannot be decompressed: "):
        Message.from_received(received)

    class AsTheyAre:
        def dump(self, value: bytes) -> bytes:
            return value

        load = dump

    with pytest.raises(BadMessage, match=f"message {received.msg_id} .*{received.body_error}"):
        Topic("T", AsTheyAre()).value(received)


def _encoded(record: Any) -> bytes:
    from mqbroker.wire.record import encode_record

    return encode_record(record)


def test_messages_can_be_members_of_sets() -> None:
    one, other = Message("T", b"x", properties={"a": "b"}), Message("T", b"y")
    assert len({one, Message("T", b"x", properties={"a": "b"}), other}) == 2


# --- names


@pytest.mark.parametrize("module", [mqbroker.client, aio, blocking, deferred])
def test_what_editors_offer_is_what_users_need(module: Any) -> None:
    assert sorted(module.__all__) == module.__all__
    assert all(hasattr(module, name) for name in module.__all__)
    if module is not mqbroker.client:
        names = ["LitePullConsumer", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]
        assert module.__all__ == names


def test_each_error_that_a_client_raises_can_be_imported_from_the_package() -> None:
    from mqbroker.client import errors

    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, MQError) and value.__module__.startswith("mqbroker.")
    }
    assert raised - set(mqbroker.client.__all__) == set()


def test_a_client_is_shown_by_its_kind_and_group(face: Any) -> None:
    for name, *listener in (("Producer",), ("PullConsumer",), ("PushConsumer", print)):
        assert repr(face.make(name, "shop", *listener)._client) == f"<{face.module.__name__}.{name} of group shop>"


def test_a_time_is_a_datetime_with_a_zone_or_milliseconds(face: Any) -> None:
    with face.make("Producer", "pg") as producer:
        producer.send(Message("T", b"x"), queue=Q, timeout_s=timedelta(seconds=3))
    with face.make("PullConsumer", "cg") as consumer:
        assert consumer.offset_by_time(Q, datetime(1970, 1, 2, tzinfo=UTC)) == 0
        assert consumer.offset_by_time(Q, 0) == 0
        assert consumer.pull(Q, 0, suspend_s=timedelta(milliseconds=1)).messages
        for wrong in ("now", datetime(2026, 1, 1), -1, 2**63, True):
            with pytest.raises(BadArgument, match=r"^time must be a datetime with a time zone"):
                consumer.offset_by_time(Q, wrong)
