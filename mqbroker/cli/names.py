"""Names on the command line, checked before any connection: topics, groups, name servers, tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME_SERVER = "127.0.0.1:9876"

_RIGHT = "use 1 to {} of the characters a-z A-Z 0-9 _ - % |"


def _checked_topic(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from mqbroker.errors import Refused
    from mqbroker.wire.names import TOPIC_LENGTH_MAX, check_topic

    try:
        return check_topic(value)
    except Refused:
        raise click.BadParameter(f"{value!r} cannot be a topic: {_RIGHT.format(TOPIC_LENGTH_MAX)}") from None


def _checked_group(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from mqbroker.errors import Refused
    from mqbroker.wire.names import GROUP_LENGTH_MAX, check_group

    try:
        return check_group(value)
    except Refused:
        raise click.BadParameter(f"{value!r} cannot be a group: {_RIGHT.format(GROUP_LENGTH_MAX)}") from None


def _checked_name_servers(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from mqbroker.client.options import parse_name_servers
    from mqbroker.errors import MQError

    try:
        return ";".join(parse_name_servers(value))
    except MQError as error:
        raise click.BadParameter(f"{error}; right is 127.0.0.1:9876, or several joined by ';'") from None


def _checked_tags(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from mqbroker.client.subscription import subscribe_to
    from mqbroker.errors import MQError

    try:
        subscribe_to("topic", value, 0)
    except MQError:
        raise click.BadParameter(f"{value!r} names no tag: right is 'paid', 'paid || refund', or '*'") from None
    return value


def topic_argument(command: F) -> F:
    """The argument TOPIC."""
    return click.argument("topic", callback=_checked_topic)(command)


def group_option(command: F) -> F:
    """The option -g of consumers."""
    return click.option(
        "-g", "--group", callback=_checked_group, required=True, help="Members of one group share the messages."
    )(command)


def tags_option(command: F) -> F:
    """The option --tags of consumers."""
    return click.option(
        "--tags",
        callback=_checked_tags,
        default="*",
        show_default=True,
        help="Only messages with one of these tags, such as 'paid || refund'.",
    )(command)


def name_server_option(command: F) -> F:
    """The option -n that all clients have."""
    return click.option(
        "-n",
        "--namesrv",
        metavar="HOST:PORT",
        callback=_checked_name_servers,
        envvar="NAMESRV_ADDR",
        default=DEFAULT_NAME_SERVER,
        show_default=True,
        show_envvar=True,
        help="The name server, or several joined by ';'.",
    )(command)
