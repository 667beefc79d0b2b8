"""The log as those see it who are given records of it, and now and then have to look at one again."""

from __future__ import annotations

from zope.interface import Interface

from mqbroker.store.disk import IMappedFile


class ILogView(Interface):
    """The bytes of the log, segment by segment."""

    def view(offset: int) -> tuple[memoryview, int] | None:
        """The segment that holds `offset`, and the position in it; None where the log has no such byte."""

    def place(offset: int) -> tuple[IMappedFile, int]:
        """As `view`, with the file instead of its bytes, of an offset that the log has."""

    def path_of(offset: int) -> str:
        """The file that holds the byte at `offset`, which the log has."""
