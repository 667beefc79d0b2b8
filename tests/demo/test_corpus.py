"""The demo's text: what is taken, and that its lines are its files."""

from pathlib import Path

import pytest

from mqbroker_demo.corpus import (
    FILE_BYTES_MAX,
    Corpus,
    Count,
    Line,
    NoText,
    file_key,
    file_of_key,
    line_key,
    own_text,
    parse_line_key,
    read_corpus,
)


@pytest.mark.parametrize(
    ("data", "lines", "count"),
    [
        (b"a b\nc\n", [b"a b\n", b"c\n"], Count(2, 3)),
        (b"a b\nc", [b"a b\n", b"c"], Count(2, 3)),
        (b"\n\n", [b"\n", b"\n"], Count(2, 0)),
        (b"a\r\nb\x0cc\tx\n", [b"a\r\n", b"b\x0cc\tx\n"], Count(2, 4)),
        ("für\u00a0alle\n".encode(), ["für\u00a0alle\n".encode()], Count(1, 1)),
    ],
)
def test_lines_are_the_file_and_are_counted_without_taking_it_apart(
    data: bytes, lines: list[bytes], count: Count
) -> None:
    corpus = Corpus({"f": data}, 0)
    assert [line.body for line in corpus.lines()] == lines
    assert [line.number for line in corpus.lines()] == list(range(1, len(lines) + 1))
    assert corpus.plain_count() == {"f": count}
    assert corpus.line_count == count.lines


def test_only_text_is_taken(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_bytes(b"b\n")
    (tmp_path / "a b.txt").write_bytes(b"a\n")
    (tmp_path / "binary").write_bytes(b"a\0b\n")
    (tmp_path / "latin").write_bytes(b"\xe4\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    (tmp_path / ".hidden").write_bytes(b"h\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"g\n")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.txt").write_bytes(b"p\n")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert dict(read_corpus(tmp_path, 100).files) == {"a b.txt": b"a\n", "sub/b.txt": b"b\n"}


def test_whole_files_are_left_out_where_there_is_no_room(tmp_path: Path) -> None:
    for name, lines in (("a", 3), ("b", 4), ("c", 2)):
        (tmp_path / name).write_bytes(b"x\n" * (lines - 1) + b"x")
    corpus = read_corpus(tmp_path, 5)
    assert (list(corpus.files), corpus.left_out) == (["a", "c"], 1)


def test_nothing_to_send_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoText, match="no text file"):
        read_corpus(tmp_path, 5)
    (tmp_path / "a").write_bytes(b"x\n" * 9)
    with pytest.raises(NoText, match=r"1 files, each longer than 5 lines.*--max-lines"):
        read_corpus(tmp_path, 5)


def test_by_default_it_is_this_projects_own_text() -> None:
    top, _ = own_text()
    files = read_corpus(None, 1_000_000).files
    assert files["mqbroker_demo/corpus.py"] == (top / "mqbroker_demo/corpus.py").read_bytes()
    if (top / "setup.cfg").exists():
        assert "docs/index.rst" in files


@pytest.mark.parametrize("file", ["a/b.txt", "with blank.txt", "colon:7", "ünï/100%", "a\x01b"])
def test_keys_hold_no_blanks_and_give_the_file_back(file: str) -> None:
    line = Line(file, 12, b"x")
    assert len(line_key(line).split()) == 1
    assert parse_line_key(line_key(line)) == (file, 12)
    assert file_of_key(file_key(file)) == file
    assert "\x01" not in line_key(line)
