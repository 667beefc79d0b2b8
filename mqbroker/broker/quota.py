"""What is said where a table that peers fill is full."""

from __future__ import annotations

from mqbroker.errors import Refused
from mqbroker.wire.codes import ResponseCode


def full(what: str, count: int, key: str) -> Refused:
    """The refusal of one more of `what`, of which the setting `key` allows as many as there are."""
    remark = f"this broker has {count} {what}, as many as {key} allows: remove some that nobody needs, or raise {key}"
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
