"""Draws docs/figures.svg, which the README and the first page of the documentation show: `python -m bench.picture`.

The figures are those of docs' page on performance; tests/test_readme.py compares them and the file.
"""

from pathlib import Path

import attrs

PICTURE = Path(__file__).parent.parent / "docs" / "figures.svg"
#: As wide as the column of a phone; beside the text on wider screens.
WIDTH, MARGIN, ROW, TOP = 380, 16, 48, 66


@attrs.frozen
class Row:
    """A bar for each broker: `ours` and `java` as they are printed, `unit` behind them."""

    label: str
    ours: str
    java: str
    unit: str = ""

    def lengths(self) -> tuple[float, float]:
        """The two bars, as fractions of the longer one."""
        ours, java = (float(text.replace(",", "")) for text in (self.ours, self.java))
        return ours / max(ours, java), java / max(ours, java)

    def verdict(self) -> str:
        """How many times better this broker is."""
        ours, java = self.lengths()
        return f"{1 / min(ours, java):.1f} x" if self.unit == "" else f"1/{java / ours:.0f}"


ROWS = (
    Row("send (1)", "376,286", "76,256"),
    Row("send, synced to the disk (1)", "123,958", "36,687"),
    Row("send, copied to a slave (1)", "161,276", "59,195"),
    Row("pull (2)", "2,775,604", "892,942"),
    Row("private memory after 1.8 million messages", "51", "720", " MiB"),
)

NOTES = (
    "Messages of 128 bytes; medians, November 2026.",
    "Broker and load share two cores of an AMD EPYC.",
    "(1) 16 connections, 4 sends in flight on each",
    "(2) 4 connections, 32 messages at a time",
)

STYLE = """
    .paper { fill: #ffffff; stroke: #d0d7de } .ink { fill: #1f2328 } .pale { fill: #59636e }
    .ours { fill: #1f6feb } .java { fill: #afb8c1 }
    text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 12px }
    .title { font-size: 15px; font-weight: 600 } .label { font-size: 13px }
    .verdict { font-size: 17px; font-weight: 600 }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; stroke: #3d444d } .ink { fill: #f0f6fc } .pale { fill: #9198a1 }
      .ours { fill: #4493f8 } .java { fill: #656c76 }
    }"""


def draw() -> str:
    """The picture as SVG, for light and dark screens."""
    height = TOP + ROW * len(ROWS) + 17 * len(NOTES) + 16
    room = WIDTH - 2 * MARGIN - 132
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img">',
        "  <title>mqbroker and Apache RocketMQ 4.9.7: messages a second, and memory</title>",
        f"  <style>{STYLE}\n  </style>",
        f'  <rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'  <text class="ink title" x="{MARGIN}" y="25">Messages a second, on two cores</text>',
        f'  <rect class="ours" x="{MARGIN}" y="36" width="12" height="12" rx="2"/>',
        f'  <text class="ink" x="{MARGIN + 17}" y="46">mqbroker</text>',
        f'  <rect class="java" x="{MARGIN + 90}" y="36" width="12" height="12" rx="2"/>',
        f'  <text class="ink" x="{MARGIN + 107}" y="46">Apache RocketMQ 4.9.7, Java 17</text>',
    ]
    for number, row in enumerate(ROWS):
        y = TOP + ROW * number
        parts.append(f'  <text class="ink label" x="{MARGIN}" y="{y + 9}">{row.label}</text>')
        bars = zip(("ours", "java"), (row.ours, row.java), row.lengths(), (y + 14, y + 28), strict=True)
        for kind, text, length, at in bars:
            width = max(2, round(room * length))
            parts += [
                f'  <rect class="{kind}" x="{MARGIN}" y="{at}" width="{width}" height="12" rx="2"/>',
                f'  <text class="ink" x="{MARGIN + 6 + width}" y="{at + 10}">{text}{row.unit}</text>',
            ]
        parts.append(
            f'  <text class="ink verdict" x="{WIDTH - MARGIN}" y="{y + 33}" text-anchor="end">{row.verdict()}</text>'
        )
    for number, note in enumerate(NOTES, 1):
        y = TOP + ROW * len(ROWS) + 17 * number
        parts.append(f'  <text class="pale" x="{MARGIN}" y="{y}">{note}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw())
