"""Commands that ask a name server and brokers which answer anything: an error of one line or a table, never a bug, and
nothing that commands the terminal."""

from __future__ import annotations

import json
import re
import socketserver
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mqbroker.cli import cli
from mqbroker.cli.lines import terminal_line
from mqbroker.client import ReceivedMessage
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.record import Record, encode_record
from tests.commands import decode_frame
from tests.seeds import seeds_of_push

CLUSTER, ROUTE, INFO, UPDATE = (
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.UPDATE_BROKER_CONFIG,
)
SEND = RequestCode.SEND_MESSAGE_V2
LONG = "9" * 6000
ESCAPE = "\x1b]0;owned\x07\x9b2J"


class Server(socketserver.ThreadingTCPServer):
    """Name server and broker in one. `answers`: by code, the (header, body) of a response, or raw bytes."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        brokers = {"a": {"brokerName": "a", "cluster": "c", "brokerAddrs": {"1": self.address}}}
        queues = {"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSynFlag": 0}
        self.answers: dict[int, Any] = {
            CLUSTER: ({}, {"brokerAddrTable": brokers, "clusterAddrTable": {"c": ["a"]}}),
            ROUTE: (
                {},
                {"brokerDatas": [{**brokers["a"], "brokerAddrs": {"0": self.address}}], "queueDatas": [queues]},
            ),
            INFO: ({}, {"table": {"commitLogMaxOffset": "5", "haMaster_x": "5,,"}}),
            UPDATE: ({}, b""),
            SEND: ({"extFields": {"msgId": "0" * 32, "queueId": "0", "queueOffset": "1"}}, b""),
            RequestCode.SEND_MESSAGE: ({"extFields": {"msgId": "0" * 32, "queueId": "0", "queueOffset": "1"}}, b""),
        }


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while True:
            size = self._read(4)
            if len(size) < 4:
                return
            frame = size + self._read(*struct.unpack(">i", size))
            command = decode_frame(frame)
            answer = self.server.answers.get(command.code, ({}, b""))  # type: ignore[attr-defined]
            if isinstance(answer, bytes):
                self.request.sendall(answer)
                return
            header, body = answer
            if not isinstance(body, bytes):
                body = json.dumps(body).encode()
            text = (
                header
                if isinstance(header, bytes)
                else json.dumps(
                    {"code": 0, "flag": 1, "language": "JAVA", "version": 407, "opaque": command.opaque, **header}
                ).encode()
            )
            self.request.sendall(struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := self.request.recv(size - len(data))):
            data += more
        return data


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


COMMANDS = {
    "brokers": ("brokers",),
    "brokers as json": ("brokers", "--json", "--shards"),
    "status": ("ha", "status"),
    "status as json": ("ha", "status", "--json"),
    "status of one": ("ha", "status", "a"),
    "promote": ("ha", "promote", "a"),
    "pub": ("pub", "T", "text"),
}


def run(server: Server, command: str) -> Result:
    done = CliRunner().invoke(cli, [*COMMANDS[command], "-n", server.address], prog_name="mq")
    if not isinstance(done.exception, (type(None), SystemExit)):
        raise done.exception
    controls = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.output)
    assert controls is None, repr(done.output)
    if "json" in command:
        for line in done.stdout.splitlines():
            json.loads(line, parse_constant=pytest.fail)
    return done


BAD_VALUES = [
    LONG, "-" + LONG, "", "-1", "1e400", "nan", "inf", "Infinity -inf", "0x10", "\u0663", "1_0", " 7 ", "9" * 19,
    f"{2**63 - 1}", f"{2**64}", ESCAPE, "\ud800", "a\nb\tc\rd", "," * 100_000, "1,2,3,4,5,6", ",".join([LONG] * 4),
]  # fmt: skip
KEYS = [
    "commitLogMaxOffset", "haMaster_x", "haSlave_x", "groupEpoch", "groupInSync", "groupReplicaId", "groupWhyNot",
    "shards", "shardOf", "brokerVersionDesc", "putTps", "getTransferedTps", "msgPutTotalTodayNow",
    "msgPutTotalTodayMorning", "msgGetTotalTodayNow", "msgGetTotalTodayMorning",
]  # fmt: skip


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"pub", "promote"}))
@pytest.mark.parametrize("broker_id", ["0", "1"])
def test_any_value_of_a_broker_is_shown_or_unknown(server: Server, command: str, broker_id: str) -> None:
    server.answers[CLUSTER][1]["brokerAddrTable"]["a"]["brokerAddrs"] = {broker_id: server.address}
    alone = [KEYS[number] for number in seeds_of_push(len(KEYS))]
    for value in BAD_VALUES:
        for table in (dict.fromkeys(KEYS, value), *({"groupEpoch": "1", "shards": "2", key: value} for key in alone)):
            server.answers[INFO] = ({}, {"table": table})
            run(server, command)


def test_a_number_of_6000_digits_is_unknown(server: Server) -> None:
    server.answers[INFO] = ({}, {"table": {"commitLogMaxOffset": LONG, "haMaster_x": f"{LONG},{LONG},"}})
    done = run(server, "status")
    assert done.stdout.split("\t")[4:] == ["?", "?", "follows\n"]
    server.answers[INFO] = (
        {},
        {"table": {"putTps": LONG, "msgPutTotalTodayNow": LONG, "shards": LONG, "shardOf": "a"}},
    )
    assert run(server, "brokers").stdout.split("\t")[5:9] == ["?"] * 4


BODIES: list[Any] = [
    b"", b"\x00", b"{", b"null", b"[]", b"7", b'"x"', b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"{}",
    b'{"table":null}', b'{"table":{"a":{"b":1}}}', b'{"table":{"commitLogMaxOffset":' + LONG.encode() + b"}}",
    b'{"table":{"commitLogMaxOffset":[1,2]}}', b'{"table":{1:2}}',
    b'{"brokerAddrTable":{"a":null}}', b'{"brokerAddrTable":{"a":{"brokerName":"a","brokerAddrs":{"0":null}}}}',
    b'{"brokerAddrTable":{"a":{"brokerName":"a","brokerAddrs":{"' + LONG.encode() + b'":"x:1"}}}}',
    b'{"brokerAddrTable":{"a":{"brokerName":"a","brokerAddrs":{0:"no address"}}}}',
    b'{"brokerAddrTable":{"a":{"brokerName":"a","brokerAddrs":{0:"\\u001b[2J:1"}}}}',
    b'{"brokerAddrTable":{"\\u001b[2J":{"brokerName":"\\u001b[2J","brokerAddrs":{0:"127.0.0.1:1"}}}}',
    b'{"brokerAddrTable":{"a":{"cluster":"\\ud800","brokerName":"b","brokerAddrs":{-9:"127.0.0.1:99999"}}}}',
    b'{"queueDatas":[{"brokerName":"a","writeQueueNums":' + LONG.encode() + b',"perm":6}],"brokerDatas":[]}',
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("code", [CLUSTER, ROUTE, INFO])
def test_any_body_is_an_error_of_one_line_or_unknown(server: Server, command: str, code: int) -> None:
    others = COMMANDS.keys() - {"pub"}
    asked: dict[int, Any] = {ROUTE: ("pub",), INFO: others - {"promote"}, CLUSTER: others}
    if command in asked[code]:
        for body in BODIES[::8] if command == "pub" else BODIES:  # a send is tried again for a while
            server.answers[code] = ({}, body)
            assert "Traceback" not in run(server, command).output


HEADERS: list[Any] = [
    b"", b"null", b"[]", b"{", b"{}", b'{"code":"x"}', b'{"code":' + LONG.encode() + b"}", b"\x00" * 9,
    {"code": 1, "remark": ESCAPE}, {"code": 1, "remark": "a\nb"}, {"code": -(2**31), "remark": None},
    {"code": 10**9, "remark": "x" * 100_000}, {"code": 1, "remark": "\ud800"}, {"flag": 0}, {"opaque": 10**9},
]  # fmt: skip
FRAMES: list[bytes] = [
    b"", b"\x00", struct.pack(">i", -1), struct.pack(">i", 2**31 - 1), struct.pack(">i", 0), b"HTTP/1.1 200 OK\r\n\r\n",
    struct.pack(">ii", 8, 2**31 - 1) + b"1234", struct.pack(">ii", 8, -5) + b"1234",
]  # fmt: skip


@pytest.mark.parametrize("command", ["brokers", "status", "promote"])
def test_any_header_or_frame_is_an_error_of_one_line(
    server: Server, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["mqbroker.cli.cluster"], "TIMEOUT_MS", 300)
    monkeypatch.setattr(sys.modules["mqbroker.cli.ha"], "PROMOTED_SECONDS_MAX", 0.1)
    former = dict(server.answers)
    for code in (CLUSTER, INFO, UPDATE):
        for answer in (*((header, b"") for header in HEADERS), *FRAMES):
            server.answers = {**former, code: answer}
            run(server, command)


@pytest.mark.parametrize(
    "fields",
    [
        {"msgId": "x", "queueId": LONG, "queueOffset": "1"},
        {"msgId": "x", "queueId": "0", "queueOffset": LONG},
        {"msgId": ESCAPE, "queueId": "0", "queueOffset": "-1", "transactionId": ESCAPE},
        {},
    ],
)
def test_any_answer_to_a_send(server: Server, fields: dict[str, str]) -> None:
    for code in (SEND, RequestCode.SEND_MESSAGE):
        server.answers[code] = ({"extFields": fields}, b"")
    run(server, "pub")


def test_a_brokers_name_that_commands_the_terminal(server: Server) -> None:
    route = server.answers[ROUTE][1]
    route["brokerDatas"][0]["brokerName"] = route["queueDatas"][0]["brokerName"] = ESCAPE
    assert "\\x1b" in run(server, "pub").output


def test_a_warning_with_a_servers_words_does_not_command_the_terminal() -> None:
    code = f"from mqbroker.cli.lines import log_warnings; import logging; log_warnings(); logging.warning({ESCAPE!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == rb"mq: \x1b]0;owned\x07\x9b2J" + b"\n"


@pytest.mark.parametrize("timestamp", [0, -1, -(2**63), 2**63 - 1, 10**15])
def test_any_time_of_a_message_is_printed(timestamp: int) -> None:
    host = ("10.0.0.1", 1)
    record = encode_record(
        Record("T", 0, 7, 0, 0, 0, 0, timestamp, host, timestamp, host, 0, 0, b"x", zlib.crc32(b"x"), {})
    )
    [message], *_ = ReceivedMessage.read(record, "a")
    assert " a/0@7" in terminal_line(message).replace("\x1b[2m", " ")
