"""The index: hashes as Java's, chains, rolling to new files, times, and what a killed process leaves."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.logger import capturedLogs, formatEvent

from mqbroker.store import MessageStore
from mqbroker.store.dispatch import IDLE_S
from mqbroker.store.index import Index, KeyHasher, positive_hash
from mqbroker.store.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexFile
from mqbroker.store.logscan import Run
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import decode_record
from tests.fakes import FaultyDisk
from tests.store.harness import START_S, Bench, TouchingPages, message, now, run_now, stop, tree

NOW_MS = int(START_S * 1000)


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=4), st.text(max_size=20))
@settings(derandomize=True, database=None, deadline=None)
def test_hashes_are_those_of_topic_and_key(keys: list[str], topic: str) -> None:
    hasher = KeyHasher()
    for key in keys + keys:
        expected = abs(java_hash(f"{topic}#{key}"))
        assert hasher.hash(java_hash(topic + "#"), key.encode()) == (0 if expected == 2**31 else expected)


def test_what_is_kept_of_keys_is_bounded() -> None:
    hasher = KeyHasher()
    for n in range(20_000):
        hasher.hash(0, b"%06d-head-tail" % n)
        hasher.hash(0, bytes(33 + (n // 90**i) % 90 for i in range(4)))
    assert len(hasher.heads) <= 10_000
    assert len(hasher.pairs) == 4096


NO_KEYS = b"WAIT\x01true"
unique_keys = st.one_of(
    st.integers(0, 40).map("7F00000119{:06X}".format),  # so that parts of them come again
    st.text(alphabet="09AZaz\xe9\u4e2d", max_size=6),
)


@given(st.lists(st.one_of(st.none(), unique_keys), min_size=1, max_size=30), st.integers(1, 5))
@example(["0jdpgE3", "0jdpgE3"], 1)  # -2**31 with the topic
@settings(derandomize=True, database=None, deadline=None, max_examples=300)
def test_unique_keys_of_messages_are_hashed_as_any_key(keys: list[str | None], size: int) -> None:
    """Also where parts of a key are known, and after messages that have none."""
    index = Index(FaultyDisk(), "nowhere", 10, 20, str)
    rows: list[tuple[int, int, int]] = []

    def put(found: Sequence[tuple[int, int, int]], end: int) -> None:
        rows.extend(found)
        index.offset = end

    index.put = put  # type: ignore[assignment]
    properties = [NO_KEYS if key is None else f"A\x01b\x02UNIQ_KEY\x01{key}\x02WAIT\x01true".encode() for key in keys]
    scanned = [(b"T", 0, n, n * 100, 100, 0, NOW_MS, each) for n, each in enumerate(properties)]
    for at in range(0, len(keys), size):
        index.add(Run.of_rows(scanned[at : at + size], at * 100))
    assert rows == [(positive_hash(java_hash(f"T#{key}")), n * 100, NOW_MS) for n, key in enumerate(keys) if key]


@pytest.mark.parametrize(
    ("value", "kept"), [(0, 0), (5, 5), (-5, 5), (2**31 - 1, 2**31 - 1), (-(2**31), 0), (2**31, 0), (2**32 - 1, 1)]
)
def test_the_hash_that_has_no_absolute_value_is_0(value: int, kept: int) -> None:
    assert positive_hash(value) == kept


def make_index(root: Path, disk: FaultyDisk | None = None, slots: int = 10, capacity: int = 20) -> Index:
    return Index(disk or FaultyDisk(), str(root), slots, capacity, lambda ahead_ms: f"{20261121100515252 + ahead_ms}")


def offsets_of(index: Index, key: str, begin_ms: int = 0, end_ms: int = 2**62, count: int = 100) -> list[int]:
    return run_now(index.find("T", key, begin_ms, end_ms, count, TouchingPages()))


def put(index: Index, key: str, offset: int, at_ms: int) -> None:
    index.put([(positive_hash(java_hash("T#" + key)), offset, at_ms)], offset + 1)


def test_all_of_a_key_are_found_newest_first_over_files(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for i in range(100):
        put(index, f"k{i % 7}", i * 100, 1_000_000 + i)
    assert [file.count for file in index.files] == [20] * 5 + [6]
    for k in range(7):
        assert offsets_of(index, f"k{k}") == [i * 100 for i in reversed(range(100)) if i % 7 == k]
    assert offsets_of(index, "k1", count=2) == [9900, 9200]
    assert offsets_of(index, "other") == []
    index.write_header()
    again = make_index(tmp_path)
    again.load()
    again.resume(is_clean=True)
    assert offsets_of(again, "k3") == offsets_of(index, "k3")
    assert (again.end_offset, again.end_ms) == (9900, 1_000_099)


def test_times_bound_what_is_found(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for i in range(50):
        put(index, "k", i, 1_000_000_000 + i * 10_000)
    found = offsets_of(index, "k", 1_000_000_000 + 200_000, 1_000_000_000 + 400_000)
    assert found == list(range(40, 19, -1))


def test_collisions_share_a_slot_but_not_a_hash(tmp_path: Path) -> None:
    index = make_index(tmp_path, slots=1)
    for i in range(15):
        put(index, f"k{i}", i, 1000)
    assert [offsets_of(index, f"k{i}") for i in range(15)] == [[i] for i in range(15)]
    # "Aa" and "BB" have one hash: who asks must look at the messages.
    put(index, "Aa", 100, 1000)
    put(index, "BB", 101, 1000)
    assert offsets_of(index, "Aa") == [101, 100]


def test_rows_in_bulk_are_as_one_by_one(tmp_path: Path) -> None:
    rows = [(positive_hash(java_hash(f"T#k{i % 9}")), i, 5_000_000 + i * 700) for i in range(75)]
    one, bulk = make_index(tmp_path / "one"), make_index(tmp_path / "bulk")
    for row in rows:
        one.put([row], row[1] + 1)
    bulk.put(rows[:33], 33)
    bulk.put(rows[33:], 75)
    for index in (one, bulk):
        index.write_header()
    assert tree(tmp_path / "one") == tree(tmp_path / "bulk")
    assert one.offset == bulk.offset == 75


def test_a_query_looks_at_the_messages_and_returns_each_once(bench: Bench) -> None:
    store = bench.open()
    store.start()
    properties = [b"KEYS\x01Aa", b"KEYS\x01BB", b"UNIQ_KEY\x01u\x02KEYS\x01x  u y", b"KEYS\x01y", b"XKEYS\x01y"]
    store.append([message(properties=each) for each in properties] + [message("Other", properties=b"KEYS\x01y")])
    bench.clock.advance(0)

    def found(key: str, topic: str = "T", begin_ms: int = NOW_MS - 1, end_ms: int = NOW_MS + 1) -> list[int]:
        return [decode_record(data).queue_offset for data in now(store).query(topic, key, 10, begin_ms, end_ms)]

    assert found("Aa") == [0]
    assert found("BB") == [1]
    assert found("u") == [2]
    assert found("x") == [2]
    assert found("y") == [2, 3]
    assert found("y", "Other") == [0]
    assert found("y", "None") == []
    assert found("y", begin_ms=NOW_MS + 1, end_ms=NOW_MS + 2000) == []
    assert [decode_record(data).queue_offset for data in now(store).query("T", "y", 1, 0, 2**62)] == [3]
    assert now(store).query("T", "y", 0, 0, 2**62) == now(store).query("T", "y", -1, 0, 2**62) == []


def test_a_query_sees_all_that_was_dispatched(bench: Bench) -> None:
    store = bench.open()
    store.append([message(properties=b"KEYS\x01k")])
    store.dispatch_now()
    assert store.stats.indexed == 0
    assert len(now(store).query("T", "k", 10, 0, 2**62)) == 1


def test_rollbacks_are_not_indexed(bench: Bench) -> None:
    store = bench.open()
    store.start()
    for sys_flag in (4, 8, 12):
        store.append([message(sys_flag=sys_flag, properties=b"UNIQ_KEY\x01u%d" % sys_flag)])
    bench.clock.advance(0)
    assert [len(now(store).query("T", f"u{sys_flag}", 9, 0, 2**62)) for sys_flag in (4, 8, 12)] == [1, 1, 0]


def test_without_an_index_there_is_nothing_to_query(make: Callable[..., Bench]) -> None:
    bench = make(message_index_enable=False)
    store = bench.open()
    store.start()
    store.append([message()])
    bench.clock.advance(1)
    assert now(store).query("T", "7F0000010A2C18B4AAC27D0000000001", 10, 0, 2**62) == []
    stop(store)
    assert not (bench.root / "index").exists()


def test_files_that_were_never_used_hide_no_keys(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for i in range(30):
        put(index, f"k{i % 7}", i * 100, 1_000_000 + i)
    index.write_header()
    used = sorted(path.name for path in tmp_path.iterdir())
    size = (tmp_path / used[0]).stat().st_size
    strays = [str(int(used[0]) - 1), *(str(int(used[-1]) + n) for n in range(1, 4))]
    for name in strays:
        (tmp_path / name).write_bytes(bytes(size))
    again = make_index(tmp_path)
    again.load()
    again.resume(is_clean=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == used
    assert again.drain_new_names() == [str(tmp_path.parent), str(tmp_path)]
    # From a time on at which those files do not begin.
    assert offsets_of(again, "k3", begin_ms=1_000_000) == offsets_of(index, "k3") == [2400, 1700, 1000, 300]
    put(again, "k3", 3000, 1_000_030)
    assert offsets_of(again, "k3", begin_ms=1_000_000)[:2] == [3000, 2400]


@pytest.mark.parametrize("how", ["missing", "zeros"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_file_that_is_lost_is_built_anew(make: Callable[..., Bench], number: int, how: str, is_clean: bool) -> None:
    bench = make(max_hash_slot_num=7, max_index_num=5)
    store = bench.open()
    store.start()
    for key in range(14):
        store.append([message(properties=b"KEYS\x01k%d" % key)])
    bench.clock.advance(20)
    if is_clean:
        stop(store)
    else:
        bench = bench.image("killed")
    files = sorted((bench.root / "index").iterdir())
    assert len(files) == 4
    if how == "missing":
        files[number].unlink()
    else:
        files[number].write_bytes(bytes(files[number].stat().st_size))
    store = bench.open()
    store.start()
    bench.clock.advance(1)
    assert [len(now(store).query("T", f"k{key}", 9, 0, 2**62)) for key in range(14)] == [1] * 14


def test_names_of_deleted_files_are_to_be_synced(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for i in range(30):
        put(index, "k", i * 100, 1_000_000 + i)
    index.write_header()
    again = make_index(tmp_path)
    again.load()
    assert again.drain_new_names() == []
    again.keep_files(lambda file: False)
    assert list(tmp_path.iterdir()) == []
    assert again.drain_new_names() == [str(tmp_path.parent), str(tmp_path)]
    assert again.drain_new_names() == []


def test_a_file_that_goes_on_behind_a_full_one_stays(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for i in range(19):
        put(index, "k", i * 100, 1_000_000 + i)
    index.write_header()
    (full,) = tmp_path.iterdir()
    following = tmp_path / str(int(full.name) + 1)
    following.write_bytes(bytes(full.stat().st_size))
    again = make_index(tmp_path)
    again.load()
    again.resume(is_clean=False)
    assert following.exists()
    assert offsets_of(again, "k", begin_ms=1_000_000) == [i * 100 for i in reversed(range(19))]


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE])
def test_a_file_that_cannot_be_mapped_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    index = make_index(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("mqbroker.store.os_disk.mmap.mmap", refuse(number))
        for _ in range(3):
            with pytest.raises(OSError, match=os.strerror(number)):
                put(index, "k", 0, 1_000_000)
            assert list(tmp_path.iterdir()) == []
    put(index, "k", 0, 1_000_000)
    assert offsets_of(index, "k") == [0]


def refuse(number: int) -> Callable[..., mmap.mmap]:
    def fail(*arguments: object, **options: object) -> mmap.mmap:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("written", range(8))
def test_entries_above_the_header_are_undone(tmp_path: Path, written: int) -> None:
    """A process is killed between entries and header; the file is as if it had not begun."""
    index = make_index(tmp_path)
    rows = [(positive_hash(java_hash(f"T#k{i % 3}")), i + 1, 1000 + i) for i in range(12)]
    index.put(rows[:5], 6)
    index.write_header()
    before = tree(tmp_path)
    if written:
        index.put(rows[5 : 5 + written], 6 + written)
    again = make_index(tmp_path)
    again.load()
    again.resume(is_clean=False)
    assert list(tree(tmp_path).values()) == list(before.values())
    assert again.offset == 5


def test_a_message_whose_keys_end_a_file_is_completed_in_the_next(tmp_path: Path) -> None:
    disk = FaultyDisk()
    index = make_index(tmp_path / "a", disk)
    whole = make_index(tmp_path / "b")
    rows = [(i, 7 if i >= 16 else i // 4, 1000) for i in range(25)]
    whole.put(rows, 8)
    whole.write_header()
    index.put(rows[:16], 4)
    disk.faults.room = 0
    with pytest.raises(OSError) as raised:
        index.put(rows[16:], 8)
    assert raised.value.errno == errno.ENOSPC
    assert index.offset == 7
    disk.faults.room = None
    # From the log the message's rows are made again, those that are in are left out.
    kept = index.resumed
    assert kept == (7, 3)
    index.put(rows[16 + kept[1] :], 8)
    index.write_header()
    assert list(tree(tmp_path / "a").values()) == list(tree(tmp_path / "b").values())


def test_files_of_other_geometry_are_built_anew(make: Callable[..., Bench]) -> None:
    bench = make()
    store = bench.open()
    store.start()
    store.append([message(properties=b"KEYS\x01k%d" % i) for i in range(10)])
    bench.clock.advance(0)
    stop(store)
    bench.changes["max_index_num"] = 50
    store = bench.open()
    store.start()
    bench.clock.advance(0)
    assert len(now(store).query("T", "k3", 10, 0, 2**62)) == 1
    assert [path.stat().st_size for path in (bench.root / "index").iterdir()] == [40 + 400 + 1000]


@pytest.mark.parametrize("point", ["create_mapped", "_add_file", "put_rows"])
def test_a_killed_process_may_leave_the_next_file_at_any_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It is gone on with after the last message of the file before, and ends as if nobody had been killed."""
    rows = [(i, 7 if i >= 16 else i // 4, 1000) for i in range(25)]
    whole = make_index(tmp_path / "b")
    whole.put(rows, 8)
    whole.write_header()
    index = make_index(tmp_path / "a")
    index.put(rows[:16], 4)
    index.write_header()
    owner = {"create_mapped": FaultyDisk, "_add_file": Index, "put_rows": IndexFile}[point]
    real = getattr(owner, point)

    def killed(self: object, *arguments: object, **options: object) -> object:
        result = real(self, *arguments, **options)
        if len(list((tmp_path / "a").iterdir())) == 2:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patched:
        patched.setattr(owner, point, killed)
        with pytest.raises(KeyboardInterrupt):
            index.put(rows[16:], 8)
    again = make_index(tmp_path / "a")
    again.load()
    again.resume(is_clean=False)
    assert again.offset == 7
    again.put(again_rows(again, rows), 8)
    again.write_header()
    assert list(tree(tmp_path / "a").values()) == list(tree(tmp_path / "b").values())


def again_rows(index: Index, rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """What is made of the log again from the index's offset on."""
    offset, already = index.resumed
    assert offset == index.offset
    return [row for row in rows if row[1] >= offset][already:]


def test_keys_of_the_newest_message_are_counted_over_files(tmp_path: Path) -> None:
    rows = [(i, 7 if i >= 16 else i // 4, 1000) for i in range(25)]
    index = make_index(tmp_path)
    index.put(rows, 8)
    index.write_header()
    again = make_index(tmp_path)
    again.load()
    again.resume(is_clean=False)
    assert again_rows(again, rows) == []


def query(store: MessageStore, key: str, count: int = 64, begin_ms: int = 0, end_ms: int = 2**62) -> list[int]:
    """Queue offsets of what a query finds, the newest first."""
    return [decode_record(data).queue_offset for data in now(store).query("T", key, count, begin_ms, end_ms)][::-1]


def colliding(count: int) -> list[str]:
    """Keys of one hash: "Aa" and "BB" have the same, and so have all that are made of them."""
    keys = ["".join(parts) for parts in itertools.product(("Aa", "BB"), repeat=7)][:count]
    assert len({java_hash("T#" + key) for key in keys}) == 1
    return keys


def test_a_message_is_found_behind_any_number_of_others_with_its_hash(bench: Bench) -> None:
    """Who gives many messages keys that share a hash must not hide those of others."""
    keys = colliding(128)
    store = bench.open()
    for key in keys:
        store.append([message(properties=b"KEYS\x01" + key.encode())])
    store.dispatch_now()
    for wanted in (0, 1, 64, 126, 127):
        assert query(store, keys[wanted], count=1) == [wanted]
        assert query(store, keys[wanted]) == [wanted]
    store.append([message(properties=b"KEYS\x01" + keys[3].encode())])
    store.dispatch_now()
    assert query(store, keys[3], count=1) == [128]
    assert query(store, keys[3]) == [128, 3]


def test_a_query_looks_at_no_more_than_it_may(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbroker.store.queries.CANDIDATES_MAX", 100)
    keys = colliding(128)
    store = bench.open()
    store.append([message(properties=b"KEYS\x01" + key.encode()) for key in keys])
    store.dispatch_now()
    assert query(store, keys[28], count=1) == [28]
    assert query(store, keys[27], count=1) == []


def test_keys_of_other_topics_do_not_collide_by_name(bench: Bench) -> None:
    """Topic and key are hashed as one text: "T#x" + "y" and "T" + "x#y" differ only by where the topic ends."""
    store = bench.open()
    store.append([message("A", properties=b"KEYS\x01b#c"), message("Aa", properties=b"KEYS\x01k")])
    store.append([message("BB", properties=b"KEYS\x01k")])
    store.dispatch_now()
    assert [decode_record(data).topic for data in now(store).query("Aa", "k", 9, 0, 2**62)] == ["Aa"]
    assert [decode_record(data).topic for data in now(store).query("BB", "k", 9, 0, 2**62)] == ["BB"]
    assert now(store).query("A#b", "c", 9, 0, 2**62) == []


def keyed(i: int) -> bytes:
    """A unique key and 0 to 4 keys, one of which every third message shares."""
    keys = [f"k{i}-{n}" for n in range(i % 4)] + [f"third{i % 3}"]
    return f"UNIQ_KEY\x01unique{i}\x02KEYS\x01{' '.join(keys)}".encode()


def rows_of(i: int) -> int:
    return 2 + i % 4


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_messages_of_several_keys_over_many_files(make: Callable[..., Bench], batch: int) -> None:
    """Files end between the keys of a message; each key is found, and a rebuild makes the same bytes."""
    bench = make(max_index_num=50, max_hash_slot_num=7)
    store = bench.open()
    store.start()
    for start in range(0, 300, batch):
        store.append([message(properties=keyed(i)) for i in range(start, min(start + batch, 300))])
        bench.clock.advance(0.125)
    files = store._index.files if store._index is not None else []
    ends = set(itertools.accumulate(file.count - 1 for file in files))
    begins = set(itertools.accumulate(map(rows_of, range(300))))
    assert len(files) == 22
    assert len(ends - begins) > 10
    for i in range(300):
        assert query(store, f"unique{i}") == [i]
        assert all(query(store, f"k{i}-{n}") == [i] for n in range(i % 4))
    assert query(store, "third1", count=100) == list(range(298, -1, -3))
    assert query(store, "third1", count=5) == [298, 295, 292, 289, 286]
    stop(store)
    before = list(tree(bench.root / "index").values())
    shutil.rmtree(bench.root / "index")
    store = bench.open()
    store.start()
    for _ in range(10):
        bench.clock.advance(0.01)
    stop(store)
    assert list(tree(bench.root / "index").values()) == before


def test_time_windows_over_many_files(make: Callable[..., Bench]) -> None:
    """One message each 0.4 s, 12 in a file: any window finds what was stored in it, to the millisecond."""
    bench = make(max_index_num=25)
    store = bench.open()
    store.start()
    times = []
    for i in range(120):
        bench.clock.advance(0.4)
        times.append(store.append([message(properties=b"KEYS\x01k %d" % i)])[0][3])
    bench.clock.advance(IDLE_S)
    assert store._index is not None
    assert len(store._index.files) == 10
    points = [0, 1, 11, 12, 13, 23, 60, 95, 96, 118, 119]
    for first, last in itertools.combinations_with_replacement(points, 2):
        inside = list(range(last, first - 1, -1))
        assert query(store, "k", 200, times[first], times[last]) == inside
        assert query(store, "k", 200, times[first] + 1, times[last] + 1) == inside[:-1]
        assert query(store, "k", 200, times[first] - 1, times[last] - 1) == inside[1:]
    assert query(store, "k", 200, times[119] + 1, 2**62) == []
    assert query(store, "k", 200, 0, times[0] - 1) == []


def test_a_key_twice_in_a_message_finds_it_once(bench: Bench) -> None:
    store = bench.open()
    store.append([message(properties=b"UNIQ_KEY\x01k\x02KEYS\x01k k") for _ in range(3)])
    store.dispatch_now()
    assert query(store, "k") == [2, 1, 0]
    assert query(store, "k", count=2) == [2, 1]


@pytest.mark.parametrize("how", ["stopped", "killed", "killed, of another boot"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "page",
    [bytes(40), b"\xa5\x17\xff\x80" * 10, b"\x17\xa5\0\0" * 120],
    ids=["zeros", "garbage in the header", "garbage in all"],
)
def test_an_index_whose_headers_do_not_agree_with_its_entries_is_built_anew(
    make: Callable[..., Bench], page: bytes, number: int, how: str
) -> None:
    bench = make(max_index_num=20, max_hash_slot_num=10)
    store = bench.open()
    store.start()
    store.append([message(properties=b"KEYS\x01k%d" % (n % 5)) for n in range(45)])
    bench.clock.pump([0.5] * 30)
    found = [now(store).query("T", f"k{n}", 64, 0, 2**62) for n in range(5)]
    assert [len(records) for records in found] == [9] * 5
    names = sorted(os.listdir(bench.root / "index"))
    assert len(names) == 3
    image = bench
    if how == "stopped":
        stop(store)
    else:
        image = bench.image("killed")
        image.disk.boot = b"another boot" if "another" in how else bench.disk.boot
    path = image.root / "index" / names[number]
    path.write_bytes(page + path.read_bytes()[len(page) :])
    again = image.open()
    again.start()
    image.clock.pump([0.5] * 3)
    assert [now(again).query("T", f"k{n}", 64, 0, 2**62) for n in range(5)] == found
    stop(again)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("at", "bad"),
    [
        (HEADER_BYTES, b"\x17\xa5\0\0" * 10),
        (HEADER_BYTES + 10 * SLOT_BYTES + 2 * ENTRY_BYTES, bytes(40)),
        (HEADER_BYTES + 10 * SLOT_BYTES + 2 * ENTRY_BYTES, b"\x17\xa5\0\0" * 10),
    ],
    ids=["slots", "entries of zeros", "entries of garbage"],
)
def test_damage_that_a_query_meets_is_told_once_and_mended_by_the_next_start(
    make: Callable[..., Bench], at: int, bad: bytes, number: int
) -> None:
    bench = make(max_index_num=20, max_hash_slot_num=10)
    store = bench.open()
    store.start()
    store.append([message(properties=b"KEYS\x01k%d" % (n % 5)) for n in range(45)])
    bench.clock.pump([0.5] * 30)
    found = [now(store).query("T", f"k{n}", 64, 0, 2**62) for n in range(5)]
    assert [len(records) for records in found] == [9] * 5
    path = bench.root / "index" / sorted(os.listdir(bench.root / "index"))[number]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bad)
    with capturedLogs() as events:
        fewer = [now(store).query("T", f"k{n}", 64, 0, 2**62) for n in range(5)]
    assert sum(map(len, fewer)) < 45
    assert all(set(some) <= set(whole) for some, whole in zip(fewer, found, strict=True))
    (told,) = [formatEvent(event) for event in events]
    assert told.startswith(f"{path} is damaged at byte ")
    stop(store)
    again = bench.open()
    again.start()
    bench.clock.pump([0.5] * 3)
    assert [now(again).query("T", f"k{n}", 64, 0, 2**62) for n in range(5)] == found
    stop(again)
