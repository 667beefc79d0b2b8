"""Plain pulls by the compiled module and the general path: the same responses, offsets and counts, whatever comes, and
whatever changes in between.

MQBROKER_TWIN_SEEDS chooses how many brokers are pulled from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from mqbroker.kernel import compiled
from mqbroker.store import message_reader
from mqbroker.store.consumequeue_entry import ENTRY
from mqbroker.store.get_message_result import is_above
from mqbroker.store.logscan import Damage
from mqbroker.store.resident_pages import LOG_MOMENT_S
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
from mqbroker.wire.record import MAGIC_BYTES, decode_records
from tests.broker.bench import Bench, Client, pull_header, send_command
from tests.commands import decode_commands, said
from tests.kernel.test_sends import NUMBERS, is_bad, spoilt
from tests.remoting.link import CLIENT, SERVER, End, take_together
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60"))
TAGS = ["a", "b", "a || b", "none", "*", "", "a||", "||", "  a  ", "é", "A" * 2000, "\x01", "a\x00TAG", "\x01\x00TAG"]
#: As `mqbroker/kernel` has them.
RECORDS_MAX, KEY_MAX, CODES_MAX = 1024, 1024, 64
#: Subscriptions to as many tags as the compiled module looks for, and one less and more.
MANY_TAGS = [" || ".join(["a", *(f"t{n}" for n in range(1, count))]) for count in range(CODES_MAX - 1, CODES_MAX + 2)]
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


def header_of(rng: Random, opaque: int, ends: Sequence[int]) -> dict[str, Any]:
    """A header as Java's consumer makes it, with up to three changes.

    :param ends: where queues end.
    """
    ext: dict[str, Any] = dict(BASE)
    ext |= {
        "topic": rng.choice("TTTU"),
        "consumerGroup": rng.choice(["CG", "CG", "CG", "DG"]),
        "queueId": rng.choice("0001"),
    }
    end = rng.choice(ends)
    near_end = [end - 2, end - 1, end, end + 1]
    ext |= {"queueOffset": str(rng.choice([0, 0, 1, 3, 9, 17, 90, *near_end])), "sysFlag": rng.choice("0445557")}
    most = rng.choice(["32", "32", "1", "5", "0", "2", "31", "33", *map(str, range(RECORDS_MAX - 1, RECORDS_MAX + 2))])
    ext |= {"commitOffset": str(rng.choice([0, 0, 1, 5, *near_end])), "maxMsgNums": most}
    ext["subscription"] = rng.choice(["*", "*", "a", "a || b"]) if rng.random() < 0.9 else rng.choice(TAGS + MANY_TAGS)
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
            long = "x" * rng.randrange(KEY_MAX - 60, KEY_MAX + 2)
            ext[rng.choice(["consumerGroup", "topic", "expressionType", "more", "bname"])] = rng.choice(
                ["", "TAG", "SQL92", "None", "%RETRY%CG", "é", "a\x01b", "a\x00b", "x" * 300, long]
            )
        elif kind == 5:
            header[rng.choice(list(header))] = rng.choice([0, 1, 2, 11, -1, 2**31 - 1, 2**31, 1.5, None, "x", True, {}])
        elif kind == 6:
            header[rng.choice(["remark", "more"])] = rng.choice(["x", 1, None])
        else:
            for name in rng.sample(list(ext), rng.randrange(len(ext) + 1)):
                ext[name] = ext.pop(name)
    return header


def frame(rng: Random, opaque: int, ends: Sequence[int]) -> bytes:
    separators = (",", ":") if rng.random() < 0.95 else (", ", ": ")
    text = json.dumps(header_of(rng, opaque, ends), separators=separators, ensure_ascii=rng.random() < 0.5)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        data = data.replace(b'"topic":', b'"topic":"U","topic":', 1)
    return encode_frame(0, data, b"" if rng.random() < 0.95 else b"body")


def reads_of(rng: Random, number: int, ends: Sequence[int]) -> list[bytes]:
    """The bytes of some reads. A frame that may end the connection comes alone: frames before it are handled or not."""
    frames = [frame(rng, number * 100 + n, ends) for n in range(rng.choice([1, 1, 2, 8, 20]))]
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
            queue_ends = [bench.store.max_offset(topic, queue) for topic in "TU" for queue in (0, 1)]
            for number, protocol in enumerate(protocols):
                for data in reads_of(rng, 10 * turn + number, queue_ends):
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


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
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
    fields = BASE | {"maxMsgNums": "1"}  # to the end it would wait for the dispatch of what is sent
    ext = json.dumps({"code": 11, "extFields": fields, "flag": 0, "opaque": 5}, separators=(",", ":")).encode()
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


class CountedLooks:
    """Counts the calls that find out where messages are."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        locate = bench.store.locate

        def counted(*given: Any) -> Any:
            self.count += 1
            return locate(*given)

        monkeypatch.setattr(bench.store, "locate", counted)


