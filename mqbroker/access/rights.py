"""What handlers ask of access control: who sent a request, and whether that may be done with a message they found.

The fields of a request are looked at before a handler sees it; this is for what only the handler finds out.
"""

from __future__ import annotations

from collections.abc import Mapping

from zope.interface import Interface, implementer

from mqbroker.remoting.handlers import IConnection


class IRights(Interface):
    """Knows who may do what."""

    def check_topic(code: int, fields: Mapping[str, str], body: bytes, connection: IConnection, topic: str) -> None:
        """Raise Refused where the sender of a request may not ask `code` about a message of `topic`."""

    def check_record(code: int, fields: Mapping[str, str], body: bytes, connection: IConnection, record: bytes) -> None:
        """As `check_topic`, for the message that `record` is, whole as it is stored."""

    def account_of(fields: Mapping[str, str], body: bytes, connection: IConnection) -> str | None:
        """The access key of a request that was let through; None where its sender needs none."""

    def may_write(access_key: str | None, topic: str) -> bool:
        """Whether the account may write to `topic` now, as whoever needs none may."""


@implementer(IRights)
class Everybody:
    """Where access is not controlled."""

    def check_topic(
        self, code: int, fields: Mapping[str, str], body: bytes, connection: IConnection, topic: str
    ) -> None:
        pass

    def check_record(
        self, code: int, fields: Mapping[str, str], body: bytes, connection: IConnection, record: bytes
    ) -> None:
        pass

    def account_of(self, fields: Mapping[str, str], body: bytes, connection: IConnection) -> str | None:
        return None

    def may_write(self, access_key: str | None, topic: str) -> bool:
        return True
