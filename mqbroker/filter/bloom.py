"""Bloom filters: a bit map per message of the consumers whose expressions it matches.

A consumer has a few bits in a map of fixed size, by its group and topic. If a message matches they are all set; they
may also be set by chance. Sizes, hashes and bits are those of BloomFilter of the filter module 4.9.7, whose hash is
MurmurHash3 (x64, 128 bits). Knows nothing of the consumers.
"""

from __future__ import annotations

import math
import struct

import attrs

_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")


@attrs.frozen
class BloomData:
    """The bits of one consumer, in maps of `bit_count` bits."""

    positions: tuple[int, ...]
    bit_count: int

    @property
    def mask(self) -> int:
        """The bits in a map that is read as a little-endian number."""
        return sum({1 << position for position in self.positions})


@attrs.frozen
class BloomFilter:
    """Parameters of the maps: `bit_count`, a multiple of 8, and the number of bits per consumer."""

    bit_count: int
    hash_count: int

    @classmethod
    def for_consumers(cls, count: int, error_percent: int) -> BloomFilter:
        """The filter for so many consumers of a topic, with a rate of false positives in percent.

        `count` is at least 1, `error_percent` within 1..99.
        """
        rate = error_percent / 100
        hash_count = math.ceil(math.log(rate) / math.log(0.5))
        bit_count = math.ceil(count * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        return cls(8 * math.ceil(bit_count / 8), hash_count)

    def of(self, name: str) -> BloomData:
        """The bits of a name."""
        number = murmur3_low(name.encode("utf-8", "replace"))
        first, second = _signed(number), _signed(number >> 32)
        positions = []
        for i in range(1, self.hash_count + 1):
            combined = _signed(first + i * second)
            positions.append((~combined if combined < 0 else combined) % self.bit_count)
        return BloomData(tuple(positions), self.bit_count)

    def is_valid(self, data: BloomData) -> bool:
        """Whether bits are for maps of these parameters."""
        return data.bit_count == self.bit_count and len(data.positions) == self.hash_count

    def bit_map(self, bits: int) -> bytes:
        """The map with the bits of a number, as it is stored."""
        return bits.to_bytes(self.bit_count // 8, "little")


def _signed(number: int) -> int:
    """The low 32 bits as Java's int."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number & 0x80000000 else number


def murmur3_low(data: bytes) -> int:
    """The low 64 bits of MurmurHash3_x64_128 with seed 0, as an unsigned number."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        k1, k2 = _BLOCK.unpack_from(data, at)
        h1 = (_rotated(h1 ^ _mixed_1(k1), 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 = (_rotated(h2 ^ _mixed_2(k2), 31) + h1) * 5 + 0x38495AB5 & _MASK
    k1, k2 = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
    h1 ^= _mixed_1(k1) ^ len(data)
    h2 ^= _mixed_2(k2) ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _final(h1) + _final(h2) & _MASK


def _mixed_1(k: int) -> int:
    return _rotated(k * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_2(k: int) -> int:
    return _rotated(k * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(number: int, by: int) -> int:
    return (number << by | number >> (64 - by)) & _MASK


def _final(k: int) -> int:
    k = (k ^ k >> 33) * 0xFF51AFD7ED558CCD & _MASK
    k = (k ^ k >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return k ^ k >> 33
