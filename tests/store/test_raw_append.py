"""A log that is a master's: in whatever pieces it comes, the records are the same, and nothing else is appended."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.errors import DiskFull, StoreUnwritable
from mqbroker.store import MessageStore, commitlog, segment
from mqbroker.store.message_store import FOLLOWER_DISPATCH_S
from mqbroker.store.raw_append import RECORD_BYTES_MAX, RawAppender
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.record import BLANK_MAGIC, MAGIC, SIZE_AND_MAGIC, BadRecord, NewMessage
from tests.fakes import FaultyFile
from tests.numbers import numbers
from tests.store.harness import BORN, SMALL, Bench, make_bench, message, now, stop, tree, turns

SEGMENT: int = SMALL["mapped_file_size_commit_log"]
HALF = SysFlag.TRANSACTION_PREPARED


def put(raw: RawAppender, offset: int, data: bytes) -> None:
    """Append a piece as a slave does that reads it at once."""
    raw.take(offset, data)
    raw.append()


def messages(count: int = 40, size: int = 5000) -> list[NewMessage]:
    """Of several queues, some with IPv6 hosts, some half messages; they fill more than one segment."""
    return [
        message(
            f"T{n % 3}",
            n % 2,
            b"%02d" % n * (size // 2),
            b"UNIQ_KEY\x01k%02d\x02TAGS\x01t" % n,
            sys_flag=HALF if n % 7 == 6 else 0,
            born_host=BORN if n % 5 else bytes(range(20)),
        )
        for n in range(count)
    ]


def log_of(store: MessageStore, start: int = 0) -> bytes:
    """The bytes of a log from `start` on."""
    raw, data = store.raw_log, b""
    start = max(start, raw.start)
    while start < raw.end:
        end = min(raw.end, start - start % SEGMENT + SEGMENT)
        found = raw.read(start, end - start)
        assert isinstance(found, memoryview)
        data += found
        start = end
    return data


def feed(raw: RawAppender, data: bytes, start: int = 0, piece: int = 1000) -> None:
    for at in range(0, len(data), piece):
        put(raw, start + at, data[at : at + piece])


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MessageStore]:
    bench = make_bench(tmp_path / "master")
    store = bench.open()
    for each in messages():
        store.append([each])
        bench.clock.advance(0.01)
    yield store
    bench.close()


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path / "slave")
    yield bench
    bench.close()


@pytest.mark.parametrize("piece", [1, 7, 1000, 32 * 1024, 1 << 20])
def test_the_log_is_the_masters_and_its_messages_are_found(master: MessageStore, slave: Bench, piece: int) -> None:
    store, log = slave.open(), log_of(master)
    assert len(log) > SEGMENT
    store.start()
    feed(store.follow(), log, piece=piece)
    turns(slave.clock, 1.0)
    master.dispatch_now()
    assert log_of(store) == log
    for topic, queue_id in [(f"T{n}", queue_id) for n in range(3) for queue_id in range(2)]:
        theirs, ours = now(master).get(topic, queue_id, 0, 32), now(store).get(topic, queue_id, 0, 32)
        assert b"".join(ours.pieces) == b"".join(theirs.pieces) != b""
    for n in range(40):
        key = f"k{n:02d}"
        found = now(store).query(f"T{n % 3}", key, 9, 0, 2**62)
        assert len(found) == 1
        assert found == now(master).query(f"T{n % 3}", key, 9, 0, 2**62)
    assert store.stats.corrupt_ranges == 0


def test_who_waits_for_messages_of_a_slave_has_them_soon(master: MessageStore, slave: Bench) -> None:
    store, log = slave.open(), log_of(master)
    store.is_awaited_by({("another", 1): "somebody"})
    store.start()
    raw = store.follow()
    slave.clock.advance(1.0)
    at = 0
    for _ in range(3):
        size: int = SIZE_AND_MAGIC.unpack_from(log, at)[0]
        put(raw, at, log[at : at + size])
        at += size
        slave.clock.advance(1.01 * FOLLOWER_DISPATCH_S)
        assert store.stats.dispatched == at


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(sizes=st.lists(numbers(1, 9000), min_size=1, max_size=40))
def test_pieces_of_any_size_make_the_same_log(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    root = tmp_path_factory.mktemp("stores")
    benches = [make_bench(root / name) for name in ("master", "slave")]
    master, store = (bench.open() for bench in benches)
    master.append(messages(12, 3000))
    raw, log, at = store.follow(), log_of(master), 0
    while at < len(log):
        size = sizes[at % len(sizes)]
        put(raw, at, log[at : at + size])
        at += size
    assert log_of(store) == log
    for bench in benches:
        bench.close()


def test_an_empty_log_begins_where_the_masters_segment_does(master: MessageStore, slave: Bench) -> None:
    store, log = slave.open(), log_of(master)
    store.start()
    raw = store.follow()
    feed(raw, log[SEGMENT:], SEGMENT)
    turns(slave.clock, 1.0)
    assert (store.log_min_offset, log_of(store)) == (SEGMENT, log[SEGMENT:])
    assert now(store).get("T1", 1, store.min_offset("T1", 1), 32).pieces
    names = sorted(path.name for path in (slave.root / "commitlog").iterdir())
    assert names[0] == f"{SEGMENT:020d}"
    stop(store)
    again = slave.open()
    assert (again.log_min_offset, log_of(again)) == (SEGMENT, log[SEGMENT:])
    assert now(again).get("T1", 1, again.min_offset("T1", 1), 32).pieces


def test_a_killed_slave_goes_on_where_it_was(master: MessageStore, slave: Bench) -> None:
    store, log = slave.open(), log_of(master)
    feed(store.follow(), log[: SEGMENT + 20_000])
    after = slave.image("killed")
    again = after.open()
    raw = again.follow()
    assert SEGMENT < raw.end <= SEGMENT + 20_000
    feed(raw, log[raw.end :], raw.end)
    assert log_of(again) == log
    after.close()


def test_a_kill_as_the_log_gets_its_beginning_leaves_a_store_that_opens(master: MessageStore, slave: Bench) -> None:
    store, log = slave.open(), log_of(master)
    raw = store.follow()
    put(raw, SEGMENT, log[SEGMENT : SEGMENT + 10])
    after = slave.image("killed")
    again = after.open()
    assert again.follow().end == SEGMENT
    feed(again.follow(), log[SEGMENT:], SEGMENT)
    assert log_of(again) == log[SEGMENT:]
    after.close()


def test_part_of_a_record_is_forgotten_when_the_link_begins_anew(master: MessageStore, slave: Bench) -> None:
    store, log = slave.open(), log_of(master)
    raw = store.follow()
    put(raw, 0, log[:7000])
    assert 0 < raw.end < 7000
    raw.restart()
    feed(raw, log[raw.end :], raw.end)
    assert log_of(store) == log


def test_the_last_record_is_known_before_and_after_a_start(master: MessageStore, slave: Bench) -> None:
    store, log = slave.open(), log_of(master)
    raw = store.follow()
    assert raw.last_record() is None
    ends = []
    for end in (6000, 40_000, len(log)):
        feed(raw, log[raw.end : end], raw.end)
        raw.restart()
        offset, record = raw.last_record() or (0, b"")
        assert offset + len(record) == raw.end
        assert record == log[offset : raw.end]
        ends.append(raw.end)
    stop(store)
    assert slave.open().follow().last_record() == (offset, record)
    assert len(set(ends)) == 3


def test_a_last_record_that_is_in_no_queue_is_found(slave: Bench) -> None:
    store = slave.open()
    store.append([message(), message(sys_flag=HALF)])
    offset, _ = store.follow().last_record() or (0, b"")
    stop(store)
    assert offset > 0
    assert (slave.open().follow().last_record() or (0, b""))[0] == offset


def test_a_follower_takes_no_messages_of_its_own(slave: Bench) -> None:
    store = slave.open()
    store.follow()
    with pytest.raises(StoreUnwritable, match="its log is its master's"):
        store.append([message()])
    assert store.log_end == 0


def blank(size: int) -> bytes:
    return SIZE_AND_MAGIC.pack(size, BLANK_MAGIC)


def changed(at: int, data: bytes) -> Callable[[bytes], bytes]:
    """The first record with other bytes at one place."""
    return lambda record: record[:at] + data + record[at + len(data) :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: bytes(100),
        lambda record: b"\xff" * 5000,
        lambda record: SIZE_AND_MAGIC.pack(2**32 - 1, MAGIC) + record[8:],
        lambda record: SIZE_AND_MAGIC.pack(2**31 - 1, MAGIC) + record[8:],
        lambda record: SIZE_AND_MAGIC.pack(SEGMENT, MAGIC) + record[8:],
        lambda record: SIZE_AND_MAGIC.pack(5, MAGIC) + record[8:],
        lambda record: SIZE_AND_MAGIC.pack(len(record) + 1, MAGIC) + record[8:] + b"x",
        lambda record: blank(SEGMENT - 1),
        lambda record: blank(8) + record,
        lambda record: blank(2**32 - 8),
        changed(8, b"\1\2\3\4"),  # body's CRC
        changed(20, b"\x7f" + bytes(7)),  # queue offset
        changed(28, b"\0\0\0\0\0\0\0\1"),  # physical offset
        changed(84, b"\x7f\xff\xff\xff"),  # size of the body
        lambda record: record[:-200] + b"/" * 200,
    ],
)
def test_what_is_no_record_is_not_appended(slave: Bench, spoil: Callable[[bytes], bytes]) -> None:
    store = slave.open()
    store.append([message(properties=b"UNIQ_KEY\x01" + b"k" * 180)])
    record = log_of(store)
    stop(store)
    other = make_bench(slave.root.parent / "other")
    copy = other.open()
    raw = copy.follow()
    with pytest.raises(BadRecord, match="at 0"):
        put(raw, 0, spoil(record) + bytes(SEGMENT))
    assert (raw.end, log_of(copy)) == (0, b"")
    raw.restart()
    put(raw, 0, record)
    assert log_of(copy) == record
    other.close()


def test_a_record_may_be_announced_no_larger_than_memory_allows(slave: Bench) -> None:
    slave.changes["mapped_file_size_commit_log"] = 2 * RECORD_BYTES_MAX
    raw = slave.open().follow()
    with pytest.raises(BadRecord):
        put(raw, 0, SIZE_AND_MAGIC.pack(RECORD_BYTES_MAX + 1, MAGIC))


def test_a_piece_elsewhere_is_not_appended(master: MessageStore, slave: Bench) -> None:
    raw, log = slave.open().follow(), log_of(master)
    put(raw, 0, log[:6000])
    for offset in (0, 5999, 6001, -1, 2**63 - 1):
        with pytest.raises(BadRecord, match="does not continue the log"):
            put(raw, offset, log[:10])
    put(raw, 6000, log[6000:])
    assert raw.end == len(log)


@pytest.mark.parametrize("offset", [1, SEGMENT - 1, 2**62 + 8, -1])
def test_a_master_with_other_segments_is_refused(slave: Bench, offset: int) -> None:
    store = slave.open()
    with pytest.raises(BadRecord, match="set mappedFileSizeCommitLog"):
        put(store.follow(), offset, b"x")
    assert store.log_end == 0


def test_a_master_with_larger_segments_is_refused_where_the_first_ends(slave: Bench, tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "large", mapped_file_size_commit_log=2 * SEGMENT)
    large = bench.open()
    large.append([message(body=b"x" * 5000) for _ in range(40)])
    found = large.raw_log.read(0, large.log_end)
    assert isinstance(found, memoryview)
    log = bytes(found)
    store = slave.open()
    with pytest.raises(BadRecord, match=r"the master's log has no record at \d+: \d+ bytes, with \d+ left"):
        put(store.follow(), 0, log)
    assert SEGMENT - 6000 < store.log_end < SEGMENT
    bench.close()


def test_a_disk_that_is_full_is_told_and_recovers(master: MessageStore, slave: Bench) -> None:
    store, log = slave.open(), log_of(master)
    raw = store.follow()
    slave.disk.faults.room = 0
    with pytest.raises(DiskFull):
        feed(raw, log)
    assert raw.why_refused
    assert 0 < raw.end < SEGMENT
    raw.restart()
    with pytest.raises(StoreUnwritable, match="there is no room for the next segment"):
        feed(raw, log[raw.end :], raw.end)
    raw.restart()
    slave.disk.faults.room = None
    store.start()
    turns(slave.clock, 2.0)
    feed(raw, log[raw.end :], raw.end)
    assert log_of(store) == log


def test_a_log_that_cannot_be_renamed_stays_empty(
    master: MessageStore, slave: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = slave.open(), log_of(master)
    raw = store.follow()

    def refuse(old: str, new: str) -> None:
        raise OSError(errno.EIO, "Input/output error", new)

    with monkeypatch.context() as patched:
        patched.setattr(slave.disk, "rename", refuse)
        with pytest.raises(StoreUnwritable, match="cannot begin at"):
            put(raw, SEGMENT, log[SEGMENT:])
    raw.restart()
    assert raw.end == 0
    put(raw, SEGMENT, log[SEGMENT:])
    assert log_of(store) == log[SEGMENT:]


def test_a_stopped_slave_leaves_what_its_master_would(master: MessageStore, slave: Bench) -> None:
    store, log = slave.open(), log_of(master)
    store.start()
    feed(store.follow(), log)
    turns(slave.clock, 1.0)
    master.dispatch_now()
    stop(store)
    stop(master)
    theirs, ours = (tree(root) for root in (slave.root.parent / "master", slave.root))
    for name in {f"commitlog/{SEGMENT:020d}"} | {name for name in theirs if name.startswith("consumequeue/")}:
        assert ours[name] == theirs[name]


@pytest.mark.parametrize("written_bytes", [0, 16_384])
def test_no_zeros_are_written_over_records_that_come_before_the_worker_does(
    master: MessageStore, slave: Bench, monkeypatch: pytest.MonkeyPatch, written_bytes: int
) -> None:
    monkeypatch.setattr(commitlog, "WRITTEN_BYTES", written_bytes)
    for name, size in (("FILL_BYTES", 1024), ("FILL_SYNC_BYTES", 4096), ("FILL_AHEAD_BYTES", 8192)):
        monkeypatch.setattr(segment, name, size)
    store, log = slave.open(), log_of(master)[: SEGMENT // 2]
    raw = store.follow()
    slave.worker.at_once = False
    for at in range(0, len(log), 6000):
        store._commit_log.prepare_next()
        put(raw, at, log[at : at + 6000])
        if at % 4000 == 0:
            slave.worker.work()
    slave.worker.work()
    assert log_of(store) == log[: raw.end]


@pytest.mark.parametrize("failing", [1, 2])
def test_records_that_are_written_in_part_are_followed_by_none_of_them(
    master: MessageStore, slave: Bench, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """As a master it would append before them, and a start after a kill would take them for its own."""
    monkeypatch.setattr(commitlog, "WRITTEN_BYTES", 0)
    store, log = slave.open(), log_of(master)
    raw, whole = store.follow(), 6 * 5_100
    put(raw, 0, log[: whole // 2])
    end, calls = raw.end, 0
    write = FaultyFile.write_at

    def fail(file: FaultyFile, offset: int, data: memoryview) -> None:
        nonlocal calls
        calls += 1
        if calls >= failing:
            write(file, offset, data[: len(data) // 2])
            raise OSError(errno.EIO, "Input/output error", file.path)
        write(file, offset, data)

    monkeypatch.setattr(FaultyFile, "write_at", fail)
    raw.restart()
    raw.take(end, log[end:whole])
    with pytest.raises(StoreUnwritable, match=r"the master's messages cannot be written .*Input/output error"):
        raw.append()
    assert raw.end == end
    data = (slave.root / "commitlog" / f"{0:020d}").read_bytes()
    assert data[:end] == log[:end]
    assert data[end:].strip(b"\0") == b""
    monkeypatch.undo()
    raw.restart()
    put(raw, end, log[end:])
    assert log_of(store) == log


def test_a_small_piece_is_copied_to_no_page_that_the_disk_cannot_read(
    master: MessageStore, slave: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To touch one would end the process."""
    store, log = slave.open(), log_of(master)
    raw = store.follow()

    def fail(file: FaultyFile, offset: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error", file.path)

    monkeypatch.setattr(commitlog, "read_before_touch", fail)
    raw.take(0, log[:6000])
    with pytest.raises(StoreUnwritable, match=r"where the next message goes .*Input/output error"):
        raw.append()
    assert raw.end == 0
    monkeypatch.undo()
    raw.restart()
    put(raw, 0, log)
    assert log_of(store) == log


@pytest.mark.parametrize(("seconds", "is_written"), [(0.5, False), (30, True)])
def test_zeros_are_not_written_before_a_log_that_is_copied_fast(
    master: MessageStore, slave: Bench, monkeypatch: pytest.MonkeyPatch, seconds: float, is_written: bool
) -> None:
    monkeypatch.setattr(commitlog, "CATCH_UP_BYTES", SEGMENT // 32)
    written: list[str] = []
    monkeypatch.setattr(FaultyFile, "write_zeros", lambda self, offset, size: written.append(self.path))
    store = slave.open()
    store.start()
    data = log_of(master)[: SEGMENT // 2]
    raw = store.follow()
    for at in range(0, len(data), 1000):
        put(raw, at, data[at : at + 1000])
        slave.clock.advance(seconds * 1000 / len(data))
    turns(slave.clock, 0.5)
    assert bool(written) is is_written
    assert slave.disk.names(str(slave.root / "commitlog"))[1:] == [f"{SEGMENT:020d}"]


def test_a_log_that_is_copied_fast_is_until_it_is_four_times_slower(
    master: MessageStore, slave: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a rate near the limit changes the way of the next segment at each look."""
    monkeypatch.setattr(commitlog, "CATCH_UP_BYTES", 40_000)
    store = slave.open()
    store.start()
    data, raw = log_of(master), store.follow()
    rates = [30_000, 50_000, 30_000, 20_000, 5_000, 30_000]
    found, at = [], 0
    for rate in rates:
        put(raw, at, data[at : at + rate])
        at += rate
        slave.clock.advance(commitlog.CATCH_UP_MS / 1000)
        found.append(store._commit_log._is_copied_fast())
    assert found == [False, True, True, True, False, False]
