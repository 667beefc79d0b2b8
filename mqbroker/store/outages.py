"""What is tried again and again while it fails: said once when that begins, and once when it works again."""

from __future__ import annotations

from twisted.logger import Logger

log = Logger()


class Outage:
    """One such thing.

    :param what_fails: such as "/data/topics.json cannot be written".
    :param works_again: what to say when it does.
    """

    def __init__(self, what_fails: str, works_again: str) -> None:
        self._what_fails = what_fails
        self._works_again = works_again
        self.is_on = False

    def failed(self, why: str) -> None:
        if not self.is_on:
            self.is_on = True
            log.error("{what}: {why}", what=self._what_fails, why=why)

    def worked(self) -> None:
        if self.is_on:
            self.is_on = False
            log.info("{what}", what=self._works_again)
