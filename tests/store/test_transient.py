"""The transient store pool: what waits in memory is not seen, is committed in time, and is in the file afterwards."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.errors import StoreBusy, StoreUnwritable
from mqbroker.store import MessageStore
from mqbroker.store.disk import IMappedFile
from mqbroker.store.dispatch import BUSY_S
from mqbroker.store.get_message_result import GetMessageStatus
from mqbroker.wire.record import decode_record, decode_records
from tests.remoting.logs import log_kept
from tests.store.harness import Bench, make_bench, message, now, stop, turns

SEGMENT = 64 * 1024


class Pool:
    """A store with a pool, on a worker that waits to be told."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.bench: Bench = make_bench(
            root,
            **{"transient_store_pool_enable": True, "mapped_file_size_commit_log": SEGMENT, "max_index_num": 4000}
            | changes,
        )
        self.store: MessageStore = self.bench.open()
        self.store.start()

    def bodies(self) -> list[bytes]:
        found: list[bytes] = []
        while True:
            result = now(self.store).get("T", 0, len(found), 32)
            if result.status is not GetMessageStatus.FOUND:
                return found
            found += [record.body for piece in result.pieces for record in decode_records(piece)]

    def append(self, *bodies: bytes) -> None:
        self.store.append([message(body=body) for body in bodies])


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path / "store")


def test_what_waits_in_memory_is_neither_read_nor_in_the_file(pool: Pool) -> None:
    pool.append(b"first")
    turns(pool.bench.clock)
    assert pool.store.log_end == 0
    assert pool.store.max_offset("T", 0) == 0
    assert now(pool.store).get("T", 0, 0, 1).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert not any((pool.bench.root / "commitlog" / f"{0:020d}").read_bytes())


def test_few_bytes_are_committed_after_the_interval(pool: Pool) -> None:
    pool.append(b"first")
    turns(pool.bench.clock, 0.19)
    assert pool.bodies() == []
    turns(pool.bench.clock, 0.02)
    assert pool.bodies() == [b"first"]
    assert now(pool.store).record(0) is not None


def test_who_waits_for_messages_has_them_as_soon_as_they_are_committed(pool: Pool) -> None:
    pool.store.is_awaited_by({("T", 0): "somebody"})
    for count in (15, 30):
        pool.append(*[b"x" * 1500] * 15)
        for _ in range(3):
            pool.bench.clock.advance(0)
        assert len(pool.bodies()) == count


def test_four_pages_are_committed_at_once(pool: Pool) -> None:
    pool.append(*[b"x" * 1000] * 20)
    pool.bench.clock.advance(0)
    pool.bench.clock.advance(0)
    assert len(pool.bodies()) == 20


def test_only_what_was_committed_is_flushed(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "store", mapped_file_size_commit_log=2 * SEGMENT)  # the next one is not wanted yet
    pool.bench.worker.at_once = False
    pool.append(*[b"x" * 1000] * 20)
    pool.bench.clock.advance(0)
    flushed: list[None] = []
    pool.store.durable(pool.store.stats.dispatched + 20_000).addCallback(flushed.append)
    assert len(pool.bench.worker.waiting) == 1
    assert pool.store.flushed == 0
    pool.bench.worker.step()
    end = pool.store.log_end
    assert end > 20_000
    pool.bench.worker.step()
    assert pool.store.flushed == end
    assert flushed == [None]


def test_messages_that_come_during_a_commit_are_in_the_next(pool: Pool) -> None:
    pool.bench.worker.at_once = False
    pool.append(*[b"x" * 1000] * 20)
    pool.bench.clock.advance(0)
    pool.append(*[b"y" * 1000] * 20)
    pool.bench.worker.step()
    pool.bench.clock.advance(0)
    assert pool.bodies() == [b"x" * 1000] * 20
    assert pool.store.max_offset("T", 0) == 20
    while pool.bench.worker.waiting:  # the next segment is made as well
        pool.bench.worker.step()
        pool.bench.clock.advance(BUSY_S)
    assert pool.bodies() == [b"x" * 1000] * 20 + [b"y" * 1000] * 20


