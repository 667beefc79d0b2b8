"""The role `test`: a link to the source of a test, as in :test:`tests/store/test_flush.py::test_name`.

The sources of the files that are named become pages of the documentation, so that the links need no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

ROOT = Path(__file__).parent.parent.parent


class TestRole(SphinxRole):
    """`path` or `path::name`; blanks and line ends in it do not count."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        target = re.sub(r"\s+", "", self.text)
        path, _, name = target.partition("::")
        source = (ROOT / path).read_text()
        found = re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE) if name else re.match("", source)
        if found is None:
            message = self.inliner.reporter.error(f"{path} has no test {name}", line=self.lineno)
            return [], [message]
        self.env.metadata[self.env.docname].setdefault("tests_shown", set()).add(path)
        line = source.count("\n", 0, found.start()) + 1
        page = self.env.app.builder.get_relative_uri(self.env.docname, page_of(path)) if has_pages(self.env.app) else ""
        shown = nodes.literal(self.rawtext, name or path)
        return [nodes.reference(self.rawtext, "", shown, refuri=f"{page}#line-{line}", internal=True)], []


def page_of(path: str) -> str:
    """The name of the page of a file of tests."""
    return f"_tests/{path.removesuffix('.py')}"


def has_pages(app: Sphinx) -> bool:
    """Whether HTML is built."""
    return app.builder.format == "html"


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that is named anywhere."""
    paths = {path for data in app.env.metadata.values() for path in data.get("tests_shown", ())}
    for path in sorted(paths) if has_pages(app) else ():
        formatter = HtmlFormatter(cssclass="highlight", lineanchors="line", anchorlinenos=False)
        body = highlight((ROOT / path).read_text(), PythonLexer(), formatter)
        yield page_of(path), {"title": path, "body": f"<h1>{path}</h1>{body}"}, "page.html"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_role("test", TestRole())
    app.connect("html-collect-pages", pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
