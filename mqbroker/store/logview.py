"""The log as those see it who are given records of it, and now and then have to look at one again."""

from __future__ import annotations

from zope.interface import Interface


class ILogView(Interface):
    """The bytes of the log, segment by segment."""

    def view(offset: int) -> tuple[memoryview, int] | None:
        """The segment that holds `offset`, and the position in it; None where the log has no such byte."""

    def path_of(offset: int) -> str:
        """The file that holds the byte at `offset`, which the log has."""
