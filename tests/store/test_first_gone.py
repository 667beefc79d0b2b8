"""A log that does not start at 0, and how it comes to be one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqbroker.store import MessageStore
from mqbroker.store.get_message_result import GetMessageStatus
from mqbroker.wire.record import decode_record, decode_records
from tests.store.aging import BODY, HOUR_MS, NOW_HOUR, SEGMENT, a_turn, age, bodies, names, numbered
from tests.store.harness import Bench, message, now, stop, turns

pytestmark = pytest.mark.usefixtures("utc")


def with_first_gone(make: Callable[..., Bench]) -> Bench:
    """A stopped store of messages 8 to 17 of T, one of Rare whose messages are all there, and Gone, whose are not."""
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = bench.open()
    store.start()
    store.append([message("Gone")])
    for i in range(18):
        store.append([message(body=b"%06d" % i + BODY, properties=b"KEYS\x01k%d" % i)])
        bench.clock.advance(0.01)
    store.append([message("Rare", body=b"rare")])
    turns(bench.clock, 3)
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1)
    a_turn(bench)
    stop(store)
    assert names(bench)[0] == "2"
    return bench


def check_first_gone(store: MessageStore) -> None:
    assert store.log_min_offset == 2 * SEGMENT
    assert bodies(store) == numbered(8, 18)
    assert bodies(store, "Rare") == [b"rare"]
    first = now(store).store_timestamp("T", 0, 8)
    assert now(store).earliest_timestamp("T", 0) == first == store.stats.earliest_ms
    assert [now(store).offset_by_time("T", 0, first + add) for add in (-9999, 0, 10, 9999)] == [8, 8, 9, 18]
    assert now(store).get("T", 0, 3, 9).next_offset == 8
    assert now(store).get("T", 0, 3, 9).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert now(store).record(0) is None
    assert now(store).query("T", "k3", 9, 0, 2**62) == []
    assert [decode_record(found).body[:6] for found in now(store).query("T", "k12", 9, 0, 2**62)] == [b"000012"]
    assert store.append([message(), message("Rare")])[1][1] == 1
    store.dispatch_now()
    assert store.max_offset("T", 0) == 19


def test_it_opens_after_a_clean_stop(make: Callable[..., Bench]) -> None:
    store = with_first_gone(make).open()
    check_first_gone(store)
    assert store.append([message("Gone")])[0][1] == 1


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("lost", [bytes(20), b"\xff" * 20, b"\x7f" * 20])
@pytest.mark.parametrize(("first", "count"), [(9, 1), (8, 2), (8, 5), (4, 13), (0, 17), (0, 8)])
def test_lost_entries_hide_no_messages_where_it_begins(
    make: Callable[..., Bench], first: int, count: int, lost: bytes, how: str
) -> None:
    bench = with_first_gone(make)
    if how == "killed":
        (bench.root / "abort").write_bytes(bench.disk.boot)
    with open(bench.root / "consumequeue" / "T" / "0" / f"{0:020d}", "r+b") as file:
        file.seek(20 * first)
        file.write(lost * count)
    store = bench.open()
    found: list[int] = []
    offset = store.min_offset("T", 0)
    while offset < 18:
        got = now(store).get("T", 0, offset, 32)
        found += [record.queue_offset for piece in got.pieces for record in decode_records(bytes(piece))]
        assert got.next_offset > offset
        offset = got.next_offset
    assert found == list(range(8, 18))
    first_ms = now(store).store_timestamp("T", 0, 8)
    assert [now(store).offset_by_time("T", 0, first_ms + add) for add in (0, 10, 9999)] == [8, 9, 18]
    stop(store)


@pytest.mark.parametrize("missing", ["checkpoint", "index", "consumequeue"])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("boot", [b"first boot", b"other boot"])
def test_it_opens_without_what_is_made_of_the_log(
    make: Callable[..., Bench], missing: str, is_killed: bool, boot: bytes
) -> None:
    bench = with_first_gone(make)
    if (bench.root / missing).is_dir():
        bench.disk.remove_tree(str(bench.root / missing))
    else:
        (bench.root / missing).unlink()
    if is_killed:
        (bench.root / "abort").write_bytes(boot)
    store = bench.open()
    store.start()
    turns(bench.clock, 1)
    check_first_gone(store)


def test_it_opens_with_a_checkpoint_from_before(make: Callable[..., Bench]) -> None:
    bench = make(delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1)
    store = bench.open()
    store.start()
    store.append([message(body=b"%06d" % 0 + BODY)])
    turns(bench.clock, 3)
    checkpoint = (bench.root / "checkpoint").read_bytes()
    for i in range(1, 18):
        store.append([message(body=b"%06d" % i + BODY)])
    turns(bench.clock, 3)
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1)
    a_turn(bench)
    for boot in (b"first boot", b"other boot"):
        image = bench.image(boot.decode()[:5])
        (image.root / "checkpoint").write_bytes(checkpoint)
        image.disk.boot = boot
        opened = image.open()
        assert bodies(opened) == numbered(8, 18)
        stop(opened)


def test_every_moment_of_a_deletion_can_be_the_last(make: Callable[..., Bench]) -> None:
    """Kill, and machine stop, after each step of the worker's."""
    bench = make(
        delete_when_hours=(NOW_HOUR,), file_reserved_time_hours=1, clean_resource_interval_ms=4000, max_index_num=100,
        delete_commit_log_files_interval_ms=0, delete_consume_queue_files_interval_ms=0,
    )  # fmt: skip
    store = bench.open()
    store.start()
    for i in range(500):
        store.append([message(body=b"%06d" % i + b"x" * 1000, properties=b"KEYS\x01k%d" % i)])
    turns(bench.clock, 3.9)
    age(bench, 0)
    age(bench, 2 * HOUR_MS, 0, 1, 2)
    bench.worker.at_once = False
    seen = set()
    for step in range(40):
        bench.clock.advance(0.1)
        if bench.worker.waiting:
            bench.worker.step()
        files = sorted(str(path.relative_to(bench.root)) for path in bench.root.rglob("0*"))
        if tuple(files) in seen:
            continue
        seen.add(tuple(files))
        for boot in (b"first boot", b"other boot"):
            image = bench.image(f"{step}-{boot.decode()[:5]}")
            image.disk.boot = boot
            opened = image.open()
            low = opened.min_offset("T", 0)
            assert bodies(opened) == numbered(low, 500)
            assert now(opened).physical_offset("T", 0, low) >= opened.log_min_offset
            assert opened.append([message()])[0][1] == 500
            stop(opened)
            bench.disk.remove_tree(str(image.root))
    assert len(seen) > 6
    bench.worker.at_once = True
    while bench.worker.waiting:
        bench.worker.step()
    assert store.log_min_offset == 3 * SEGMENT
