"""Names on the command line, checked before any connection: topics, groups, name servers, tags."""

from __future__ import annotations

from collections.abc import Callable

import click

from mqbroker.errors import MQError
from mqbroker.wire.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX, check_group, check_topic

DEFAULT_NAME_SERVER = "127.0.0.1:9876"

_RIGHT = "use 1 to {} of the characters a-z A-Z 0-9 _ - % |"


def _checked(check: Callable[[str], str], wrong: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """The callback that returns what `check` does; its MQError is a BadParameter with the text `wrong`."""

    def checked(ctx: click.Context, param: click.Parameter, value: str) -> str:
        try:
            return check(value)
        except MQError as error:
            raise click.BadParameter(wrong.format(value=value, error=error)) from None

    return checked


def _check_name_servers(text: str) -> str:
    from mqbroker.client.options import parse_name_servers

    return ";".join(parse_name_servers(text))


def _check_tags(text: str) -> str:
    from mqbroker.client.subscription import subscribe_to

    subscribe_to("topic", text, 0)
    return text


topic_argument = click.argument(
    "topic", callback=_checked(check_topic, f"{{value!r}} cannot be a topic: {_RIGHT.format(TOPIC_LENGTH_MAX)}")
)
group_option = click.option(
    "-g",
    "--group",
    metavar="GROUP",
    callback=_checked(check_group, f"{{value!r}} cannot be a group: {_RIGHT.format(GROUP_LENGTH_MAX)}"),
    required=True,
    help="The consumer group; its members share the messages.",
)
tags_option = click.option(
    "--tags",
    metavar="TAGS",
    callback=_checked(_check_tags, "{value!r} names no tag: write 'paid', 'paid || refund', or '*'"),
    default="*",
    show_default=True,
    help="Receive only messages with one of these tags, such as 'paid || refund'.",
)
name_server_option = click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT",
    callback=_checked(_check_name_servers, "{error}; use 127.0.0.1:9876, or several joined by ';'"),
    envvar="NAMESRV_ADDR",
    default=DEFAULT_NAME_SERVER,
    show_default=True,
    show_envvar=True,
    help="The name server, or several separated by ';'.",
)
