"""docs/reference/log-events.rst has each event of the levels warn and above, and what to do about it."""

from tests.log_events_page import PAGE, events, families, page_with, render


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
