"""Offset stores: where a group's member keeps the offsets of its queues. `queue_requests.Offsets` is the broker's.

The local file is that of Java's LocalFileOffsetStore of 4.9.7, so that either client goes on where the other stopped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mqbroker.client.errors import BadArgument, BadOffsetFile
from mqbroker.client.identity import local_ip
from mqbroker.config.system import open_new
from mqbroker.wire.admin_bodies import ResetOffsetBody
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.body import BadBody

log = logging.getLogger(__name__)

#: A file above is not read.
_BYTES_MAX = 16 * 1024 * 1024


class OffsetStore:
    """Keeps offsets. The methods are called on the event loop, and must not block it for long."""

    async def open(self, group: str, name_servers: Sequence[str]) -> None:
        """Called once, when the member of `group` starts. If it raises an exception, the start fails with that."""

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset of a queue, or None if there is none."""
        raise NotImplementedError

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the offset of the message that is consumed next."""
        raise NotImplementedError

    async def commit_oneway(self, queue: MessageQueue, offset: int) -> None:
        """As `commit`, but raises nothing: the next commit replaces one that fails."""
        raise NotImplementedError

    async def commit_many(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the offsets of several queues when the member ends; raises nothing."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Called after the periodic commits of all queues; raises nothing."""


class MemoryOffsets(OffsetStore):
    """Keeps offsets in memory: each process begins where `consume_from` says. Each group needs one of its own."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._group: str | None = None

    async def open(self, group: str, name_servers: Sequence[str]) -> None:
        """Raises BadArgument if it has the offsets of another group."""
        if self._group not in (None, group):
            raise BadArgument(
                "offset_store", f"another one for group {group}: this one has the offsets of {self._group}", self
            )
        self._group = group

    async def committed(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset

    async def commit_oneway(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset

    async def commit_many(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._offsets.update(offsets)
        await self.flush()


class LocalOffsets(MemoryOffsets):
    """Keeps offsets in a file, in the format of Java's consumers, and the previous version beside it as `.bak`.

    The default `path` is that of a Java consumer of the same group on this machine:
    `~/.rocketmq_offsets/<address>@DEFAULT/<group>/offsets.json`. Members with one file overwrite each other's offsets.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._path = None if path is None else Path(path)
        self._written: dict[MessageQueue, int] = {}
        self._has_failed = False

    async def open(self, group: str, name_servers: Sequence[str]) -> None:
        """Read the file. Raises BadOffsetFile if it, and the one beside it, cannot be read, or none can be written, and
        BadArgument."""
        await super().open(group, name_servers)
        if self._path is None:
            self._path = (
                Path.home() / ".rocketmq_offsets" / f"{local_ip(name_servers)}@DEFAULT" / group / "offsets.json"
            )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(self._path.parent, os.W_OK):
                raise PermissionError(13, "no file can be written in its folder")
        except OSError as error:
            raise BadOffsetFile(str(self._path), error.strerror or str(error)) from error
        read = _read(self._path)
        found = _read(_backup(self._path)) if read is None or isinstance(read, str) else read
        if isinstance(read, str):  # corrupt
            if not isinstance(found, dict):
                raise BadOffsetFile(str(self._path), read)
            log.warning(
                "%s is corrupt (%s): the previous offsets are read from %s", self._path, read, _backup(self._path)
            )
        elif isinstance(found, str):
            raise BadOffsetFile(str(_backup(self._path)), found)
        self._offsets.update(found or {})
        self._written = dict(self._offsets)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        await super().commit(queue, offset)
        await self.flush()

    async def flush(self) -> None:
        if self._path is None or self._offsets == self._written:
            return
        data = ResetOffsetBody(offset_table=dict(sorted(self._offsets.items()))).to_json()
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        try:
            with os.fdopen(open_new(str(temporary)), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # Who reads between the two finds the former one.
            if self._path.exists():
                os.replace(self._path, _backup(self._path))
            os.replace(temporary, self._path)
        except OSError as error:
            if not self._has_failed:
                log.warning("offsets are not saved in %s: %s; trying again at each commit", self._path, error.strerror)
            self._has_failed = True
            return
        if self._has_failed:
            log.info("offsets are saved in %s again", self._path)
        self._has_failed = False
        self._written = dict(self._offsets)


def _backup(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def _read(path: Path) -> dict[MessageQueue, int] | str | None:
    """The offsets of a file, None if it is missing or empty, or why it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    if not data.strip():
        return None
    if len(data) > _BYTES_MAX:
        return f"it has more than {_BYTES_MAX} bytes"
    try:
        found = ResetOffsetBody.from_json(data, None).offset_table
    except BadBody as bad:
        return str(bad)
    if any(offset < 0 for offset in found.values()):
        return "an offset in it is below 0"
    return found
