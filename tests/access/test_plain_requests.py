"""Plain sends and pulls to a broker that controls access: the compiled module takes those that the guard lets through,
and the outcome is that of the general path.

MQBROKER_TWIN_SEEDS chooses how many brokers are asked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address

from mqbroker.kernel import compiled
from mqbroker.store import message_reader
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_frame
from mqbroker.wire.headers import encode_header
from mqbroker.wire.signature import ACCESS_KEY, SIGNATURE
from tests.access.acl import ADMIN, ALICE, PLAIN, STRANGER, signed, write_acl
from tests.broker.bench import Bench, pull_header, send_command
from tests.commands import said
from tests.remoting.link import take_together
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60"))
SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
BATCH = RequestCode.SEND_BATCH_MESSAGE
TOPICS = ["T", "T", "T", "T", "OnlySub", "OnlyPub", "Closed", "Other", "RMQ_SYS_TRACE_TOPIC"]
HOSTS = ["10.0.0.2"] * 6 + ["10.10.103.7", "172.16.0.1"]
#: Of alice: other permissions, another key, no account.
CHANGES = [
    PLAIN,
    PLAIN.replace("- T=PUB|SUB", "- T=SUB"),
    PLAIN.replace("- OnlySub=SUB", "- OnlySub=PUB"),
    PLAIN.replace("- CG=SUB", "- CG=DENY"),
    PLAIN.replace("secret-of-alice", "another-secret"),
    PLAIN.replace("alice-key", "somebody-else"),
]


def request(rng: Random, opaque: int) -> RemotingCommand:
    account = rng.choice([ALICE, ALICE, ALICE, ADMIN, ADMIN, STRANGER])
    topic = rng.choice(TOPICS)
    if rng.random() < 0.5:
        pairs = rng.sample(["TAGS\x01a", "KEYS\x01k1 k2", "WAIT\x01true", "día\x01中文", 'Q\x01"x"', "T\x01\t"], 2)
        pairs += rng.choice([[], [], ["DELAY\x012"], ["TRAN_MSG\x01true", "PGROUP\x01PG"]])
        body = rng.choice([b"", b"body", bytes(range(256)), b"x" * 3000])
        if rng.random() < 0.3:
            entries = [BatchEntry(0, body, "\x02".join(pairs).encode()), BatchEntry(0, b"second", b"")]
            shared = rng.choice(["", "WAIT\x01true", pairs[0]])
            plain = send_command(topic, encode_batch(entries), BATCH, queue_id=0, properties=shared, batch=True)
        else:
            plain = send_command(topic, body, queue_id=0, properties="\x02".join(pairs))
    else:
        header = pull_header(
            topic,
            consumer_group=rng.choice(["CG", "CG", "Shut", "Shut", "PubOnly"]),
            queue_offset=rng.choice([0, 2]),
            suspend_timeout_millis=0,
            commit_offset=1,
            sys_flag=rng.choice([4, 5]),
        )
        plain = RemotingCommand(PULL, encode_header(header))
    command = signed(account, plain.code, plain.ext_fields, plain.body, opaque=opaque)
    for _ in range(rng.choice([0, 0, 0, 1])):
        tamper(rng, command)
    return command


def tamper(rng: Random, command: RemotingCommand) -> None:
    fields = command.ext_fields
    kind = rng.randrange(6)
    if kind == 0:
        fields[SIGNATURE] = rng.choice(["", "x", fields[SIGNATURE].lower(), fields[SIGNATURE][:-1]])
    elif kind == 1:
        fields.pop(rng.choice([ACCESS_KEY, SIGNATURE]), None)
    elif kind == 2:
        name = rng.choice(list(fields))
        fields[name] = rng.choice(["0", "T", fields[name] + " ", "Closed"])
    elif kind == 3:
        fields[rng.choice(["_UNIQUE_KEY_QUERY", "more", "A", "zz"])] = "1"
    elif kind == 4:
        command.body = command.body + b"!"
    else:
        for name in rng.sample(list(fields), len(fields)):  # another order, which no signature is over
            fields[name] = fields.pop(name)


def frame(command: RemotingCommand) -> bytes:
    header = {"code": int(command.code), "extFields": command.ext_fields, "flag": 0, "opaque": command.opaque}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).replace("\\t", "\\u0009")
    return encode_frame(0, text.encode(), command.body)


@attrs.define
class Outcome:
    answers: list[Any]
    messages: list[Any]
    offsets: Any
    taken: int = attrs.field(eq=False, default=0)


def outcome(root: Path, seed: int, *, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    rng = Random(seed)
    with monkeypatch.context() as patch:
        if not is_compiled:
            patch.setattr(message_reader, "compiled", None)
        home = root / "home"
        write_acl(home)
        bench = Bench(root / "store", acl_enable=True, rocketmq_home=str(home))
        for topic in TOPICS:
            for _ in range(3):
                bench.client(IPv4Address("TCP", "10.10.103.9", 1)).ask_all(send_command(topic, queue_id=0))
        found = Outcome([], [], None)
        if is_compiled:
            for code, handler in list(bench.table.plain.items()):

                def take(reads: Any, handler: Any = handler) -> Any:
                    taken = handler(reads)
                    found.taken += taken is not None
                    return taken

                bench.table.plain[code] = take
        else:
            bench.table.plain.clear()
        clients = [bench.client(IPv4Address("TCP", host, 40000)) for host in dict.fromkeys(HOSTS)]
        for opaque in range(60):
            client = clients[0] if rng.random() < 0.7 else rng.choice(clients)
            client.peer.transport.write(frame(request(rng, opaque)))
            client.link.pump()
            found.answers += said(client.heard())
            if rng.random() < 0.08:
                os.utime(write_acl(home, rng.choice(CHANGES)), (opaque, opaque))
                assert bench.acl is not None
                assert bench.acl.look().called
            bench.turn()
        found.messages = [bench.records(topic) for topic in dict.fromkeys(TOPICS)]
        found.offsets = bench.offsets.snapshot()
        bench.close()
        return found


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_both_ways_have_the_same_outcome(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(tmp_path / "compiled", seed, is_compiled=True, monkeypatch=monkeypatch)
    assert found == outcome(tmp_path / "general", seed, is_compiled=False, monkeypatch=monkeypatch)
    assert found.taken
    assert any(code == ResponseCode.SUCCESS for _, code, *_ in found.answers)


def test_of_connections_that_are_read_together_only_those_with_the_right_are_taken(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_acl(home)
    bench = Bench(tmp_path / "store", acl_enable=True, rocketmq_home=str(home))
    for topic in ("T", "OnlySub"):
        bench.client(IPv4Address("TCP", "10.10.103.9", 1)).ask_all(send_command(topic, queue_id=0))
    clients = [bench.client(IPv4Address("TCP", "10.0.0.2", 40000 + number)) for number in range(4)]

    def send(account: Any, topic: str, body: bytes, opaque: int) -> bytes:
        plain = send_command(topic, body, queue_id=0)
        return frame(signed(account, plain.code, plain.ext_fields, plain.body, opaque=opaque))

    denied = send(ALICE, "OnlySub", b"denied", 12)
    plain = send_command("T", b"unsigned", queue_id=0)
    reads = [
        send(STRANGER, "T", b"stranger", 1),
        send(ALICE, "T", b"first", 11) + denied + send(ALICE, "T", b"second", 13),
        frame(RemotingCommand(plain.code, plain.ext_fields, body=plain.body, opaque=2)),
        send(ALICE, "T", b"third", 3),
    ]
    left = take_together(bench.factory, [client.connection for client in clients], reads)
    assert left == [reads[0], reads[1][reads[1].index(denied) :], reads[2], b""]
    for client, rest in zip(clients, left, strict=True):
        if rest:
            client.connection.dataReceived(rest)
        client.link.pump()
    heard = [client.heard() for client in clients]
    ok, no = ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR
    assert [[answer.code for answer in each] for each in heard] == [[no], [ok, no, ok], [no], [ok]]
    assert [(answer.remark or "").rpartition(": ")[2] for each in heard for answer in each if answer.code == no] == [
        "No acl config for stranger",
        "No default permission for topic:OnlySub",
        "No accessKey is configured",
    ]
    assert [record.body for record in bench.records("T")[1:]] == [b"first", b"third", b"second"]
    assert len(bench.records("OnlySub")) == 1
    bench.close()
