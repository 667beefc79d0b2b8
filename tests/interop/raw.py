"""Requests put to a broker of either kind as they are, and what it answers: no client stands between."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, encode_command
from mqbroker.wire.headers import (
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from mqbroker.wire.properties import encode_properties
from mqbroker.wire.record import Record, decode_records
from tests.commands import decode_commands
from tests.interop.processes import PATIENCE_S

GROUP = "interop"


class Line:
    """A connection to a broker, to be used by one at a time. What the broker asks is answered by `answer`."""

    def __init__(self, addr: str, answer: Callable[[RemotingCommand], RemotingCommand] | None = None) -> None:
        self._answer = answer
        host, _, port = addr.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self._opaque = 0

    @property
    def addr(self) -> str:
        """Our end."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def ask(self, requests: Sequence[RemotingCommand]) -> list[RemotingCommand]:
        """Send all requests at once; the answers, in the order of the requests."""
        for request in requests:
            self._opaque += 1
            request.opaque = self._opaque
        self._socket.sendall(b"".join(map(encode_command, requests)))
        answers: dict[int, RemotingCommand] = {}
        while len(answers) < len(requests):
            data = self._socket.recv(1 << 18)
            assert data, f"the broker closed the connection for {requests[:3]}"
            for command in decode_commands(self._decoder.feed(data)):
                if command.is_response:
                    answers[command.opaque] = command
                elif self._answer is not None and not command.is_oneway:
                    self._socket.sendall(encode_command(self._answer(command)))
        return [answers[request.opaque] for request in requests]

    def ask_well(self, requests: Sequence[RemotingCommand]) -> list[RemotingCommand]:
        """The same, where every answer must be a success."""
        answers = self.ask(requests)
        failed = [(answer.code, answer.remark) for answer in answers if answer.code != ResponseCode.SUCCESS]
        assert not failed, failed[:3]
        return answers

    def one(self, code: int, **fields: Any) -> RemotingCommand:
        """Ask one thing by its code and header fields, as they are named on the wire."""
        return self.ask([request(code, **fields)])[0]

    def number(self, code: int, field: str, **fields: Any) -> int:
        """The number `field` in the header of the answer."""
        return int(self.ask_well([request(code, **fields)])[0].ext_fields[field])

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.number(RequestCode.GET_MAX_OFFSET, "offset", topic=topic, queueId=queue_id)

    def read(self, topic: str, queue_id: int, tags: str = "*") -> list[Record]:
        """Every message of a queue that is there, or of those with tags."""
        records: list[Record] = []
        at = self.number(RequestCode.GET_MIN_OFFSET, "offset", topic=topic, queueId=queue_id)
        end = self.max_offset(topic, queue_id)
        while at < end:
            [answer] = self.ask([pull(topic, queue_id, at, tags=tags)])
            assert answer.code == ResponseCode.SUCCESS or answer.remark == "NO_MATCHED_MESSAGE", answer
            found = decode_records(answer.body)
            next_offset = int(answer.ext_fields["nextBeginOffset"])
            if tags == "*" and found and found[0].topic == topic:
                assert [record.queue_offset for record in found] == list(range(at, next_offset))
            records += found
            at = next_offset
        return records

    def query(self, topic: str, key: str, count: int = 64) -> list[Record]:
        """Messages by unique key or key, whenever they were stored; the newest where there are more.

        Each once, though a Java broker that comes after a kill indexes the last message of a full file again.
        """
        fields: dict[str, Any] = {
            "topic": topic,
            "key": key,
            "maxNum": count,
            "beginTimestamp": 0,
            "endTimestamp": 2**63 - 1,
        }
        [answer] = self.ask([request(RequestCode.QUERY_MESSAGE, **fields)])
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), answer
        records = {record.physical_offset: record for record in decode_records(answer.body)}
        return [records[offset] for offset in sorted(records)]

    def close(self) -> None:
        self._socket.close()


def request(code: int, body: bytes = b"", **fields: Any) -> RemotingCommand:
    return RemotingCommand(code, {name: str(value) for name, value in fields.items()}, body)


def create_topic(topic: str, queues: int) -> RemotingCommand:
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    return RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def send(topic: str, queue_id: int, body: bytes, properties: dict[str, str], **header: Any) -> RemotingCommand:
    """Send one message; `header` gives other fields of the request."""
    fields: dict[str, Any] = {
        "producer_group": GROUP,
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue_id,
        "sys_flag": 0,
        "born_timestamp": time.time_ns() // 1_000_000,
        "flag": 0,
        "properties": encode_properties(properties).decode(),
    }
    return RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeaderV2(**{**fields, **header}), body
    )


def send_batch(topic: str, queue_id: int, messages: Iterable[tuple[bytes, dict[str, str]]]) -> RemotingCommand:
    body = encode_batch(BatchEntry(0, body, encode_properties(properties)) for body, properties in messages)
    command = send(topic, queue_id, body, {}, batch=True)
    command.code = RequestCode.SEND_BATCH_MESSAGE
    return command


def pull(topic: str, queue_id: int, offset: int, count: int = 32, tags: str = "*") -> RemotingCommand:
    """A pull that is answered at once, whatever there is."""
    header = PullMessageRequestHeader(
        consumer_group=GROUP, topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=count,
        sys_flag=PullSysFlag.SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, subscription=tags,
        sub_version=0, expression_type="TAG",
    )  # fmt: skip
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
