"""What is wider than its column on the pages of a built site, seen by Chromium: `python -m tests.docs.widths SITE`.

Prints a JSON list of [page, width, what]. At the width of a laptop nothing may scroll sideways; at that of a phone a
sample or a table may, in a box of its own, but never the page.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

LAPTOP, PHONE = 1280, 390

_FIND = """
(isLaptop) => {
  const found = [];
  const page = document.documentElement;
  if (page.scrollWidth > window.innerWidth + 1) found.push("the page: " + page.scrollWidth);
  const column = document.querySelector("article").getBoundingClientRect();
  const kinds = ["pre", ".table-wrapper", "table", "img", "object", "dt", "p", "code"];
  for (const box of document.querySelectorAll(kinds.map((kind) => "article " + kind).join(", "))) {
    const what = box.tagName + " " + box.textContent.trim().slice(0, 60);
    const scrolls = box.closest("pre, .table-wrapper, .highlight");
    const isBox = ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
    if (isLaptop && isBox && box.scrollWidth > box.clientWidth + 1) found.push("scrolls: " + what);
    if (!scrolls && box.getBoundingClientRect().right > column.right + 8) found.push("sticks out: " + what);
  }
  return found;
}
"""


def browser_path() -> str | None:
    """Debian's Chromium, or another one that is installed; None if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def main(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    found = []
    # Sources of tests are as they are.
    pages = [page for page in sorted(site.rglob("*.html")) if not {"_tests", "_static"}.intersection(page.parts)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        for width in (LAPTOP, PHONE):
            tab = browser.new_page(viewport={"width": width, "height": 900})
            for page in pages:
                tab.goto(page.as_uri())
                here = tab.evaluate(_FIND, width == LAPTOP)
                found += [[str(page.relative_to(site)), width, what] for what in here]
        browser.close()
    print(json.dumps({"pages": len(pages), "wide": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
