"""Names of topics and groups, and addresses: one rule, applied at every entry - network, command line, files read back.

Names become directory names in the store, so nothing that could leave the directory passes.
"""

from __future__ import annotations

import re

from mqbroker.errors import MQError, Refused
from mqbroker.wire.codes import ResponseCode

TOPIC_LENGTH_MAX = 127
GROUP_LENGTH_MAX = 255
#: Prefix of light message queues, and of the groups that read them.
LMQ_PREFIX = "%LMQ%"
#: Maximum length of a directory's name.
LMQ_BYTES_MAX = 255

_legal = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch
_legal_lmq = re.compile(r"%LMQ%[^/,@\x00-\x1f\x7f\ud800-\udfff\ufffd]+").fullmatch


def is_lmq(name: str) -> bool:
    """Whether it is the name of a light message queue, or of a group that reads such.

    They are in no topic table, and may have other characters than topics (MQTT's + and #)."""
    return name.startswith(LMQ_PREFIX) and _legal_lmq(name) is not None and len(name.encode()) <= LMQ_BYTES_MAX


def check_topic(topic: str) -> str:
    """Return `topic`; raises Refused with the remarks of 4.9.7 if it is blank, too long or has other characters."""
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
    """Return `group`; raises Refused if it is blank, too long or has other characters."""
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


def split_address(address: str) -> tuple[str, int]:
    """('host', port) of "host:port" or "[v6]:port". Raises MQError if it is neither."""
    host, separator, port = address.strip().rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not separator or not host or not is_number or not 0 < int(port) < 65536:
        raise MQError(f"{address!r} is not an address: it must be host:port, such as 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """ "host:port"; an IPv6 address is put into brackets. The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ip(text: str) -> bool:
    """Whether it is a numeric address, IPv4 or IPv6, without a port."""
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def java_hash(text: str) -> int:
    """Return the 32-bit signed hash Java computes over the UTF-16 code units of `text`."""
    if text.isascii():
        units: list[int] | bytes = text.encode("ascii")
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units = [data[i] << 8 | data[i + 1] for i in range(0, len(data), 2)]
    h = 0
    for unit in units:
        h = (31 * h + unit) & 0xFFFFFFFF
    return h - 0x100000000 if h & 0x80000000 else h
