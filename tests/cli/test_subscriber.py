"""The consumer of `mq sub`: what is printed counts as consumed, and nothing else does."""

import asyncio
import io
from collections.abc import Callable

import pytest

from mqbroker.cli.subscriber import Printer
from mqbroker.client import ReceivedMessage
from mqbroker.client.errors import NotHandled

Make = Callable[..., ReceivedMessage]


class BrokenPipe(io.BytesIO):
    def flush(self) -> None:
        raise BrokenPipeError


def print_message(printer: Printer, message: ReceivedMessage) -> None:
    asyncio.run(printer.print_message(message))


def test_every_message_is_out_before_it_is_taken(received: Make) -> None:
    out = io.BytesIO()
    printer = Printer(out, None, coloured=False)
    print_message(printer, received(b"a"))
    print_message(printer, received(b"b\n"))
    assert out.getvalue() == b"a\nb\\n\n"
    assert not printer.ended.is_set()


def test_what_comes_after_the_last_wanted_is_not_taken(received: Make) -> None:
    out = io.BytesIO()
    printer = Printer(out, 2, coloured=False)
    print_message(printer, received(b"a"))
    assert not printer.ended.is_set()
    print_message(printer, received(b"b"))
    assert printer.ended.is_set()
    with pytest.raises(NotHandled):
        print_message(printer, received(b"c"))
    assert out.getvalue() == b"a\nb\n"


def test_without_a_reader_nothing_more_is_taken(received: Make) -> None:
    printer = Printer(BrokenPipe(), None, coloured=False)
    with pytest.raises(NotHandled):
        print_message(printer, received(b"a"))
    assert printer.reader_left
    assert printer.ended.is_set()
    assert printer.printed == 0


def test_a_terminal_gets_more_than_the_body(received: Make) -> None:
    out = io.BytesIO()
    print_message(Printer(out, None, coloured=True), received(b"a"))
    assert b"broker-a/2@7" in out.getvalue()
