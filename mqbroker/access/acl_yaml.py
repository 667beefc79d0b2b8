"""Parser and writer of ACL files. No file access here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import yaml
from twisted.logger import Logger

from mqbroker.access.accounts import Account
from mqbroker.access.addresses import AddressPattern, BadAddress, parse_pattern
from mqbroker.errors import MQError
from mqbroker.wire.access import Permission
from mqbroker.wire.bodies import DataVersion

log = Logger()

#: Access key and secret must be longer.
KEY_LENGTH_MIN = 6

#: In the sample file that comes with every Java broker, and so known to everybody.
_WELL_KNOWN_SECRET = "12345678"

_FILE_KEYS = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
_ACCOUNT_KEYS = (
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin"),
    *("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"),
)

_PERMISSIONS = {
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
    "DENY": Permission.DENY,
}


class BadAcl(MQError):
    """An invalid ACL file, or an invalid change to one; the text names no secret."""


@attrs.frozen
class AclFile:
    """Content of one file. `raw` is the decoded YAML, not to be modified."""

    accounts: tuple[Account, ...] = ()
    white: tuple[AddressPattern, ...] = ()
    version: DataVersion = DataVersion()
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


def parse_acl(text: str) -> AclFile:
    """Read a file's text. Raises BadAcl."""
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadAcl(f"it is not YAML: {_where(error)}") from None
    if raw is None:
        return AclFile()
    if not isinstance(raw, dict):
        raise BadAcl(f"it must hold keys such as accounts, not a {type(raw).__name__}")
    _warn_of_others(raw, _FILE_KEYS, "the file")
    accounts = [_account(item, at) for at, item in enumerate(_list(raw, "accounts"), 1)]
    white = tuple(_pattern(item, "globalWhiteRemoteAddresses") for item in _list(raw, "globalWhiteRemoteAddresses"))
    return AclFile(tuple(accounts), white, _version(raw), raw)


def dump_acl(raw: Mapping[str, Any]) -> str:
    """The text of a file, as Java writes it."""
    text: str = yaml.safe_dump(dict(raw), default_flow_style=False, sort_keys=False, allow_unicode=True)
    return text


def parse_permission(text: str | None) -> Permission:
    """Parse a permission. Unknown ones deny, as in Java."""
    return _PERMISSIONS.get((text or "").strip(), Permission.DENY)


def is_permission(text: str) -> bool:
    """Whether it is one of the words that Java's ACL files have for permissions."""
    return text.strip() in _PERMISSIONS


