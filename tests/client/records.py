"""A stored message, of which a test says only what matters to it."""

from typing import Any

import attrs

from mqbroker.wire.record import Record

_RECORD = Record(
    topic="T",
    queue_id=0,
    queue_offset=0,
    physical_offset=0,
    store_size=0,
    flag=0,
    sys_flag=0,
    born_timestamp=1,
    born_host=("10.0.0.9", 1),
    store_timestamp=2,
    store_host=("10.0.0.2", 10911),
    reconsume_times=0,
    prepared_offset=0,
    body=b"x",
    body_crc=0,
)


def a_record(**fields: Any) -> Any:
    return attrs.evolve(_RECORD, **fields)
