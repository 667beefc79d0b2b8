"""Draws docs/figures.svg, which the README and the first page of the documentation show: `python -m bench.picture`.

The figures are those of docs' page on performance; tests/test_readme.py compares them and the file.
"""

from pathlib import Path

import attrs

PICTURE = Path(__file__).parent.parent / "docs" / "figures.svg"
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 236, 100, 46, 62


@attrs.frozen
class Row:
    """A bar for each broker: `ours` and `java` as they are printed, `unit` behind them."""

    label: str
    detail: str
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
    Row("send", "16 connections, 4 in flight each", "376,286", "76,256"),
    Row("send, synced to the disk", "16 connections, 4 in flight each", "123,958", "36,687"),
    Row("send, copied to a slave", "16 connections, 4 in flight each", "161,276", "59,195"),
    Row("pull", "4 connections, 32 messages at a time", "2,775,604", "892,942"),
    Row("private memory", "after 1.8 million messages", "51", "720", " MiB"),
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
    height = TOP + ROW * len(ROWS) + 34
    room = WIDTH - LEFT - RIGHT - 84
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img">',
        "  <title>mqbroker and Apache RocketMQ 4.9.7: messages a second, and memory</title>",
        f"  <style>{STYLE}\n  </style>",
        f'  <rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        '  <text class="ink title" x="20" y="30">Messages a second, on two cores</text>',
        f'  <rect class="ours" x="{LEFT + 150}" y="19" width="12" height="12" rx="2"/>',
        f'  <text class="ink" x="{LEFT + 168}" y="30">mqbroker</text>',
        f'  <rect class="java" x="{LEFT + 250}" y="19" width="12" height="12" rx="2"/>',
        f'  <text class="ink" x="{LEFT + 268}" y="30">Apache RocketMQ 4.9.7, Java 17</text>',
    ]
    for number, row in enumerate(ROWS):
        y = TOP + ROW * number
        parts += [
            f'  <text class="ink label" x="20" y="{y + 6}">{row.label}</text>',
            f'  <text class="pale" x="20" y="{y + 23}">{row.detail}</text>',
        ]
        bars = zip(("ours", "java"), (row.ours, row.java), row.lengths(), (y - 8, y + 10), strict=True)
        for kind, text, length, at in bars:
            width = max(2, round(room * length))
            parts += [
                f'  <rect class="{kind}" x="{LEFT + 20}" y="{at}" width="{width}" height="15" rx="2"/>',
                f'  <text class="ink" x="{LEFT + 26 + width}" y="{at + 12}">{text}{row.unit}</text>',
            ]
        parts.append(
            f'  <text class="ink verdict" x="{WIDTH - 20}" y="{y + 15}" text-anchor="end">{row.verdict()}</text>'
        )
    parts += [
        f'  <text class="pale" x="20" y="{height - 16}">Messages of 128 bytes, medians; '
        "broker and load share two cores of an AMD EPYC.</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw())