@pytest.mark.parametrize("buffers", [1, 2])
def test_segments_roll_and_their_buffers_come_back(tmp_path: Path, buffers: int) -> None:
    pool = Pool(tmp_path / "store", transient_store_pool_size=buffers, fast_fail_if_no_buffer_in_store_pool=True)
    sent = []
    for number in range(400):
        sent.append(b"%d " % number + b"x" * 1000)
        pool.append(sent[-1])
        turns(pool.bench.clock, 0.25)
    assert pool.store.log_end > 5 * SEGMENT
    turns(pool.bench.clock, 1)
    assert pool.bodies() == sent
    stop(pool.store)
    rebuilt = pool.bench.image("rebuilt")
    rebuilt.disk.remove_tree(str(rebuilt.root / "consumequeue"))
    pool.store = rebuilt.open()
    assert pool.bodies() == sent
    assert not pool.store.corrupt_ranges


def test_without_a_free_buffer_messages_go_into_the_file(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "store", transient_store_pool_size=1)
    pool.bench.worker.at_once = False
    sent = [b"%d " % number + b"x" * 1000 for number in range(150)]
    for body in sent:
        pool.append(body)
    assert any((pool.bench.root / "commitlog" / f"{SEGMENT:020d}").read_bytes())
    assert pool.store.log_end == 0
    pool.bench.worker.at_once = True
    while pool.bench.worker.waiting:
        pool.bench.worker.step()
    turns(pool.bench.clock, 1)
    assert pool.bodies() == sent


def test_without_a_free_buffer_messages_are_refused_where_that_is_set(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "store", transient_store_pool_size=1, fast_fail_if_no_buffer_in_store_pool=True)
    fit = SEGMENT // (1000 + len(message()[9]) + 92)
    for _ in range(fit):
        pool.append(b"x" * 1000)
    with pytest.raises(StoreBusy, match="wait to be written"):
        pool.append(b"x" * 1000)
    turns(pool.bench.clock, 1)
    assert pool.bodies() == [b"x" * 1000] * fit
    pool.append(b"y" * 1000)


