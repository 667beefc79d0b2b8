"""What is cut off a log is kept, and can be read."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mqbroker.cli.store import dump
from mqbroker.store import cut_tails
from mqbroker.store.cut_tails import KEPT_MS_MAX, forget_tails, keep_tail
from mqbroker.store.cut_tails import cut_tails as kept
from tests.store.harness import Bench
from tests.store.test_truncation import filled, paths_of

NOW_MS = 1_764_000_000_000


def segment_bytes(bench: Bench) -> int:
    return bench.settings().mapped_file_size_commit_log


@pytest.mark.parametrize("first", [0, 1, 7, 29])
def test_dump_shows_the_messages_that_were_cut_off(bench: Bench, first: int) -> None:
    ends = [0, *filled(bench)]
    tail = keep_tail(bench.disk, paths_of(bench), segment_bytes(bench), ends[first], ends[-1], NOW_MS)
    assert (tail.start, tail.end) == (ends[first], ends[-1])
    shown = CliRunner().invoke(dump, [tail.path])
    assert shown.exit_code == 0, shown.output
    offsets = [int(line.split("\t")[0]) for line in shown.output.splitlines()]
    assert offsets == [tail.start, *offsets[1:]]
    assert len(offsets) == len(ends) - 1 - first


def test_they_are_kept_for_a_week(bench: Bench) -> None:
    ends = filled(bench)
    paths, size = paths_of(bench), segment_bytes(bench)
    tails = [keep_tail(bench.disk, paths, size, end, ends[-1], NOW_MS + n) for n, end in enumerate(ends[20:22])]
    assert kept(bench.disk, paths.root) == tails
    assert forget_tails(bench.disk, paths.root, NOW_MS + KEPT_MS_MAX) == []
    assert forget_tails(bench.disk, paths.root, NOW_MS + 1 + KEPT_MS_MAX) == [tails[0].path]
    assert kept(bench.disk, paths.root) == tails[1:]


def test_no_more_is_kept_than_fits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = filled(bench)
    paths, size = paths_of(bench), segment_bytes(bench)
    monkeypatch.setattr(cut_tails, "KEPT_BYTES_MAX", 30_000)
    for number in range(4):
        keep_tail(bench.disk, paths, size, ends[-3], ends[-1], NOW_MS + number)
    assert [tail.at_ms for tail in kept(bench.disk, paths.root)] == [NOW_MS + 3]
    long = keep_tail(bench.disk, paths, size, ends[3], ends[-1], NOW_MS + 9)
    assert long.end - long.start == 30_000
    assert kept(bench.disk, paths.root) == [long]
