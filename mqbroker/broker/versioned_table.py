"""Base class of tables kept in a file with a DataVersion: topics and subscription groups.

Source of the rules: ConfigManager of 4.9.7, which writes the whole table after each change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.live_settings import LiveSettings, full
from mqbroker.config import BrokerRole
from mqbroker.errors import MQError
from mqbroker.store.jsonfile import JsonFile
from mqbroker.wire.bodies import DataVersion
from mqbroker.wire.body import Body

log = Logger()

T = TypeVar("T")


class VersionedTable(Generic[T]):
    """Values by name. Each change increments the version and writes the file.

    :param file: the file of the table; its path is logged when a name in it is skipped.
    :param now: returns seconds since the epoch.
    :param what: what a value is called, such as "topic".
    """

    def __init__(self, file: JsonFile, now: Callable[[], float], live: LiveSettings, what: str) -> None:
        self._file = file
        self._now = now
        self._live = live
        self._what = what
        self._has_lmq = live.current.store.enable_lmq
        self._values: dict[str, T] = {}
        #: Called when the table is full, to remove unused values.
        self.on_full: list[Callable[[], None]] = []
        #: Called with the name of each value that changed.
        self.on_change: list[Callable[[str], None]] = []
        self.data_version = DataVersion(self._now_ms(), 0)
        #: Whether the table is a copy of a master's, whose version it keeps.
        self._is_copy = live.current.store.broker_role is BrokerRole.SLAVE

    def snapshot(self) -> Body:
        """All values with their data version, as registered, persisted and shown."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """The names of all values."""
        return list(self._values)

    def _load(self, version: DataVersion, table: Mapping[str, T], check: Callable[[str], object]) -> None:
        """Add the values of `table`, except names for which `check` raises MQError."""
        self.data_version = version
        for name, value in table.items():
            try:
                check(name)
            except MQError as error:
                path, what = self._file.path, self._what
                log.warn("{path}: {what} {name} is ignored: {why}", path=path, what=what, name=name, why=str(error))
            else:
                self._values[name] = value

    def _make_room(self, has_room: Callable[[], bool], key: str) -> None:
        """Remove unused values if the table is full. Raises Refused if it still is; the setting `key` is the limit."""
        if has_room():
            return
        for make_room in self.on_full:
            make_room()
        if not has_room():
            raise full(f"{self._what}s", len(self._values), key)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    def mark_changed(self) -> None:
        """Increment the table's version, unless it is a copy of a master's, and write the file."""
        if not self._is_copy:
            self.data_version = self.data_version.next(self._now_ms())
        self.persist()

    def _changed(self, name: str) -> None:
        """Mark the table changed, and tell of a value that was added, replaced or removed."""
        self.mark_changed()
        self._tell(name)

    def _tell(self, name: str) -> None:
        for callback in self.on_change:
            callback(name)

    def _replace(self, version: DataVersion, table: Mapping[str, T], check: Callable[[str], object]) -> None:
        """Replace all values by a master's, but for names for which `check` raises MQError. An older version, or the
        same, replaces nothing."""
        known = self.data_version
        if version == known or (version.timestamp < known.timestamp and version.counter < known.counter):
            return
        before = dict(self._values)
        self._values.clear()
        self._load(version, table, check)
        self.persist()
        for name in before.keys() | self._values.keys():
            if before.get(name) != self._values.get(name):
                self._tell(name)

    def saved(self) -> Deferred[bool] | None:
        """Fires when all changes so far are on the disk, or could not be written; None if no write is in progress."""
        return self._file.saved()

    async def when_saved(self) -> None:
        """Return when all changes so far are on the disk, or could not be written."""
        saved = self.saved()
        if saved is not None:
            await saved

    def persist(self) -> Deferred[bool]:
        """Write the file; fires True when it is on the disk."""
        return self._file.save(lambda: self.snapshot().json_pieces())
