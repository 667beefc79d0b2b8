"""The compiled walk over records and the general one: the same rows, consume queues and index, whatever the log has.

MQBROKER_TWIN_SEEDS chooses how many logs are made.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from mqbroker.errors import MessageRefused
from mqbroker.kernel import compiled
from mqbroker.store import consumequeue_dispatcher, index, logscan
from mqbroker.store.consumequeue_entry import ENTRY
from mqbroker.store.logscan import scan_bytes
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.tags_codes import TagsCodes
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import Record, decode_raw, encode_record
from tests.seeds import seeds_of_push
from tests.store.harness import make_bench, stop, tree

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60"))
#: Where the body of a record with IPv4 hosts begins.
BODY_AT = 88
BASE = 3 << 20
V6 = ("fe80::1", 10911)
TAGS = ["", "TagA", "TagB", "día", "\U0001f600", "中文", "\0", "a\x01b"]
KEYS = [
    "",
    "k1",
    "k1 k2",
    " k1  k2 ",
    "schlüssel",
    "\U0001f600 x",
    "k\x01v",
    *[" ".join(f"k{n}" for n in range(n)) for n in (31, 40)],
]
NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "XTAGS", "KEYS2", "A", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"]
TOPICS = ["T", "U", "Topic-With_Long%Name|", "SCHEDULE_TOPIC_XXXX", "x" * 127]


@pytest.fixture(params=["compiled", "general"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    chosen: str = request.param
    if chosen == "general":
        use_general(monkeypatch)
    return chosen


def use_general(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (logscan, consumequeue_dispatcher, index):
        monkeypatch.setattr(module, "compiled", None)


def some_properties(rng: Random) -> bytes:
    pairs = []
    for _ in range(rng.choice([0, 1, 2, 4, 6])):
        name = rng.choice(NAMES)
        value = {
            "TAGS": rng.choice(TAGS),
            "DELAY": rng.choice(["1", "2", "18", "19", "99", "0", "x", "", "-1", "+3", "2147483647", "9999999999"]),
            "INNER_MULTI_DISPATCH": rng.choice(["U", "%LMQ%a", "U,T", ""]),
            "INNER_MULTI_QUEUE_OFFSET": rng.choice(["0", "0,0", "x", ""]),
        }.get(name, rng.choice(KEYS))
        pairs.append(f"{name}\x01{value}".encode())
    made = b"\x02".join(pairs) + rng.choice([b"", b"", b"\x02", b"\x02\x02", b"\0"])
    if made and rng.random() < 0.05:
        at = rng.randrange(len(made))
        made = made[:at] + bytes([rng.randrange(256)]) + made[at + 1 :]
    return made


def message(rng: Random) -> tuple[Any, ...]:
    host = bytes(8) if rng.random() < 0.9 else bytes(20)
    sys_flag = rng.choice([0, 0, 0, 0, 4, 8, 12, 1]) | (16 if len(host) == 20 else 0)
    body = rng.choice([b"", b"b", b"body", bytes(300), b"x" * 5000])
    topic = rng.choice(TOPICS).encode()
    return topic, rng.randrange(4), 0, sys_flag, 1, host, 0, 0, body, some_properties(rng)


def make_store(root: Path, seed: int, *, is_multi: bool) -> dict[str, bytes]:
    """The files of a store to which a seed's messages were appended; it is killed and its queues are rebuilt once."""
    rng = Random(seed)
    bench = make_bench(
        root,
        max_index_num=rng.choice([40, 400]),
        max_hash_slot_num=rng.choice([3, 50]),
        enable_multi_dispatch=is_multi,
        enable_lmq=is_multi,
        mapped_file_size_commit_log=1 << 17,
    )
    store = bench.open()
    store.start()
    for _ in range(rng.randrange(1, 12)):
        batch = [message(rng) for _ in range(rng.choice([1, 1, 8, 40]))]
        if is_multi:
            batch = [each for each in batch if each[0] != b"SCHEDULE_TOPIC_XXXX"]
        with contextlib.suppress(MessageRefused):  # it names queues that cannot be
            store.append(batch)
        if rng.random() < 0.6:
            bench.clock.advance(0)
    bench.clock.advance(1)
    stop(store)
    return files_of(root)


def files_of(root: Path) -> dict[str, bytes]:
    """The files that only the messages decide; those of the index are named by the time."""
    files = {
        f"{part}/{name}": data for part in ("commitlog", "consumequeue") for name, data in tree(root / part).items()
    }
    index_files = tree(root / "index")
    return files | {f"index/{number}": data for number, data in enumerate(index_files.values())}


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_stores_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    with monkeypatch.context() as patched:
        use_general(patched)
        general = make_store(tmp_path / "general", seed, is_multi=seed % 4 == 3)
    assert make_store(tmp_path / "compiled", seed, is_multi=seed % 4 == 3) == general
    assert any("commitlog" in name for name in general)


