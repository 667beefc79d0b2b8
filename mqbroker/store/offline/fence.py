"""Records that stand in for a damaged stretch of the log, so that every broker gets past it.

They are of a transaction that was rolled back: neither the Java broker nor ours enters those into consume queues or
index, but both take them for whole. What was damaged stays as their bodies, but for the bytes that head and end take.
Java's recovery stops at the first place that holds no record, and cuts off all that follows.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqbroker.store.offline.logwalk import FENCE_BYTES_MIN, FENCE_TOPIC
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.record import HEAD, MAGIC, RECORD_BYTES_MIN, body_crc, encode_tail

#: Java takes so much memory for each record it reads; its brokers accept no larger message by default.
FENCE_BYTES_MAX = 4 * 1024 * 1024


def fences(damaged: memoryview, offset: int, timestamp_ms: int) -> Iterator[tuple[int, bytes]]:
    """What to write at which place of `damaged`, which stands at `offset` of the log and has FENCE_BYTES_MIN or more.

    `timestamp_ms`: of the record that follows.
    """
    at = 0
    while at < len(damaged):
        size = len(damaged) - at
        if size > FENCE_BYTES_MAX:
            size = min(FENCE_BYTES_MAX, size - FENCE_BYTES_MIN)
        topic = FENCE_TOPIC[: size - RECORD_BYTES_MIN]
        body_bytes = size - RECORD_BYTES_MIN - len(topic)
        body_at = at + HEAD.size
        crc = body_crc(damaged[body_at : body_at + body_bytes])
        head = HEAD.pack(
            size, MAGIC, crc, 0, 0, 0, offset + at, SysFlag.TRANSACTION_ROLLBACK,
            timestamp_ms, bytes(8), timestamp_ms, bytes(8), 0, 0, body_bytes,
        )  # fmt: skip
        yield at, head
        yield body_at + body_bytes, encode_tail(topic, 0)
        at += size
