"""Message ids: the broker's, which is an offset in a log, and the producer's UNIQ_KEY.

Source: MessageDecoder.createMessageId and MessageClientIDSetter of 4.9.7.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from datetime import UTC, datetime

from mqbroker.errors import MQError
from mqbroker.wire.record import Host, decode_host, encode_host


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    """The id of the record at byte `physical_offset` of the log of `store_host`: 32 hex digits, 56 for IPv6."""
    return (encode_host(store_host) + struct.pack(">q", physical_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[Host, int]:
    """The inverse of `offset_message_id`. Raises MQError if `message_id` is not such an id."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (16, 28) or len(message_id) != 2 * len(data):
        raise MQError(f"{message_id[:80]!r} is not a message id of 32 or 56 hex digits")
    (offset,) = struct.unpack(">q", data[-8:])
    return decode_host(data[:-8]), offset


class UniqIdSource:
    """Makes UNIQ_KEYs: address, pid, a salt, ms since the start of the month, a counter; 32 hex digits for IPv4.

    `now` returns seconds since the epoch; `salt` is any 32-bit number that distinguishes processes with the same pid.
    """

    def __init__(self, address: str, pid: int, salt: int, now: Callable[[], float]) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        fixed = socket.inet_pton(family, address) + struct.pack(">HI", pid & 0xFFFF, salt & 0xFFFFFFFF)
        self._prefix = fixed.hex().upper()
        self._now = now
        self._counter = 0
        self._month_ms = 0
        self._next_month_ms = 0

    def __call__(self) -> str:
        """Return the next id."""
        prefix, number = self.reserve(1)
        return f"{prefix}{number:04X}"

    def reserve(self, count: int) -> tuple[str, int]:
        """What the next `count` ids begin with, and the first one's number: their last 16 bits, in four digits."""
        now_ms = int(self._now() * 1000)
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._start_month(now_ms)
        first = (self._counter + 1) & 0xFFFF
        self._counter = (self._counter + count) & 0xFFFF
        return f"{self._prefix}{(now_ms - self._month_ms) & 0xFFFFFFFF:08X}", first

    def _start_month(self, now_ms: int) -> None:
        month = datetime.fromtimestamp(now_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        self._month_ms = int(month.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)
