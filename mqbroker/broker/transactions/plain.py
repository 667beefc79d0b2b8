"""What most half messages become, from the bytes of their records: a few looks at what `messages` takes apart.

Whatever is not as most are is left to `messages`: hosts of IPv6, a delay, a producer that names its group last. Values
in, values out. It must never know of the store.
"""

from __future__ import annotations

from mqbroker.broker.system_topics import NoRealTarget, real_target
from mqbroker.store.commitlog import NewMessage
from mqbroker.wire.codes import TRANS_HALF_TOPIC, Prop, SysFlag
from mqbroker.wire.record import V6, body_crc, encode_tail, fields_struct

_HEAD = fields_struct(
    "body_crc", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp", "born_host",
    "reconsume_times", "body_size",
)  # fmt: skip
_TAIL = encode_tail(TRANS_HALF_TOPIC.encode(), 0)
_TOPIC = _TAIL[:-2]
_GROUP = f"\x02{Prop.PRODUCER_GROUP}\x01".encode()
_REAL_TOPIC = f"\x02{Prop.REAL_TOPIC}\x01".encode()
_DELAY = f"{Prop.DELAY_TIME_LEVEL}\x01".encode()
_INNER_OFFSET = f"{Prop.INNER_MULTI_QUEUE_OFFSET}\x01".encode()
_KEPT_FLAGS = ~SysFlag.TRANSACTION_MASK
_COMMIT = SysFlag.TRANSACTION_COMMIT
_KEPT_MAX = 1024
_KEPT_BYTES_MAX = 512


class PlainHalves:
    """Knows what half messages had of late from the name of their group on: most clients put what differs in each
    before it."""

    def __init__(self) -> None:
        #: The properties from PGROUP on -> group, topic and queue.
        self._endings: dict[bytes, tuple[str, bytes, int]] = {}

    def committed(self, record: bytes, offset: int, physical_offset: int, group: str) -> NewMessage:
        """The message that a half message becomes, from its record as it is stored, whole. Hot.

        Raises ValueError where it takes a closer look: it is not as most are, or what is said of it is not true.
        """
        crc, flag, queue_offset, place, sys_flag, born_timestamp, born_host, reconsume_times, body_bytes = (
            _HEAD.unpack_from(record)
        )
        body_end = _HEAD.size + body_bytes
        body = record[_HEAD.size : body_end]
        if (
            queue_offset != offset
            or place != physical_offset
            or sys_flag & V6
            or not record.startswith(_TOPIC, body_end)
            or body_crc(body) != crc
        ):
            raise ValueError
        properties = record[body_end + len(_TAIL) :]
        # Of two properties of one name the later counts; and to look from the end takes a third of the time.
        find = properties.rfind
        at = find(_GROUP)
        ending = properties[at:]
        named, topic, queue_id = self._endings.get(ending) or self._look_at(ending)
        if named != group or find(_DELAY, 0, at) >= 0 or find(_INNER_OFFSET, 0, at) >= 0:
            raise ValueError
        return (
            topic, queue_id, flag, sys_flag & _KEPT_FLAGS | _COMMIT, born_timestamp,
            born_host, reconsume_times, physical_offset, body, properties,
        )  # fmt: skip

    def _look_at(self, ending: bytes) -> tuple[str, bytes, int]:
        """What the properties from PGROUP on say. Raises ValueError."""
        end = ending.find(b"\x02", len(_GROUP))
        real_at = ending.rfind(_REAL_TOPIC)
        if not ending.startswith(_GROUP) or end < 0 or real_at < 0 or _DELAY in ending or _INNER_OFFSET in ending:
            raise ValueError
        try:
            topic, queue_id = real_target(ending[real_at:])
        except NoRealTarget as error:
            raise ValueError from error
        found = ending[len(_GROUP) : end].decode(), topic, queue_id
        if len(ending) <= _KEPT_BYTES_MAX:
            if len(self._endings) >= _KEPT_MAX:
                self._endings.clear()
            self._endings[ending] = found
        return found
