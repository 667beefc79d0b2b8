"""docs/reference/commands.rst has each command of mq and of the daemons, with each of its options."""

from tests.commands_page import DAEMONS, PAGE, commands, options_of, options_of_daemon, page_with, render


def test_the_page_is_what_the_definitions_say() -> None:
    page = PAGE.read_text()
    assert page == page_with(render(), page), "write it: python -m tests.commands_page"


def test_each_command_has_a_section() -> None:
    page = PAGE.read_text()
    names = [name for name, _ in commands()] + list(DAEMONS)
    assert len(names) > 12
    assert [name for name in names if f"\n``{name}``\n---" not in page] == []


def test_each_option_is_there_and_says_what_it_does() -> None:
    page = PAGE.read_text()
    found = [option for _, command in commands() for option in options_of(command)]
    found += [option for kind in DAEMONS.values() for option in options_of_daemon(kind)]
    assert [written for written, what in found if f".. option:: {written}\n" not in page or len(what) < 10] == []
