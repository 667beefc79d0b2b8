"""Accounts and what each may do. Values only; whose request it is, and what it needs, is found out elsewhere.

Source of rules and remarks: PlainPermissionManager and Permission of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntFlag

import attrs

from mqbroker.access.addresses import AddressPattern
from mqbroker.errors import MQError
from mqbroker.wire.codes import DLQ_PREFIX, RETRY_PREFIX
from mqbroker.wire.signature import ACCESS_KEY, is_signed


class Permission(IntFlag):
    """What may be done with a topic, or for a group."""

    DENY = 1
    PUB = 4
    SUB = 8


class AccessRefused(MQError):
    """A request that its sender may not make; the text is that of Java's AclException and names no secret."""


@attrs.frozen
class Need:
    """A topic or a group, with one of PUB and SUB that is needed for it."""

    name: str
    permission: Permission
    is_group: bool = False

    @classmethod
    def of_topic(cls, topic: str, permission: Permission) -> Need:
        """Topics that belong to a group go by the group: whoever consumes for it may read them and write to them."""
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if topic.startswith(prefix):
                return cls(topic.removeprefix(prefix), Permission.SUB, True)
        return cls(topic, permission)

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'topic'}:{self.name}"


@attrs.frozen
class Account:
    """One account. Permissions that are not given are those of `default_topic` and `default_group`."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    is_white: AddressPattern = attrs.field(repr=False)
    admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Mapping[str, Permission] = attrs.field(factory=dict)
    groups: Mapping[str, Permission] = attrs.field(factory=dict)

    def check(self, needs: Iterable[Need]) -> None:
        """Raise AccessRefused where it lacks one of `needs`. An administrator without a list of its own lacks none."""
        if self.admin and not self.topics and not self.groups:
            return
        for need in needs:
            given, default = (self.groups, self.default_group) if need.is_group else (self.topics, self.default_topic)
            owned = given.get(need.name, default)
            if owned & Permission.DENY or not owned & need.permission:
                raise AccessRefused(f"No default permission for {need}")

    def check_admin(self, code: int) -> None:
        """Raise AccessRefused where it is not an administrator's."""
        if not self.admin:
            raise AccessRefused(
                f"Need admin permission for request code={code}, but accessKey={self.access_key} is not"
            )


@attrs.frozen
class Accounts:
    """All accounts of a broker, and the addresses that need none."""

    by_key: Mapping[str, Account] = attrs.field(factory=dict)
    white: tuple[AddressPattern, ...] = ()

    def identify(self, fields: Mapping[str, str], body: bytes, host: str) -> Account | None:
        """Whose request it is; None where `host` is trusted with everything. Raises AccessRefused.

        :param host: the sender's address, without a port.
        """
        if any(is_white(host) for is_white in self.white):
            return None
        access_key = fields.get(ACCESS_KEY)
        if access_key is None:
            raise AccessRefused("No accessKey is configured")
        account = self.by_key.get(access_key)
        if account is None:
            raise AccessRefused(f"No acl config for {access_key}")
        if account.is_white(host):
            return None
        if not is_signed(fields, body, account.secret_key):
            raise AccessRefused(f"Check signature failed for accessKey={access_key}")
        return account
