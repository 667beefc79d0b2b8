"""The checkpoint of a stream that Spark does not drive: which batches were planned, and which are done.

A directory of any of Hadoop's file systems holds

``metadata``
    The id of the query, and the version of this layout.
``offsets/N``, ``commits/N``
    The end of batch N, written before it runs, and a file that is there once it is done. Each is written under another
    name and renamed, so that a kill leaves the whole file or none.
``driver``
    The id of the run that writes now. A later run replaces it, and the earlier one fails at its next write.

`BatchLog` has the rules, and no I/O of its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import attrs

from mqbroker.spark.errors import BadCheckpoint
from mqbroker.spark.offsets import read_json
from mqbroker.spark.progress import StreamOffset

#: Version of the layout. A run refuses a checkpoint of a later version.
VERSION = 1
#: How many batches the log keeps.
_KEPT = 100
#: The run that planned a batch: a key beside the topics, which reads of an offset ignore.
_RUN = "#run"
_KINDS = ("offsets", "commits")
_RESTORE = "restore it from a backup, or use a new directory and startingOffsets"


class Files(Protocol):
    """The files of a directory, by names such as "offsets/7". Each method raises OSError."""

    def names(self, folder: str) -> Sequence[str]:
        """The names in a folder, which is created if it does not exist; "" is the directory itself."""

    def read(self, name: str) -> bytes | None:
        """None if it does not exist."""

    def add(self, name: str, data: bytes) -> bool:
        """Write a whole file or none; False if it exists."""

    def replace(self, name: str, data: bytes) -> None: ...

    def delete(self, name: str) -> None:
        """Does nothing if it does not exist."""


@attrs.define
class BatchLog:
    """The log of one run in `directory`. Methods raise BadCheckpoint."""

    files: Files
    directory: str
    query_id: str
    run: str
    #: The last batch that was planned, -1 before the first, and whether it is done.
    batch: int
    is_done: bool

    @staticmethod
    def open(files: Files, directory: str) -> BatchLog:
        """Check what is there, and take it over from whichever run had it."""
        log = BatchLog(files, directory, "", uuid.uuid4().hex, -1, True)
        with log._explained("cannot be used"):
            log._open()
        return log

    def offset(self, batch: int) -> dict[str, Any]:
        """The end of a batch."""
        name = f"offsets/{batch}"
        found = self._read_object(name)
        found.pop(_RUN, None)
        try:
            StreamOffset.from_json(found)
        except ValueError as error:
            raise self._bad(f"{name} holds no offsets ({error}); {_RESTORE}") from None
        return found

    def plan(self, offset: Mapping[str, Any]) -> None:
        """Record the end of the next batch."""
        self._add("offsets", self.batch + 1, dict(offset) | {_RUN: self.run})
        self.batch += 1
        self.is_done = False

    def commit(self) -> None:
        """Record that the batch is done."""
        self._add("commits", self.batch, {})
        self.is_done = True

    def _open(self) -> None:
        metadata = self._metadata()
        planned, done = (max(_numbers(self.files.names(kind)), default=-1) for kind in _KINDS)
        self._check(metadata, planned, done)
        self.batch, self.is_done = planned, planned == done
        if planned >= 0:
            # A checkpoint that cannot be continued is left to the run that has it.
            self.offset(planned)
        self.files.replace("driver", self.run.encode())
        for name in self.files.names(""):
            if name.startswith(".") and name.endswith(".tmp"):
                self.files.delete(name)
        if metadata is None:
            metadata = {"id": str(uuid.uuid4()), "version": VERSION}
            if not self.files.add("metadata", json.dumps(metadata).encode()):
                raise self._taken("metadata")
        self.query_id = str(metadata["id"])

    def _metadata(self) -> dict[str, Any] | None:
        if self.files.read("metadata") is None:
            return None
        found = self._read_object("metadata")
        version = found.get("version", 1)
        if not isinstance(found.get("id"), str) or not isinstance(version, int):
            raise self._bad(f"metadata has no id of a query; {_RESTORE}")
        if version > VERSION:
            raise self._bad(
                f"it has version {version}, of a later mqbroker, and this one knows {VERSION}; install that"
            )
        return found

    def _check(self, metadata: Mapping[str, Any] | None, planned: int, done: int) -> None:
        if metadata is None and planned >= 0:
            raise self._bad(
                f"metadata is missing, with the id by which rows that were written are recognised; {_RESTORE}"
            )
        if done > planned:
            raise self._bad(f"offsets/{done} is missing, although batch {done} is done; {_RESTORE}")
        if planned > done + 1:
            raise self._bad(f"commits/{planned - 1} is missing, although batch {planned} was planned; {_RESTORE}")

    def _read_object(self, name: str) -> dict[str, Any]:
        with self._explained(f"{name} cannot be read"):
            data = self.files.read(name)
        if data is None:
            raise self._bad(f"{name} is missing; {_RESTORE}")
        if data[:1] == b"v" and data[1:2].isdigit():
            raise self._bad("it is one of a query that Spark drives, with writeStream; use another directory")
        try:
            found = read_json(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._bad(f"{name} is damaged: its {len(data)} bytes are no JSON object; {_RESTORE}")
        return found

    def _add(self, kind: str, number: int, value: Mapping[str, Any]) -> None:
        name = f"{kind}/{number}"
        with self._explained(f"{name} cannot be written"):
            if self.files.read("driver") != self.run.encode() or not self.files.add(name, json.dumps(value).encode()):
                raise self._taken(name)
            self.files.delete(f"{kind}/{number - _KEPT}")

    def _taken(self, name: str) -> BadCheckpoint:
        return self._bad(f"{name} is not written, because another run has started with this checkpoint")

    def _bad(self, why: str) -> BadCheckpoint:
        return BadCheckpoint(self.directory, why)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._bad(f"{what}: {error}") from None


def _numbers(names: Sequence[str]) -> list[int]:
    return [int(name) for name in names if name.isascii() and name.isdigit()]


class HadoopFiles:
    """Files by Hadoop's file systems, so that the checkpoint is where Spark's own would be."""

    def __init__(self, spark: Any, directory: str) -> None:
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to Spark's file systems
        self._new_path = jvm.org.apache.hadoop.fs.Path
        self._to_bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._directory = directory.rstrip("/")
        with _java_errors():
            root = self._new_path(self._directory)
            self._files = root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001

    def names(self, folder: str) -> Sequence[str]:
        path = self._path(folder) if folder else self._new_path(self._directory)
        with _java_errors():
            self._files.mkdirs(path)
            return [status.getPath().getName() for status in self._files.listStatus(path)]

    def read(self, name: str) -> bytes | None:
        with _java_errors():
            if not self._files.exists(self._path(name)):
                return None
            opened = self._files.open(self._path(name))
            try:
                return bytes(self._to_bytes(opened))
            finally:
                opened.close()

    def add(self, name: str, data: bytes) -> bool:
        path, partial = self._path(name), self._path(f".{uuid.uuid4()}.tmp")
        with _java_errors():
            try:
                self._write(partial, data)
                # Some file systems replace what is there, others refuse.
                return not self._files.exists(path) and bool(self._files.rename(partial, path))
            finally:
                self._files.delete(partial, False)

    def replace(self, name: str, data: bytes) -> None:
        with _java_errors():
            self._write(self._path(name), data)

    def delete(self, name: str) -> None:
        with _java_errors():
            self._files.delete(self._path(name), False)

    def _path(self, name: str) -> Any:
        return self._new_path(f"{self._directory}/{name}")

    def _write(self, path: Any, data: bytes) -> None:
        output = self._files.create(path, True)
        try:
            output.write(bytearray(data))
        finally:
            output.close()


@contextmanager
def _java_errors() -> Iterator[None]:
    """Raise Java's errors as OSError, without Java's traceback."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raised = error.java_exception
        raise OSError(f"{raised.getClass().getSimpleName()}: {raised.getMessage()}") from None
