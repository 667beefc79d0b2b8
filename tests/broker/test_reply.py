"""Request and reply: codes 324 and 325, and the 326 that they become."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from mqbroker.errors import StoreUnwritable
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2, UnregisterClientRequestHeader
from mqbroker.wire.record import NewMessage
from tests.broker.bench import START, Bench, Client, send_fields
from tests.broker.test_client_requests import beat, pushed
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged

ASKER = IPv4Address("TCP", "10.0.0.3", 5)
TOPIC = "DefaultCluster_REPLY_TOPIC"
V1, V2 = RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2
PROPERTIES = "CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000"


def reply_command(code: int = V2, body: bytes = b"answer", topic: str = TOPIC, **fields: Any) -> RemotingCommand:
    cls = SendMessageRequestHeader if code == V1 else SendMessageRequestHeaderV2
    fields = send_fields(topic, **{"properties": PROPERTIES, **fields})
    return RemotingCommand.request(code, cls(**fields), body)


def reply(client: Client, *args: Any, **fields: Any) -> Client:
    client.tell(reply_command(*args, **fields))
    return client


def answer_of(client: Client) -> RemotingCommand:
    (answer,) = [command for command in client.heard() if command.is_response]
    return answer


def take(asker: Client, code: int = ResponseCode.SUCCESS) -> RemotingCommand:
    """Let who asked take what was pushed to it; returns that."""
    (push,) = pushed(asker)
    answer = RemotingCommand.response(push, code, None if code == 0 else "no such request")
    asker.link.protocols[0].transport.write(encode_command(answer))
    asker.link.pump()
    return push


@pytest.fixture
def asker(bench: Bench) -> Client:
    asker = bench.client(ASKER)
    beat(asker, client_id="asker", producers=["PG"])
    asker.heard()
    return asker


@pytest.mark.parametrize("code", [V1, V2])
def test_a_reply_is_brought_to_who_asked_and_stored(bench: Bench, client: Client, asker: Client, code: int) -> None:
    reply(client, code, producer_group="CG", flag=3, sys_flag=1)
    assert client.heard() == []  # not before it is there
    push = take(asker)
    assert (push.code, push.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer")
    assert push.ext_fields == {
        "producerGroup": "CG", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "1", "bornTimestamp": "1600000000000", "flag": "3", "unitMode": "false",
        "properties": f"{PROPERTIES}\x02PUSH_REPLY_TIME\x01{START * 1000}", "bornHost": "10.0.0.2:40000",
        "storeHost": "10.0.0.1:10911", "storeTimestamp": str(START * 1000),
    }  # fmt: skip
    answer = answer_of(client)
    (record,) = bench.records(TOPIC)
    assert (answer.code, answer.remark) == (0, None)
    assert answer.ext_fields == {
        "msgId": f"0A00000100002A9F{record.physical_offset:016X}", "queueId": "0", "queueOffset": "0",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    assert (record.body, record.flag, record.sys_flag) == (b"answer", 3, 1)
    assert record.properties["CORRELATION_ID"] == "c-1"


def test_it_need_not_be_stored(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("unstored", store_reply_message_enable=False)
    asker, client = bench.client(ASKER), bench.client()
    beat(asker, client_id="asker", producers=["PG"])
    reply(client)
    take(asker)
    answer = answer_of(client)
    assert (answer.code, answer.ext_fields["msgId"], answer.ext_fields["queueOffset"]) == (0, "0", "0")
    assert bench.records(TOPIC) == []


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01nobody", "push reply message fail, channel of <nobody> not found."),
    ],
)
def test_nobody_to_bring_it_to(bench: Bench, client: Client, asker: Client, properties: str, remark: str) -> None:
    answer = answer_of(reply(client, properties=properties))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert [record.body for record in bench.records(TOPIC)] == [b"answer"]  # it is stored all the same


def test_who_asked_does_not_take_it(client: Client, asker: Client, logged: Logged) -> None:
    reply(client)
    take(asker, ResponseCode.SYSTEM_ERROR)
    answer = answer_of(client)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "push reply message to askerfail.")
    assert "the reply to asker was not accepted: code 1: no such request" in logged.lines


def test_who_asked_leaves_meanwhile(client: Client, asker: Client) -> None:
    reply(client)
    asker.link.cut()
    client.link.pump()
    assert answer_of(client).remark == "push reply message to askerfail."
    assert answer_of(reply(client)).remark == "push reply message fail, channel of <asker> not found."


def test_who_asked_keeps_silent(bench: Bench, client: Client, asker: Client) -> None:
    reply(client)
    bench.turn(9.5)
    assert client.heard() == []
    bench.turn(0.5)
    assert answer_of(client).remark == "push reply message to askerfail."


def test_who_says_goodbye_is_found_no_more(client: Client, asker: Client) -> None:
    gone = UnregisterClientRequestHeader(client_id="asker", producer_group="PG")
    assert asker.ask(RequestCode.UNREGISTER_CLIENT, gone).code == 0
    assert "not found" in (answer_of(reply(client)).remark or "")


def test_who_comes_back_on_another_connection_is_found_there(bench: Bench, client: Client, asker: Client) -> None:
    again = bench.client(IPv4Address("TCP", "10.0.0.3", 6))
    beat(again, client_id="asker", producers=["PG"])
    asker.link.cut()
    reply(client)
    assert take(again).body == b"answer"
    assert answer_of(client).code == 0


def test_a_full_disk_is_no_failure_of_a_reply_that_was_brought(
    bench: Bench, client: Client, asker: Client, logged: Logged
) -> None:
    def refuse(messages: Sequence[NewMessage]) -> None:
        raise StoreUnwritable("full")

    bench.store.append = refuse
    reply(client)
    take(asker)
    assert answer_of(client).ext_fields["msgId"] == "0"
    assert [line for line in logged.lines if line.startswith("a reply is not stored: ")]


@pytest.mark.parametrize("code", [V1, V2])
@pytest.mark.parametrize(
    ("topic", "answered"),
    [("a/b", ResponseCode.SYSTEM_ERROR), ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION)],
)
def test_the_rules_of_sends_count(client: Client, asker: Client, code: int, topic: str, answered: int) -> None:
    assert answer_of(reply(client, code, topic=topic)).code == answered
    assert pushed(asker) == []


def test_a_topic_that_comes_to_be_is_kept_before_the_answer(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("held", table_worker=SteppedWorker(at_once=False))
    client, asker = bench.client(), bench.client(ASKER)
    beat(asker, client_id="asker", producers=["PG"])
    bench.table_worker.work()
    reply(client, topic="NewReplies")
    take(asker)
    assert client.heard() == []
    bench.table_worker.work()
    assert answer_of(client).code == 0
    assert [record.body for record in bench.records("NewReplies")] == [b"answer"]


def test_a_reply_is_one_message_whatever_its_header_says(bench: Bench, client: Client, asker: Client) -> None:
    reply(client, batch=True)
    take(asker)
    assert answer_of(client).code == 0
    assert [record.body for record in bench.records(TOPIC)] == [b"answer"]
