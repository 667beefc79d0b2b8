"""What Chromium shows of a built site, as JSON: `python -m tests.docs.widths SITE`.

`wide` is a list of [page, width, what] for what is wider than its column. At the width of a laptop nothing may scroll
sideways; at that of a phone a sample or a table may, in a box of its own, but never the page. `found` has, by question,
where the first result of the search leads, and the text of the screen that one sees then.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

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

_ON_SCREEN = """
() => [...document.querySelectorAll("article h1, article h2, article p, article li, article pre")].filter((box) => {
  const { top, bottom } = box.getBoundingClientRect();
  return top >= 0 && bottom <= window.innerHeight;
}).map((box) => box.textContent).join("\\n")
"""

QUESTIONS = (
    "how do I keep messages for a week",
    "why does my consumer get a message twice",
    "Why does my consumer get a message twice?",
    "consumer gets message twice",
    "what does FLUSH_DISK_TIMEOUT mean for me",
    "FLUSH_DISK_TIMEOUT",
    "disk is full",
)


def first_result(tab: Page, site: Path, question: str) -> list[str]:
    """The page that the search puts first, typed as a reader does, and what is on its first screen."""
    tab.goto((site / "index.html").as_uri())
    tab.fill("input[name=q]", question)
    tab.press("input[name=q]", "Enter")
    tab.click("ul.search li a")
    tab.wait_for_load_state()
    page = tab.url.partition("?")[0].removeprefix(site.as_uri() + "/")
    return [page.replace(".html", ""), tab.evaluate(_ON_SCREEN)]


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
        tab = browser.new_page(viewport={"width": LAPTOP, "height": 800})
        answers = {question: first_result(tab, site, question) for question in QUESTIONS}
        browser.close()
    print(json.dumps({"pages": len(pages), "wide": found, "found": answers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