def records(rng: Random, count: int) -> bytes:
    data = b""
    for number in range(count):
        properties = {
            name: value for name, value in [("TAGS", rng.choice(TAGS[:6])), ("K", "v" * rng.randrange(50))] if value
        }
        record = Record(
            topic=rng.choice(TOPICS), queue_id=rng.randrange(3), queue_offset=number, physical_offset=BASE + len(data),
            store_size=0, flag=0, sys_flag=rng.choice([0, 4, 8, 12]), born_timestamp=1,
            born_host=rng.choice([("1.2.3.4", 5), ("1.2.3.4", 5), V6]), store_timestamp=1_795_255_600_000 + number,
            store_host=rng.choice([("1.2.3.4", 5), ("1.2.3.4", 5), V6]), body_crc=0, reconsume_times=0,
            prepared_offset=0, body=rng.randbytes(rng.choice([0, 1, 7, 8, 9, 64, 1000])), properties=properties,
        )  # fmt: skip
        data += encode_record(record)
    return data


def spoilt(rng: Random, data: bytes) -> bytes:
    kind = rng.randrange(4)
    at = rng.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + rng.randbytes(1) + data[at + 1 :]
    if kind == 2:
        return (
            data[:at]
            + rng.choice([b"\0" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + b"\0" * 7])
            + data[at + 8 :]
        )
    return data


def plain_rows(data: bytes) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    at = 0
    while isinstance(item := logscan.scan_at(memoryview(data), at, BASE + at), logscan.Scanned):
        rows.append(tuple(item))
        at += item.size
    return rows


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_the_same_records_are_found(seed: int) -> None:
    rng = Random(seed)
    whole = records(rng, rng.choice([1, 5, 30]))
    for _ in range(40):
        data = spoilt(rng, whole)
        wanted = plain_rows(data)
        run = scan_bytes(data, BASE)
        found = [logscan.Scanned._make(row) for row in run.rows]
        # Light queues' topics may have other characters, which the general path looks at.
        assert found == wanted[: len(found)]
        assert len(found) == len(wanted) or not wanted[len(found)][0].isascii()
        assert run.count == len(found)
        assert run.end == (wanted[-1][3] + wanted[-1][4] if wanted else BASE)
        assert run.newest_ms == max([0, *[row.store_timestamp_ms for row in found]])
        assert run.has_nul or not any(b"\0" in row.properties for row in found)


#: Store times as a hostile master or a corrupt file may have them.
TIMES = [-(2**63), -(2**63) + 1, -(2**62), -1001, -1, 0, 1, 999, 1000, 1001, 2_147_483_647_999, 2_147_483_648_000]
TIMES += [1_795_255_600_000, 2**62, 2**63 - 1001, 2**63 - 1]


def at_times(rng: Random, count: int, properties: dict[str, str], topic: str) -> bytes:
    """Records of one queue with store times of any order."""
    data = b""
    for number in range(count):
        record = Record(
            topic=topic, queue_id=0, queue_offset=number, physical_offset=len(data), store_size=0, flag=0, sys_flag=0,
            born_timestamp=1, born_host=("1.2.3.4", 5), store_timestamp=rng.choice(TIMES), store_host=("1.2.3.4", 5),
            body_crc=0, reconsume_times=0, prepared_offset=0, body=b"", properties=properties,
        )  # fmt: skip
        data += encode_record(record)
    return data


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_an_index_of_messages_of_any_time_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = Random(seed)
    data = at_times(rng, rng.choice([2, 3, 30, 50]), {"KEYS": "k"}, "T")
    found = []
    for is_general in (False, True):
        with monkeypatch.context() as patched:
            if is_general:
                use_general(patched)
            directory = tmp_path / str(is_general)
            made = index.Index(OsDisk(), str(directory), 3, 40, lambda ahead_ms: f"{1 + ahead_ms:017d}")
            made.add(scan_bytes(data, 0))
            assert made.offset == len(data)
            made.write_header()
            for file in made.files:
                file.file.close()
            found.append(tree(directory))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_the_entries_of_delayed_messages_of_any_time_are_the_same(seed: int) -> None:
    rng = Random(seed)
    delays_ms = [1000, 2**40, 2**62]
    data = at_times(rng, 30, {"DELAY": str(rng.choice([1, 2, 3, 9]))}, "SCHEDULE_TOPIC_XXXX")
    entries = compiled.QueueEntries(lambda topic, queue_id: ("queue", 0, True), delays_ms, False)
    _, taken, [(_, packed, count, *_)] = entries.take(data, 0, len(data), 0)
    assert taken == count == 30
    codes = TagsCodes(delays_ms)
    general = [ENTRY.pack(row[3], row[4], codes.of(True, row[7], row[6])) for row in scan_bytes(data, 0).rows]
    assert packed == b"".join(general)