def pulled(bench: Bench, client: Client, offset: int, most: int = 8, **changed: str) -> tuple[bool, list[int], int]:
    """Whether the compiled module has taken a pull; the offsets of what it found, and where the next one is to begin.
    The time does not go on meanwhile, so that what was resident still counts as that."""
    is_taken = taken(bench, client, queueOffset=str(offset), maxMsgNums=str(most), **changed)
    [answer] = client.heard()
    found = [record.queue_offset for record in decode_records(answer.body)]
    return is_taken, found, int(answer.ext_fields["nextBeginOffset"])


def filled(root: Path, **changes: Any) -> tuple[Bench, Client]:
    """A broker whose queue 0 of the topic T has 250 messages, in three files, and that knows a pull of it."""
    bench = Bench(root, **changes)
    client = bench.client()
    for number in range(250):
        client.send("T", b"x" * 100, queue_id=0, properties=f"TAGS\x01{'ab'[number % 2]}")
    bench.turn(1)
    assert pulled(bench, client, 0) == (False, [*range(8)], 8)
    return bench, client


def test_pulls_that_follow_each_other_are_located_once_for_a_file_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, client = filled(tmp_path / "store")
    looks = CountedLooks(bench, monkeypatch)
    at, located_at = 0, []
    while at < 250:
        before = looks.count
        is_taken, found, following = pulled(bench, client, at)
        assert is_taken
        assert found == [*range(at, following)]
        assert following == min(at + 8, 100 if at < 100 else 200 if at < 200 else 250)
        located_at += [at] * (looks.count - before)
        at = following
    assert located_at == [100, 200]
    # So few are left in that file that nothing is kept for them.
    for count in (3, 4):
        assert pulled(bench, client, 96) == (True, [96, 97, 98, 99], 100)
        assert looks.count == count
    # From the first file to the midst of the second one.
    assert pulled(bench, client, 0) == (True, [*range(8)], 8)
    assert pulled(bench, client, 150) == (True, [*range(150, 158)], 158)
    bench.close()


def test_a_plain_pull_to_the_end_leaves_messages_that_wait_for_their_dispatch_to_the_broker(tmp_path: Path) -> None:
    bench, client = filled(tmp_path / "store")
    assert pulled(bench, client, 244) == (True, [*range(244, 250)], 250)
    client.send("T", b"x", queue_id=1)
    for _ in range(3):
        client.send("T", b"x", queue_id=0)
    assert pulled(bench, client, 240) == (True, [*range(240, 248)], 248)
    assert pulled(bench, client, 248) == (False, [*range(248, 253)], 253)
    assert pulled(bench, client, 248) == (True, [*range(248, 253)], 253)


def test_messages_with_a_tag_are_found_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, client = filled(tmp_path / "store")
    assert not pulled(bench, client, 0, subscription="b")[0]
    assert pulled(bench, client, 0) == (True, [*range(8)], 8)
    looks = CountedLooks(bench, monkeypatch)
    assert pulled(bench, client, 3, subscription="b") == (True, [*range(3, 18, 2)], 18)
    assert looks.count == 0
    # It looks at no more entries than other pulls with a tag do, if the client asks for more than these.
    assert pulled(bench, client, 3, 801, subscription="b") == (True, [*range(3, 66, 2)], 66)
    assert looks.count == 1
    bench.close()


def test_where_messages_are_is_looked_up_anew_after_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, client = filled(tmp_path / "store")
    assert pulled(bench, client, 0)[0]
    looks = CountedLooks(bench, monkeypatch)
    assert pulled(bench, client, 8)[0]
    assert looks.count == 0
    bench.turn(LOG_MOMENT_S)
    assert pulled(bench, client, 16)[0]
    assert looks.count == 1
    bench.close()


def forget_file(bench: Bench) -> None:
    bench.store._queues.by_name["T", 0]._files[0].let_go()


def lose(bench: Bench) -> None:
    """The disk cannot read a message of the range, it is found out."""
    [physical_offset, size, _] = bench.store._queues.by_name["T", 0].entry(200)
    bench.store._files.add_damage(Damage("a file", physical_offset, physical_offset + size, "cannot be read"))


LAPSES: dict[str, Callable[[Bench], object]] = {
    "the file is not mapped any more": forget_file,
    "a damage was found behind it": lose,
    "fewer messages at a time": lambda bench: bench.parts.live.change({"maxTransferCountOnMessageInMemory": "3"}),
    "oldest messages deleted": lambda bench: setattr(bench.store._queues.by_name["T", 0], "min_offset", 9),
}


