"""Store directories to look at: as brokers leave them, and with something done to them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqbroker.store.offline.check import Report, check_store
from mqbroker.store.offline.detected_layout import Given
from mqbroker.store.os_disk import OsDisk
from tests.store.harness import SMALL, Bench, message, stop

SEGMENT = SMALL["mapped_file_size_commit_log"]
PER_SEGMENT = 12  # records of `fill`
TOPICS = b'{"topicConfigTable":{"T":{},"Old":{}}}'


def check(root: Path, given: Given | None = None, **how: Any) -> Report:
    return check_store(OsDisk(), str(root), given or Given(), lambda done, total: None, **how)


def kinds(report: Report) -> dict[str, str]:
    """Kind -> the worst severity of the findings."""
    order = ["note", "broken", "lost"]
    findings = sorted(report.findings.kept, key=lambda finding: order.index(finding.severity))
    return {finding.kind: str(finding.severity) for finding in findings}


def key(number: int) -> bytes:
    return b"UNIQ_KEY\x017F0000010A2C18B4AAC27D%010d\x02KEYS\x01k%d\x02TAGS\x01Tag%d" % (number, number, number % 3)


def fill(bench: Bench, count: int = 40, body_bytes: int = 10_000) -> None:
    """Messages 0 to `count` of queue T/0, in segments of 12; then the store is stopped."""
    store = bench.open()
    for number in range(count):
        store.append([message(body=b"%05d" % number * (body_bytes // 5), properties=key(number))])
        bench.clock.advance(1)
    stop(store)
    bench.opened.clear()
    add_tables(bench.root)


def add_tables(root: Path) -> None:
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_bytes(TOPICS)


def segment(root: Path, number: int = 0) -> Path:
    return root / "commitlog" / f"{number * SEGMENT:020d}"


def change(path: Path, at: int, edit: Callable[[bytes], bytes], size: int = 1) -> None:
    """Replace `size` bytes of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        data = file.read(size)
        file.seek(at)
        file.write(edit(data))


def flip(path: Path, at: int) -> None:
    change(path, at, lambda data: bytes([data[0] ^ 0x10]))


def zero(path: Path, at: int, size: int) -> None:
    change(path, at, lambda data: bytes(len(data)), size)


def picture(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every name below a directory with what a write would change: inode, mode, time of change, content."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = os.lstat(path)
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, content)
    return found
