"""Draws the diagrams of the explanations from the texts below; `python docs/diagrams.py` writes the SVG files.

Each is a sequence: the participants side by side, and below them, from top to bottom, what one sends to another.
The pages include the SVG as it is, so that it takes the colours of the theme, light and dark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "explanation"
WIDTH, MARGIN, HEAD, ROW, LINE, LETTERS_PX = 720, 90, 36, 22, 17, 6.7

#: Parts in the first line; then `from -> to: text`, with --> for a response, or `part: text` for what it does alone.
DIAGRAMS = {
    "way-of-a-message": """
        Producer | Name server | Broker | Consumer
        Producer -> Name server: Which brokers have the topic "orders"?
        Name server --> Producer: broker-a, 8 queues
        Consumer -> Broker: heartbeat: I am of the group "shipping"
        Consumer -> Broker: pull of queue 3 from offset 41; nothing there yet, so it is held
        Producer -> Broker: send to queue 3
        Broker: append to the commit log
        Broker: SYNC_FLUSH: wait for the disk
        Broker: SYNC_MASTER: wait for a slave
        Broker --> Producer: SEND_OK, offset 41
        Broker: write the entry of the consume queue
        Broker --> Consumer: the held pull: message 41
        Consumer: call the listener
        Consumer -> Broker: commit of offset 42, with the next ones
        """,
    "replication": """
        Producer | Master | Slave
        Slave -> Master: my log ends at 8,192
        Master: compare what both logs have
        Producer -> Master: send
        Master: append to the commit log
        Master -> Slave: the log from 8,192 on, 240 bytes
        Slave: append; SYNC_FLUSH: wait for the disk
        Slave --> Master: my log ends at 8,432
        Master --> Producer: SEND_OK, when enough brokers have it
        Master: without such an answer for syncFlushTimeout: FLUSH_SLAVE_TIMEOUT
        Slave -> Master: every 10 s: topics, groups, offsets, delays
        """,
    "rebalance": """
        Member A | Broker | Member B
        Member A: consumes the queues 0 to 7
        Member B -> Broker: heartbeat: I am of the group, too
        Broker -> Member A: the members of the group have changed
        Member A -> Broker: who are the members?
        Broker --> Member A: A and B
        Member A: keep the queues 0 to 3; stop pulling 4 to 7
        Member A -> Broker: commit the offsets of 4 to 7
        Member B -> Broker: who are the members?
        Broker --> Member B: A and B
        Member B: take the queues 4 to 7
        Member B -> Broker: which offsets has the group committed in them?
        Member B -> Broker: pull from there; what A had not committed comes again
        """,
}
STYLE = (
    ".diagram text{font:13px var(--font-stack,sans-serif);fill:var(--color-foreground-primary,#222)}"
    ".diagram .part{font-weight:bold}"
    # So that a line that passes behind it does not cross it.
    ".diagram .over{paint-order:stroke;stroke:var(--color-background-primary,#fff);stroke-width:5px}"
    ".diagram rect{fill:var(--color-background-secondary,#f8f9fb);stroke:var(--color-foreground-border,#999)}"
    ".diagram line,.diagram path{stroke:var(--color-foreground-secondary,#5a5c63);fill:none}"
    ".diagram .life{stroke-dasharray:2 4}.diagram .back{stroke-dasharray:6 3}"
    ".diagram .head{fill:var(--color-foreground-secondary,#5a5c63)}"
)


def draw(title: str, source: str) -> str:
    """The SVG of one diagram."""
    first, *steps = [line.strip() for line in source.strip().splitlines()]
    parts = [part.strip() for part in first.split("|")]
    step = (WIDTH - 2 * MARGIN) / (len(parts) - 1)
    at = {part: MARGIN + n * step for n, part in enumerate(parts)}
    drawn, y = [], HEAD + ROW
    for each in steps:
        shapes, y = _step(each, at, y, step)
        drawn += shapes
    height = y + 6
    lives = [f'<line class="life" x1="{x:g}" y1="{HEAD}" x2="{x:g}" y2="{height:g}"/>' for x in at.values()]
    heads = [shape for part, x in at.items() for shape in _head(part, x)]
    shown = title.replace("-", " ").capitalize()
    return "\n".join(
        [
            '<div class="diagram">'
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">',
            f"<title>{shown}</title>",
            f"<style>{STYLE}</style>",
            *lives,
            *heads,
            *drawn,
            "</svg></div>\n",
        ]
    )


def _head(part: str, x: float) -> Iterator[str]:
    wide = len(part) * 8 + 20
    yield f'<rect x="{x - wide / 2:g}" y="6" width="{wide}" height="{HEAD - 8}" rx="4"/>'
    yield f'<text class="part" x="{x:g}" y="25" text-anchor="middle">{escape(part)}</text>'


def _step(line: str, at: dict[str, float], y: float, step: float) -> tuple[list[str], float]:
    """The shapes of a step whose text begins at `y`, and where the next one begins."""
    who, _, text = line.partition(": ")
    source, arrow, target = who.partition(" --> ") if " --> " in who else who.partition(" -> ")
    if not arrow:
        x = at[source]
        words = textwrap.wrap(text, int(min(step * 0.9, 2 * min(x, WIDTH - x) - 16) / LETTERS_PX))
        wide = max(map(len, words)) * LETTERS_PX + 14
        high = len(words) * LINE + 8
        box = f'<rect x="{x - wide / 2:g}" y="{y - 4:g}" width="{wide:g}" height="{high}" rx="4"/>'
        return [box, *_text(words, x, y + 11)], y + high + 10
    left, right = at[source], at[target]
    words = textwrap.wrap(text, int((abs(right - left) - 20) / LETTERS_PX))
    below = y + len(words) * LINE
    tip = -7 if right > left else 7
    kind = ' class="back"' if arrow == " --> " else ""
    shapes = [
        *_text(words, (left + right) / 2, y + 10, ' class="over"'),
        f'<line{kind} x1="{left:g}" y1="{below:g}" x2="{right:g}" y2="{below:g}"/>',
        f'<path class="head" d="M{right:g} {below:g}l{tip} -4v8z"/>',
    ]
    return shapes, below + 16


def _text(words: list[str], x: float, y: float, kind: str = "") -> Iterator[str]:
    for n, line in enumerate(words):
        yield f'<text{kind} x="{x:g}" y="{y + n * LINE:g}" text-anchor="middle">{escape(line)}</text>'


def files() -> dict[Path, str]:
    """Each file as it should be."""
    return {FOLDER / f"{name}.svg": draw(name, source) for name, source in DIAGRAMS.items()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