@pytest.mark.parametrize("lapse", LAPSES)
def test_what_was_kept_of_a_queue_is_not_used(tmp_path: Path, lapse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, client = filled(tmp_path / "store")
    assert pulled(bench, client, 0) == (True, [*range(8)], 8)
    looks = CountedLooks(bench, monkeypatch)
    assert pulled(bench, client, 8)[:2] == (True, [*range(8, 16)])
    assert looks.count == 0
    LAPSES[lapse](bench)
    _, found, _ = pulled(bench, client, 8)
    assert looks.count > 0
    assert found == {"fewer messages at a time": [8, 9, 10], "oldest messages deleted": []}.get(lapse, [*range(8, 16)])
    bench.close()


def test_a_queue_that_took_the_place_of_another_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, client = filled(tmp_path / "store")
    assert pulled(bench, client, 0)[0]
    queues = bench.store.queues_by_name
    monkeypatch.setitem(queues, ("T", 0), copy(queues["T", 0]))
    looks = CountedLooks(bench, monkeypatch)
    assert pulled(bench, client, 0)[0]
    assert looks.count == 1
    bench.close()


def test_a_pull_of_more_entries_than_were_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets as many messages as the general path finds for it."""
    bench, client = filled(tmp_path / "store")
    pages = bench.store._reader.resident_pages
    monkeypatch.setattr(pages, "entries_end", lambda queue: (20, 1e12))
    bench.store.resident_ranges.clear()
    looks = CountedLooks(bench, monkeypatch)
    for at, count in [(0, 1), (8, 1), (12, 1), (13, 2), (96, 3)]:
        assert pulled(bench, client, at) == (True, [*range(at, min(at + 8, 100))], min(at + 8, 100))
        assert looks.count == count
    bench.close()


def test_a_pull_of_more_than_what_counts_as_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range ends in the midst of what it finds."""
    bench, client = filled(tmp_path / "store")
    assert pulled(bench, client, 0)[0]
    kept = bench.store.resident_ranges["T", 0]
    pages = bench.store._reader.resident_pages
    tenth = kept.queue.entry(10)[0]
    monkeypatch.setattr(pages, "log_range", lambda start: (0, tenth, 1e12))
    bench.store.resident_ranges.clear()
    assert pulled(bench, client, 0)[0]
    looks = CountedLooks(bench, monkeypatch)
    assert pulled(bench, client, 2) == (True, [*range(2, 10)], 10)
    assert looks.count == 0
    assert pulled(bench, client, 3) == (True, [*range(3, 11)], 11)
    assert looks.count == 1
    bench.close()


@pytest.mark.parametrize(("entries", "log"), [(b"e" * 19, b"l" * 100), (ENTRY.pack(50, 91, 0), b"l" * 140)])
def test_files_shorter_than_they_were_said_to_be(entries: bytes, log: bytes) -> None:
    assert compiled is not None
    kept = compiled.ResidentRange(
        SimpleNamespace(min_offset=0, max_offset=1), SimpleNamespace(intact_from=0), lambda: memoryview(entries),
        lambda: memoryview(log), 0, 0, 1, 1, 0, 0, 1000, 32, 1000, 800, 1e12,
    )  # fmt: skip
    header = {"code": 11, "extFields": BASE, "flag": 0, "opaque": 5}
    data = encode_frame(0, json.dumps(header, separators=(",", ":")).encode(), b"")
    key = "\0".join(["1", "CG", "T", "0", "0", "*", "TAG"]).encode()
    plan = ("T", 0), "known", None, 0
    with pytest.raises(ValueError, match=r"1 entries at byte 0 of 19|140 bytes of the log instead of 91"):
        compiled.take_pulls(
            [(data, 0, None)], {key: plan}, {("T", 0): kept.queue}, {("T", 0): kept}, 0.0, lambda *_: None,
            lambda *_: None, {}, b"}", 32, 1000, None,
        )  # fmt: skip


@pytest.mark.parametrize(("limit", "taken"), [(199, 1), (200, 2), (201, 2), (299, 2), (300, 3), (1, 1)])
def test_messages_are_taken_up_to_the_byte(limit: int, taken: int) -> None:
    """As `is_above` of the general path has it."""
    assert compiled is not None
    entries = b"".join(ENTRY.pack(100 * number, 100, 0) for number in range(4))
    log = b"".join(
        b"\0\0\0\x64" + MAGIC_BYTES + bytes(20) + (100 * number).to_bytes(8, "big") + bytes(64) for number in range(4)
    )
    found = compiled.pick_messages(entries, 0, 4, None, 32, limit, lambda at, size: log[at : at + size], None)
    assert found == (taken, taken, log[: 100 * taken])
    assert [is_above(limit, 100 * count) for count in range(2, 5)] == [count > taken for count in range(2, 5)]
