"""Counting what arrives at least once: each line counts once, however often it comes. Knows nothing of clients."""

from __future__ import annotations

from mqbroker.cli.demo.corpus import Count, parse_line_key


class Tally:
    """Lines by key. `arrived` counts all, `distinct` each line once."""

    def __init__(self) -> None:
        self.arrived = 0
        self._words: dict[str, int] = {}

    @property
    def distinct(self) -> int:
        return len(self._words)

    @property
    def duplicates(self) -> int:
        return self.arrived - self.distinct

    def add(self, key: str, body: bytes) -> None:
        self.arrived += 1
        if key not in self._words:
            self._words[key] = len(body.split())

    def counts(self) -> dict[str, Count]:
        """Lines and words of each file. Raises ValueError where a key is not a line's."""
        counts: dict[str, Count] = {}
        for key, words in self._words.items():
            file, _ = parse_line_key(key)
            counts[file] = counts.get(file, Count()) + Count(1, words)
        return counts
