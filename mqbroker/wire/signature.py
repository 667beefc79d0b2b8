"""The signature of a request: HMAC-SHA1 over the values of its fields and its body, in Base64.

Source: AclUtils.combineRequestContent and AclSigner of 4.9.7. Values are in the order of their names, without the
names; fields added after signing are not covered.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import attrs

from mqbroker.wire.codes import UNIQUE_MSG_QUERY_FLAG

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

_UNSIGNED: Final = frozenset({SIGNATURE, UNIQUE_MSG_QUERY_FLAG})
_UNSIGNED_BY_JAVA: Final = frozenset({SIGNATURE})


def signed_content(fields: Mapping[str, str], body: bytes, unsigned: AbstractSet[str] = _UNSIGNED) -> bytes:
    """The signed content of a request: the values of its fields, except `unsigned` ones, and its body."""
    return "".join([fields[name] for name in sorted(fields) if name not in unsigned]).encode() + body


def sign(content: bytes, secret_key: str) -> str:
    """The value of the field Signature."""
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode("ascii")


def is_signed(fields: Mapping[str, str], body: bytes, secret_key: str) -> bool:
    """Whether the field Signature is correct, compared in constant time.

    Java's clients sign the flag of a query by key, which Java's broker leaves out: either is correct.
    """
    signature = fields.get(SIGNATURE, "").encode()
    if is_signature_of(signed_content(fields, body), signature, secret_key):
        return True
    if UNIQUE_MSG_QUERY_FLAG not in fields:
        return False
    return is_signature_of(signed_content(fields, body, _UNSIGNED_BY_JAVA), signature, secret_key)


def is_signature_of(content: bytes, signature: bytes, secret_key: str) -> bool:
    """Whether `signature` is that of `content`, compared in constant time."""
    return hmac.compare_digest(signature, sign(content, secret_key).encode())


@attrs.frozen
class Credentials:
    """A client's account for brokers with access control."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)

    def sign(self, fields: dict[str, str], body: bytes) -> None:
        """Add the fields of the signature. A former signature is replaced."""
        fields[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = sign(signed_content(fields, body), self.secret_key)
