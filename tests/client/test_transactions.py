"""Transactions on each face: local execution, commit and rollback, and brokers that ask."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from typing import Any

import attrs
import pytest

from mqbroker.broker.transactions.half_message import check_request
from mqbroker.client import (
    BadArgument,
    BadMessage,
    Message,
    MessageQueue,
    ProducerOptions,
    TransactionResult,
    TransactionState,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand
from mqbroker.wire.headers import SendMessageResponseHeader
from tests.client.loopback import Loopback

ON_EACH_BROKER = True

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
END = RequestCode.END_TRANSACTION
HALF = MessageQueue("RMQ_SYS_TRANS_HALF_TOPIC", "a", 0)


def producer_with(face: Any, check: Any, **given: Any) -> Any:
    return face.make("TransactionProducer", "tx", check, **given)


def never(message: Any) -> Any:
    raise AssertionError("not asked")


def stored(cluster: Loopback, producer: Any) -> list[bytes]:
    return [m.body for queue in producer.queues("T") for m in cluster.stored(queue)]


def ended(face: Any, cluster: Loopback, count: int = 1) -> list[dict[str, str]]:
    """The fields of the ends of transactions, when so many have come."""
    for _ in range(1000):
        found = cluster.faults.asked(END)
        if len(found) >= count:
            return [request.ext_fields for request in found]
        face.turn()
    raise AssertionError(f"{len(found)} of {count} ends came")


def ask(cluster: Loopback, face: Any, body: bytes) -> None:
    """Have the broker ask about the half message with this body."""
    (record,) = [record for record in cluster.stored(HALF) if record.body == body]
    cluster.ask_client([attrs.evolve(check_request(record), flag=ONEWAY_FLAG)])
    face.turn()


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_message_is_seen_when_its_transaction_commits(face: Any, cluster: Loopback, is_awaited: bool) -> None:
    executed = []

    def plain(message: Message) -> TransactionState:
        executed.append((message.body, message.unique_key))
        return COMMIT if message.body == b"yes" else ROLLBACK

    async def awaited(message: Message) -> TransactionState:
        return plain(message)

    if is_awaited and face.module.__name__ == "mqbroker.client.blocking":
        with producer_with(face, never) as producer, pytest.raises(BadArgument, match="a plain function"):
            producer.send_in_transaction(Message("T", b"x"), awaited)
        return
    with producer_with(face, never) as producer:
        results = [
            producer.send_in_transaction(Message("T", body, tags="t"), awaited if is_awaited else plain)
            for body in (b"yes", b"no")
        ]
        assert [type(result) for result in results] == [TransactionResult] * 2
        assert [result.state for result in results] == [COMMIT, ROLLBACK]
        assert executed == [(b"yes", results[0].sent.msg_id), (b"no", results[1].sent.msg_id)]
        assert [fields["commitOrRollback"] for fields in ended(face, cluster, 2)] == ["8", "12"]
        producer.send(Message("T", b"plain"))
        assert sorted(stored(cluster, producer)) == [b"plain", b"yes"]


def test_a_local_transaction_that_fails_leaves_it_to_the_broker_to_ask(face: Any, cluster: Loopback) -> None:
    def fails(message: Message) -> Any:
        raise ValueError("as ordered")

    with producer_with(face, never) as producer:
        with pytest.raises(ValueError, match="as ordered"):
            producer.send_in_transaction(Message("T", b"x"), fails)
        with pytest.raises(BadArgument, match="what the function returns must be a TransactionState, not True"):
            producer.send_in_transaction(Message("T", b"x"), lambda message: True)
        assert producer.send_in_transaction(Message("T", b"x"), lambda message: UNKNOWN).state is UNKNOWN
        assert [fields["commitOrRollback"] for fields in ended(face, cluster, 3)] == ["0", "0", "0"]
        assert stored(cluster, producer) == []


def test_a_check_does_not_see_the_namespace(face: Any, cluster: Loopback) -> None:
    seen: list[Any] = []

    def check(message: Any) -> TransactionState:
        seen.append((message.topic, message.queue.topic))
        return COMMIT

    with producer_with(face, check, options=ProducerOptions(namespace="one")) as producer:
        producer.send_in_transaction(Message("T", b"x"), lambda message: UNKNOWN)
        ended(face, cluster)
        ask(cluster, face, b"x")
        assert ended(face, cluster, 2)[-1]["commitOrRollback"] == "8"
    assert seen == [("T", "T")]


def test_what_is_no_transaction_is_refused(face: Any) -> None:
    for wrong in (None, 5, "text"):
        with pytest.raises(BadArgument, match="check must be a "):
            producer_with(face, wrong)
    for topics in ("T", 5, ["bad topic"]):
        with pytest.raises(BadArgument, match="topic"):
            producer_with(face, never, topics=topics)
    with producer_with(face, never) as producer:
        with pytest.raises(BadArgument, match="execute must be a "):
            producer.send_in_transaction(Message("T", b"x"), None)
        with pytest.raises(BadMessage, match="cannot be delayed"):
            producer.send_in_transaction(Message("T", b"x", delay_level=1), never)
        with pytest.raises(BadMessage, match="a Message is sent"):
            producer.send_in_transaction("x", never)


def test_a_message_that_may_be_lost_is_rolled_back_unexecuted(face: Any, cluster: Loopback) -> None:
    with producer_with(face, never) as producer:
        producer.send(Message("T", b"first"))
        header = SendMessageResponseHeader(msg_id="7F00000100002A9F0000000000000001", queue_id=0, queue_offset=3)
        cluster.faults.refuse[None, RequestCode.SEND_MESSAGE_V2] = lambda passage: passage.answer(
            RemotingCommand.response(passage.request, ResponseCode.FLUSH_DISK_TIMEOUT, header=header)
        )
        result = producer.send_in_transaction(Message("T", b"x"), never)
        assert (result.state, result.sent.status.name) == (ROLLBACK, "FLUSH_DISK_TIMEOUT")
        (fields,) = ended(face, cluster)
        assert (fields["commitOrRollback"], fields["tranStateTableOffset"], fields["commitLogOffset"]) == (
            "12",
            "3",
            "1",
        )


def test_brokers_ask_and_are_told(face: Any, cluster: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Any] = []

    def check(message: Any) -> Any:
        asked.append((message.topic, message.body, message.msg_id, message.tags))
        if message.body == b"raise":
            raise ValueError("as ordered")
        return {b"yes": COMMIT, b"no": ROLLBACK}.get(message.body, "nonsense")

    bodies = [b"yes", b"no", b"raise", b"nonsense"]
    with producer_with(face, check) as producer:
        sent = [
            producer.send_in_transaction(Message("T", body, tags="t"), lambda message: UNKNOWN).sent for body in bodies
        ]
        for body in bodies:
            ask(cluster, face, body)
        found = ended(face, cluster, 8)[4:]
        assert sorted(asked) == sorted(("T", body, one.msg_id, "t") for body, one in zip(bodies, sent, strict=True))
        by_id = {fields["msgId"]: fields for fields in found}
        assert [by_id[one.msg_id]["commitOrRollback"] for one in sent] == ["8", "12", "0", "0"]
        assert {fields["fromTransactionCheck"] for fields in found} == {"true"}
        assert stored(cluster, producer) == [b"yes"]
    logged = [record.getMessage() for record in caplog.records if record.name == "mqbroker.client.transactions"]
    assert [line.rpartition(" failed: ")[2] for line in logged] == ["its state stays unknown"] * 2
    caplog.clear()


def test_a_check_that_hangs_is_given_up_and_not_repeated_meanwhile(
    face: Any, cluster: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    if face.module.__name__ == "mqbroker.client.deferred":
        pytest.skip("its clock is the servers'")
    calls, release = [], threading.Event()

    async def hangs(message: Any) -> Any:
        calls.append(message.body)
        await asyncio.sleep(100)

    def blocks(message: Any) -> Any:
        calls.append(message.body)
        release.wait(20)
        return COMMIT

    check = blocks if face.module.__name__ == "mqbroker.client.blocking" else hangs
    with producer_with(face, check, options=ProducerOptions(check_timeout_s=0.3)) as producer:
        producer.send_in_transaction(Message("T", b"x"), lambda message: UNKNOWN)
        for _ in range(3):
            ask(cluster, face, b"x")
        assert [fields["commitOrRollback"] for fields in ended(face, cluster, 2)] == ["0", "0"]
        release.set()
    assert calls == [b"x"]
    assert "takes longer than 0.3 s (check_timeout_s)" in caplog.text
    caplog.clear()


def test_checks_of_other_groups_and_garbage_are_left_alone(face: Any, cluster: Loopback) -> None:
    with producer_with(face, never) as producer:
        producer.send(Message("T", b"x"))
        code = RequestCode.CHECK_TRANSACTION_STATE
        good = {"tranStateTableOffset": "0", "commitLogOffset": "0"}
        wrong: list[tuple[dict[str, str], bytes]] = [({}, b""), (good, b""), (good, b"garbage"), ({"bname": "a"}, b"x")]
        for fields, body in wrong:
            cluster.ask_client([RemotingCommand(code, fields, body, flag=ONEWAY_FLAG)])
            face.turn()
        producer.send(Message("T", b"y"))
    assert cluster.faults.asked(END) == []


def test_brokers_of_given_topics_may_ask_before_anything_is_sent(
    face: Any, cluster: Loopback, producer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send(Message("T", b"x"))
    caplog.set_level(logging.WARNING)
    with producer_with(face, never, topics=["T"]):
        assert "tx" in cluster.parts().producers.groups()
    assert "tx" not in cluster.parts().producers.groups()


def test_a_blocking_one_can_be_pickled(cluster: Loopback) -> None:
    from mqbroker.client.blocking import TransactionProducer

    made = pickle.loads(pickle.dumps(TransactionProducer(cluster.addr, "tx", never, topics=["T"])))
    assert (type(made), made._topics, made._check) == (TransactionProducer, ("T",), never)
