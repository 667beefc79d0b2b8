"""The list of settings without effect in docs/reference/daemons.rst; `python -m tests.settings_page` writes it anew."""

import textwrap
from pathlib import Path

from mqbroker.config.unused import UNUSED

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "daemons.rst"
BEGIN, END = ".. settings without effect begin\n\n", "\n.. settings without effect end\n"


def render() -> str:
    """Reasons, each with the keys that it is for."""
    by_why: dict[str, list[str]] = {}
    for key, unused in UNUSED.items():
        by_why.setdefault(unused.why, []).append(f"``{key}``")
    return "\n".join(f"{why[0].upper()}{why[1:]}:\n{_indented(keys)}\n" for why, keys in by_why.items())


def _indented(keys: list[str]) -> str:
    return textwrap.indent(textwrap.fill(", ".join(sorted(keys)), 156), "    ")


def page_with(text: str, page: str) -> str:
    """The page with the list in its place."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}{text}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(render(), PAGE.read_text()))
