"""What a store of a group knows of itself, in the file `member` of its directory: one mapped page.

    0     magic                    8
    512   a header, or zeros      76 | 1024  another
    2048  commit point             8 | 2056  end  8 | 2064  durable end  8      of the log
    3072  the in-sync set: epoch   8 | revision of etcd  8 | number of ids  8 | ids  8 each | CRC32 of these  4

    a header: digest of the group's name 8 | name of the store 16 | generation 8 | brokerId 8 | newest epoch 8 |
              its lease 8 | zeros 16 | CRC32 of these 72 bytes 4

Of the headers the one with the higher generation counts, and a new one replaces the other, so that a crash leaves one.
The offsets are stored as they move, 8 bytes at a time: a killed process loses none of that; a machine that stops
may keep older ones.
"""

from __future__ import annotations

import zlib
from struct import Struct

import attrs

from mqbroker.ha.group_keys import REPLICAS_MAX
from mqbroker.store.disk import IDisk, IMappedFile, read_before_touch

NOTE_BYTES = 4096
_MAGIC = b"MQBmem\x00\x01"
_HEADER = Struct(">8s16sqqqq16x")
_CRC = Struct(">I")
_SLOTS = (512, 1024)
#: Places of the offsets, as indexes of 8-byte numbers.
_COMMITTED, _END, _DURABLE = 2048 // 8, 2056 // 8, 2064 // 8
_SEEN_AT = 3072
_SEEN = Struct(">qqq")


@attrs.frozen
class NoteHeader:
    """`group`: a digest of the group's name. `name`: of the store, at random. `epoch`, `lease`: the newest of the log's
    history."""

    group: bytes
    name: bytes
    generation: int
    replica_id: int
    epoch: int = 0
    lease: int = 0

    def encode(self) -> bytes:
        data = _HEADER.pack(*attrs.astuple(self))
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> NoteHeader | None:
        body, crc = data[: _HEADER.size], data[_HEADER.size : _HEADER.size + _CRC.size]
        if len(crc) < _CRC.size or _CRC.pack(zlib.crc32(body)) != crc:
            return None
        header = cls(*_HEADER.unpack(body))
        return header if min(header.generation, header.replica_id, header.epoch, header.lease) >= 0 else None


@attrs.frozen
class SeenInSync:
    """The in-sync set of an epoch as this broker saw it last in etcd, and the revision that wrote it. `epoch` 0: it has
    seen none."""

    epoch: int = 0
    revision: int = 0
    members: frozenset[int] = frozenset()

    def encode(self) -> bytes:
        data = _SEEN.pack(self.epoch, self.revision, len(self.members))
        data += b"".join(number.to_bytes(8, "big") for number in sorted(self.members))
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> SeenInSync:
        """None is seen where it is damaged."""
        epoch, revision, count = _SEEN.unpack_from(data)
        end = _SEEN.size + 8 * count
        if not 0 < count <= REPLICAS_MAX or _CRC.pack(zlib.crc32(data[:end])) != data[end : end + _CRC.size]:
            return cls()
        members = [int.from_bytes(data[at : at + 8], "big") for at in range(_SEEN.size, end, 8)]
        return cls(epoch, revision, frozenset(members))


class MemberNote:
    """The note of one store, while it is open. All that write raise OSError.

    `is_new`: whether there was none that can be read.
    """

    def __init__(self, file: IMappedFile, headers: list[NoteHeader | None], is_new: bool) -> None:
        self._file, self.is_new = file, is_new
        self._headers = headers
        self._numbers = memoryview(file.buffer).cast("q")
        self._synced = self.committed, self.end, self.durable

    @classmethod
    def open(cls, disk: IDisk, path: str, new: NoteHeader) -> MemberNote:
        """Open the note at `path`; if it is missing or damaged, one with the header `new` is created."""
        data = disk.read(path) if disk.exists(path) else b""
        headers = [NoteHeader.decode(data[at : at + _HEADER.size + _CRC.size]) for at in _SLOTS]
        is_new = len(data) != NOTE_BYTES or not data.startswith(_MAGIC) or not any(headers)
        if is_new:
            if data:
                disk.rename(path, path + ".damaged")
            headers = [new, None]
            disk.write(path, (_MAGIC.ljust(_SLOTS[0], b"\0") + new.encode()).ljust(NOTE_BYTES, b"\0"))
        file = disk.open_mapped(path, NOTE_BYTES)
        read_before_touch(file, 0, NOTE_BYTES)
        return cls(file, headers, is_new)

    @property
    def header(self) -> NoteHeader:
        found = [header for header in self._headers if header is not None]
        return max(found, key=lambda header: header.generation)

    def write(self, header: NoteHeader) -> None:
        """Replace the header, durably. Its generation must be higher."""
        slot = 1 if self._headers[0] is self.header else 0
        self._headers[slot] = header
        data = header.encode()
        self._file.buffer[_SLOTS[slot] : _SLOTS[slot] + len(data)] = data
        self.sync()

    @property
    def committed(self) -> int:
        """The commit point."""
        return max(0, self._numbers[_COMMITTED])

    @property
    def end(self) -> int:
        """The log was acknowledged below this offset."""
        return max(0, self._numbers[_END])

    @property
    def durable(self) -> int:
        """The log was on the disk below this offset."""
        return max(0, self._numbers[_DURABLE])

    def note_durable(self, durable: int) -> None:
        self._numbers[_DURABLE] = durable

    def moved(self, committed: int, end: int) -> None:
        """Note offsets that have grown. Hot: called for each acknowledgement."""
        self._numbers[_COMMITTED] = max(self._numbers[_COMMITTED], committed)
        self._numbers[_END] = max(self._numbers[_END], end)

    def lower(self, end: int) -> None:
        """Record durably that the log above `end` was never acknowledged by the group, and is about to be truncated."""
        self._numbers[_END], self._numbers[_DURABLE] = min(self.end, end), min(self.durable, end)
        self.sync()

    def forget_above(self, end: int) -> None:
        """Note durably that the log, which is not whole, has nothing above `end`."""
        self._numbers[_COMMITTED] = min(self.committed, end)
        self.lower(end)

    @property
    def seen(self) -> SeenInSync:
        """The in-sync set of the log's newest epoch."""
        return SeenInSync.decode(bytes(self._file.buffer[_SEEN_AT:NOTE_BYTES]))

    def note_seen(self, seen: SeenInSync) -> None:
        data = seen.encode()
        self._file.buffer[_SEEN_AT : _SEEN_AT + len(data)] = data

    @property
    def is_dirty(self) -> bool:
        """Whether an offset has moved since the last sync."""
        return self._synced != (self.committed, self.end, self.durable)

    def sync(self) -> None:
        synced = self.committed, self.end, self.durable
        self._file.sync()
        self._synced = synced

    def close(self) -> None:
        self._numbers.release()
        self._file.close()
