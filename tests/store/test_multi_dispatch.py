"""Messages in several queues at once: offsets in the stored record, entries, limits, restarts and rebuilds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from struct import Struct

import pytest

from mqbroker.errors import LmqQueuesExceeded, MessageRefused, MultiDispatchRefused, RecordTooLarge, StoreUnwritable
from mqbroker.store import GetMessageStatus, MessageStore
from mqbroker.store.commitlog import Refusal
from mqbroker.wire.names import java_hash
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, find_property
from mqbroker.wire.record import NewMessage, Record, decode_records
from tests.store.harness import Bench, after_restart, message, now, stop, tree, turns

ENTRY = Struct(">qiq")
ON = {"enable_multi_dispatch": True, "enable_lmq": True, "max_lmq_consume_queue_num": 5}


@pytest.fixture
def lmq(make: Callable[..., Bench]) -> Bench:
    return make(**ON)


def naming(names: str, topic: str = "T", queue_id: int = 3, body: bytes = b"body", more: str = "") -> NewMessage:
    return message(topic, queue_id, body, f"TAGS\x01A\x02INNER_MULTI_DISPATCH\x01{names}{more}".encode())


def records(store: MessageStore, topic: str, queue_id: int = 0) -> list[Record]:
    result = now(store).get(topic, queue_id, 0, 32, 1 << 20)
    return decode_records(b"".join(result.pieces))


def bodies(store: MessageStore, topic: str, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in records(store, topic, queue_id)]


def offsets_in(record: Record) -> str:
    return dict(record.properties)["INNER_MULTI_QUEUE_OFFSET"]


def entries(root: Path, topic: str, queue_id: int = 0) -> list[tuple[int, int, int]]:
    data = b"".join(tree(root / "consumequeue" / topic / str(queue_id)).values())
    return [entry for entry in ENTRY.iter_unpack(data) if entry[1]]


def test_each_named_queue_gets_the_message_and_the_record_its_offsets(lmq: Bench) -> None:
    store = lmq.open()
    store.append([naming("%LMQ%a,%LMQ%b", body=b"0"), message(body=b"1"), naming("%LMQ%b,%LMQ%c", body=b"2")])
    store.append([naming("%LMQ%a", "Other", 1, b"3")])
    store.dispatch_now()
    assert {name: bodies(store, f"%LMQ%{name}") for name in "abc"} == {
        "a": [b"0", b"3"],
        "b": [b"0", b"2"],
        "c": [b"2"],
    }
    assert bodies(store, "T", 3) == [b"0", b"2"]
    assert bodies(store, "T", 0) == [b"1"]
    assert [offsets_in(record) for record in records(store, "%LMQ%b")] == ["0,0", "1,0"]
    assert [offsets_in(record) for record in records(store, "%LMQ%a")] == ["0,0", "1"]
    own = entries(lmq.root, "T", 3)
    assert entries(lmq.root, "%LMQ%b") == own
    assert own[0][2] == java_hash("A")
    assert now(store).get("%LMQ%b", 0, 0, 9, None, frozenset([1])).status is GetMessageStatus.NO_MATCHED_MESSAGE


def test_listeners_hear_of_each_queue(lmq: Bench) -> None:
    store = lmq.open()
    store.start()
    told: list[tuple[str, int, int]] = []
    store.on_dispatch.append(lambda topic, queue_id, next_offset, *_: told.append((topic, queue_id, next_offset)))
    store.append([naming("%LMQ%a,%LMQ%b")])
    lmq.clock.advance(0)
    assert sorted(told) == [("%LMQ%a", 0, 1), ("%LMQ%b", 0, 1), ("T", 3, 1)]


@pytest.mark.parametrize(
    ("names", "offsets", "queues"),
    [
        ("%LMQ%a,%LMQ%a", "0,0", {"%LMQ%a": 1}),
        ("%LMQ%a,", "0", {"%LMQ%a": 1}),
        ("%LMQ%a+#.b c", "0", {"%LMQ%a+#.b c": 1}),
        (" ", None, {}),
        (",,", None, {}),
    ],
)
def test_names_are_split_as_java_splits(lmq: Bench, names: str, offsets: str | None, queues: dict[str, int]) -> None:
    store = lmq.open()
    store.append([naming(names)])
    store.dispatch_now()
    (record,) = records(store, "T", 3)
    assert dict(record.properties).get("INNER_MULTI_QUEUE_OFFSET") == offsets
    assert {name: store.max_offset(name, 0) for name in queues} == queues
    assert {path.name for path in (lmq.root / "consumequeue").iterdir()} == {"T", *queues}


@pytest.mark.parametrize(
    "names", ["a,,b", "%LMQ%../x", "../../x", "a b", "SCHEDULE_TOPIC_XXXX", "%LMQ%" + "x" * 251, "%LMQ%\udcff"]
)
def test_what_cannot_be_a_queue_is_refused_and_nothing_stored(lmq: Bench, names: str) -> None:
    store = lmq.open()
    properties = b"INNER_MULTI_DISPATCH\x01" + names.encode("utf-8", "surrogateescape")
    with pytest.raises(MultiDispatchRefused):
        store.append([message(), naming("%LMQ%a"), message(properties=properties)])
    assert store.log_end == 0
    store.append([naming("%LMQ%a")])
    store.dispatch_now()
    assert (store.max_offset("T", 3), store.max_offset("T", 0)) == (1, 0)
    assert offsets_in(records(store, "%LMQ%a")[0]) == "0"


def test_other_queues_are_those_of_the_messages_number(lmq: Bench) -> None:
    """Their own messages and those of others that name them are numbered in the order of the log."""
    store = lmq.open()
    store.append(
        [
            message("B", 3, b"0"),
            naming("B,%LMQ%a", "T", 3, b"1"),
            message("B", 3, b"2"),
            naming("T", "T", 3, b"3"),
            naming("B,T", "B", 3, b"4"),
            message("T", 3, b"5"),
        ]
    )
    store.append([message("B", 3, b"6")])
    store.dispatch_now()
    assert bodies(store, "B", 3) == [b"0", b"1", b"2", b"4", b"6"]
    assert bodies(store, "T", 3) == [b"1", b"3", b"4", b"5"]
    assert [offsets_in(record) for record in records(store, "T", 3)[:3]] == ["1,0", "1", "3,2"]
    stop(store)
    before = tree(lmq.root / "consumequeue")
    shutil.rmtree(lmq.root / "consumequeue")
    stop(lmq.open())
    assert tree(lmq.root / "consumequeue") == before


def test_what_was_there_at_the_start_is_served_in_each_of_its_queues(lmq: Bench) -> None:
    store = lmq.open()
    store.append([naming("B,%LMQ%a", body=b"0"), naming("%LMQ%a", body=b"1"), naming("%LMQ%b,B", body=b"2")])
    store = after_restart(lmq, store)
    assert bodies(store, "B", 3) == [b"0", b"2"]
    assert bodies(store, "%LMQ%a") == [b"0", b"1"]
    assert bodies(store, "%LMQ%b") == [b"2"]


@pytest.mark.parametrize(("topic", "queue_id"), [("B", 3), ("%LMQ%a", 0)])
def test_an_entry_for_a_message_that_does_not_name_the_queue_there_is_built_again(
    lmq: Bench, topic: str, queue_id: int
) -> None:
    store = lmq.open()
    store.append([naming(topic, body=b"0"), naming(topic, body=b"1"), naming("%LMQ%other", body=b"2")])
    stop(store)
    [path] = (lmq.root / "consumequeue" / topic / str(queue_id)).iterdir()
    entries = path.read_bytes()
    for source in (entries[20:40], tree(lmq.root / "consumequeue" / "%LMQ%other" / "0").popitem()[1][:20]):
        path.write_bytes(source + entries[20:])
        store = lmq.open()
        assert bodies(store, topic, queue_id) == [b"0", b"1"]
        assert path.read_bytes() == entries
        stop(store)


def test_without_enable_lmq_the_prefix_means_nothing(make: Callable[..., Bench]) -> None:
    bench = make(enable_multi_dispatch=True)
    store = bench.open()
    store.append([naming("%LMQ%a")])
    store.dispatch_now()
    assert (store.max_offset("%LMQ%a", 0), store.max_offset("%LMQ%a", 3)) == (0, 1)


@pytest.mark.parametrize("changes", [{}, {"enable_lmq": True}])
def test_without_enable_multi_dispatch_the_property_means_nothing(
    make: Callable[..., Bench], changes: dict[str, bool]
) -> None:
    store = make(**changes).open()
    store.append([naming("%LMQ%a,,../x", more="\x02INNER_MULTI_QUEUE_OFFSET\x010")])
    store.dispatch_now()
    assert store.max_offset("%LMQ%a", 0) == 0
    assert offsets_in(records(store, "T", 3)[0]) == "0"


def test_what_a_sender_says_of_offsets_does_not_count(lmq: Bench) -> None:
    store = lmq.open()
    store.append([naming("%LMQ%a", more="\x02INNER_MULTI_QUEUE_OFFSET\x0177\x02"), naming("%LMQ%a")])
    store.dispatch_now()
    assert [offsets_in(record) for record in records(store, "%LMQ%a")] == ["0", "1"]


def test_halves_of_transactions_are_not_counted(lmq: Bench) -> None:
    store = lmq.open()
    half = message("T", 3, properties=b"INNER_MULTI_DISPATCH\x01%LMQ%a", sys_flag=4)
    store.append([half, naming("%LMQ%a"), half])
    store.dispatch_now()
    assert (store.max_offset("%LMQ%a", 0), store.max_offset("T", 3)) == (1, 1)


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"])
@pytest.mark.parametrize("more", ["", "\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"])
def test_what_waits_to_be_committed_stands_in_its_own_queue_only(lmq: Bench, topic: str, more: str) -> None:
    """With the Java broker half messages, which are stored without the flag of one, stand in the queues they name."""
    store = lmq.open()
    store.append([naming("%LMQ%a,other", topic, 0, more=more), naming("%LMQ%a"), naming("%LMQ%a", topic, 0, more=more)])
    store.dispatch_now()
    assert [record.topic for record in records(store, "%LMQ%a")] == ["T"]
    waiting = records(store, topic)
    assert [record.properties.get("INNER_MULTI_QUEUE_OFFSET") for record in waiting] == [None, None]
    assert waiting[0].properties["INNER_MULTI_DISPATCH"] == "%LMQ%a,other"
    assert store.max_offset("other", 0) == 0
    stop(store)
    shutil.rmtree(lmq.root / "consumequeue")
    again = lmq.open()
    assert [record.topic for record in records(again, "%LMQ%a")] == ["T"]
    with pytest.raises(MultiDispatchRefused):  # nor could it be committed
        again.append([naming("../a", topic, 0)])


@pytest.mark.parametrize("room", [0, 1])
def test_properties_must_hold_the_offsets_too(lmq: Bench, room: int) -> None:
    store = lmq.open()
    names = "INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    added = len("\x02INNER_MULTI_QUEUE_OFFSET\x010")
    pad = "x" * (PROPERTIES_BYTES_MAX - len(names) - len("K\x01") - added + 1 - room)
    send = message("T", 3, properties=f"{names}K\x01{pad}".encode())
    if room:
        store.append([send])
        (record,) = [appended for appended in [now(store).record(0)] if appended]
        assert find_property(record, b"INNER_MULTI_QUEUE_OFFSET\x01") == b"0"
    else:
        with pytest.raises(MultiDispatchRefused, match="32768"):
            store.append([send])


def test_no_message_makes_more_queues_than_allowed(lmq: Bench) -> None:
    store = lmq.open()
    store.append([naming("%LMQ%a,%LMQ%b,%LMQ%c,%LMQ%d"), naming("Plain,%LMQ%a")])
    for names in ("%LMQ%e,%LMQ%f", "%LMQ%a,%LMQ%e,%LMQ%f"):
        with pytest.raises(LmqQueuesExceeded, match="4 %LMQ% queues, 2 more"):
            store.append([naming(names)])
    store.append([naming("%LMQ%e,%LMQ%a")])
    with pytest.raises(LmqQueuesExceeded):
        store.append([naming("%LMQ%f")])
    store.append([naming("%LMQ%e"), naming("Other"), message()])
    stop(store)
    store = lmq.open()
    with pytest.raises(LmqQueuesExceeded):
        store.append([naming("%LMQ%f")])
    store.append([naming("%LMQ%e")])
    store.dispatch_now()
    assert [store.max_offset(f"%LMQ%{name}", 0) for name in "abcdef"] == [3, 1, 1, 1, 3, 0]


def test_what_the_log_refuses_takes_no_offset(lmq: Bench) -> None:
    store = lmq.open()
    with pytest.raises(RecordTooLarge):
        store.append([naming("%LMQ%a", body=bytes(131_072))])
    with pytest.raises(MessageRefused):
        store.append([naming("%LMQ%a", queue_id=1 << 33)])
    store._commit_log.refuse(Refusal.STOPPED, "test")
    with pytest.raises(StoreUnwritable):
        store.append([naming("%LMQ%a")])
    store._commit_log.allow(Refusal.STOPPED)
    store.append([naming("%LMQ%a")])
    store.dispatch_now()
    assert offsets_in(records(store, "%LMQ%a")[0]) == "0"


def fill(store: MessageStore, bench: Bench, count: int) -> None:
    for i in range(count):
        bench.clock.advance(0.01)
        batch = [naming(f"%LMQ%{'abc'[i % 3]},%LMQ%d", body=b"m%d" % i), message(body=b"p%d" % i)]
        store.append(batch if i % 2 else batch[::-1])
        if i % 5 == 0:
            store.append([message(body=b"alone")])


@pytest.mark.parametrize("ext", [False, True])
@pytest.mark.parametrize("gone", [("consumequeue",), ("index",), ("consumequeue", "index", "consumequeue_ext")])
def test_a_rebuild_is_byte_for_byte_the_same(make: Callable[..., Bench], gone: tuple[str, ...], ext: bool) -> None:
    bench = make(**ON, enable_consume_queue_ext=ext, mapped_file_size_consume_queue_ext=1024)
    store = bench.open()
    store.start()
    for _ in range(4):
        fill(store, bench, 60)
        turns(bench.clock, 0.1)
    stop(store)
    before = tree(bench.root)
    assert len(entries(bench.root, "%LMQ%d")) == 240
    assert all(code > -(2**31) for _, _, code in entries(bench.root, "%LMQ%d"))
    for name in gone:
        shutil.rmtree(bench.root / name, ignore_errors=True)
    store = bench.open()
    store.start()
    turns(bench.clock, 1)
    stop(store)
    after = tree(bench.root)
    for name, data in before.items():
        if not name.startswith(("index/", "checkpoint", "queueEnds")):
            assert after[name] == data, name
    assert [after[name] for name in sorted(after) if name.startswith("index/")] == [
        before[name] for name in sorted(before) if name.startswith("index/")
    ]


@pytest.mark.parametrize("boot", [b"first boot", b"second boot"])
def test_offsets_go_on_after_a_kill(lmq: Bench, boot: bytes) -> None:
    store = lmq.open()
    store.start()
    fill(store, lmq, 30)
    turns(lmq.clock, 1.5)
    fill(store, lmq, 30)
    image = lmq.image("killed")
    image.disk.boot = boot
    store = image.open()
    assert (store.max_offset("%LMQ%d", 0), store.max_offset("%LMQ%a", 0)) == (60, 20)
    store.append([naming("%LMQ%d,%LMQ%a")])
    store.dispatch_now()
    (last,) = decode_records(now(store).get("%LMQ%d", 0, 60, 1).pieces[0])
    assert offsets_in(last) == "60,20"
    stop(store)


@pytest.mark.parametrize("text", ["", "0", "0,1,2", "x,1", "-1,0", "9" * 30 + ",0", "4000000000000000000,0", "0,1.5"])
def test_offsets_that_cannot_be_true_make_no_entries(make: Callable[..., Bench], text: str) -> None:
    """A Java broker stores what a sender of a batch says of offsets."""
    bench = make()
    store = bench.open()
    store.append([naming("%LMQ%a,%LMQ%b", more=f"\x02INNER_MULTI_QUEUE_OFFSET\x01{text}"), message(body=b"next")])
    stop(store)
    shutil.rmtree(bench.root / "consumequeue")
    bench.changes |= ON
    store = bench.open()
    assert store.max_offset("%LMQ%a", 0) == 0
    assert store.max_offset("T", 3) == 1
    assert bodies(store, "T") == [b"next"]


def test_messages_that_were_stored_while_it_was_off_are_left_out(lmq: Bench) -> None:
    lmq.changes["enable_multi_dispatch"] = False
    store = lmq.open()
    store.append([naming("%LMQ%a", body=b"before")])
    stop(store)
    lmq.changes["enable_multi_dispatch"] = True
    store = lmq.open()
    store.append([naming("%LMQ%a", body=b"after")])
    store.dispatch_now()
    assert bodies(store, "%LMQ%a") == [b"after"]


def test_with_a_transient_pool_entries_come_with_the_commit(make: Callable[..., Bench]) -> None:
    bench = make(**ON, transient_store_pool_enable=True, transient_store_pool_size=2)
    store = bench.open()
    store.start()
    store.append([naming("%LMQ%a")])
    bench.clock.advance(0)
    assert store.max_offset("%LMQ%a", 0) == 0
    turns(bench.clock, 1)
    assert bodies(store, "%LMQ%a") == [b"body"]


def test_roll_over_segments(lmq: Bench) -> None:
    store = lmq.open()
    store.start()
    for _ in range(6):
        store.append([naming("%LMQ%a", body=bytes(30_000)), message(body=bytes(20_000)), naming("%LMQ%a", body=b"z")])
        turns(lmq.clock, 0.1)
    assert len(list((lmq.root / "commitlog").iterdir())) >= 3
    result = [now(store).get("%LMQ%a", 0, offset, 1) for offset in range(12)]
    assert [len(decode_records(get.pieces[0])[0].body) for get in result] == [30_000, 1] * 6
    assert [offsets_in(decode_records(get.pieces[0])[0]) for get in result] == [str(i) for i in range(12)]
