"""Costs of the store's hot paths, in microseconds a message: append, dispatch, index, get.

python bench/store_append.py [--messages 200000] [--body 128] [--directory DIR]
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial

from twisted.internet.task import Clock

from mqbroker.config import StoreSettings
from mqbroker.store import MessageStore, open_store
from mqbroker.store.get_message_result import GetMessageResult
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.record import NewMessage

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
BORN = b"\x7f\0\0\1\0\0\x30\x39"


def make_messages(count: int, body: bytes, queues: int) -> list[NewMessage]:
    """As a Java producer sends them: unique key, WAIT and a tag."""
    return [
        (
            b"BenchTopic",
            i % queues,
            0,
            0,
            1795255515190,
            BORN,
            0,
            0,
            body,
            b"UNIQ_KEY\x017F0000010A2C18B4AAC27D%06X%04X\x02WAIT\x01true\x02TAGS\x01TagA" % (i // 64, i & 0xFFFF),
        )
        for i in range(count)
    ]


def open_in(directory: str) -> tuple[MessageStore, Clock]:
    clock = Clock()
    clock.advance(1795255600)
    settings = StoreSettings(store_path_root_dir=directory, mapped_file_size_commit_log=256 * 1024 * 1024)
    return open_store(settings, disk=OsDisk(), clock=clock, worker=InlineWorker(), store_host=HOST), clock


def timed(what: str, count: int, act: Callable[[], None]) -> None:
    start = time.perf_counter()
    act()
    print(f"{what:34s} {(time.perf_counter() - start) / count * 1e6:7.2f} us a message")


def run(directory: str, count: int, body_bytes: int) -> None:
    store, _ = open_in(directory)
    messages = make_messages(count, b"x" * body_bytes, 8)
    for batch in (64, 1):
        batches = [messages[i : i + batch] for i in range(0, count, batch)]

        def append_all(batches: list[list[NewMessage]] = batches) -> None:
            for each in batches:
                store.append(each)

        def append_and_dispatch(batches: list[list[NewMessage]] = batches) -> None:
            for each in batches:
                store.append(each)
                store.dispatch_now()
                store._dispatcher.index_queued()

        # A part, so that the bound of the dispatch queue is not reached, and dispatch is not from the log.
        part = batches[: 40_000 // batch]
        timed(f"append, batches of {batch}", 40_000, partial(append_all, part))
        timed("  then dispatch", 40_000, store.dispatch_now)
        timed("  then index", 40_000, store._dispatcher.index_all)
        timed(f"append+dispatch+index, batches of {batch}", count, append_and_dispatch)
    get_all(store, "BenchTopic", 8, "scattered")
    row = [(b"RowTopic", *message[1:]) for message in make_messages(40_000, b"x" * body_bytes, 1)]
    store.append(row)
    store.dispatch_now()
    get_all(store, "RowTopic", 1, "in a row")
    print(f"resident, of it private: {memory()}")


def get_all(store: MessageStore, topic: str, queues: int, how: str) -> None:
    for max_count in (32, 1):

        def read(max_count: int = max_count) -> None:
            for queue_id in range(queues):
                offset, end = 0, min(40_000, store.max_offset(topic, queue_id))
                while offset < end:
                    found = store.get(topic, queue_id, offset, max_count)
                    assert isinstance(found, GetMessageResult), "all of it is in memory"
                    offset = found.next_offset

        total = sum(min(40_000, store.max_offset(topic, q)) for q in range(queues))
        timed(f"get of {max_count}, {how}", total, read)


def memory() -> str:
    with open("/proc/self/status") as status:
        found = dict(line.split(":", 1) for line in status)
    names = ("VmRSS", "RssAnon")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return ", ".join(f"{name} {found[name].strip()}" for name in names) + f", peak {peak} kB"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--directory")
    options = parser.parse_args()
    directory = options.directory or tempfile.mkdtemp(prefix="store-bench-")
    try:
        run(directory, options.messages, options.body)
    finally:
        if options.directory is None:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
