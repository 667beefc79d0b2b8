"""Stores that the Java broker wrote, opened here: all is found, and what is rebuilt is what Java had built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqbroker.store import GetMessageStatus
from mqbroker.wire.record import decode_host, decode_record, decode_records
from tests.store.harness import golden_messages, make_bench, now, stop, tree, turns, unpack_golden

BOTH = pytest.mark.parametrize("name", ["store-clean", "store-crashed"])


@BOTH
def test_all_messages_of_the_listing_are_there(tmp_path: Path, name: str) -> None:
    store = make_bench(unpack_golden(name, tmp_path)).open()
    listing = golden_messages()
    assert len(listing) == 343
    for expected in listing:
        data = now(store).record(expected["offset"], expected["size"])
        assert data is not None
        record = decode_record(data)
        assert (record.topic, record.queue_id, record.queue_offset) == (
            expected["topic"],
            expected["queue_id"],
            expected["queue_offset"],
        )
        assert dict(record.properties) == expected["properties"]
    assert store.log_end == listing[-1]["offset"] + listing[-1]["size"]
    assert not store.corrupt_ranges
    stop(store)


@BOTH
def test_queues_hold_each_message_with_its_tags_code(tmp_path: Path, name: str) -> None:
    store = make_bench(unpack_golden(name, tmp_path)).open()
    by_queue: dict[tuple[str, int], list[int]] = {}
    for expected in golden_messages():
        topic, queue_id = expected["topic"], expected["queue_id"]
        by_queue.setdefault((topic, queue_id), []).append(expected["offset"])
        code = expected["tags_code"]
        if topic == "SCHEDULE_TOPIC_XXXX":  # when it is due
            code = expected["store_timestamp"] + (1000, 5000)[queue_id]
        found = now(store).get(topic, queue_id, expected["queue_offset"], 1, tags_codes=frozenset([code]))
        assert found.status is GetMessageStatus.FOUND
        assert decode_records(found.pieces[0])[0].physical_offset == expected["offset"]
    for (topic, queue_id), offsets in by_queue.items():
        assert store.max_offset(topic, queue_id) == len(offsets)
    stop(store)


@BOTH
@pytest.mark.parametrize("missing", [(), ("consumequeue",), ("index",), ("consumequeue", "index")])
def test_what_is_rebuilt_is_byte_for_byte_what_java_built(tmp_path: Path, name: str, missing: tuple[str, ...]) -> None:
    root = unpack_golden(name, tmp_path)
    before = {part: tree(root / part) for part in ("commitlog", "consumequeue", "index", "config")}
    for part in missing:
        shutil.rmtree(root / part)
    bench = make_bench(root)
    store = bench.open()
    store.start()
    turns(bench.clock, 1)
    stop(store)
    for part in ("consumequeue", "config"):
        assert tree(root / part) == before[part]
    # Index files are named by when they were made.
    assert list(tree(root / "index").values()) == list(before["index"].values())
    assert not (root / "abort").exists()
    first = f"{0:020d}"
    assert tree(root / "commitlog")[first] == before["commitlog"][first]


def test_messages_are_found_by_unique_key_and_by_key(tmp_path: Path) -> None:
    bench = make_bench(unpack_golden("store-clean", tmp_path))
    store = bench.open()
    for expected in golden_messages():
        keys = [expected["properties"].get("UNIQ_KEY", ""), *expected["properties"].get("KEYS", "").split(" ")]
        for key in filter(None, keys):
            at = expected["store_timestamp"]
            found = now(store).query(expected["topic"], key, 64, at - 60_000, at + 60_000)
            assert expected["offset"] in [decode_record(data).physical_offset for data in found]
    stop(store)


def test_offset_by_time_finds_the_message_of_that_time(tmp_path: Path) -> None:
    store = make_bench(unpack_golden("store-clean", tmp_path)).open()
    for expected in golden_messages():
        topic, queue_id, at = expected["topic"], expected["queue_id"], expected["store_timestamp"]
        found = now(store).offset_by_time(topic, queue_id, at)
        assert now(store).store_timestamp(topic, queue_id, found) == at
        assert found == 0 or now(store).store_timestamp(topic, queue_id, found - 1) < at
    stop(store)


def test_a_stopped_store_stays_as_it_was(tmp_path: Path) -> None:
    root = unpack_golden("store-clean", tmp_path)
    bench = make_bench(root)
    for _ in range(2):  # the first start has no note of a stop to put aside
        stop(bench.open())
    once = tree(root)
    stop(bench.open())
    assert tree(root) == once


def test_hosts_are_read_as_java_wrote_them(tmp_path: Path) -> None:
    store = make_bench(unpack_golden("store-clean", tmp_path)).open()
    expected = golden_messages()[0]
    data = now(store).record(expected["offset"])
    assert data is not None
    assert "{}:{}".format(*decode_host(data[48:56])) == expected["born_host"]
    stop(store)
