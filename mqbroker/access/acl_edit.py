"""Changes to the content of an ACL file, as codes 50, 51 and 53 ask for them. Content in, content out; no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mqbroker.access.acl_yaml import BadAcl, check_keys, is_permission
from mqbroker.wire.bodies import DataVersion

Raw = Mapping[str, Any]


@attrs.frozen
class AccountChange:
    """What an account shall be. What is None or empty stays as it is; so does a `white_address` of None."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    white_address: str | None = None
    admin: bool = False
    default_topic: str | None = None
    default_group: str | None = None
    topics: Sequence[str] | None = None
    groups: Sequence[str] | None = None

    def check(self) -> None:
        """Raise BadAcl, with Java's remarks."""
        check_keys(self.access_key, self.secret_key)
        for entry in (*(self.topics or ()), *(self.groups or ())):
            name, separator, permission = entry.partition("=")
            if not separator or not name.strip() or "=" in permission or not permission:
                raise BadAcl(
                    f"Parse Resource format error for {entry}.\n"
                    "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
                )
            if not is_permission(permission):
                raise BadAcl(
                    f"Parse resource permission error for {entry}.\n"
                    "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
                )

    def over(self, former: Raw) -> dict[str, Any]:
        """The account's entry in a file, where `former` is the one it had."""
        given = {
            "accessKey": self.access_key,
            "secretKey": self.secret_key,
            "whiteRemoteAddress": self.white_address,
            "admin": self.admin,
            "defaultTopicPerm": self.default_topic or None,
            "defaultGroupPerm": self.default_group or None,
            "topicPerms": None if self.topics is None else list(self.topics),
            "groupPerms": None if self.groups is None else list(self.groups),
        }
        return {**former, **{key: value for key, value in given.items() if value is not None}}


def with_account(raw: Raw, change: AccountChange) -> Raw:
    """`raw` with the account as `change` wants it, at the end."""
    accounts = _accounts(raw)
    former: Raw = next((each for each in accounts if _key(each) == change.access_key), {})
    others = [each for each in accounts if _key(each) != change.access_key]
    return {**raw, "accounts": [*others, change.over(former)]}


def without_account(raw: Raw, access_key: str) -> Raw:
    return {**raw, "accounts": [each for each in _accounts(raw) if _key(each) != access_key]}


def with_white(raw: Raw, addresses: Sequence[str]) -> Raw:
    return {**raw, "globalWhiteRemoteAddresses": list(addresses)}


def with_version(raw: Raw, version: DataVersion) -> Raw:
    return {**raw, "dataVersion": [{"counter": version.counter, "timestamp": version.timestamp}]}


def _accounts(raw: Raw) -> list[Any]:
    return list(raw.get("accounts") or [])


def _key(account: Raw) -> str:
    return str(account.get("accessKey"))