def _where(error: Exception) -> str:
    """The position of a YAML error, without the text there, which may be a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return type(error).__name__
    return f"{getattr(error, 'problem', None) or 'error'} in line {mark.line + 1}, column {mark.column + 1}"


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    value = raw.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadAcl(f"{key} must be a list, not a {type(value).__name__}")
    return value


def _account(item: Any, at: int) -> Account:
    where = f"account {at}"
    if not isinstance(item, dict):
        raise BadAcl(f"{where} must hold keys such as accessKey, not a {type(item).__name__}")
    access_key, secret_key = _text(item, "accessKey", where), _text(item, "secretKey", where)
    check_keys(access_key, secret_key)
    assert access_key is not None
    assert secret_key is not None
    where = f"account {access_key}"
    _warn_of_others(item, _ACCOUNT_KEYS, where)
    return Account(
        access_key=access_key,
        secret_key=secret_key,
        is_white=_pattern(_text(item, "whiteRemoteAddress", where), where),
        admin=_boolean(item.get("admin"), where),
        default_topic=_default(item, "defaultTopicPerm", where),
        default_group=_default(item, "defaultGroupPerm", where),
        topics=_permissions(item, "topicPerms", where),
        groups=_permissions(item, "groupPerms", where),
    )


def check_keys(access_key: str | None, secret_key: str | None) -> None:
    """Raise BadAcl if one is missing or too short, or the secret is a known one."""
    if len(access_key or "") <= KEY_LENGTH_MIN or len(secret_key or "") <= KEY_LENGTH_MIN:
        raise BadAcl(f"The accessKey={access_key} and secretKey=*** cannot be null and length should longer than 6")
    if secret_key == _WELL_KNOWN_SECRET:
        why = "its secretKey is that of the sample file which comes with the Java broker, so everybody knows it"
        raise BadAcl(f"account {access_key}: {why}; give it a long random one")


def _warn_of_others(item: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in item.keys() - set(known):
        log.warn(
            "{key!r} in {where} has no effect; valid keys are {known}", key=key, where=where, known=", ".join(known)
        )


def _text(item: Mapping[str, Any], key: str, where: str) -> str | None:
    value = item.get(key)
    if type(value) is int:
        return str(value)
    if value is not None and not isinstance(value, str):
        raise BadAcl(f"{key} of {where} must be text, not a {type(value).__name__}: put it in quotes")
    return value


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise BadAcl(f"admin of {where} must be true or false")
    return bool(value)


def _default(item: Mapping[str, Any], key: str, where: str) -> Permission:
    text = _text(item, key, where)
    if text is not None and not is_permission(text):
        log.warn("{key} of {where} is {text!r}, which is treated as DENY", key=key, where=where, text=text)
    return parse_permission(text)


def _permissions(item: Mapping[str, Any], key: str, where: str) -> dict[str, Permission]:
    found = {}
    for entry in _list(item, key):
        name, separator, permission = str(entry).partition("=")
        if not separator or not name.strip() or "=" in permission or not permission.strip():
            kind = "topic" if key == "topicPerms" else "group"
            raise BadAcl(f"Parse resource permission failed for {kind}:{entry} of {where}: write name=PUB|SUB")
        if not is_permission(permission):
            log.warn("{entry} in {key} of {where} is treated as DENY", entry=str(entry), key=key, where=where)
        found[name.strip()] = parse_permission(permission)
    return found


def _pattern(text: Any, where: str) -> AddressPattern:
    try:
        return parse_pattern("" if text is None else str(text))
    except BadAddress as error:
        raise BadAcl(f"{error} ({where})") from None


def _version(raw: Mapping[str, Any]) -> DataVersion:
    entries = _list(raw, "dataVersion")
    first = entries[0] if entries else {}
    if not isinstance(first, dict):
        return DataVersion()
    timestamp, counter = first.get("timestamp", 0), first.get("counter", 0)
    if type(timestamp) is not int or type(counter) is not int:
        return DataVersion()
    return DataVersion(timestamp, counter)


Raw = Mapping[str, Any]


@attrs.frozen
class AccountChange:
    """The change of an account. Fields that are None or empty stay unchanged; so does a `white_address` of None."""

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
        """The account's new entry in a file; `former` is its present one."""
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
    """`raw` with the changed account, at the end."""
    accounts = _accounts(raw)
    former: Raw = next((each for each in accounts if _key(each) == change.access_key), {})
    others = [each for each in accounts if _key(each) != change.access_key]
    return {**raw, "accounts": [*others, change.over(former)]}


def without_account(raw: Raw, access_key: str) -> Raw:
    """The content without the account of that access key."""
    return {**raw, "accounts": [each for each in _accounts(raw) if _key(each) != access_key]}


def with_white(raw: Raw, addresses: Sequence[str]) -> Raw:
    """The content with these addresses as global white list."""
    return {**raw, "globalWhiteRemoteAddresses": list(addresses)}


def with_version(raw: Raw, version: DataVersion) -> Raw:
    """The content with another data version."""
    return {**raw, "dataVersion": [{"counter": version.counter, "timestamp": version.timestamp}]}


def _accounts(raw: Raw) -> list[Any]:
    return list(raw.get("accounts") or [])


def _key(account: Raw) -> str:
    return str(account.get("accessKey"))
