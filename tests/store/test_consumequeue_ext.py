"""The extension of consume queues: units and addresses as Java's, files that roll, and what other bytes do."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent
from zope.interface import implementer

from mqbroker.errors import StoreDamaged
from mqbroker.store import GetMessageResult, GetMessageStatus, MessageStore
from mqbroker.store.consumequeue_ext import (
    ADDRESS_MAX,
    ALLOCATE_BYTES,
    OFFSET_MAX,
    ConsumeQueueExt,
    ExtUnit,
    decorate,
    is_address,
    undecorate,
)
from mqbroker.store.file_cache import FileCache
from mqbroker.store.property_filter import IPropertyFilter
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import decode_records
from tests.fakes import FaultyDisk, FaultyFile
from tests.numbers import numbers
from tests.store.harness import START_S, Bench, message, now, stop, tree, turns

NOW_MS = int(START_S * 1000)
FILE_BYTES = 1024
STEP_S = 1 / 128
PER_FILE = 51  # units of 20 bytes before the four that stay free
ENTRY = Struct(">qiq")


def make_ext(root: Path, disk: FaultyDisk | None = None) -> ConsumeQueueExt:
    return ConsumeQueueExt(FileCache(disk or FaultyDisk(), 2), str(root / "ext" / "T" / "0"), FILE_BYTES, set())


def fill(ext: ConsumeQueueExt, count: int) -> list[int]:
    addresses = [ext.put(i, 1000 + i) for i in range(count)]
    assert None not in addresses
    return [address for address in addresses if address is not None]


# Addresses and units


def test_addresses_are_below_all_tags_codes() -> None:
    assert decorate(0) == -(2**63)
    assert undecorate(-(2**63)) == 0
    assert decorate(77) == -(2**63) + 77
    assert undecorate(77) == 77
    assert is_address(ADDRESS_MAX)
    assert not is_address(-(2**31))
    assert decorate(OFFSET_MAX) == ADDRESS_MAX == -(2**31) - 1


def test_a_unit_is_laid_out_as_javas(tmp_path: Path) -> None:
    ext = make_ext(tmp_path)
    assert ext.put(-5, 0x0102030405060708, b"\xaa\xbb") == -(2**63)
    assert ext.put(java_hash("TagA"), 7) == -(2**63) + 22
    (file,) = tree(tmp_path).values()
    assert len(file) == FILE_BYTES
    first = b"\0\x16" + b"\xff" * 7 + b"\xfb" + bytes(range(1, 9)) + b"\0\x02\xaa\xbb"
    second = b"\0\x14" + java_hash("TagA").to_bytes(8, "big", signed=True) + bytes(7) + b"\x07" + b"\0\0"
    assert file == (first + second).ljust(FILE_BYTES, b"\0")
    assert ext.unit(decorate(0)) == ExtUnit(-5, 0x0102030405060708, b"\xaa\xbb")
    assert ext.unit(decorate(22)) == ExtUnit(java_hash("TagA"), 7, b"")
    assert (ext._first, ext.end) == (0, 42)


def test_a_unit_that_does_not_fit_begins_the_next_file(tmp_path: Path) -> None:
    ext = make_ext(tmp_path)
    addresses = fill(ext, 2 * PER_FILE + 1)
    assert [undecorate(address) for address in addresses[: PER_FILE + 1]] == [*range(0, 1020, 20), FILE_BYTES]
    files = tree(tmp_path / "ext" / "T" / "0")
    assert list(files) == [f"{base:020d}" for base in (0, 1024, 2048)]
    assert [file[1020:] for file in files.values()] == [b"\xff\xff\0\0", b"\xff\xff\0\0", bytes(4)]
    assert [unit.tags_code for unit in map(ext.unit, addresses) if unit] == list(range(2 * PER_FILE + 1))


@pytest.mark.parametrize(("bit_map_bytes", "place"), [(0, 1000), (1, FILE_BYTES), (4, FILE_BYTES)])
def test_the_last_four_bytes_of_a_file_stay_free(tmp_path: Path, bit_map_bytes: int, place: int) -> None:
    ext = make_ext(tmp_path)
    fill(ext, 50)
    assert ext.put(1, 2, bytes(bit_map_bytes)) == decorate(place)


def test_the_mark_at_the_end_of_a_file_has_a_block_behind_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    blocks = 5 * ALLOCATE_BYTES
    ext = ConsumeQueueExt(FileCache(disk, 2), str(tmp_path / "ext" / "T" / "0"), blocks + 10, set())
    fill(ext, blocks // 20)
    disk.faults.room = 0
    with pytest.raises(OSError):
        ext.put(1, 2)
    assert ext.end == blocks
    disk.faults.room = None
    assert ext.put(1, 2) == decorate(blocks + 10)


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False), (40_000, False)])
def test_a_unit_larger_than_a_file_or_than_any_has_no_address(tmp_path: Path, size: int, fits: bool) -> None:
    ext = make_ext(tmp_path)
    assert (ext.put(1, 2, bytes(size)) == decorate(0)) is fits
    assert ext.end == (1020 if fits else 0)
    large = ConsumeQueueExt(FileCache(FaultyDisk(), 2), str(tmp_path / "large" / "T" / "0"), 1 << 20, set())
    assert (large.put(1, 2, bytes(32767 - 20)), large.put(1, 2, bytes(32767 - 19))) == (decorate(0), None)


def test_a_full_disk_stops_a_unit_with_nothing_written(tmp_path: Path) -> None:
    disk = FaultyDisk()
    ext = make_ext(tmp_path, disk)
    disk.faults.room = 0
    for _ in range(2):
        with pytest.raises(OSError):
            ext.put(1, 2)
    assert ext.end == 0
    disk.faults.room = None
    assert fill(ext, PER_FILE)[0] == decorate(0)
    disk.faults.room = 0
    for _ in range(2):
        with pytest.raises(OSError):
            ext.put(8, 9)
    disk.faults.room = None
    assert ext.put(8, 9) == decorate(1024)


@given(st.binary(max_size=80), numbers(0, 1100))
@settings(derandomize=True, database=None, deadline=None)
def test_no_bytes_are_an_error(data: bytes, at: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        ext = make_ext(Path(root))
        fill(ext, 60)
        path = Path(root) / "ext" / "T" / "0" / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(min(at, FILE_BYTES - len(data)))
            file.write(data)
        for offset in range(2100):
            unit = ext.unit(decorate(offset))
            assert unit is None or (
                offset % FILE_BYTES + unit.size <= FILE_BYTES - 4 and not is_address(unit.tags_code)
            )
        ext.close()


# Cutting


def loaded(root: Path) -> ConsumeQueueExt:
    ext = make_ext(root)
    ext.load()
    return ext


def test_what_is_above_the_newest_address_is_cut_off(tmp_path: Path) -> None:
    addresses = fill(make_ext(tmp_path), 2 * PER_FILE + 10)
    ext = loaded(tmp_path)
    assert ext.end == 3 * FILE_BYTES
    assert ext.truncate_by_max(addresses[PER_FILE + 2])
    assert ext.end == FILE_BYTES + 60
    assert len(ext.drain_unsynced()) == 1
    files = tree(tmp_path / "ext" / "T" / "0")
    assert list(files) == [f"{0:020d}", f"{1024:020d}"]
    assert not any(files[f"{1024:020d}"][60:])
    assert ext.unit(addresses[PER_FILE + 3]) is None
    assert ext.put(0, 0) == addresses[PER_FILE + 3]
    # The last unit of a file leaves the file after it empty, which goes.
    assert ext.truncate_by_max(addresses[PER_FILE - 1])
    assert list(tree(tmp_path / "ext" / "T" / "0")) == [f"{0:020d}"]
    assert not ext.truncate_by_max(decorate(5000))
    assert not ext.truncate_by_max(77)
    assert ext.end == 1020


def test_files_before_the_oldest_address_are_forgotten(tmp_path: Path) -> None:
    ext = make_ext(tmp_path)
    addresses = fill(ext, 3 * PER_FILE)
    directory = tmp_path / "ext" / "T" / "0"
    assert ext.truncate_by_min(addresses[PER_FILE - 1]) == []
    assert ext.truncate_by_min(addresses[PER_FILE]) == []  # as in Java: not before one unit of the next is gone too
    assert ext.truncate_by_min(17) == []
    assert ext.truncate_by_min(addresses[PER_FILE + 1]) == [str(directory / f"{0:020d}")]
    assert ext._first == 1024
    assert ext.unit(addresses[0]) is None
    assert ext.unit(addresses[PER_FILE]) == ExtUnit(PER_FILE, 1000 + PER_FILE, b"")
    assert [Path(file.path).name for file in ext.drain_unsynced()] == [f"{1024:020d}", f"{2048:020d}"]
    assert len(ext.truncate_by_min(decorate(2**40))) == 1  # the last one stays
    assert ext.put(5, 6) == decorate(3072)


def test_files_after_a_gap_are_no_use(tmp_path: Path) -> None:
    addresses = fill(make_ext(tmp_path), 3 * PER_FILE)
    directory = tmp_path / "ext" / "T" / "0"
    (directory / f"{1024:020d}").unlink()
    (directory / f"{3072:020d}").touch()
    ext = loaded(tmp_path)
    assert [path.name for path in directory.iterdir()] == [f"{0:020d}"]
    assert ext.unit(addresses[5]) is not None
    assert ext.unit(addresses[PER_FILE]) is None


@pytest.mark.parametrize(("name", "size"), [("notes", 5), (f"{1000:020d}", FILE_BYTES), (f"{1024:020d}", 500)])
def test_foreign_files_are_not_taken(tmp_path: Path, name: str, size: int) -> None:
    fill(make_ext(tmp_path), 3)
    path = tmp_path / "ext" / "T" / "0" / name
    path.write_bytes(bytes(size))
    with pytest.raises(StoreDamaged, match="mappedFileSizeConsumeQueueExt") as raised:
        loaded(tmp_path)
    assert raised.value.path == str(path)


# In a store


@pytest.fixture
def on(make: Callable[..., Bench]) -> Bench:
    return make(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=FILE_BYTES)


def send(
    bench: Bench, store: MessageStore, count: int, tags: tuple[str, ...] = ("A", "B", "C"), topic: str = "T"
) -> None:
    for i in range(count):
        bench.clock.advance(STEP_S)
        store.append([message(topic, i % 2, properties=b"TAGS\x01" + tags[i % len(tags)].encode())])
    store.dispatch_now()


def codes_of(root: Path, topic: str = "T", queue_id: int = 0) -> list[int]:
    data = b"".join(tree(root / "consumequeue" / topic / str(queue_id)).values())
    return [code for _, size, code in ENTRY.iter_unpack(data) if size]


def units_of(root: Path, topic: str = "T", queue_id: int = 0) -> bytes:
    return b"".join(tree(root / "consumequeue_ext" / topic / str(queue_id)).values())


def found(store: MessageStore, *tags: str, topic: str = "T", queue_id: int = 0) -> list[int]:
    wanted = frozenset(map(java_hash, tags)) if tags else None
    result = now(store).get(topic, queue_id, 0, 32, 1 << 20, wanted)
    return [record.queue_offset for record in decode_records(b"".join(result.pieces))]


def test_entries_have_addresses_and_gets_filter_by_what_stands_there(on: Bench) -> None:
    store = on.open()
    send(on, store, 30)
    stop(store)
    assert codes_of(on.root) == [decorate(20 * i) for i in range(15)]
    times = [int((START_S + (2 * i + 1) * STEP_S) * 1000) for i in range(15)]
    units = [(20, java_hash("ACB"[i % 3]), times[i], 0) for i in range(15)]
    assert list(Struct(">hqqh").iter_unpack(units_of(on.root)[:300])) == units
    assert not any(units_of(on.root)[300:])
    store = on.open()
    assert found(store, "A") == [0, 3, 6, 9, 12]
    assert found(store, "A", "B") == [i for i in range(15) if i % 3 != 1]
    assert found(store) == list(range(15))
    assert now(store).get("T", 0, 0, 32, None, frozenset([5])).status is GetMessageStatus.NO_MATCHED_MESSAGE


def test_the_time_a_delayed_message_is_due_stands_in_its_unit(on: Bench) -> None:
    store = on.open()
    store.append([message("SCHEDULE_TOPIC_XXXX", 1, properties=b"DELAY\x012\x02TAGS\x01A")])
    stop(store)
    unit = Struct(">hqqh").unpack_from(units_of(on.root, "SCHEDULE_TOPIC_XXXX", 1))
    assert unit == (20, NOW_MS + 5000, NOW_MS, 0)


def test_ipv6_hosts_do_not_hide_the_store_time(on: Bench) -> None:
    store = on.open()
    store.append([message(born_host=bytes(20), properties=b"TAGS\x01A")])
    stop(store)
    assert Struct(">hqqh").unpack_from(units_of(on.root)) == (20, java_hash("A"), NOW_MS, 0)


def test_listeners_are_told_the_tags_code(on: Bench) -> None:
    store = on.open()
    told: list[Any] = []
    store.on_dispatch.append(lambda *args: told.append(args))
    store.append([message(properties=b"TAGS\x01A")])
    store.dispatch_now()
    assert told == [("T", 0, 1, java_hash("A"), NOW_MS)]


def all_but_times(root: Path) -> dict[str, bytes]:
    """All files but those which say when queues were written to."""
    return {path: data for path, data in tree(root).items() if not path.startswith("queueEnds")}


@pytest.mark.parametrize("gone", [("consumequeue",), ("consumequeue_ext",), ("consumequeue", "consumequeue_ext")])
def test_a_rebuild_is_byte_for_byte_the_same(on: Bench, gone: tuple[str, ...]) -> None:
    store = on.open()
    send(on, store, 250)
    send(on, store, 9, topic="Other")
    stop(store)
    before = all_but_times(on.root)
    for name in gone:
        shutil.rmtree(on.root / name)
    stop(on.open())
    assert all_but_times(on.root) == before
    assert len([name for name in before if name.startswith("consumequeue_ext/T/0/")]) == 3


@pytest.mark.parametrize("cut", ["last file", "zeros", "first file"])
def test_units_that_are_missing_come_back(on: Bench, cut: str) -> None:
    store = on.open()
    send(on, store, 250)
    stop(store)
    before = all_but_times(on.root)
    paths = sorted((on.root / "consumequeue_ext" / "T" / "0").iterdir())
    if cut == "last file":
        paths[-1].unlink()
    elif cut == "zeros":
        data = paths[-1].read_bytes()
        paths[-1].write_bytes(data[:200].ljust(FILE_BYTES, b"\0"))
    else:
        paths[0].unlink()
    store = on.open()
    assert len(found(store, "A")) == 32
    stop(store)
    assert all_but_times(on.root) == before


def test_after_a_kill_units_above_the_queue_are_cut_off(on: Bench) -> None:
    """The machine lost the queue's newest entries, and none of their units; or the units, and not the entries."""
    store = on.open()
    store.start()
    send(on, store, 100)
    turns(on.clock, 2)
    send(on, store, 100)
    expected = tree(on.root)
    for lost in ("consumequeue", "consumequeue_ext"):
        image = on.image(f"lost {lost}")
        image.disk.boot = b"second boot"
        for path in (image.root / lost).rglob("0*0"):
            if path.is_file():
                data = path.read_bytes()
                half = len(data) // 3
                path.write_bytes(data[:half].ljust(len(data), b"\0"))
        store = image.open()
        assert found(store, "B") == found(on.opened[0], "B")
        stop(store)
        after = tree(image.root)
        for name in expected:
            if name.startswith("consumequeue"):
                assert after[name] == expected[name], (lost, name)


