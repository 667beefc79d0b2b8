"""What our members ask of the Java broker beside plain pulls: expressions, and messages sent back as new ones."""

from typing import Any

from mqbroker.client import ConsumeFrom, Message, MQError, PushOptions, ReceivedMessage, Sql, blocking
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.processes import eventually
from tests.interop.test_our_clients import Inbox, queues4

__all__ = ["queues4"]


def test_an_expression_picks_messages_at_the_java_broker(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("java")
    broker = fleet.broker("java", namesrv, enablePropertyFilter="true")
    fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=1).finish()
    inbox = Inbox()
    member = blocking.PushConsumer(namesrv.addr, "sql", inbox, options=PushOptions(consume_from=ConsumeFrom.FIRST))
    member.subscribe(topic, Sql("n > 4 AND word IN ('a', 'b')"))
    with member, blocking.Producer(namesrv.addr, "sql-producer") as producer:
        for n in range(10):
            producer.send(Message(topic, b"%d" % n, properties={"n": str(n), "word": "abc"[n % 3]}))
        found = inbox.wait(3)
    assert sorted(message.body for message in found) == [b"6", b"7", b"9"]


def test_what_goes_back_as_a_new_message_comes_again_and_becomes_a_dead_letter(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, queues4: str
) -> None:
    group, tries = f"{queues4}-group", list[tuple[str, int]]()

    def listener(message: ReceivedMessage) -> bool:
        tries.append((message.topic, message.reconsume_times))
        return False

    options = PushOptions(consume_from=ConsumeFrom.FIRST, max_reconsume_times=1)
    member = blocking.PushConsumer(java_namesrv.addr, group, listener, options=options)
    member.subscribe(queues4)
    consuming: Any = member._core.consuming
    consuming._send_back = consuming._send_back._send_anew
    with member, blocking.Producer(java_namesrv.addr, "fallback") as producer:
        producer.send(Message(queues4, b"bad", tags="x"))
        eventually("it comes twice", lambda: tries == [(queues4, 0), (queues4, 1)], patience_s=40)
        with blocking.PullConsumer(java_namesrv.addr, "dead") as reader:

            def dead() -> list[bytes]:
                try:
                    queue = reader.queues(f"%DLQ%{group}")[0]
                except MQError:
                    return []
                return [message.body for message in reader.pull(queue, 0).messages]

            eventually("it is a dead letter", lambda: dead() == [b"bad"], patience_s=40)
