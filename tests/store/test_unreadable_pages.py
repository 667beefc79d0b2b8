"""Pages that the disk cannot read: none is touched in memory before a read of it has succeeded, which would end the
process by SIGBUS."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.store.guarded_disk import COUNT, fill

REPOSITORY = Path(__file__).parent.parent.parent
WITH_NEW = COUNT + 3


def run(*stores: tuple[Path, list[tuple[Path, int]]]) -> list[dict[str, Any]]:
    """What a process makes of stores with pages that cannot be read; the traceback of one that touched a page is the
    test's error."""
    jobs = json.dumps([(str(root), [(str(path), page) for path, page in pages]) for root, pages in stores])
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.store.guarded_disk", jobs],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"store {ended.stdout.count(chr(10))}: {ended.stderr}"
    return [json.loads(line) for line in ended.stdout.splitlines()]


def stopped(root: Path) -> None:
    """As it is."""


def killed(root: Path) -> None:
    (root / "abort").write_bytes(b"boot")


def power(root: Path) -> None:
    (root / "abort").write_bytes(b"another boot")


def java(root: Path) -> None:
    """Java's checkpoint has times only."""
    (root / "abort").write_bytes(b"")
    checkpoint = root / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:24].ljust(4096, b"\0"))


def without_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def without_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def torn(root: Path) -> None:
    """Damage in the midst of the log, which is searched for the record behind it."""
    killed(root)
    (root / "checkpoint").unlink()
    with open(sorted((root / "commitlog").iterdir())[1], "r+b") as file:
        file.seek(20_000)
        file.write(bytes(30_000))


ENDS: list[Callable[[Path], None]] = [stopped, killed, power, java, without_queues, without_index, torn]


@pytest.mark.parametrize("has_ext", [False, True])
def test_no_page_is_touched_before_it_was_read(tmp_path: Path, has_ext: bool) -> None:
    filled = tmp_path / "store"
    fill(str(filled), has_ext)
    roots = [tmp_path / end.__name__ for end in ENDS]
    for end, root in zip(ENDS, roots, strict=True):
        shutil.copytree(filled, root)
        end(root)
    *found, of_torn = run(*((root, []) for root in roots))
    assert found == [{"count": COUNT, "then": WITH_NEW}] * (len(ENDS) - 1)
    assert 0 < of_torn["count"] < COUNT


@pytest.mark.parametrize("has_caches", [False, True])
def test_pages_that_left_memory_are_read_before_they_are_touched(tmp_path: Path, has_caches: bool) -> None:
    evict = ["-m", "tests.store.guarded_disk", "evict", str(tmp_path / "store"), str(has_caches)]
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", *evict],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["counts"][-1] == found["stored"] == sum(range(5, 17)) + 12
    assert found["counts"] == sorted(set(found["counts"]))
    assert "where the next message goes" in found["why"]
    assert found["path"] in found["why"]
    assert found["last"] == found["stored"] + 1
    assert len(found["refused"]) == 2 * has_caches
    assert all(why.startswith(path) for path, why in found["refused"])


def test_a_start_that_meets_a_page_that_cannot_be_read_says_so_in_one_line(tmp_path: Path) -> None:
    filled = tmp_path / "store"
    fill(str(filled), False)
    jobs: list[tuple[Path, list[tuple[Path, int]]]] = []
    for file in sorted(path for path in filled.rglob("*") if path.parent.name in ("commitlog", "0", "index")):
        pages = file.stat().st_size // 4096 or 1
        for page in sorted({0, pages // 2, pages - 1}):
            for end in (stopped, killed, power):
                root = tmp_path / f"{len(jobs)}"
                shutil.copytree(filled, root)
                end(root)
                jobs.append((root, [(root / file.relative_to(filled), page)]))
    results = run(*jobs)
    for (_, ((path, _),)), found in zip(jobs, results, strict=True):
        if "refused" in found:
            assert found["refused"].startswith(f"{path}: the disk cannot read it at byte ")
            assert "ddrescue" in found["refused"]
            assert "\n" not in found["refused"]
        elif "failed" in found:
            assert str(path) in found["failed"]
        else:
            assert found["count"] <= COUNT
    assert sum("refused" in found for found in results) > len(jobs) // 4
    assert any("refused" not in found for found in results)