def test_units_are_on_the_disk_before_the_checkpoint_says_so(on: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = on.open()
    store.start()
    on.worker.at_once = False
    send(on, store, 3)
    on.clock.advance(1.1)
    synced: list[str] = []
    on.disk.faults.synced_directories.clear()
    before = (on.root / "checkpoint").read_bytes() if (on.root / "checkpoint").exists() else b""

    ext = store._queues.by_name["T", 0].ext
    assert ext is not None
    file = ext._files[-1]
    original = FaultyFile.sync

    def sync(self: FaultyFile) -> None:
        if self.path == file.path:
            assert not (on.root / "checkpoint").exists() or (on.root / "checkpoint").read_bytes() == before
            synced.append(file.path)
        original(self)

    monkeypatch.setattr(FaultyFile, "sync", sync)
    while on.worker.waiting:
        on.worker.step()
    assert synced == [file.path]
    assert (on.root / "checkpoint").read_bytes() != before
    named = {str(on.root / part) for part in ("", "consumequeue_ext", "consumequeue_ext/T", "consumequeue_ext/T/0")}
    assert {path.rstrip("/") for path in named} <= on.disk.faults.synced_directories


def test_switched_off_all_go_to_the_consumer_and_new_entries_have_their_codes(on: Bench) -> None:
    store = on.open()
    send(on, store, 10)
    stop(store)
    ext_files = tree(on.root / "consumequeue_ext")
    on.changes["enable_consume_queue_ext"] = False
    store = on.open()
    send(on, store, 10)
    assert codes_of(on.root)[5:] == [java_hash(tag) for tag in "ACBAC"]
    # What has an address may have any tag.
    assert found(store, "A") == [0, 1, 2, 3, 4, 5, 8]
    assert found(store) == list(range(10))
    stop(store)
    assert tree(on.root / "consumequeue_ext") == ext_files

    on.changes["enable_consume_queue_ext"] = True
    store = on.open()
    assert found(store, "A") == [0, 3, 5, 8]
    send(on, store, 10)
    assert codes_of(on.root)[10:] == [decorate(100 + 20 * i) for i in range(5)]
    assert found(store, "A") == [0, 3, 5, 8, 10, 13]
    stop(store)
    before = all_but_times(on.root)
    stop(on.open())
    assert all_but_times(on.root) == before


def test_switched_on_over_a_store_without(on: Bench) -> None:
    on.changes["enable_consume_queue_ext"] = False
    store = on.open()
    send(on, store, 10)
    stop(store)
    on.changes["enable_consume_queue_ext"] = True
    store = on.open()
    send(on, store, 4)
    assert codes_of(on.root) == [java_hash(tag) for tag in "ACBAC"] + [decorate(0), decorate(20)]
    assert found(store, "A") == [0, 3, 5]


@implementer(IPropertyFilter)
class WithTag:
    """Wants messages with a tag, and believes units."""

    most_at_once = 100

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def may_match(self, unit: ExtUnit) -> bool:
        return unit.tags_code == java_hash(self._tag)

    def pick(self, messages: Sequence[bytes], most: int) -> list[int]:
        return [at for at, properties in enumerate(messages) if properties.endswith(self._tag.encode())][:most]


def all_with_a(
    get: Callable[..., GetMessageResult | Deferred[GetMessageResult]],
    property_filter: WithTag | None = None,
    count: int = 10,
) -> list[int]:
    """The queue offsets of the messages with tag A, got one after another."""
    wanted = None if property_filter is not None else frozenset([java_hash("A")])
    offset, got = 0, []
    while offset < count:
        result = get("T", 0, offset, 32, 1 << 20, wanted, property_filter)
        if isinstance(result, Deferred):
            assert isinstance(result.result, GetMessageResult)
            result = result.result
        got += [record.queue_offset for record in decode_records(b"".join(result.pieces))]
        assert result.next_offset > offset
        offset = result.next_offset
    return got


def rewrite(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


ROTTEN_UNITS = {
    "zeros": bytes(40),
    "ones": b"\xff" * 40,
    "too long": (b"\x7f\xff" + bytes(18)) * 2,
    "too long a bit map": (b"\0\x14" + bytes(16) + b"\x7f\xff") * 2,
    "too short": (b"\0\x13" + bytes(18)) * 2,
    "of another time": b"".join(Struct(">hqqh").pack(20, java_hash(tag), 5, 0) for tag in "CB"),
    "of another tag": b"".join(Struct(">hqqh").pack(20, java_hash("A"), NOW_MS, 0) for _ in "CB"),
}


def unit_file(bench: Bench) -> Path:
    return bench.root / "consumequeue_ext" / "T" / "0" / f"{0:020d}"


@pytest.mark.parametrize("has_matching", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in ROTTEN_UNITS if "another" not in kind])
def test_rotten_units_that_a_reader_finds_are_built_again(on: Bench, kind: str, has_matching: bool) -> None:
    store = on.open()
    send(on, store, 20)
    rewrite(unit_file(on), 20, ROTTEN_UNITS[kind])
    with capturedLogs() as logs:
        got = all_with_a(store.get, WithTag("A") if has_matching else None)
    assert got == [0, 3, 6, 9]
    (told,) = [formatEvent(entry) for entry in logs if entry["log_level"] is LogLevel.warn]
    assert "entries 1 to 2 were lost and are rebuilt from the log, 0 of them without" in told
    assert codes_of(on.root)[:4] == [decorate(0), java_hash("C"), java_hash("B"), decorate(60)]
    stop(store)
    assert all_with_a(on.open().get) == got


@pytest.mark.parametrize("kind", [kind for kind in ROTTEN_UNITS if "another" in kind])
def test_units_of_other_messages_are_built_again_from_the_log(on: Bench, kind: str) -> None:
    store = on.open()
    send(on, store, 20)
    stop(store)
    rewrite(unit_file(on), 20, ROTTEN_UNITS[kind])
    if kind == "of another time":  # which nobody looks at, but beside one that is missed
        rewrite(unit_file(on), 60, bytes(20))
    assert all_with_a(on.open().get) == [0, 3, 6, 9]
    assert codes_of(on.root)[1:3] == [java_hash("C"), java_hash("B")]


def test_beside_damage_in_the_log_a_rotten_unit_hides_nothing_else(on: Bench) -> None:
    store = on.open()
    send(on, store, 20)
    start, _, _ = store._queues.by_name["T", 0].entry(3)
    stop(store)
    rewrite(unit_file(on), 60, bytes(20))
    rewrite(on.root / "commitlog" / f"{0:020d}", start + 4, b"\xff" * 4)
    assert all_with_a(on.open().get) == [0, 6, 9]


def test_a_full_disk_makes_dispatch_wait_and_loses_no_unit(on: Bench) -> None:
    store = on.open()
    store.start()
    send(on, store, 4)
    on.disk.faults.room = 0
    store.append([message("New", properties=b"TAGS\x01A") for _ in range(5)])
    turns(on.clock, 3)
    assert store.max_offset("New", 0) == 0
    on.disk.faults.room = 1024  # the unit's file has a place, the entry's has not
    turns(on.clock, 3)
    assert store.max_offset("New", 0) == 0
    on.disk.faults.room = None
    turns(on.clock, 3)
    assert found(store, "A", topic="New") == list(range(5))
    assert codes_of(on.root, "New") == [decorate(20 * i) for i in range(5)]


def test_a_larger_queue_than_a_look_is_aligned(on: Bench) -> None:
    on.changes |= {"mapped_file_size_consume_queue": 2000, "mapped_file_size_commit_log": 4 << 20}
    store = on.open()
    store.append([message(properties=b"TAGS\x01A") for _ in range(100)])
    stop(store)
    on.changes["enable_consume_queue_ext"] = False
    store = on.open()
    for _ in range(10):
        store.append([message(properties=b"TAGS\x01B") for _ in range(500)])
    stop(store)
    on.changes["enable_consume_queue_ext"] = True
    store = on.open()
    ext = store._queues.by_name["T", 0].ext
    assert ext is not None
    assert ext.end == 1024 + 49 * 20
