"""One file of the simulated disk: the bytes programs see, and those a power cut leaves.

Pages of 4 KiB go to the disk in any order, and one that was on its way when the power went is torn in sectors of 512
bytes. A page that is on the disk only has other bytes in memory until a call reads it: who looks at it, or stores in
it, before that would have waited for the disk, or died of a sector that cannot be read. Must never know of names.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from random import Random

PAGE_BYTES = 4096
SECTOR_BYTES = 512
#: What is in memory of a page that nobody has read.
_UNREAD = b"\xa5" * PAGE_BYTES


class Memory(mmap.mmap):
    """The bytes of a file as all see them who have it mapped: it stays when one of them lets go."""

    def close(self) -> None:
        """It stays."""


_NO_MEMORY = Memory(-1, 1)


def pages_of(offset: int, size: int) -> range:
    """The pages that bytes offset..offset+size touch."""
    return range(offset // PAGE_BYTES, -(-(offset + size) // PAGE_BYTES))


class Inode:
    """`memory` is the volatile image, `durable` the one on the disk; `size` and `durable_size` their lengths.

    `blocks` are the pages with room behind them: a store into any other would end the process where the disk is full.
    """

    def __init__(self, size: int = 0, links: int = 1) -> None:
        self.size = size
        self.modified_ms = 0
        self.links = links
        self.memory = Memory(-1, size) if size else _NO_MEMORY
        self.blocks = bytearray(-(-size // PAGE_BYTES))
        self.durable = b""
        self.durable_size = 0
        self.durable_blocks = bytearray()
        #: Pages a failed sync left marked clean, and what they held: the kernel will not write them again.
        self.forgotten: dict[int, bytes] = {}
        #: What went bad on the disk: offset and bytes.
        self.rotten: list[tuple[int, bytes]] = []
        #: How many syncs failed.
        self.write_errors = 0
        #: Pages that nobody has read since they left memory.
        self.unread: set[int] = set()
        #: Pages of zeros that were written: of others that are allocated the disk need not read any.
        self.zeroed: set[int] = set()
        #: Pages that the disk cannot read.
        self.bad: set[int] = set()
        #: Offsets from which on all was cleared since the last sync.
        self.cleared: list[int] = []

    def set_size(self, size: int) -> int:
        """Returns how many blocks are given back."""
        self.bring(pages_of(min(size, self.size), 1))
        given = 0
        if size > self.size:
            if size > len(self.memory) or not self.size:
                grown = Memory(-1, size)
                grown[: self.size] = self.memory[: self.size]
                self.memory = grown
            self.blocks += bytes(-(-size // PAGE_BYTES) - len(self.blocks))
        elif size < self.size:
            given = self.clear_from(size)
        self.size = size
        return given

    def clear_from(self, offset: int) -> int:
        """Returns how many blocks are given back."""
        before = sum(self.blocks)
        self.bring(pages_of(offset, self.size - offset))
        self.memory[offset : self.size] = bytes(self.size - offset)
        for page in range(-(-offset // PAGE_BYTES), len(self.blocks)):
            self.blocks[page] = 0
            self.zeroed.discard(page)
        for page in range(offset // PAGE_BYTES, len(self.blocks)):
            self.forgotten.pop(page, None)
        self.cleared.append(offset)
        return before - sum(self.blocks)

    def store(self, offset: int, data: bytes | memoryview) -> None:
        """As a write does, which makes pages dirty whatever they held."""
        self.bring(pages_of(offset, len(data)))
        self.memory[offset : offset + len(data)] = bytes(data)
        for page in pages_of(offset, len(data)):
            self.forgotten.pop(page, None)
            self.blocks[page] = 1
            self.zeroed.add(page)

    def page(self, number: int) -> bytes:
        start = number * PAGE_BYTES
        return self.memory[start : min(start + PAGE_BYTES, self.size)]

    def image(self) -> bytes:
        """The content, wherever it is."""
        if not self.unread:
            return self.memory[: self.size] if self.size else b""
        image = bytearray(self.memory[: self.size])
        for number in self.unread:
            image[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] = self._on_disk(number)
        return bytes(image)

    def _on_disk(self, number: int) -> bytes:
        start = number * PAGE_BYTES
        return self.durable[start : start + PAGE_BYTES].ljust(min(PAGE_BYTES, self.size - start), b"\0")

    def drop(self, rng: Random, share: float) -> None:
        """Have pages leave memory of which the disk has all."""
        if self.size != self.durable_size or self.rotten:
            return
        for number, has_block in enumerate(self.blocks):
            page = self.page(number)
            is_read = number in self.zeroed or page.strip(b"\0")
            is_clean = has_block and number not in self.forgotten and page == self._on_disk(number)
            if is_clean and is_read and number not in self.unread and rng.random() < share:
                self.unread.add(number)
                self.memory[number * PAGE_BYTES : number * PAGE_BYTES + len(page)] = _UNREAD[: len(page)]

    def bring(self, pages: range) -> None:
        """Have pages in memory."""
        for number in self.unread.intersection(pages) if self.unread else ():
            self.unread.discard(number)
            page = self._on_disk(number)
            self.memory[number * PAGE_BYTES : number * PAGE_BYTES + len(page)] = page

    def unread_store(self) -> int | None:
        """Where something was stored into a page that was not in memory."""
        for number in self.unread:
            if self.page(number).strip(b"\xa5"):
                return number * PAGE_BYTES
        return None

    def unallocated_store(self) -> int | None:
        """Where something was stored into a page with no room behind it."""
        for page, has_block in enumerate(self.blocks):
            if not has_block and self.page(page).strip(b"\0"):
                return page * PAGE_BYTES
        return None

    def _dirty_pages(self, base: bytes | bytearray) -> Iterator[int]:
        for number in range(-(-self.size // PAGE_BYTES)):
            page = self.page(number)
            start = number * PAGE_BYTES
            if number in self.unread:
                continue
            if page != base[start : start + PAGE_BYTES].ljust(len(page), b"\0") and self.forgotten.get(number) != page:
                yield number

    # The disk

    def sync(self) -> None:
        """Bring all that is marked dirty to the disk."""
        if self.forgotten:
            durable = bytearray(self.durable.ljust(self.size, b"\0")[: self.size])
            for number in self._dirty_pages(durable):
                durable[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] = self.page(number)
                self.forgotten.pop(number, None)
            self.durable = bytes(durable)
        else:
            self.durable = self.image()
        self.durable_size = self.size
        self.durable_blocks = bytearray(self.blocks)
        self.cleared.clear()
        self._rot_durable()

    def fail_sync(self, rng: Random, forgets: bool) -> None:
        """Write some of what is dirty; with `forgets` the rest is marked clean all the same."""
        self.write_errors += 1
        durable = bytearray(self.durable)
        if self.durable_size == self.size:
            for number in list(self._dirty_pages(durable)):
                if rng.random() < 0.5:
                    durable[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] = self.page(number)
                elif forgets:
                    self.forgotten[number] = self.page(number)
        self.durable = bytes(durable)
        self._rot_durable()

    def rot(self, offset: int, data: bytes) -> None:
        """Bytes go bad on the disk; memory keeps the good ones as long as the process lives."""
        self.rotten.append((offset, data))
        self._rot_durable()

    def spoil(self, offset: int, data: bytes) -> None:
        """As `rot`, of a page that nobody has in memory."""
        self.store(offset, data)
        durable = self.durable.ljust(offset + len(data), b"\0")
        self.durable = durable[:offset] + data + durable[offset + len(data) :]

    def _rot_durable(self) -> None:
        for offset, data in self.rotten:
            self.durable = self.durable[:offset] + data + self.durable[offset + len(data) :]

    def _read_rotten(self) -> None:
        self.bring(range(len(self.blocks)))
        for offset, data in self.rotten:
            self.memory[offset : offset + len(data)] = data
        self.rotten.clear()

    # Ends of the process and of the machine

    def killed(self, rng: Random) -> Inode:
        """The file as the next process finds it: of what the kernel forgot to write it may have read the old again."""
        self._read_rotten()
        next_inode = Inode(self.size)
        next_inode.modified_ms = self.modified_ms
        next_inode.links = self.links
        if self.size:
            next_inode.memory[:] = self.memory[: self.size]
        next_inode.blocks = bytearray(self.blocks)
        next_inode.durable, next_inode.durable_size = self.durable, self.durable_size
        next_inode.durable_blocks = bytearray(self.durable_blocks)
        next_inode.cleared = list(self.cleared)
        next_inode.zeroed = set(self.zeroed)
        for number, was in self.forgotten.items():
            if self.page(number) != was:
                continue
            if rng.random() < 0.5:
                start = number * PAGE_BYTES
                next_inode.memory[start : start + len(was)] = self.durable[start : start + len(was)].ljust(
                    len(was), b"\0"
                )
            else:
                next_inode.forgotten[number] = was
        return next_inode

    def crashed(self, rng: Random, luck: float) -> Inode:
        """The file as the next boot finds it, with a share of about `luck` of its dirty pages."""
        self._read_rotten()
        durable = bytearray(self.durable)
        for offset in self.cleared:
            if rng.random() < 0.5:
                durable[offset:] = bytes(max(0, len(durable) - offset))
        size = self.size if self.size == self.durable_size or rng.random() < luck else self.durable_size
        durable = bytearray(bytes(durable).ljust(size, b"\0")[:size])
        blocks = bytearray(bytes(self.durable_blocks).ljust(-(-size // PAGE_BYTES), b"\0")[: -(-size // PAGE_BYTES)])
        for number in self._dirty_pages(durable):
            start = number * PAGE_BYTES
            if start >= size or rng.random() >= luck:
                continue
            page = self.page(number)[: size - start]
            is_torn = rng.random() < 0.4
            for at in range(0, len(page), SECTOR_BYTES):
                if not is_torn or rng.random() < 0.5:
                    sector = page[at : at + SECTOR_BYTES]
                    durable[start + at : start + at + len(sector)] = sector
            blocks[number] = 1
        next_inode = Inode(size)
        next_inode.modified_ms = self.modified_ms
        if size:
            next_inode.memory[:] = bytes(durable)
        next_inode.blocks = blocks
        next_inode.zeroed = set(self.zeroed)
        next_inode.sync()
        return next_inode

    def copied(self) -> Inode:
        """The same content, all of it durable."""
        self._read_rotten()
        next_inode = Inode(self.size)
        next_inode.modified_ms = self.modified_ms
        if self.size:
            next_inode.memory[:] = self.memory[: self.size]
        next_inode.blocks = bytearray(self.blocks)
        next_inode.sync()
        return next_inode
