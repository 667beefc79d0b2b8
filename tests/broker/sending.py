"""What the tests of sends, and of what was sent, share."""

from typing import Any

from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import CreateTopicRequestHeader
from tests.broker.bench import Client

V1, V2, BATCH = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def one(answers: list[RemotingCommand]) -> RemotingCommand:
    (answer,) = answers
    return answer


def put_topic(client: Client, name: str, **fields: Any) -> None:
    header = CreateTopicRequestHeader(
        **{"topic": name, "default_topic": "TBW102", "read_queue_nums": 4, "write_queue_nums": 4, "perm": 6,
           "topic_filter_type": "SINGLE_TAG", "order": False, **fields}
    )  # fmt: skip
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header).code == 0


def raw(command: RemotingCommand) -> tuple[dict[str, str], int, int, bytes, int]:
    return (command.ext_fields, command.opaque, command.flag, command.body, command.serialize_type)
