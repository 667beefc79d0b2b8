"""`mq sub`: a member of a consumer group that prints what it gets."""

from __future__ import annotations

import click

from mqbroker.cli.failures import INTERRUPTED, told
from mqbroker.cli.names import group_option, tags_option, topic_argument
from mqbroker.cli.servers import Servers, server_options


@click.command()
@topic_argument
@group_option
@tags_option
@click.option(
    "--from",
    "consume_from",
    type=click.Choice(["first", "last"]),
    default="last",
    show_default=True,
    help="Where a new group begins. If a queue's first message is still recent, brokers of 4.9 always begin with it.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Exit after this many messages.")
@server_options
def sub(topic: str, group: str, tags: str, consume_from: str, count: int | None, servers: Servers) -> None:
    """Print the messages of TOPIC as a member of GROUP, until Ctrl-C.

    If standard output is not a terminal, only bodies are printed, one per line.
    """
    with told():
        from mqbroker.cli.subscriber import print_messages

        whole = print_messages(topic, group, tags, servers, from_first=consume_from == "first", count=count)
    if not whole:
        raise SystemExit(INTERRUPTED)