def _has_no_memory_for_buffers(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(pool.bench.disk, "make_buffer", refuse)


def test_without_memory_for_a_buffer_messages_go_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(tmp_path / "store")
    pool.bench.worker.at_once = False
    _has_no_memory_for_buffers(pool, monkeypatch)
    sent = [b"%d " % number + b"x" * 1000 for number in range(150)]
    pool.append(*sent)  # over three segments
    assert any((pool.bench.root / "commitlog" / f"{SEGMENT:020d}").read_bytes())
    pool.bench.worker.at_once = True
    while pool.bench.worker.waiting:
        pool.bench.worker.step()
    turns(pool.bench.clock, 1)
    assert pool.bodies() == sent


def test_without_memory_for_a_buffer_a_batch_is_refused_as_a_whole_where_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(tmp_path / "store", fast_fail_if_no_buffer_in_store_pool=True)
    sent = [b"%d " % number + b"x" * 1000 for number in range(150)]
    pool.append(sent[0])
    with monkeypatch.context() as short:
        _has_no_memory_for_buffers(pool, short)
        with pytest.raises(StoreBusy, match="there is no memory"):
            pool.append(*sent[1:])
    turns(pool.bench.clock, 1)
    assert pool.bodies() == sent[:1]
    pool.append(*sent[1:])
    turns(pool.bench.clock, 1)
    assert pool.bodies() == sent


def test_a_store_opens_without_memory_for_a_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(tmp_path / "store")
    stop(pool.store)
    _has_no_memory_for_buffers(pool, monkeypatch)
    pool.store = pool.bench.open()
    pool.store.start()
    pool.append(b"first")
    turns(pool.bench.clock, 1)
    assert pool.bodies() == [b"first"]


def test_stopping_commits_what_is_left(pool: Pool) -> None:
    pool.append(b"first")
    pool.bench.worker.at_once = False
    turns(pool.bench.clock, 0.3)
    pool.append(b"second")
    pool.bench.worker.at_once = True
    stopped: list[None] = []
    pool.store.stop().addCallback(stopped.append)
    while pool.bench.worker.waiting:
        pool.bench.worker.step()
    assert stopped == [None]
    pool.store = pool.bench.open()
    assert pool.bodies() == [b"first", b"second"]


def test_a_kill_takes_only_what_was_not_committed(pool: Pool) -> None:
    pool.append(b"first")
    turns(pool.bench.clock, 0.5)
    pool.append(b"second")
    killed = pool.bench.image("killed")
    pool.store = killed.open()
    pool.store.start()
    turns(killed.clock)
    assert pool.bodies() == [b"first"]
    pool.append(b"third")
    turns(killed.clock, 0.5)
    assert pool.bodies() == [b"first", b"third"]


def test_a_failed_commit_stops_writing_and_says_what_is_lost(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.append(b"first")
    turns(pool.bench.clock, 0.5)

    def fail(self: IMappedFile, offset: int, data: memoryview) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("tests.fakes.FaultyFile.write_at", fail)
    pool.append(b"second")
    turns(pool.bench.clock, 0.5)
    with pytest.raises(StoreUnwritable, match=r"bytes that were acknowledged are lost: .*Input/output error"):
        pool.append(b"third")
    assert pool.bodies() == [b"first"]
    stop(pool.store)


def test_a_listener_that_fails_keeps_neither_readers_nor_messages_waiting(pool: Pool) -> None:
    def fail() -> None:
        raise MemoryError

    transient: Any = pool.store._transient
    transient.on_commit.insert(0, fail)
    for body in (b"first", b"second"):
        pool.bench.worker.at_once = False
        pool.append(body)
        turns(pool.bench.clock, 0.25)
        pool.append(b"behind " + body)  # while the first is being committed
        waiter = transient.commit_to(pool.store._commit_log.end)
        with log_kept() as logged:
            pool.bench.worker.at_once = True
            pool.bench.worker.work()
            turns(pool.bench.clock, 0.25)
        assert waiter.called
        assert transient.committed == pool.store._commit_log.end
        assert MemoryError in [failure.type for failure in logged.failures]
    assert pool.bodies() == [b"first", b"behind first", b"second", b"behind second"]
    stop(pool.store)


@pytest.mark.parametrize("changes", [{"flush_disk_type": "SYNC_FLUSH"}, {"broker_role": "SLAVE"}])
def test_the_pool_is_not_used_where_someone_counts_on_the_disk(tmp_path: Path, changes: dict[str, str]) -> None:
    from mqbroker.config import BrokerRole, FlushDiskType

    kinds = {"flush_disk_type": FlushDiskType, "broker_role": BrokerRole}
    pool = Pool(tmp_path / "store", **{key: kinds[key](value) for key, value in changes.items()})
    pool.append(b"first")
    pool.bench.clock.advance(0)
    assert pool.bodies() == [b"first"]


def looked_for(pool: Pool, offset: int) -> list[bytes | None]:
    """What a query by offset finds, once it is answered."""
    found: list[bytes | None] = []
    Deferred.fromCoroutine(pool.store.queries.record(offset)).addBoth(found.append)
    return found


def test_what_is_looked_for_is_committed_at_once_and_found(pool: Pool) -> None:
    """Each time again: it was acknowledged."""
    for number in range(3):
        place = pool.store._commit_log.end
        pool.append(b"%d" % number, b"behind it")
        found = [looked_for(pool, place) for _ in range(2)]
        assert [[decode_record(record or b"").body for record in each] for each in found] == [[b"%d" % number]] * 2
        # What nobody looks for waits as before.
        pool.append(b"later")
        pool.bench.clock.advance(0)
        assert len(pool.bodies()) == 3 * number + 2
        turns(pool.bench.clock, 0.5)


def test_what_is_looked_for_during_a_commit_is_in_the_next(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "store")
    pool.bench.worker.at_once = False
    pool.append(b"first")
    first = looked_for(pool, 0)
    place = pool.store._commit_log.end
    pool.append(b"second")
    second = looked_for(pool, place)
    assert (first, second) == ([], [])
    while not first:
        pool.bench.worker.step()
    assert second == []
    while not second:
        pool.bench.worker.step()
    assert decode_record(second[0] or b"").body == b"second"
    pool.bench.worker.at_once = True
    pool.bench.worker.work()


@pytest.mark.parametrize("offset", [1 << 40, -1])
def test_what_is_not_there_is_not_waited_for(pool: Pool, offset: int) -> None:
    pool.append(b"first")
    assert looked_for(pool, offset) == [None]
    assert looked_for(pool, pool.store._commit_log.end) == [None]
    pool.bench.clock.advance(0)
    assert pool.store.log_end == 0


def test_a_query_ends_when_the_commit_that_it_waits_for_fails(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: IMappedFile, offset: int, data: memoryview) -> None:
        raise OSError(errno.EIO, "Input/output error")

    pool.append(b"first")
    with monkeypatch.context() as patch:
        patch.setattr("tests.fakes.FaultyFile.write_at", fail)
        assert looked_for(pool, 0) == [None]
    assert looked_for(pool, 0) == [None]
    stop(pool.store)


def test_a_query_ends_when_the_store_stops(pool: Pool) -> None:
    pool.append(b"first")
    found = looked_for(pool, 0)
    stop(pool.store)
    assert len(found) == 1