def test_tags_that_differ_before_the_last_message_differ() -> None:
    """A held pull of one tag is answered by what a run says of its tags."""
    one = Record(
        topic="T", queue_id=0, queue_offset=0, physical_offset=0, store_size=0, flag=0, sys_flag=0, born_timestamp=1,
        born_host=("1.2.3.4", 5), store_timestamp=1, store_host=("1.2.3.4", 5), body_crc=0, reconsume_times=0,
        prepared_offset=0, body=b"", properties={},
    )  # fmt: skip
    for tags, differ in (("AAA", False), ("ABA", True), ("AAB", True), ("ABB", True), ("A", False)):
        data = b""
        for number, tag in enumerate(tags):
            properties = {"TAGS": tag}
            record = attrs.evolve(one, queue_offset=number, physical_offset=len(data), properties=properties)
            data += encode_record(record)
        entries = compiled.QueueEntries(lambda topic, queue_id: ("queue", 0, False), [], False)
        _, _, [(_, _, count, _, code, is_mixed, _)] = entries.take(data, 0, len(data), 0)
        assert (count, code, is_mixed) == (len(tags), ord("A"), differ)


@pytest.mark.parametrize("first", range(1, 9))
@pytest.mark.parametrize("is_clean", [True, False])
def test_an_index_goes_on_behind_its_newest_message_after_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, is_clean: bool
) -> None:
    """What it is made of again begins with the newest message, whose keys are in it."""
    data = at_times(Random(1), 9, {"KEYS": "k1 k2 k3", "UNIQ_KEY": "u"}, "T")
    begins = [row[3] for row in scan_bytes(data, 0).rows]

    def make(directory: str) -> index.Index:
        return index.Index(OsDisk(), directory, 3, 14, lambda ahead_ms: f"{1 + ahead_ms:017d}")

    found = []
    for is_general in (False, True):
        with monkeypatch.context() as patched:
            if is_general:
                use_general(patched)
            directory = str(tmp_path / str(is_general))
            made = make(directory)
            made.add(scan_bytes(data[: begins[first]], 0))
            for _ in range(2):
                made.write_header()
                for file in made.files:
                    file.file.close()
                made = make(directory)
                made.load()
                made.resume(is_clean)
                made.add(scan_bytes(data[made.offset :], made.offset))
            made.write_header()
            for file in made.files:
                file.file.close()
            found.append(tree(Path(directory)))
    assert found[0] == found[1]
    counts = [int.from_bytes(each[36:40], "big") for each in found[0].values()]
    assert sum(count - 1 for count in counts) == 4 * 9


