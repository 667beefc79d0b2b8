"""Appending: the bytes of a record, queue offsets, the end of a segment, and what is refused."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence

import pytest

from mqbroker.errors import MessageRefused, RecordTooLarge, StoreUnwritable
from mqbroker.store.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.record import BLANK_MAGIC, NewMessage, Record, decode_record, encode_host, encode_record
from tests.store.harness import BORN, HOST, START_S, Bench, message, now, turns

NOW_MS = int(START_S * 1000)
V6 = encode_host(("2001:db8::1", 5000))


def expected_record(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "physical_offset": 0,
        "store_size": 0,
        "flag": 7,
        "sys_flag": 0,
        "born_timestamp": 1795255515190,
        "born_host": ("127.0.0.1", 12345),
        "store_timestamp": NOW_MS,
        "store_host": ("127.0.0.1", 10911),
        "reconsume_times": 2,
        "prepared_offset": 9,
        "body": b"body",
        "body_crc": 0,
        "properties": {"UNIQ_KEY": "7F0000010A2C18B4AAC27D0000000001", "TAGS": "TagA"},
        **changes,
    }
    return encode_record(Record(**fields))  # type: ignore[arg-type]


def test_a_record_is_what_the_codec_makes_of_it(bench: Bench) -> None:
    store = bench.open()
    [(offset, queue_offset, size, timestamp)] = store.append([message()])
    assert (offset, queue_offset, timestamp) == (0, 0, NOW_MS)
    assert now(store).record(0) == expected_record()
    assert size == len(expected_record()) == store.log_end


def test_records_follow_one_another_with_offsets_of_their_queues(bench: Bench) -> None:
    store = bench.open()
    appended = store.append([message(), message(queue_id=3), message(), message("Other")])
    assert [row[1] for row in appended] == [0, 0, 1, 0]
    assert [row[0] for row in appended] == [sum(row[2] for row in appended[:i]) for i in range(4)]
    assert store.append([message()])[0][:2] == (sum(row[2] for row in appended), 2)
    for row in appended:
        data = now(store).record(row[0], row[2])
        assert data is not None
        record = decode_record(data)
        assert (record.physical_offset, record.queue_offset) == (row[0], row[1])


def test_an_empty_batch_is_nothing(bench: Bench) -> None:
    store = bench.open()
    assert store.append([]) == []
    assert store.log_end == 0
    store.append([message()])
    store.append([])
    store.dispatch_now()
    assert store.max_offset("T", 0) == 1


@pytest.mark.parametrize("born", [BORN, V6])
@pytest.mark.parametrize("stored", [HOST, V6])
def test_flags_of_ipv6_hosts_follow_the_hosts(make: Callable[..., Bench], born: bytes, stored: bytes) -> None:
    bench = make()
    bench.store_host = stored
    store = bench.open()
    # A peer may send any flags: those of the hosts are ours.
    store.append([message(born_host=born, sys_flag=16 | 32 | 1)])
    data = now(store).record(0)
    assert data is not None
    hosts = {BORN: ("127.0.0.1", 12345), HOST: ("127.0.0.1", 10911), V6: ("2001:db8::1", 5000)}
    assert data == expected_record(born_host=hosts[born], store_host=hosts[stored], sys_flag=1)


@pytest.mark.parametrize(("sys_flag", "takes_offset"), [(0, True), (4, False), (8, True), (12, False)])
def test_halves_of_transactions_take_no_queue_offset(bench: Bench, sys_flag: int, takes_offset: bool) -> None:
    store = bench.open()
    store.append([message()])
    [(at, queue_offset, _, _)] = store.append([message(sys_flag=sys_flag)])
    assert queue_offset == (1 if takes_offset else 0)
    assert store.append([message()])[0][1] == (2 if takes_offset else 1)
    data = now(store).record(at)
    assert data is not None
    assert decode_record(data).sys_flag == sys_flag


def test_timestamps_do_not_go_back_with_the_clock(bench: Bench) -> None:
    store = bench.open()
    store.append([message()])
    bench.clock.rightNow -= 3600
    assert store.append([message()])[0][3] == NOW_MS
    assert store.encoded_log.next_place(NOW_MS - 3_600_000)[0] == NOW_MS
    bench.clock.rightNow += 3601
    assert store.append([message()])[0][3] == NOW_MS + 1000


def test_timestamps_do_not_go_back_over_a_restart(bench: Bench) -> None:
    store = bench.open()
    store.append([message()])
    bench.close()
    bench.clock.rightNow -= 3600
    assert bench.open().append([message()])[0][3] == NOW_MS


def test_timestamps_do_not_go_back_where_units_were_lost(make: Callable[..., Bench]) -> None:
    bench = make(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=1024)
    store = bench.open()
    store.append([message()])
    bench.close()
    shutil.rmtree(bench.root / "consumequeue_ext")
    (bench.root / "checkpoint").unlink()  # as where the Java broker wrote it: its times are not of the newest message
    bench.clock.rightNow -= 3600
    assert bench.open().append([message()])[0][3] == NOW_MS


def test_timestamps_do_not_go_back_after_a_start_without_a_message(bench: Bench) -> None:
    """Only the checkpoint has the time of what no queue does; one kill comes between its offset of the log and that."""
    store = bench.open()
    store.append([message()])
    bench.clock.advance(1)
    store.append([message(sys_flag=SysFlag.TRANSACTION_PREPARED)])
    once = bench.image("killed once")
    noted = Checkpoint(log_offset=store.log_end, queues_offset=0)
    (once.root / "checkpoint").write_bytes(encode_checkpoint(noted))
    once.open().start()
    turns(once.clock, 3)
    twice = once.image("killed twice")
    assert decode_checkpoint((twice.root / "checkpoint").read_bytes()).queues_offset == store.log_end
    twice.clock.rightNow -= 3600
    assert twice.open().append([message()])[0][3] == NOW_MS + 1000


def fill(store_append: Callable[[Sequence[NewMessage]], object], room: int) -> None:
    """Append one record of exactly `room` bytes."""
    overhead = len(expected_record(body=b""))
    store_append([message(body=b"x" * (room - overhead))])


@pytest.mark.parametrize(("left", "rolls"), [(0, False), (8, False), (1, True), (7, True)])
def test_a_record_needs_8_bytes_more_than_its_size(bench: Bench, left: int, rolls: bool) -> None:
    size = len(expected_record())
    store = bench.open()
    # After this record, room for `size` and 8 for the filler, less what the case takes away.
    shortage = 0 if not rolls else left
    fill(store.append, 131072 - size - 8 + shortage)
    start = store.log_end
    [(at, _, _, _)] = store.append([message()])
    assert at == (131072 if rolls else start)
    if rolls:
        raw = (bench.root / "commitlog" / f"{0:020d}").read_bytes()
        assert struct.unpack_from(">II", raw, start) == (131072 - start, BLANK_MAGIC)
    store.dispatch_now()
    assert store.max_offset("T", 0) == 2


def test_a_batch_goes_on_in_the_next_segments(bench: Bench) -> None:
    store = bench.open()
    bodies = [b"%06d" % i * 4000 for i in range(30)]  # 24 kB each: five in a segment
    appended = store.append([message(body=body) for body in bodies])
    assert [row[1] for row in appended] == list(range(30))
    assert sorted({row[0] // 131072 for row in appended}) == list(range(6))
    for row, body in zip(appended, bodies, strict=True):
        assert row[0] % 131072 + row[2] + 8 <= 131072
        data = now(store).record(row[0], row[2])
        assert data is not None
        assert decode_record(data).body == body
    store.dispatch_now()
    assert store.max_offset("T", 0) == 30


def test_a_record_larger_than_a_segment_is_refused_and_nothing_of_its_batch_stored(bench: Bench) -> None:
    store = bench.open()
    largest = 131072 - 8
    with pytest.raises(RecordTooLarge):
        store.append([message(), message(body=b"x" * largest)])
    assert store.log_end == 0
    fill(store.append, largest)
    assert store.log_end == largest
    assert store.append([message()])[0][1] == 1


@pytest.mark.parametrize(
    "bad",
    [
        message(queue_id=2**31),
        message(queue_id=-1),
        message(flag=2**31),
        message(topic="a/b"),
        message(topic=".."),
        message(topic=""),
        message(topic="t" * 128),
        message(properties=b"x" * 32768),
        message(born_host=b"123"),
        message(body="text"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_a_bad_value_refuses_the_whole_batch(bench: Bench, bad: tuple[object, ...], large: bool) -> None:
    store = bench.open()
    store.append([message()])
    end = store.log_end
    before = [message(body=b"x" * 100_000 if large else b"")] * 3
    with pytest.raises(MessageRefused):
        store.append([*before, bad])  # type: ignore[list-item]
    assert store.log_end == end
    assert store.append([message()])[0][:2] == (end, 1)
    assert sorted(path.name for path in bench.root.iterdir()) == ["abort", "commitlog", "lock"]


def test_without_room_for_a_segment_appends_are_refused_until_there_is(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([message(body=b"x" * 60_000)])
    bench.disk.faults.room = 2 * 131072 - 1
    with pytest.raises(StoreUnwritable, match="No space"):
        store.append([message(body=b"x" * 60_000)] * 6)  # three segments more
    assert store.log_end < 131072
    assert store._commit_log.why_refused
    assert "No space" in store._commit_log.why_refused
    assert now(store).record(0) is not None
    # One segment was made, and is used; a smaller record fits the first one anyway.
    assert store.append([message()])[0][1] == 1
    bench.disk.faults.room = None
    bench.clock.advance(0.5)
    assert not store._commit_log.why_refused
    appended = store.append([message(body=b"x" * 60_000)] * 6)
    assert [row[1] for row in appended] == list(range(2, 8))
    store.dispatch_now()
    assert store.max_offset("T", 0) == 8
