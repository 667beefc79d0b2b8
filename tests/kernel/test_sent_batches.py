"""Batches by the compiled module and the general path: the same responses, log, queues, index and counts.

MQBROKER_TWIN_SEEDS chooses how many brokers are sent to.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mqbroker.config import FlushDiskType
from mqbroker.errors import FlushTimedOut
from mqbroker.kernel import compiled
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import FrameDecoder, encode_frame
from tests.broker.bench import BODY_MAX, Bench
from tests.commands import decode_commands, said
from tests.kernel.test_records import files_of
from tests.kernel.test_sends import (
    FIELDS,
    PAIRS,
    PROPERTIES_MAX,
    SEEDS,
    change,
    check_both_ways,
    header_of,
    is_bad,
    plain_reads,
    reads_of,
    spoilt,
)
from tests.remoting.link import CLIENT, SERVER, End, take_together
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

#: As `mqbroker/kernel` has it: of bytes in the JSON.
SHARED_MAX = 1024
#: Sizes, counts and flags of a message that may be wrong.
INTEGERS = [0, 1, -1, 19, 20, 21, 32767, 32768, 65535, 2**31 - 1, -(2**31)]
SHARED = ["WAIT\x01true", "WAIT\x01false", "", "WAIT\x01true\x02", "UNIQ_KEY\x01U\x02WAIT\x01true", "TAGS\x01S"]


def properties_of(rng: Random) -> bytes:
    """Properties of a message as producers make them, or as nobody does."""
    if rng.random() < 0.7:
        pairs = rng.sample(
            ["UNIQ_KEY\x017F00000119", "TAGS\x01TagA", "KEYS\x01k1 k2", "WAIT\x01true"], rng.randrange(5)
        )
        return ("\x02".join(pairs) + rng.choice(["", "\x02"])).encode()
    text = "\x02".join(rng.choices(PAIRS, k=rng.randrange(1, 5))) + rng.choice(["", "\x02", "\x02\x02"])
    data = text.encode()[:PROPERTIES_MAX]
    if rng.random() < 0.2:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice([b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x01", b"\x02"]) + data[at:]
    if rng.random() < 0.1:  # as many as there may be, or one byte less or more
        room = PROPERTIES_MAX - len(data) - rng.choice([0, 1024, 1024 + 40]) + rng.choice([-1, 0, 1])
        data += b"\x02FILL\x01" + b"f" * max(1, room - 6)
    return data[:PROPERTIES_MAX]


def entry_of(rng: Random) -> BatchEntry:
    body = rng.choice([b"", b"0", b"body", bytes(range(256)), b"x" * rng.randrange(3000)])
    return BatchEntry(rng.choice([0, 0, 0, 1, -1, 2**31 - 1, -(2**31)]), body, properties_of(rng))


def body_of(rng: Random) -> bytes:
    """The body of a batch, of which a field may be wrong."""
    count = rng.choice([0, 1, 1, 2, 2, 3, 8, 40])
    data = encode_batch([entry_of(rng) for _ in range(count)])
    if rng.random() < 0.15:  # as long as a message may be, or a byte less or more; the records become longer
        room = BODY_MAX - len(data) - 22 + rng.choice([-2000, -600, -1, 0, 1])
        data += encode_batch([BatchEntry(0, b"x" * max(0, room), b"")])
    if rng.random() < 0.1:
        data = encode_batch([BatchEntry(0, b"", b"")] * rng.choice([300, 500, 550, 600, 720, 721]))
    if data and rng.random() < 0.15:
        at, form = rng.choice(
            [(0, ">i"), (4, ">i"), (8, ">i"), (12, ">i"), (16, ">i"), (rng.randrange(len(data)), ">h")]
        )
        value = rng.choice([each for each in INTEGERS if form == ">i" or -32768 <= each <= 32767])
        data = data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)] + rng.choice([b"", b"x", b"\0" * 22])
    return data


def batch_frame(rng: Random, opaque: int, *, code: int = 320) -> bytes:
    """A batch as producers send it, with up to three changes."""
    header = header_of(rng, opaque) if rng.random() < 0.2 else plain_header(rng, opaque)
    ext: dict[str, Any] = header["extFields"] if isinstance(header.get("extFields"), dict) else {}
    if "code" in header and header["code"] == 310:
        header["code"] = code
    if rng.random() < 0.8:
        ext["m"] = "true"
    if rng.random() < 0.1:
        ext["i"] = "S\x01" + "s" * (SHARED_MAX - 7 + rng.choice([-1, 0, 1]))
    for _ in range(rng.choice([0, 0, 0, 0, 1, 3])):
        change(rng, header, ext)
    if rng.random() < 0.03:
        ext["producerGroup"] = rng.choice(["PG", ""])
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=rng.random() < 0.5)
    return encode_frame(0, text.encode("utf-8", "surrogatepass"), body_of(rng))


def plain_header(rng: Random, opaque: int) -> dict[str, Any]:
    ext = FIELDS | {"a": "PG", "b": rng.choice("TTTU"), "c": "TBW102", "e": str(rng.randrange(4))}
    ext |= {"i": rng.choice(SHARED), "k": "false", "m": "true"}
    return {"code": 310, "extFields": ext, "flag": rng.choice([0, 0, 0, 2]), "opaque": opaque}


def batch_reads(rng: Random) -> list[bytes]:
    """The bytes of some reads of a producer of batches. What may end its connection comes alone."""
    reads: list[bytes] = []
    for number in range(rng.randrange(3, 15)):
        code = 310 if rng.random() < 0.1 else 320
        frames = [batch_frame(rng, number * 100 + n, code=code) for n in range(rng.choice([1, 1, 2, 5]))]
        bad = [each for each in frames if is_bad(each)]
        if bad:
            reads += bad
            continue
        if rng.random() < 0.1:
            data = spoilt(rng, frames[0])
            if 4 + int.from_bytes(data[:4], "big") == len(data) and not is_bad(data):
                reads.append(data)
            continue
        data = b"".join(frames)
        cut = rng.randrange(len(data)) if rng.random() < 0.3 else 0
        reads += [data[:cut], data[cut:]] if cut else [data]
    return reads


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_both_ways_have_the_same_outcome(tmp_path: Path, seed: int) -> None:
    check_both_ways(tmp_path, seed, [batch_reads, batch_reads, batch_reads, reads_of, plain_reads])


class Connected:
    """A broker with a topic, one of the two ways, and a connection to it."""

    def __init__(self, root: Path, *, is_compiled: bool = True, **changes: Any) -> None:
        self.bench = Bench(root, **changes)
        for _ in range(2):  # the first creates the topic
            assert self.bench.client().send("T")[0].code == 0
        self._end = End(CLIENT, SERVER)
        self._protocol: Any = self.bench.factory.buildProtocol(CLIENT)
        self._protocol.makeConnection(self._end)
        if not is_compiled:
            self.bench.table.plain.clear()

    def send(self, body: bytes, properties: str = "WAIT\x01true", **changes: str) -> bool:
        """Send a batch; returns whether the compiled module took it."""
        ext = FIELDS | {"a": "PG", "b": "T", "c": "TBW102", "i": properties, "k": "false", "m": "true"} | changes
        header = {"code": 320, "extFields": ext, "flag": 0, "opaque": 1}
        frame = encode_frame(0, json.dumps(header, separators=(",", ":")).encode(), body)
        [rest] = take_together(self.bench.factory, [self._protocol], [frame])
        assert rest in (b"", frame)
        if rest:
            self._protocol.dataReceived(rest)
        self.bench.turn(0)
        return not rest

    def heard(self) -> list[Any]:
        return said(decode_commands(FrameDecoder(1 << 30).feed(bytes(self._end.written))))


def one(properties: bytes = b"TAGS\x01A\x02UNIQ_KEY\x01K\x02WAIT\x01true", body: bytes = b"x") -> bytes:
    return encode_batch([BatchEntry(0, b"first", b""), BatchEntry(0, body, properties)])


@pytest.mark.parametrize(
    ("shared", "entry", "is_taken"),
    [
        ("WAIT\x01true", "TAGS\x01A\x02UNIQ_KEY\x01K\x02WAIT\x01false\x02", True),
        ("", "", True),
        ("A\x01a\x02WAIT\x01false", "B\x01b", True),
        ("A\x01a", "A\x01b", False),
        ("WAIT\x01maybe", "", False),
        ("", "WAIT\x01maybe", True),
        ("DELAY\x011", "", False),
        ("", "DELAY\x011", False),
        ("", "DELAY\x010", False),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG", "", False),
        ("", "TRAN_MSG\x01true", False),
        ("", "CLUSTER\x01mine", False),
        ("", "REAL_TOPIC\x01T", False),
        ("INNER_MULTI_DISPATCH\x01%LMQ%a", "", False),
        ("", "INNER_MULTI_DISPATCH\x01%LMQ%a", False),
        ("", "TIMER_DELAY_MS\x015000", False),
        ("", "A\x01b\x02A\x01c", False),
        ("", "A\x01b\x02A", False),
        ("", "N\x01a\0b", False),
        ("S\x01" + "s" * (SHARED_MAX - 7), "", True),
        ("S\x01" + "s" * (SHARED_MAX - 6), "", False),
    ],
)
def test_which_batches_are_taken(tmp_path: Path, shared: str, entry: str, is_taken: bool) -> None:
    connected = Connected(tmp_path)
    assert connected.send(one(entry.encode()), shared) is is_taken
    connected.bench.close()


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ({}, True),
        ({"m": "false"}, True),
        ({"m": "TRUE"}, False),
        ({"f": "4"}, False),
        ({"f": "8"}, False),
        ({"e": "4"}, False),
        ({"b": "U"}, False),
        ({"b": "%RETRY%CG"}, False),
        ({"producerGroup": "PG"}, False),
    ],
)
def test_which_headers_of_batches_are_taken(tmp_path: Path, changes: dict[str, str], is_taken: bool) -> None:
    connected = Connected(tmp_path)
    assert connected.send(one(), **changes) is is_taken
    connected.bench.close()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_both_ways_have_the_same_limit_to_the_byte(tmp_path: Path, more: int) -> None:
    """:param more: bytes of records above the limit of a send."""
    found = []
    for is_compiled in (True, False):
        connected = Connected(tmp_path / str(is_compiled), is_compiled=is_compiled)
        properties = len("CLUSTER\x01DefaultCluster\x02WAIT\x01true")
        counted = 2 * (91 + 1 + properties) + len("first")
        taken = connected.send(one(b"", b"x" * (BODY_MAX - counted + more)))
        assert taken is (is_compiled and more <= 0)
        connected.bench.turn(1)
        connected.bench.close()
        found.append((connected.heard(), files_of(tmp_path / str(is_compiled))))
    assert found[0] == found[1]


def test_responses_name_each_message_where_they_wait_for_the_disk_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of a batch are those of the general path, also in a response that is made late."""
    found = []
    for is_compiled in (True, False):
        root = tmp_path / str(is_compiled)
        connected = Connected(root, is_compiled=is_compiled, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
        store = connected.bench.store
        durable = store.durable

        def late(end: int, durable: Any = durable) -> Any:
            def fail(_: Any) -> None:
                raise FlushTimedOut("the disk is slow")

            return durable(end).addCallback(fail)

        with monkeypatch.context() as patch:
            patch.setattr(store, "durable", late)
            assert connected.send(one() + one()) is is_compiled
            connected.bench.turn(1)
        connected.bench.close()
        found.append((connected.heard(), files_of(root)))
    assert found[0] == found[1]
    [answer] = found[0][0]
    assert f"{int(ResponseCode.FLUSH_DISK_TIMEOUT)}" in str(answer)
    assert str(answer).count(",") >= 3


def test_it_makes_sends_of_no_other_code() -> None:
    assert compiled is not None
    with pytest.raises(ValueError, match="sends of code 10"):
        compiled.Sends(10, b"h" * 8, b"", b"", b"", b"", 1, False, (b"", 0), (b"", 0), print, None)
