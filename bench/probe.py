"""A client that waits for a broker to be there: asks one question again and again until the answer is good."""

import socket
import time
from collections.abc import Callable

from bench.rmqload import LoadFailed
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command
from mqbroker.wire.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2
from mqbroker.wire.record import decode_records

PATIENCE_S = 120.0
_PAUSE_S = 0.001
_SYS_FLAG_SUBSCRIPTION = 4


def send_request(topic: str) -> RemotingCommand:
    """A message for queue 0."""
    header = SendMessageRequestHeaderV2(
        producer_group="bench_probe",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties="UNIQ_KEY\x017F000001000018B4AAC2000000000000\x02WAIT\x01true",
        reconsume_times=0,
    )
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"after the restart")


def pull_request(topic: str) -> RemotingCommand:
    """For the first messages of queue 0."""
    header = PullMessageRequestHeader(
        consumer_group="bench_probe",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=_SYS_FLAG_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


def is_stored(answer: RemotingCommand) -> bool:
    return answer.code == ResponseCode.SUCCESS


def reaches(end: int) -> Callable[[RemotingCommand], bool]:
    """Whether a pull is answered with the first message, of a queue that ends at `end` or later."""
    return lambda answer: (
        answer.code == ResponseCode.SUCCESS
        and decode_records(answer.body)[0].queue_offset == 0
        and int(answer.ext_fields["maxOffset"]) >= end
    )


def wait_for(
    port: int, request: RemotingCommand, is_good: Callable[[RemotingCommand], bool], is_alive: Callable[[], bool]
) -> float:
    """Ask until the answer is good; returns when that was (time.monotonic). Raises LoadFailed where it never is."""
    end = time.monotonic() + PATIENCE_S
    last = "no connection"
    while time.monotonic() < end and is_alive():
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.settimeout(PATIENCE_S)
                answer = _ask(connection, request)
        except OSError:
            time.sleep(_PAUSE_S)
            continue
        now = time.monotonic()
        if answer is not None and is_good(answer):
            return now
        last = f"code {answer.code}: {answer.remark}" if answer is not None else "it closed the connection"
        time.sleep(_PAUSE_S)
    raise LoadFailed(f"no good answer on port {port}; the last: {last}")


def _ask(connection: socket.socket, request: RemotingCommand) -> RemotingCommand | None:
    connection.sendall(encode_command(request))
    decoder = FrameDecoder()
    while data := connection.recv(1 << 16):
        for frame in decoder.feed(data):
            return decode_command(*frame)
    return None
