"""Plain pulls by the compiled module and the general path: the same responses, offsets and counts, whatever comes, and
whatever changes in between.

MQBROKER_TWIN_SEEDS chooses how many brokers are pulled from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from mqbroker.kernel import compiled
from mqbroker.store import message_reader
from mqbroker.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import FrameDecoder, encode_command, encode_frame
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import decode_records
from tests.broker.bench import Bench, Client, pull_header, send_command
from tests.commands import decode_commands, said
from tests.kernel.test_sends import NUMBERS, is_bad, spoilt
from tests.remoting.link import CLIENT, SERVER, End, take_together

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60"))
TAGS = ["a", "b", "a || b", "none", "*", "", "a||", "||", "  a  ", "é", "A" * 2000, "\x01", "a\x00TAG", "\x01\x00TAG"]
BASE = {
    "consumerGroup": "CG", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


class ReadEnd(End):
    """Its peer reads at once what is written."""

    def write(self, data: bytes) -> None:
        super().write(data)
        self.outbox.clear()
        if self.paused_producer:
            self.paused_producer = False
            self.producer.resumeProducing()


def header_of(rng: Random, opaque: int) -> dict[str, Any]:
    """A header as Java's consumer makes it, with up to three changes."""
    ext: dict[str, Any] = dict(BASE)
    ext |= {
        "topic": rng.choice("TTTU"),
        "consumerGroup": rng.choice(["CG", "CG", "CG", "DG"]),
        "queueId": rng.choice("0001"),
    }
    ext |= {"queueOffset": str(rng.choice([0, 0, 3, 9, 17, 30, 90])), "sysFlag": rng.choice("0445557")}
    ext |= {"commitOffset": str(rng.choice([0, 0, 5, 12])), "maxMsgNums": rng.choice(["32", "1", "5"])}
    ext["subscription"] = rng.choice(["*", "*", "a", "a || b"]) if rng.random() < 0.9 else rng.choice(TAGS)
    header: dict[str, Any] = {"code": 11, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque}
    header |= {"serializeTypeCurrentRPC": "JSON", "version": 401}
    for _ in range(rng.choice([0] * 8 + [1, 3])):
        kind = rng.randrange(8)
        if kind < 3:
            ext[rng.choice(["queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "subVersion"])] = (
                rng.choice(NUMBERS)
            )
        elif kind == 3:
            ext.pop(rng.choice(list(ext)), None)
        elif kind == 4:
            ext[rng.choice(["consumerGroup", "topic", "expressionType", "more", "bname"])] = rng.choice(
                ["", "TAG", "SQL92", "None", "%RETRY%CG", "é", "x" * 300, "a\x01b", "a\x00b"]
            )
        elif kind == 5:
            header[rng.choice(list(header))] = rng.choice([0, 1, 2, 11, -1, 2**31 - 1, 2**31, 1.5, None, "x", True, {}])
        elif kind == 6:
            header[rng.choice(["remark", "more"])] = rng.choice(["x", 1, None])
        else:
            for name in rng.sample(list(ext), rng.randrange(len(ext) + 1)):
                ext[name] = ext.pop(name)
    return header


def frame(rng: Random, opaque: int) -> bytes:
    separators = (",", ":") if rng.random() < 0.95 else (", ", ": ")
    text = json.dumps(header_of(rng, opaque), separators=separators, ensure_ascii=rng.random() < 0.5)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        data = data.replace(b'"topic":', b'"topic":"U","topic":', 1)
    return encode_frame(0, data, b"" if rng.random() < 0.95 else b"body")


def reads_of(rng: Random, number: int) -> list[bytes]:
    """The bytes of some reads. A frame that may end the connection comes alone: frames before it are handled or not."""
    frames = [frame(rng, number * 100 + n) for n in range(rng.choice([1, 1, 2, 8, 20]))]
    bad = [each for each in frames if is_bad(each)]
    if bad:
        return bad
    if rng.random() < 0.1:
        data = spoilt(rng, frames[0])
        size = 4 + int.from_bytes(data[:4], "big")
        return [data] if size <= len(data) and not is_bad(data) else []
    data = b"".join(frames)
    cut = rng.randrange(len(data)) if rng.random() < 0.3 else 0
    return [data[:cut], data[cut:]] if cut else [data]


def beat(client: Client, version: int, tag: str, model: str) -> None:
    subscription = SubscriptionData("T", tag, frozenset([tag]), frozenset([java_hash(tag)]), version)
    consumer = ConsumerData("CG", message_model=model, subscription_data_set=[subscription])
    client.ask(RequestCode.HEART_BEAT, body=HeartbeatData("c1", [], [consumer]).to_json())


def change(rng: Random, bench: Bench, client: Client) -> None:
    """Change something that pulls are checked by."""
    kind = rng.randrange(9)
    topic = bench.topics.get("T")
    if kind == 0 and topic is not None:
        bench.topics.put(attrs.evolve(topic, perm=rng.choice([2, 4, 6])))
    elif kind == 1 and topic is not None:
        bench.topics.put(attrs.evolve(topic, read_queue_nums=rng.choice([0, 1, 2, 4])))
    elif kind == 2:
        bench.groups.put(SubscriptionGroupConfig("CG", consume_enable=rng.random() < 0.6, broker_id=rng.randrange(3)))
    elif kind == 3:
        bench.groups.remove("CG")
    elif kind == 4:
        beat(client, rng.randrange(3), rng.choice("ab*"), rng.choice(["CLUSTERING", "BROADCASTING"]))
    elif kind == 5:
        bench.consumers.connection_closed(client.link.protocols[1])
    elif kind == 6:
        key, value = rng.choice([("brokerPermission", "246"), ("slaveReadEnable", ("true", "false"))])
        bench.parts.live.change({key: rng.choice(value)})
    elif kind == 7:
        bench.topics.remove("U")
    else:
        fill(client, rng, 5)


def fill(client: Client, rng: Random, count: int) -> None:
    for number in range(count):
        tag = rng.choice(["a", "a", "b"])
        body = b"x" * rng.choice([0, 10, 300])
        client.send(rng.choice("TTU"), body, queue_id=number % 2, properties=f"TAGS\x01{tag}")


def outcome(root: Path, seed: int, *, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    rng = Random(seed)
    with monkeypatch.context() as patch:
        if not is_compiled:
            patch.setattr(message_reader, "compiled", None)
        bench = Bench(root)
        client = bench.client()
        fill(client, rng, 80)
        if not is_compiled:
            bench.table.plain.clear()
        ends = [ReadEnd(CLIENT, SERVER) for _ in range(3)]
        protocols: list[Any] = [bench.factory.buildProtocol(CLIENT) for _ in ends]
        for protocol, end in zip(protocols, ends, strict=True):
            protocol.makeConnection(end)
        for turn in range(20):
            # Each connection's read is looked at by itself, so that both ways handle them in one order.
            for number, protocol in enumerate(protocols):
                for data in reads_of(rng, 10 * turn + number):
                    if ends[number].closing is None:
                        [rest] = take_together(bench.factory, [protocol], [data])
                        if rest:
                            protocol.dataReceived(rest)
            if rng.random() < 0.3:
                change(rng, bench, client)
            bench.turn(rng.choice([0, 0, 0.5, 1.1]))
        bench.turn(20)
        heard = []
        for end in ends:
            heard.append(said(decode_commands(FrameDecoder(1 << 30).feed(bytes(end.written)))))
        counts = {key: found[:3] for key, found in bench.parts.stats.gets.found.items()}
        result = heard, [end.closing is not None for end in ends], counts, bench.offsets.snapshot()
        bench.close()
        return result


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_ways_have_the_same_outcome(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(tmp_path / "compiled", seed, is_compiled=True, monkeypatch=monkeypatch)
    assert found == outcome(tmp_path / "general", seed, is_compiled=False, monkeypatch=monkeypatch)


def taken(bench: Bench, client: Client, **changed: str) -> bool:
    """Whether the compiled module takes this pull."""
    header = {"code": 11, "extFields": BASE | changed, "flag": 0, "opaque": 5}
    data = encode_frame(0, json.dumps(header, separators=(",", ":")).encode(), b"")
    [rest] = take_together(bench.factory, [client.link.protocols[1]], [data])
    if rest:
        client.link.protocols[1].dataReceived(rest)
    client.link.pump()
    return not rest


CHANGES: dict[str, Callable[[Bench, Client], object]] = {
    "topic": lambda bench, _: bench.topics.put(TopicConfig("T", 1, 1, 6)),
    "group": lambda bench, _: bench.groups.put(SubscriptionGroupConfig("CG", broker_id=1)),
    "subscription": lambda _, client: beat(client, 2, "b", "CLUSTERING"),
    "consumer": lambda bench, client: bench.consumers.connection_closed(client.link.protocols[1]),
    "settings": lambda bench, _: bench.parts.live.change({"brokerPermission": "4"}),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_plan_is_dropped_when_what_it_stands_on_changes(tmp_path: Path, changed: str) -> None:
    bench = Bench(tmp_path / "store")
    client = bench.client()
    for tag in "ab":
        client.send("T", tag.encode(), queue_id=0, properties=f"TAGS\x01{tag}")
    bench.turn(1)
    beat(client, 1, "a", "CLUSTERING")
    pull = {"sysFlag": "0", "subVersion": "1"}  # of the messages that its group has subscribed to
    assert [taken(bench, client, **pull) for _ in range(3)] == [False, True, True]
    first = {str(answer.body) for answer in client.heard()}
    CHANGES[changed](bench, client)
    assert [taken(bench, client, **pull) for _ in range(2)] == [False, changed != "consumer"]
    now = {str(answer.body) for answer in client.heard()}
    assert len(first) == len(now) == 1
    assert (first == now) is (changed in ("topic", "group", "settings"))
    bench.close()


def test_a_subscription_that_looks_like_none(tmp_path: Path) -> None:
    """The byte 1 stands for what a pull does not have."""
    bench = Bench(tmp_path / "store")
    client = bench.client()
    for tag in ("a", "\x01", "b"):
        client.send("T", tag.encode(), queue_id=0, properties=f"TAGS\x01{tag}")
    bench.turn(1)
    found = client.ask(RequestCode.PULL_MESSAGE, pull_header(subscription="\x01", sub_version=0))
    assert found is not None
    assert [record.body for record in decode_records(found.body)] == [b"\x01"]
    ext = {name: value for name, value in BASE.items() if name not in ("subscription", "expressionType")}
    text = json.dumps({"code": 11, "extFields": ext, "flag": 0, "opaque": 5}, separators=(",", ":"))
    client.peer.transport.write(encode_frame(0, text.encode(), b""))
    client.link.pump()
    [answer] = client.heard()
    assert [record.body for record in decode_records(answer.body)] == [b"a", b"\x01", b"b"]
    bench.close()


def test_sends_and_pulls_of_several_connections_in_one_turn(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    client = bench.client()
    fill(client, Random(1), 20)
    bench.turn(1)
    ext = json.dumps({"code": 11, "extFields": BASE, "flag": 0, "opaque": 5}, separators=(",", ":")).encode()
    pull, send = encode_frame(0, ext, b""), encode_command(send_command("T", queue_id=0))
    client.peer.transport.write(pull)  # which leaves a plan
    client.link.pump()
    ends = [ReadEnd(CLIENT, SERVER) for _ in range(4)]
    protocols: list[Any] = [bench.factory.buildProtocol(CLIENT) for _ in ends]
    for protocol, end in zip(protocols, ends, strict=True):
        protocol.makeConnection(end)
    for reads in ([send, pull, send, pull], [pull + send, send + pull, pull * 3, send * 3]):
        left = take_together(bench.factory, protocols, reads)
        assert left[0] == left[2] == left[3] == b""
        for protocol, rest in zip(protocols, left, strict=True):
            protocol.dataReceived(rest)
    counts = [len(FrameDecoder(1 << 30).feed(bytes(end.written))) for end in ends]
    assert counts == [3, 3, 4, 4]
    bench.close()
