"""Accounts and their permissions: values only. The guard authenticates requests and checks what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
from zope.interface import Interface, implementer

from mqbroker.access.addresses import AddressPattern
from mqbroker.errors import MQError
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.access import Need, Permission


class AccessRefused(MQError):
    """A request that is denied; the text is that of Java's AclException and names no secret."""


@attrs.frozen
class Account:
    """One account. Missing permissions are those of `default_topic` and `default_group`."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    is_white: AddressPattern = attrs.field(repr=False)
    admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Mapping[str, Permission] = attrs.field(factory=dict)
    groups: Mapping[str, Permission] = attrs.field(factory=dict)

    @property
    def has_all_permissions(self) -> bool:
        """Whether it is an administrator's without a list of its own."""
        return self.admin and not self.topics and not self.groups

    def check(self, needs: Iterable[Need]) -> None:
        """Raise AccessRefused if it lacks one of `needs`."""
        if self.has_all_permissions:
            return
        for need in needs:
            if not self._has(need):
                raise AccessRefused(f"No default permission for {need}")

    def _has(self, need: Need) -> bool:
        given, default = (self.groups, self.default_group) if need.is_group else (self.topics, self.default_topic)
        owned = given.get(need.name, default)
        if need.is_group and need.permission is Permission.PUB:
            # Java's ACL files give no permissions on producer groups: an account that may write to a topic may join one
            # that is not denied by name.
            is_shut = given.get(need.name, Permission.PUB) & Permission.DENY
            writes = any(each & Permission.PUB for each in (owned, self.default_topic, *self.topics.values()))
            return not is_shut and writes
        return not owned & Permission.DENY and bool(owned & need.permission)

    def check_admin(self, code: int) -> None:
        """Raise AccessRefused if it is not an administrator's."""
        if not self.admin:
            raise AccessRefused(
                f"Need admin permission for request code={code}, but accessKey={self.access_key} is not"
            )


@attrs.frozen
class Accounts:
    """All accounts of a broker, and the addresses that need none."""

    by_key: Mapping[str, Account] = attrs.field(factory=dict)
    white: tuple[AddressPattern, ...] = ()

    def identify(self, access_key: str | None, host: str, has_signed: Callable[[Account], bool]) -> Account | None:
        """The account of a request; None if it needs none. Raises AccessRefused.

        :param host: the sender's address, without a port.
        :param has_signed: says whether the account of that key has signed the request.
        """
        if any(is_white(host) for is_white in self.white):
            return None
        if access_key is None:
            raise AccessRefused("No accessKey is configured")
        account = self.by_key.get(access_key)
        if account is None:
            raise AccessRefused(f"No acl config for {access_key}")
        if account.is_white(host):
            return None
        if not has_signed(account):
            raise AccessRefused(f"Check signature failed for accessKey={access_key}")
        return account


class IAccessControl(Interface):
    """Access control, as the handlers use it."""

    def check_topics(
        code: int, fields: Mapping[str, str], body: bytes, connection: IConnection, topics: Sequence[str]
    ) -> None:
        """Raise Refused if the sender of a request may not send `code` about a message that is put in these topics."""

    def check_record(code: int, fields: Mapping[str, str], body: bytes, connection: IConnection, record: bytes) -> None:
        """As `check_topics`, for the message in `record`, as it is stored."""

    def account_of(fields: Mapping[str, str], body: bytes, connection: IConnection) -> str | None:
        """The access key of an accepted request; None if its sender needs none."""

    def may_write(access_key: str | None, topics: Sequence[str]) -> bool:
        """Whether the account may write to all `topics` now; senders that need none may."""


@implementer(IAccessControl)
class NoAccessControl:
    """Access control that is off."""

    def check_topics(
        self, code: int, fields: Mapping[str, str], body: bytes, connection: IConnection, topics: Sequence[str]
    ) -> None:
        pass

    def check_record(
        self, code: int, fields: Mapping[str, str], body: bytes, connection: IConnection, record: bytes
    ) -> None:
        pass

    def account_of(self, fields: Mapping[str, str], body: bytes, connection: IConnection) -> str | None:
        return None

    def may_write(self, access_key: str | None, topics: Sequence[str]) -> bool:
        return True
