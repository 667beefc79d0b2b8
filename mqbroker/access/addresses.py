"""Address patterns of the white lists in plain_acl.yml.

    *                     everyone, as are *.*.*.* and *:*:*:*:*:*:*:*
    192.168.0.1           one address, of IPv4 or IPv6
    10.0.0.1,10.0.0.2     several
    192.168.0.{1,2}       several that differ in the last part
    192.168.1-200.*       ranges: in the parts of an IPv4 address, in the last two of an IPv6 one (1050::5:1-30ff:*)

Blank matches no address. Source: RemoteAddressStrategyFactory of 4.9.7, with its remarks; unlike there, each part of a
range counts, also those behind the first * or -.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from mqbroker.errors import MQError

#: True for matching addresses. The argument is an address without a port, as from a socket.
AddressPattern = Callable[[str], bool]

_EVERYONE = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_Parts = tuple[int, ...]
_Ranges = tuple[tuple[int, int], ...]


class BadAddress(MQError):
    """An invalid pattern; the text is Java's."""


def parse_pattern(text: str) -> AddressPattern:
    """The pattern of `text`. Raises BadAddress."""
    text = text.strip()
    if not text:
        return _nobody
    if text in _EVERYONE:
        return _everyone
    if text.endswith("}"):
        return _one_of(_expand(text))
    if "," in text:
        return _one_of(text.split(","))
    if "*" in text or "-" in text:
        return _in_ranges(_ranges(text))
    return _one_of([text])


def _nobody(address: str) -> bool:
    return False


def _everyone(address: str) -> bool:
    return True


def _one_of(texts: list[str]) -> AddressPattern:
    wanted = set()
    for text in texts:
        parts = _parts(text.strip())
        if parts is None:
            raise BadAddress(f"Netaddress examine Exception netaddress is {text}")
        wanted.add(parts)
    return lru_cache(maxsize=1024)(lambda address: _parts(address) in wanted)


def _expand(text: str) -> list[str]:
    separator = ":" if ":" in text else "."
    head, _, last = text.rpartition(separator)
    if not last.startswith("{") or "{" in head:
        raise _out_of_scope(text)
    return [f"{head}{separator}{each.strip()}" for each in last[1:-1].split(",")]


def _in_ranges(ranges: _Ranges) -> AddressPattern:
    @lru_cache(maxsize=1024)  # each request of a peer is checked by its address
    def matches(address: str) -> bool:
        parts = _parts(address)
        return (
            parts is not None
            and len(parts) == len(ranges)
            and all(low <= part <= high for part, (low, high) in zip(parts, ranges, strict=True))
        )

    return matches


def _ranges(text: str) -> _Ranges:
    if ":" not in text:
        pieces = text.split(".")
        if len(pieces) != 4:
            raise _out_of_scope(text)
        return tuple(_range(piece.strip(), 10, 255, text) for piece in pieces)
    pieces = text.split(":")
    if any("*" in piece or "-" in piece for piece in pieces[:-2]) or ("*" in pieces[-2]):
        raise _out_of_scope(text)  # only the last part may be *, and only the last two ranges
    if _parts(":".join("0" if "*" in piece or "-" in piece else piece for piece in pieces)) is None:
        raise _out_of_scope(text)
    if "" in pieces:
        at = text.index("::")
        before, after = [p for p in text[:at].split(":") if p], [p for p in text[at + 2 :].split(":") if p]
        pieces = [*before, *["0"] * (8 - len(before) - len(after)), *after]
    return tuple(_range(piece.strip(), 16, 0xFFFF, text) for piece in pieces)


def _range(piece: str, base: int, most: int, text: str) -> tuple[int, int]:
    if piece == "*":
        return 0, most
    low, minus, high = piece.partition("-")
    first = _number(low, base)
    last = _number(high, base) if minus else first
    if first is None or last is None or not first <= last <= most:
        raise _out_of_scope(text)
    return first, last


def _number(text: str, base: int) -> int | None:
    if not (text.isascii() and text.isalnum()) or len(text) > 4:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def _parts(address: str) -> _Parts | None:
    """The numbers of an address, four or eight; None if it is invalid."""
    try:
        if ":" in address:
            packed = IPv6Address(address.strip("[]").partition("%")[0]).packed
            return tuple(int.from_bytes(packed[at : at + 2]) for at in range(0, 16, 2))
        return tuple(IPv4Address(address).packed)
    except AddressValueError:
        return None


def _out_of_scope(text: str) -> BadAddress:
    return BadAddress(f"Netaddress examine scope Exception netaddress is {text}")
