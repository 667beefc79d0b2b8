"""Many files of a store, a bounded number of them mapped at a time. Must never know what they hold."""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.store.disk import IDisk, IMappedFile

NO_VIEW = memoryview(b"")
#: So many files are mapped at a time.
_MAPPED_MAX = 512


class FilePool:
    """Maps files of `file_bytes` each, to be read."""

    def __init__(self, disk: IDisk, file_bytes: int) -> None:
        self._disk = disk
        self.file_bytes = file_bytes
        self._mapped: list[tuple[IMappedFile, Callable[[], None]]] = []

    def open(self, path: str, forget: Callable[[], None]) -> memoryview:
        """The bytes of a file. They are gone when `forget` is called: as soon as another file needs the room."""
        if len(self._mapped) >= _MAPPED_MAX:
            self.close()
        file = self._disk.open_mapped(path, self.file_bytes, read_only=True)
        self._mapped.append((file, forget))
        return file.view

    def close(self) -> None:
        for file, forget in self._mapped:
            forget()
            file.close()
        self._mapped.clear()
