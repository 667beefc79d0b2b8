"""The comparison: every difference is seen, and shown."""

import io

import pytest
from rich.console import Console

from mqbroker_demo.corpus import Count
from mqbroker_demo.report import ROWS_MAX, Comparison, Counts, compare, print_table, rows_to_show

RIGHT = {"a": Count(3, 10), "b": Count(2, 20)}


def printed(comparison: Comparison, *, terminal: bool) -> str:
    out = io.StringIO()
    print_table(comparison, Console(file=out, force_terminal=terminal, width=120, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize("counted", [RIGHT, None])
def test_equal_counts_are_equal(counted: Counts | None) -> None:
    comparison = compare(RIGHT, RIGHT, RIGHT, counted)
    assert comparison.equal
    assert comparison.different == 0
    assert comparison.total.plain == Count(5, 30)
    assert comparison.total.counted == (Count(5, 30) if counted else None)


@pytest.mark.parametrize("who", ["published", "consumed", "counted"])
@pytest.mark.parametrize(
    "wrong",
    [
        {**RIGHT, "b": Count(2, 21)},
        {**RIGHT, "b": Count(1, 20)},
        {"a": RIGHT["a"]},
        {**RIGHT, "c": Count(1, 0)},
        {},
        {"a": Count(3, 11), "b": Count(2, 19)},
    ],
)
def test_a_wrong_count_is_a_difference_wherever_it_is(who: str, wrong: Counts) -> None:
    counts = {"published": RIGHT, "consumed": RIGHT, "counted": RIGHT, who: wrong}
    comparison = compare(RIGHT, **counts)
    assert not comparison.equal
    assert comparison.different > 0
    assert not comparison.rows[0].equal
    assert "DIFFERENT" in printed(comparison, terminal=False)


def test_nothing_at_all_is_not_equal() -> None:
    assert not compare({}, {}, {}, None).equal


def test_files_without_a_row_of_their_own_share_one() -> None:
    counts = {f"f{n:02}": Count(1, n) for n in range(ROWS_MAX + 5)}
    rows = rows_to_show(compare(counts, counts, counts, counts))
    assert [row.name for row in rows[-2:]] == ["5 other files", "total"]
    assert len(rows) == ROWS_MAX + 2
    assert rows[0].name == f"f{ROWS_MAX + 4:02}"
    assert rows[-2].plain + sum((row.plain for row in rows[:-2]), Count()) == rows[-1].plain


def test_a_difference_comes_first_even_in_a_small_file() -> None:
    counts = {f"f{n:02}": Count(1, n) for n in range(ROWS_MAX + 5)}
    rows = rows_to_show(compare(counts, {**counts, "f00": Count(0, 0)}, counts, counts))
    assert rows[0].name == "f00"
    assert not rows[-1].equal


def test_a_pipe_gets_rows_with_tabs() -> None:
    lines = printed(compare(RIGHT, RIGHT, RIGHT, None), terminal=False).splitlines()
    assert lines[0].split("\t")[:4] == ["file", "lines in file", "published", "consumed"]
    assert lines[1].split("\t") == ["b", "2", "2", "2", "-", "20", "20", "-", "equal"]
    assert lines[-1].split("\t")[0] == "total"


@pytest.mark.parametrize("terminal", [True, False])
def test_file_names_are_shown_as_they_are(terminal: bool) -> None:
    counts = {"[red]a\x1b[2J": Count(1, 1)}
    assert "[red]a\\x1b[2J" in printed(compare(counts, counts, counts, None), terminal=terminal)


def test_a_terminal_gets_a_table() -> None:
    text = printed(compare(RIGHT, RIGHT, RIGHT, RIGHT), terminal=True)
    assert "total" in text
    assert "━" in text
