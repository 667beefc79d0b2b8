"""The drawing of a record in docs/reference/formats.rst, from the layout; `python -m tests.record_page` writes it."""

from collections.abc import Iterator
from pathlib import Path
from struct import calcsize

from mqbroker.wire.record import HEAD_FIELDS, OFFSETS, TAIL_LENGTHS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "formats.rst"
BEGIN, END = ".. the record begins\n\n", "\n.. the record ends\n"


def rows() -> Iterator[tuple[str, str, str, str]]:
    for field in HEAD_FIELDS:
        yield str(OFFSETS[field.name]), str(calcsize(f">{field.code}")), f"``{field.name}``", field.what
    for field in TAIL_LENGTHS:
        yield "then", str(calcsize(f">{field.code}")), f"``{field.name}``", field.what


def render() -> str:
    """The table in reStructuredText."""
    lines = [("At", "Bytes", "Field", "What"), *rows()]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    edge = "  ".join("=" * width for width in widths)
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([edge, text[0], edge, *text[1:], edge, ""])


def page_with(table: str, page: str) -> str:
    return page[: page.index(BEGIN) + len(BEGIN)] + table + page[page.index(END) :]


if __name__ == "__main__":
    PAGE.write_text(page_with(render(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
