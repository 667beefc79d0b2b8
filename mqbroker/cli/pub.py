"""`mq pub`: send a text, or each line of the standard input. Its sends go one after another, on the blocking client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from typing import TYPE_CHECKING, cast

import attrs
import click

from mqbroker.cli.failures import FAILED, told
from mqbroker.cli.lines import escape_controls, log_warnings
from mqbroker.cli.names import topic_argument
from mqbroker.cli.servers import Servers, server_options

if TYPE_CHECKING:
    from mqbroker.client import SendResult
    from mqbroker.client.blocking import Producer

PRODUCER_GROUP = "mq-pub"

#: Lines that are waiting are sent as a batch, up to these bounds: far below the 4 MiB that brokers accept.
BATCH_LINES_MAX = 100
BATCH_BYTES_MAX = 256 * 1024
READ_BYTES = 64 * 1024


@click.command()
@topic_argument
@click.argument("text", required=False)
@click.option("--tag", metavar="TAG", help="The messages' tag, by which consumers can filter.")
@click.option(
    "--key", "keys", multiple=True, metavar="KEY", help="A key by which messages can be found; may be repeated."
)
@server_options
def pub(topic: str, text: str | None, tag: str | None, keys: tuple[str, ...], servers: Servers) -> None:
    """Send TEXT to TOPIC; if TEXT is -, send each line of standard input as a message.

    Prints a line for each stored message: its id, broker, queue and offset.
    """
    if text is None and sys.stdin.isatty():
        raise click.UsageError("nothing to send: give a TEXT, or - for the lines of the standard input")
    with told():
        from mqbroker.client import BadMessage, ProducerOptions
        from mqbroker.client.blocking import Producer

        if not text and text is not None:
            raise BadMessage("the body is empty, which brokers refuse: give a TEXT")

        log_warnings()
        options = ProducerOptions(credentials=servers.credentials, tls=servers.tls)
        producer = Producer(servers.name_servers, PRODUCER_GROUP, options=options)
        sender = Sender(producer, topic, tag, keys)
        try:  # it connects when there is something to send
            if text is not None and text != "-":
                sender.send([text.encode(errors="surrogateescape")])
            else:
                sender.send_lines(cast(BufferedReader, sys.stdin.buffer).read1)
        finally:
            producer.close()


@attrs.define
class Sender:
    """Sends bodies to one topic and prints where each was stored."""

    _producer: Producer
    _topic: str
    _tag: str | None
    _keys: tuple[str, ...]
    sent: int = 0
    empty: int = 0

    def send(self, bodies: Sequence[bytes]) -> None:
        """Send one message, or several as a batch, to one queue. Raises MQError."""
        from mqbroker.client import Message

        messages = [Message(self._topic, body, tags=self._tag, keys=self._keys) for body in bodies]
        if len(messages) == 1:
            results = [self._producer.send(messages[0])]
        else:
            results = self._producer.send_batch(messages)
        self.sent += len(messages)
        print_results(results, self._topic)

    def send_lines(self, read: Callable[[int], bytes]) -> None:
        """Send each line that `read` returns, until its end. Raises MQError, after printing the number of sent
        lines."""
        try:
            for lines in line_batches(read):
                bodies = [line for line in lines if line]
                self.empty += len(lines) - len(bodies)
                if bodies:
                    self.send(bodies)
        except BaseException:
            if self.sent:
                click.echo(f"{self.sent:,} messages were stored before this:", err=True)
            raise
        if self.empty:
            click.echo(f"{self.empty:,} empty lines left out: brokers take no empty message", err=True)
        if not self.sent:
            click.echo("nothing was sent: the standard input has no line with text in it", err=True)
            raise SystemExit(FAILED)


def line_batches(read: Callable[[int], bytes]) -> Iterator[list[bytes]]:
    """Group lines as they arrive: present ones do not wait for more, and no group exceeds the bounds."""
    rest = b""
    while data := read(READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield from cut(lines)
    if rest:
        yield [rest]


def cut(lines: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Split `lines` into groups within the bounds; a line that exceeds them is sent alone."""
    group: list[bytes] = []
    size = 0
    for line in lines:
        if group and (len(group) == BATCH_LINES_MAX or size + len(line) > BATCH_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line)
    if group:
        yield group


def print_results(results: Sequence[SendResult], topic: str) -> None:
    """A line for each message: columns with tabs between them, or words on a terminal."""
    for result in results:
        queue, broker, msg_id = result.queue, escape_controls(result.queue.broker_name), escape_controls(result.msg_id)
        if sys.stdout.isatty():
            where = f"broker {broker}, queue {queue.queue_id}, offset {result.queue_offset}"
            click.echo(f"{click.style('sent', fg='green')} to {topic}: {where}  {click.style(msg_id, dim=True)}")
        else:
            click.echo(f"{msg_id}\t{broker}\t{queue.queue_id}\t{result.queue_offset}")
    for status in sorted({result.status.name for result in results} - {"SEND_OK"}):
        click.echo(f"stored, but the broker says {status}: a crash now may lose it", err=True)
