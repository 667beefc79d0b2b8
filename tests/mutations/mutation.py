"""What a known mistake is."""

from __future__ import annotations

from pathlib import Path

import attrs

SOURCE = Path(__file__).parent.parent.parent / "mqbroker"


@attrs.frozen
class Mutation:
    """Replace `old`, which is in `file` once, by `new`.

    `tests`: where the mistake must be noticed; without the compiled module, which would pass most of them by, unless
    `with_compiled`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    with_compiled: bool = False

    def applied_to(self, text: str) -> str:
        """The file's text with the mistake in it. Raises ValueError where the place is not found, or not once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is in {self.file} {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)
