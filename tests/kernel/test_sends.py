"""Plain sends by the compiled module and the general path: the same responses, log, queues and index, whatever comes.

MQBROKER_TWIN_SEEDS chooses how many brokers are sent to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address, IPv6Address

from mqbroker.config import FlushDiskType
from mqbroker.errors import BadFrame
from mqbroker.kernel import compiled
from mqbroker.wire.command import FrameDecoder, encode_frame
from tests.broker.bench import BODY_MAX, Bench
from tests.commands import decode_commands, said
from tests.kernel.test_records import files_of
from tests.remoting.link import CLIENT, SERVER, End, take_together
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60"))
#: A topic of as many bytes as a name may have.
LONGEST, TOO_LONG = "L" * 127, "L" * 128
#: As `mqbroker/kernel` has them.
PROPERTIES_MAX, FIELDS_MAX = 32767, 64
V6 = IPv6Address("TCP", "fe80::1", 40000)
PAIRS = [
    *("UNIQ_KEY\x017F00000119", "TAGS\x01TagA", "KEYS\x01k1 k2", "WAIT\x01true"),
    *(
        "WAIT\x01false",
        "WAIT\x01True",
        "WAIT\x01",
        "XWAIT\x01true",
        "A\x01b",
        "A\x01c",
        "A\x01",
        "\x01b",
        "A",
        "A\x01b\x01c",
        "",
    ),
    *(
        *(f"DELAY\x01{level}" for level in ("1", "3", "18", "19", "0", "03", "-1", "x", "9" * 9, "9" * 10)),
        "XDELAY\x012",
        "B\x01DELAY\x011",
        "TRAN_MSG\x01true",
        "TRAN_MSG\x01TRUE",
        "TRAN_MSG\x01false",
        "PGROUP\x01PG",
        "REAL_TOPIC\x01T",
        "REAL_QID\x017",
        "CLUSTER\x01mine",
        "INNER_MULTI_DISPATCH\x01%LMQ%a",
    ),
    *("día\x01中文", "E\x01\U0001f600", "N\x01a\0b", 'Q\x01"x\\y/', "T\x01\t\n\r\b\f", "D\x01\x7f"),
    *("L\x01" + "l" * 3000, "MAX\x01" + "m" * 32_000),
]
NUMBERS = [
    "0",
    "1",
    "3",
    "4",
    "8",
    "-1",
    "+1",
    "01",
    "",
    "x",
    " 1",
    "2147483647",
    "2147483648",
    "-2147483648",
    "-2147483649",
    "9" * 9,
    "9" * 10,
    "9" * 18,
    "9" * 19,
    "9223372036854775807",
    "9223372036854775808",
    "9" * 30,
    "\uff11",
]
FIELDS = {"e": "0", "f": "0", "g": "1700000000000", "h": "0", "d": "4", "j": "0", "l": "16"}


def header_of(rng: Random, opaque: int) -> dict[str, Any]:
    """A header as Java's producer makes it, with up to three changes."""
    pairs = (
        rng.choices(PAIRS[:4], k=rng.randrange(4)) if rng.random() < 0.6 else rng.choices(PAIRS, k=rng.randrange(1, 5))
    )
    if rng.random() < 0.2:
        pairs += rng.choice([["DELAY\x012"], ["DELAY\x014"], ["TRAN_MSG\x01true", "PGROUP\x01PG"]])
        rng.shuffle(pairs)
    ext: dict[str, Any] = {
        "a": "PG", "b": rng.choice([*"TTTUV", LONGEST, TOO_LONG]), "c": "TBW102", "d": "4", "e": str(rng.randrange(4)),
        "f": "0", "g": "1700000000000", "h": "0", "i": "\x02".join(pairs) + rng.choice(["", "", "\x02", "\x02\x02"]),
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    header: dict[str, Any] = {
        "code": 310, "extFields": ext, "flag": rng.choice([0, 0, 0, 2]), "language": "JAVA", "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON", "version": 401,
    }  # fmt: skip
    if "TRAN_MSG\x01true" in pairs and rng.random() < 0.7:
        ext["f"] = rng.choice(["4", "8", "12"])
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        change(rng, header, ext)
    return header


def change(rng: Random, header: dict[str, Any], ext: dict[str, Any]) -> None:
    kind = rng.randrange(12)
    if kind < 4:
        ext[rng.choice(list(FIELDS))] = rng.choice(NUMBERS)
    elif kind == 4:
        ext.pop(rng.choice(list(ext)), None)
    elif kind == 5:
        ext[rng.choice("abckmn")] = rng.choice(
            ["", "true", "false", "TRUE", "None", "T x", "%RETRY%CG", "é", "\ud83d\ude00", "x" * 200]
        )
    elif kind == 6:
        ext["f"] = rng.choice(["1", "2", "4", "8", "12", "16", "32", "48"])
    elif kind == 7:
        header[rng.choice(list(header))] = rng.choice([0, 1, 2, 3, -1, 2**31 - 1, 2**31, 1.5, None, "x", True, [], {}])
    elif kind == 8:
        header[rng.choice(["remark", "more", "ext\x00"])] = rng.choice(["x", 1, None])
    elif kind == 9:
        for name in rng.sample(list(ext), rng.randrange(len(ext) + 1)):
            ext[name] = ext.pop(name)
    elif kind == 10:  # as many properties as there may be, or one byte less or more
        rest = PROPERTIES_MAX - len(ext.get("i", "").encode()) + rng.choice([-1, 0, 1])
        ext["i"] = ext.get("i", "") + "\x02FILL\x01" + "f" * (rest - 6)
    else:  # as many fields as the compiled module reads, or one less or more
        for number in range(FIELDS_MAX - len(ext) + rng.choice([-1, 0, 1])):
            ext[f"more{number}"] = "x"


def frame(rng: Random, opaque: int) -> bytes:
    header = header_of(rng, opaque)
    compact = rng.random() < 0.93
    text = json.dumps(header, separators=(",", ":") if compact else (", ", ": "), ensure_ascii=rng.random() < 0.5)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        data = data.replace(b'"e":', b'"e":"1","e":', 1)
    edges = [0, 1, BODY_MAX - 1, BODY_MAX, BODY_MAX + 1]
    body = rng.choice([b"body", b"\0" * 7, bytes(range(256)), b"x" * 9000, *(b"x" * size for size in edges)])
    return encode_frame(0, data, body)


def spoilt(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(min(len(data), 700))
    return data[:at] + rng.choice([b"", rng.randbytes(1), b'"', b"\\", b"\0", b"\xff"]) + data[at + rng.randrange(3) :]


def is_bad(data: bytes) -> bool:
    """Whether it ends the connection."""
    try:
        decode_commands(FrameDecoder(1 << 30).feed(data))
    except BadFrame:
        return True
    return False


def reads_of(rng: Random) -> list[bytes]:
    """The bytes of some reads. A frame that may end the connection comes alone: frames before it are handled or not."""
    reads: list[bytes] = []
    for number in range(rng.randrange(3, 20)):
        frames = [frame(rng, number * 100 + n) for n in range(rng.choice([1, 1, 2, 8, 40]))]
        bad = [each for each in frames if is_bad(each)]
        if bad:
            reads += bad
            continue
        if rng.random() < 0.15:
            data = spoilt(rng, frames[0])
            size = 4 + int.from_bytes(data[:4], "big")
            if not is_bad(data) or is_bad(data[:size]):
                reads.append(data)
            if size > len(data):  # it takes what follows for its own
                break
            continue
        data = b"".join(frames)
        cut = rng.randrange(len(data)) if rng.random() < 0.5 else 0
        reads += [data[:cut], data[cut:]] if cut else [data]
    return reads


def plain_reads(rng: Random) -> list[bytes]:
    """The bytes of some reads of a producer that sends a few messages at a time."""
    reads = []
    for number in range(rng.randrange(3, 20)):
        frames = []
        for n in range(rng.choice([1, 1, 3])):
            ext = FIELDS | {"a": "PG", "b": rng.choice("TU"), "c": "TBW102", "e": str(rng.randrange(4))}
            ext |= {"i": "\x02".join(rng.sample(PAIRS[:4], 2)), "k": "false", "m": "false"}
            header = {"code": 310, "extFields": ext, "flag": rng.choice([0, 0, 2]), "opaque": number * 100 + n}
            text = json.dumps(header, separators=(",", ":")).encode()
            frames.append(encode_frame(0, text, rng.randbytes(rng.randrange(300))))
        reads.append(b"".join(frames))
    return reads


#: The number of a connection, and bytes that it gets.
Piece = tuple[int, bytes]


#: Makes the bytes of some reads of a connection.
Stream = Callable[[Random], list[bytes]]


def outcome(
    root: Path, seed: int, streams_of: Sequence[Stream], pieces: list[list[Piece]] | None = None
) -> tuple[list[list[Piece]], Any]:
    """What a broker gets from some connections, in which pieces of their reads, turn by turn; and what comes of it.

    :param streams_of: one of them makes the reads of a connection.
    :param pieces: what it gets, by the general path; None for reads that the seed chooses, by the compiled one.
    """
    rng = Random(seed)
    flush = rng.choice([*FlushDiskType])
    store = {"flush_disk_type": flush, "mapped_file_size_commit_log": rng.choice([1 << 18, 1 << 20])}
    bench = Bench(root, store=store, region_id=rng.choice(["DefaultRegion", 'a"}é\\']))
    client = bench.client()
    for topic in ("T", "U", LONGEST):
        assert client.send(topic)[0].code == 0
    ends = [End(cast(IPv4Address, V6) if rng.random() < 0.1 else CLIENT, SERVER) for _ in range(rng.choice([1, 4, 4]))]
    protocols: list[Any] = [bench.factory.buildProtocol(CLIENT) for _ in ends]
    for protocol, end in zip(protocols, ends, strict=True):
        protocol.makeConnection(end)
    given: list[list[Piece]] = []
    if pieces is None:
        streams = [rng.choice(streams_of)(rng) for _ in ends]
        pauses = [rng.choice([0, 0, 0.5]) for _ in range(max(map(len, streams)))]
        for turn, pause in enumerate(pauses):
            reads = [(n, stream[turn]) for n, stream in enumerate(streams) if turn < len(stream)]
            given.append(deliver(bench, protocols, ends, reads))
            bench.turn(pause)
    else:
        for _ in ends:  # leave the generator where it was left before
            rng.choice(streams_of)(rng)
        bench.table.plain.clear()
        for together in pieces:
            for number, data in together:
                protocols[number].dataReceived(data)
            bench.turn(rng.choice([0, 0, 0.5]))
    heard = []
    for end in ends:
        heard.append(said(decode_commands(FrameDecoder(1 << 30).feed(bytes(end.written)))))
    bench.turn(1)
    bench.close()
    counts = [bench.parts.stats.view("TOPIC_PUT_NUMS", topic) for topic in ("T", "U", LONGEST)]
    return given, (heard, [[end.closing is not None for end in ends], counts], files_of(root))


def deliver(bench: Bench, protocols: list[Any], ends: list[End], reads: list[Piece]) -> list[Piece]:
    """Hand over the reads of a turn, as a poll of all sockets does; returns the pieces in which they were handled."""
    reads = [(number, data) for number, data in reads if ends[number].closing is None]
    pieces: list[Piece] = []
    plain = bench.table.plain

    def recording(handler: Any) -> Any:
        def take(given: Any) -> Any:
            taken = handler(given)
            for (data, at, connection), (stop, _) in zip(given, taken[0] if taken else (), strict=bool(taken)):
                pieces.append((protocols.index(connection), data[at:stop]))
            return taken

        return take

    bench.table.plain = {code: recording(handler) for code, handler in plain.items()}
    left = take_together(bench.factory, [protocols[number] for number, _ in reads], [data for _, data in reads])
    bench.table.plain = {code: plain[code] for code in bench.table.plain}
    rests = [(number, rest) for (number, _), rest in zip(reads, left, strict=True) if rest]
    for number, rest in rests:
        protocols[number].dataReceived(rest)
    return [(number, data) for number, data in pieces + rests if data]


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_both_ways_have_the_same_outcome(tmp_path: Path, seed: int) -> None:
    check_both_ways(tmp_path, seed, [reads_of, plain_reads])


def check_both_ways(root: Path, seed: int, streams_of: Sequence[Stream]) -> None:
    pieces, found = outcome(root / "compiled", seed, streams_of)
    _, general = outcome(root / "general", seed, streams_of, pieces)
    assert found[0] == general[0]
    assert found[1] == general[1]
    assert found[2].keys() == general[2].keys()
    for name, data in general[2].items():
        assert found[2][name] == data, name


@pytest.mark.parametrize("left", [-1, 0, 1, 7, 8, 9, 10, 11, 100])
def test_both_ways_end_a_segment_at_the_same_byte(tmp_path: Path, left: int) -> None:
    """:param left: bytes that the last record would leave of the segment."""
    segment = 1 << 18
    found = []
    for is_compiled in (True, False):
        root = tmp_path / str(is_compiled)
        bench = Bench(root, store={"mapped_file_size_commit_log": segment})
        assert bench.client().send("T")[0].code == 0
        end = End(CLIENT, SERVER)
        protocol: Any = bench.factory.buildProtocol(CLIENT)
        protocol.makeConnection(end)
        if not is_compiled:
            bench.table.plain.clear()

        def send(size: int) -> int:
            """Returns where the log ends then."""
            ext = FIELDS | {"a": "PG", "b": "T", "c": "TBW102", "i": "", "k": "false", "m": "false"}
            header = {"code": 310, "extFields": ext, "flag": 0, "opaque": 1}
            data = encode_frame(0, json.dumps(header, separators=(",", ":")).encode(), b"x" * size)
            assert deliver(bench, [protocol], [end], [(0, data)]) == [(0, data)]  # noqa: B023
            bench.turn(0)  # noqa: B023
            return bench.store.log_end  # noqa: B023

        begin = send(0)
        at = send(0)
        overhead = at - begin
        while segment - at > BODY_MAX:
            at = send(60_000)
        ends = [at, send(segment - at - overhead - left), send(1)]
        heard = said(decode_commands(FrameDecoder(1 << 30).feed(bytes(end.written))))
        bench.turn(1)
        bench.close()
        found.append((ends, heard, files_of(root)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("properties", "is_taken"),
    [
        ("TAGS\x01A\x02DELAY\x013\x02WAIT\x01true", True),
        ("DELAY\x0119", False),
        ("WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01PG", True),
        ("TRAN_MSG\x01true", False),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG\x02DELAY\x011", False),
        ("TRAN_MSG\x01false\x02PGROUP\x01PG", False),
        ("CLUSTER\x01mine", False),
        ("DELAY\x011\x02REAL_TOPIC\x01T", False),
        ("DELAY\x011\x02REAL_QID\x011", False),
        ("TIMER_DELAY_MS\x015000", False),
        ("DELAY\x011\x02TIMER_DELAY_SEC\x015", False),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG\x02TIMER_DELIVER_MS\x015", False),
        ("TIMER_OUT_MS\x015", True),
    ],
)
@pytest.mark.parametrize("rejects_halves", [False, True])
def test_which_delayed_and_half_messages_are_taken(
    tmp_path: Path, properties: str, is_taken: bool, rejects_halves: bool
) -> None:
    bench = Bench(tmp_path, reject_transaction_message=rejects_halves)
    for _ in range(2):  # the first creates the topic
        assert bench.client().send("T")[0].code == 0
    protocol: Any = bench.factory.buildProtocol(CLIENT)
    protocol.makeConnection(End(CLIENT, SERVER))
    ext = FIELDS | {"a": "PG", "b": "T", "c": "TBW102", "i": properties, "k": "false", "m": "false"}
    header = {"code": 310, "extFields": ext, "flag": 0, "opaque": 1}
    frame = encode_frame(0, json.dumps(header, separators=(",", ":")).encode())
    is_taken = is_taken and not (rejects_halves and "TRAN_MSG" in properties)
    assert take_together(bench.factory, [protocol], [frame]) == [b"" if is_taken else frame]
    bench.close()