def key_of_hash(topic: str, wanted: int) -> str:
    """Seven characters with which the key of a topic has a hash of Java's, of 32 bits."""
    rest = (wanted - java_hash(f"{topic}#") * 31**7 - sum(ord("A") * 31**place for place in range(7))) % 2**32
    key = "".join(chr(ord("A") + rest // 31**place % 31) for place in reversed(range(7)))
    assert java_hash(f"{topic}#{key}") % 2**32 == wanted
    return key


@pytest.mark.parametrize("wanted", [2**31, 2**31 + 1, 2**31 - 1, 2**32 - 1, 0])
def test_the_hash_of_a_key_in_the_index_is_positive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    data = at_times(Random(1), 3, {"KEYS": key_of_hash("T", wanted)}, "T")
    found = []
    for is_general in (False, True):
        with monkeypatch.context() as patched:
            if is_general:
                use_general(patched)
            made = index.Index(
                OsDisk(), str(tmp_path / str(is_general)), 3, 40, lambda ahead_ms: f"{1 + ahead_ms:017d}"
            )
            made.add(scan_bytes(data, 0))
            (file,) = made.files
            found.append(bytes(file.file.buffer))
            file.file.close()
    assert found[0] == found[1]
    hashes = {found[0][40 + 3 * 4 + 20 * number :][:4] for number in (1, 2, 3)}
    assert hashes == {abs(wanted - 2**32 * (wanted >> 31)).to_bytes(4, "big") if wanted != 2**31 else bytes(4)}


@pytest.mark.parametrize("base", [0, 1, 1 << 40, 2**63 - 1])
@pytest.mark.parametrize("offset", [-(2**63), -1, 2**63 - 1])
def test_properties_at_an_offset_that_cannot_be_are_none(base: int, offset: int) -> None:
    data = records(Random(1), 1)
    if offset != base:
        assert compiled.properties_of(data, base, [offset], [len(data)]) == [b""]


@pytest.mark.parametrize("size", [*range(150), 255, 256, 257, 1000, 1024, 4095, 65_536, 100_003])
def test_the_checksum_of_a_body_is_that_of_zlib(size: int) -> None:
    one = Record(
        topic="T", queue_id=0, queue_offset=0, physical_offset=BASE, store_size=0, flag=0, sys_flag=0,
        born_timestamp=1, born_host=("1.2.3.4", 5), store_timestamp=1, store_host=("1.2.3.4", 5), body_crc=0,
        reconsume_times=0, prepared_offset=0, body=Random(size).randbytes(size), properties={},
    )  # fmt: skip
    data = encode_record(one)  # its checksum is zlib's
    assert scan_bytes(data, BASE).count == 1
    for at in {0, size // 2, size - 1} if size else ():
        place = BODY_AT + at
        assert scan_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], BASE).count == 0


@pytest.mark.parametrize(("at", "stop"), [(-1, 5), (6, 5), (0, 11), (2**62, 2**62)])
def test_a_range_outside_of_the_bytes_is_refused(at: int, stop: int) -> None:
    data = b"0123456789"
    with pytest.raises(ValueError, match=r"bytes .* of 10"):
        compiled.scan(data, at, stop, 0, 1, True)
    with pytest.raises(ValueError, match=r"bytes .* of 10"):
        compiled.QueueEntries(lambda topic, queue_id: (None, 0, False), [], False).take(data, at, stop, 0)
    with pytest.raises(ValueError, match=r"bytes .* of 10"):
        compiled.index_keys(data, at, stop, 0, bytearray(1000), 5, 2, 9, 0, 1, -1)


@pytest.mark.parametrize(
    ("slots", "number", "number_max"),
    [(5, 1, 9), (0, 2, 9), (-1, 2, 9), (5, 9, 8), (5, 2, 48), (2**40, 2, 9), (2**61, 2, 9), (5, 2, 2**59)],
)
def test_an_index_file_that_cannot_be_is_refused(slots: int, number: int, number_max: int) -> None:
    with pytest.raises(ValueError, match="entries"):
        compiled.index_keys(b"", 0, 0, 0, bytearray(1000), slots, number, number_max, 0, 1, -1)


def test_more_queues_than_one_call_takes(tmp_path: Path) -> None:
    one = Record(
        topic="T", queue_id=0, queue_offset=0, physical_offset=0, store_size=0, flag=0, sys_flag=0, born_timestamp=1,
        born_host=("1.2.3.4", 5), store_timestamp=1, store_host=("1.2.3.4", 5), body_crc=0, reconsume_times=0,
        prepared_offset=0, body=b"", properties={},
    )  # fmt: skip
    data = b""
    for queue_id in range(1000):
        data += encode_record(attrs.evolve(one, queue_id=queue_id, physical_offset=len(data)))
    opened: list[int] = []

    def open_queue(topic: bytes, queue_id: int) -> tuple[int, int, bool]:
        opened.append(queue_id)
        return queue_id, 0, False

    entries = compiled.QueueEntries(open_queue, [], False)
    at = 0
    while at < len(data):
        at, taken, found = entries.take(data, at, len(data), 0)
        assert 0 < taken == len(found) <= 256
    assert opened == list(range(1000))


def test_what_a_callback_raises_comes_out_and_it_goes_on(tmp_path: Path) -> None:
    data = records(Random(1), 3)
    calls: Iterator[bool] = iter([True, False, False, False])

    def open_queue(topic: bytes, queue_id: int) -> tuple[str, int, bool]:
        if next(calls):
            raise OSError("no")
        return "queue", decode_raw(data).queue_offset, False

    entries = compiled.QueueEntries(open_queue, [], False)
    with pytest.raises(OSError, match="no"):
        entries.take(data, 0, len(data), BASE)
    assert entries.take(data, 0, len(data), BASE)[0] > 0


@pytest.mark.parametrize(
    ("function", "rest"),
    [
        ("scan", (0, 0, 0, 1, True)),
        ("record_starts", ()),
        ("wrong_body", ([], [], [])),
        ("read_pairs", ([], [])),
        ("take_messages", (0, Record, "broker-a", b"T", 0, 0)),
        ("take_responses", (0, Record, {}, 0)),
        ("take_stored", ({}, Record, 0)),
        ("index_keys", (0, 0, 0, bytearray(100), 1, 2, 3, 0, 0, -1)),
    ],
)
def test_none_is_no_data(function: str, rest: tuple[Any, ...]) -> None:
    """Its size would be read from what lies behind it."""
    with pytest.raises(TypeError, match=r"NoneType|not be None"):
        getattr(compiled, function)(None, *rest)
