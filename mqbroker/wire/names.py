"""Topic and group names: one rule, applied at every entry - network, command line, and files read back.

Names become directory names in the store, so nothing that could leave the directory passes.
"""

from __future__ import annotations

import re

from mqbroker.errors import Refused
from mqbroker.wire.codes import ResponseCode

TOPIC_LENGTH_MAX = 127
GROUP_LENGTH_MAX = 255

_legal = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch


def check_topic(topic: str) -> str:
    """Return `topic`; raise Refused with the remarks of 4.9.7 where it is blank, too long or has other characters."""
    if not topic or topic.isspace():
        raise Refused(ResponseCode.SYSTEM_ERROR, "The specified topic is blank.")
    if not _legal(topic):
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    if len(topic) > TOPIC_LENGTH_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The specified topic is longer than topic max length.")
    return topic


def check_group(group: str) -> str:
    """Return `group`; raise Refused where it is blank, too long or has other characters."""
    if not group or group.isspace():
        raise Refused(ResponseCode.SYSTEM_ERROR, "The specified group is blank.")
    if not _legal(group):
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    if len(group) > GROUP_LENGTH_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The specified group is longer than group max length 255.")
    return group
