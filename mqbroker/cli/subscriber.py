"""The consumer of `mq sub`. Messages that were not printed are not consumed: another member of the group gets them."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import stat
import sys
from typing import IO

import attrs
import click

from mqbroker.cli.lines import log_warnings, plain_line, terminal_line
from mqbroker.cli.servers import Servers
from mqbroker.client import ConsumeFrom, PushOptions, ReceivedMessage
from mqbroker.client.aio import PushConsumer
from mqbroker.client.errors import NotHandled


def print_messages(topic: str, group: str, tags: str, servers: Servers, *, from_first: bool, count: int | None) -> bool:
    """Print until a signal, or `count` messages; False if a signal came first. Raises MQError."""
    log_warnings()
    printer = Printer(sys.stdout.buffer, count, coloured=sys.stdout.isatty())
    options = PushOptions(
        credentials=servers.credentials,
        tls=servers.tls,
        # One at a time: each queue's messages are printed in their order.
        concurrency=1,
        consume_from=ConsumeFrom.FIRST if from_first else ConsumeFrom.LAST,
        # A user is watching: notice a topic that is created meanwhile soon.
        rebalance_s=2.0,
        route_age_s=2.0,
        commit_s=1.0,
    )
    consumer = PushConsumer(servers.name_servers, group, printer.print_message, options=options)
    asyncio.run(_consume(consumer, printer, topic, tags, group))
    return count is None or printer.printed == count or printer.reader_left


@attrs.define
class Printer:
    """Prints up to `count` messages; later ones are left for the group's next member."""

    _out: IO[bytes]
    _count: int | None
    _coloured: bool = attrs.field(kw_only=True)
    printed: int = 0
    reader_left: bool = False
    ended: asyncio.Event = attrs.field(factory=asyncio.Event)

    def reader_closed(self) -> None:
        """Called when the reader of the output has gone."""
        self.reader_left = True
        self.ended.set()

    async def print_message(self, message: ReceivedMessage) -> None:
        """The listener."""
        if self.ended.is_set():
            # Neither consumed nor sent back: its offset is not committed.
            raise NotHandled("as many as were wanted are printed")
        try:
            self._out.write(terminal_line(message).encode() + b"\n" if self._coloured else plain_line(message.body))
            # The offset may be committed when this returns, so the output must be flushed.
            self._out.flush()
        except BrokenPipeError:
            self.reader_closed()
            raise NotHandled("nobody reads any more") from None
        self.printed += 1
        if self.printed == self._count:
            self.ended.set()


async def _consume(consumer: PushConsumer, printer: Printer, topic: str, tags: str, group: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, printer.ended.set)
    pipe = _stdout_pipe()
    if pipe is not None:
        # The write end of a pipe is never readable; poll reports when its reader has gone.
        asyncio.get_running_loop().add_reader(pipe, printer.reader_closed)
    await consumer.subscribe(topic, tags)
    starting = asyncio.ensure_future(consumer.start())
    ended = asyncio.ensure_future(printer.ended.wait())
    try:
        await asyncio.wait((starting, ended), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        if not ended.done():
            if sys.stderr.isatty():
                click.echo(f"waiting for messages of {topic} as a member of {group}; Ctrl-C ends", err=True)
            await ended
    finally:
        starting.cancel()
        ended.cancel()
        await consumer.close()
        if printer.reader_left:
            _forget_stdout()


def _stdout_pipe() -> int | None:
    """The descriptor of standard output if that is a pipe."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return None
    return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None


def _forget_stdout() -> None:
    """The reader has gone: redirect the interpreter's last flush to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
