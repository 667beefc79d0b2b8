"""docs/reference/log-events.rst has each event of the levels warn and above, and what to do about it."""

import pytest

from tests.log_events_page import PAGE, PASSED_ON, Event, events, events_of, families, page_with, render


def test_the_page_is_what_the_sources_say() -> None:
    page = PAGE.read_text()
    assert page == page_with(render(), page), "write it: python -m tests.log_events_page"


def test_each_event_is_of_a_family_and_no_family_is_empty() -> None:
    found = families()
    assert sum(len(ours) for _, ours in found) == len(events()) > 100
    assert [family.title for family, ours in found if not ours] == []


def test_each_note_is_on_an_event() -> None:
    for family, ours in families():
        for start in family.notes:
            assert any(event.text.startswith(start) for event in ours), (family.title, start)


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        ('self.lines.say(LogLevel.warn, "closed: {why}", why=why)', [("closed: {why}", "warn")]),
        ('self.lines.say(LogLevel.info, "closed: {why}", why=why)', []),
        ('line = "a"\n    log.emit(LogLevel.error, line)', [("a", "error")]),
        ('log.emit(LogLevel.debug if known else LogLevel.critical, "a")', [("a", "critical")]),
        ('level = logging.DEBUG if known else logging.WARNING\n    log.log(level, "a")', [("a", "warn")]),
        ('line = ""\n    if full:\n        line = "a"\n    self.say(LogLevel.warn, line)', [("a", "warn")]),
        ('self.say("a line that is no event")', []),
        ("self._failures.log(queue, error)", []),
    ],
)
def test_lines_whose_level_is_an_argument_are_events(statements: str, found: list[tuple[str, str]]) -> None:
    source = f"def run(self):\n    {statements}\n"
    assert [*events_of(source, "m.py")] == [Event("m.py", text, level) for text, level in found]


@pytest.mark.parametrize(
    "statement",
    [
        'log.emit(level, "a")',
        "self.lines.say(LogLevel.warn, line)",
        "log.warn(line)",
        "log.error(TEXTS[0])",
        "Outage(text, text)",
        'log.log(self._level, "a")',
    ],
)
def test_what_cannot_be_seen_is_not_left_out(statement: str) -> None:
    with pytest.raises(AssertionError, match="is no constant: see PASSED_ON"):
        [*events_of(f"def run(self, level, line, text):\n    {statement}\n", "m.py")]


def test_each_function_that_passes_lines_on_has_its_own() -> None:
    found = {(event.module, event.text, event.level) for event in events()}
    assert {(module, *known) for (module, _), lines in PASSED_ON.items() for known in lines} <= found
