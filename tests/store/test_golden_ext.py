"""A store that the Java broker wrote with enableConsumeQueueExt, enableLmq and enableMultiDispatch, opened here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqbroker.broker.offset_table import OffsetTable
from mqbroker.store.consumequeue_ext import is_address
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import decode_records
from tests.broker.bench import live_settings
from tests.store.harness import Bench, make_bench, now, stop, tree, turns, unpack

CHANGES = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 2048,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
COUNTS = {
    ("%LMQ%a", 0): 114,
    ("%LMQ%home%lamp", 0): 110,
    ("%LMQ%+#", 0): 55,
    ("plain", 0): 111,
    ("plain", 1): 165,
    ("other", 1): 110,
    ("SCHEDULE_TOPIC_XXXX", 17): 4,
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    unpack("store-ext-lmq-4.9.7.tar.gz", tmp_path)
    return make_bench(tmp_path / "store-ext-lmq", **CHANGES)


@pytest.mark.parametrize("missing", [(), ("consumequeue",), ("consumequeue_ext",), ("consumequeue", "index")])
def test_what_is_rebuilt_is_byte_for_byte_what_java_built(bench: Bench, missing: tuple[str, ...]) -> None:
    parts = ("consumequeue", "consumequeue_ext")
    before = {part: tree(bench.root / part) for part in (*parts, "index")}
    for part in missing:
        shutil.rmtree(bench.root / part)
    store = bench.open()
    store.start()
    turns(bench.clock, 1)
    stop(store)
    for part in parts:
        assert len(before[part]) > 4
        assert tree(bench.root / part) == before[part]
    assert list(tree(bench.root / "index").values()) == list(before["index"].values())


def test_each_queue_gives_its_messages_and_filters_them(bench: Bench) -> None:
    store = bench.open()
    for (topic, queue_id), count in COUNTS.items():
        assert store.max_offset(topic, queue_id) == count
        queue = store._queues.by_name[topic, queue_id]
        assert queue.ext is not None
        for offset in range(count):
            (record,) = decode_records(now(store).get(topic, queue_id, offset, 1).pieces[0])
            properties = dict(record.properties)
            # What stands there because its message names the queue has no unit.
            assert is_address(queue.entry(offset)[2]) == (record.topic == topic)
            if record.topic != topic:
                names = properties["INNER_MULTI_DISPATCH"].split(",")
                assert properties["INNER_MULTI_QUEUE_OFFSET"].split(",")[names.index(topic)] == str(offset)
            code = java_hash(properties["TAGS"])
            if "DELAY" in properties:
                code = record.store_timestamp + 2 * 3_600_000
            own = queue.entry(offset)[2]
            unit = queue.ext.unit(own)
            assert (own if unit is None else unit.tags_code) == code
            assert now(store).get(topic, queue_id, offset, 1, tags_codes=frozenset([code])).count == 1
            assert now(store).get(topic, queue_id, count - 1, 1, tags_codes=frozenset([code + 7])).count == 0
    stop(store)


def test_the_offset_of_its_group_is_read(bench: Bench) -> None:
    config = bench.root / "config"
    table = OffsetTable(
        JsonFile(str(config / "consumerOffset.json"), InlineWorker(), OsDisk()),
        live_settings(),
        JsonFile(str(config / "lmqConsumerOffset.json"), InlineWorker(), OsDisk()),
    )
    assert table.query("%LMQ%client", "%LMQ%a", 0) == 17
