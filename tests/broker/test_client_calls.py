"""What is passed on to consumers: codes 307 and 309."""

import pytest

from mqbroker.broker.requests import client_requests
from mqbroker.wire.codes import V3_1_8_SNAPSHOT, RequestCode, ResponseCode
from mqbroker.wire.command import RESPONSE_FLAG, RemotingCommand, encode_command
from mqbroker.wire.headers import ConsumeMessageDirectlyResultRequestHeader, GetConsumerRunningInfoRequestHeader
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.record import decode_record
from tests.broker.bench import HOST, Bench, Client
from tests.broker.test_client_requests import beat, pushed
from tests.broker.test_offset_reset import THIRD, join
from tests.remoting.logs import Logged


@pytest.fixture
def admin(bench: Bench) -> Client:
    return bench.client(THIRD)


def running_info(
    admin: Client, client_id: str = "c1", group: str = "CG", jstack: bool = False
) -> RemotingCommand | None:
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=jstack)
    return admin.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)


def consume_directly(
    admin: Client, msg_id: str | None, client_id: str = "c1", group: str = "CG"
) -> RemotingCommand | None:
    header = ConsumeMessageDirectlyResultRequestHeader(consumer_group=group, client_id=client_id, msg_id=msg_id)
    return admin.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)


def answer_with(
    client: Client,
    request: RemotingCommand,
    code: int = 0,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> None:
    command = RemotingCommand(code, ext_fields or {}, body, remark, opaque=request.opaque, flag=RESPONSE_FLAG)
    client.peer.transport.write(encode_command(command))
    client.link.pump()


def test_a_consumer_tells_of_itself(client: Client, admin: Client) -> None:
    join(client)
    assert running_info(admin, jstack=True) is None
    (request,) = pushed(client)
    assert request.code == RequestCode.GET_CONSUMER_RUNNING_INFO
    assert request.ext_fields == {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "true"}
    answer_with(client, request, 0, "fine", {"a": "b"}, b'{"jstack":"x"}')
    (answer,) = admin.heard()
    assert (answer.code, answer.remark, answer.ext_fields) == (0, "fine", {"a": "b"})
    assert (answer.opaque, answer.body) == (1, b'{"jstack":"x"}')


def test_its_error_is_passed_on(client: Client, admin: Client) -> None:
    join(client)
    running_info(admin)
    (request,) = pushed(client)
    answer_with(client, request, ResponseCode.SYSTEM_ERROR, "The Consumer Group <CG> not exist in this consumer")
    (answer,) = admin.heard()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The Consumer Group <CG> not exist in this consumer"


def test_a_consumer_sees_no_credentials(client: Client, admin: Client) -> None:
    join(client)
    command = RemotingCommand(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": "CG", "clientId": "c1", "AccessKey": "a", "Signature": "s", "SecurityToken": "t"},
    )
    admin.tell(command)
    (request,) = pushed(client)
    assert request.ext_fields == {"consumerGroup": "CG", "clientId": "c1"}


def test_a_consumer_that_says_nothing(bench: Bench, client: Client, admin: Client) -> None:
    join(client)
    assert running_info(admin) is None
    bench.turn(9)
    assert admin.heard() == []
    bench.turn(2)
    (answer,) = admin.heard()
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert answer.remark.startswith("consumer <CG> <c1> Timeout: ")


def test_a_consumer_that_goes_meanwhile(client: Client, admin: Client) -> None:
    join(client)
    assert running_info(admin) is None
    client.link.cut()
    (answer,) = admin.heard()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("invoke consumer <CG> <c1> Exception: ")


def test_nobody_there(client: Client, admin: Client) -> None:
    beat(client, producers=["CG"])
    assert running_info(admin).remark == "The Consumer <CG> <c1> not online"
    join(client)
    answer = running_info(admin, client_id="c2")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "The Consumer <CG> <c2> not online")
    assert running_info(admin, group="DG").remark == "The Consumer <DG> <c1> not online"


def test_a_consumer_too_old(client: Client, admin: Client) -> None:
    join(client, version=V3_1_8_SNAPSHOT - 1)
    answer = running_info(admin)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        "The Consumer <c1> Version <V3_1_7> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
    )


def test_so_many_calls_at_a_time(bench: Bench, client: Client, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "CALLS_MAX", 2)
    join(client)
    assert [running_info(admin), running_info(admin)] == [None, None]
    assert running_info(admin).code == ResponseCode.SYSTEM_BUSY
    for request in pushed(client):
        answer_with(client, request)
    assert [answer.code for answer in admin.heard()] == [0, 0]
    assert running_info(admin) is None


# --- consume directly


def test_a_message_is_consumed_now(bench: Bench, client: Client, admin: Client) -> None:
    join(client)
    (sent,) = admin.send("T", body=b"hello")
    assert consume_directly(admin, sent.ext_fields["msgId"]) is None
    (request,) = pushed(client)
    assert request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY
    assert request.ext_fields == {
        "consumerGroup": "CG", "clientId": "c1", "msgId": sent.ext_fields["msgId"], "brokerName": "broker-a"
    }  # fmt: skip
    assert decode_record(request.body).body == b"hello"
    answer_with(client, request, body=b'{"consumeResult":"CR_SUCCESS"}')
    (answer,) = admin.heard()
    assert (answer.code, answer.body) == (0, b'{"consumeResult":"CR_SUCCESS"}')


@pytest.mark.parametrize("msg_id", [None, "", "zz", "0" * 31, "0" * 1000, "C0A80001" * 4])
def test_what_is_no_message(client: Client, admin: Client, logged: Logged, msg_id: str | None) -> None:
    join(client)
    answer = consume_directly(admin, msg_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert len(answer.remark) < 200
    assert pushed(client) == []
    assert logged.failures == []


def test_a_place_where_no_message_begins(client: Client, admin: Client) -> None:
    join(client)
    admin.send("T")
    answer = consume_directly(admin, offset_message_id((HOST, 10911), 1))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "can not find message by the offset, 1")
