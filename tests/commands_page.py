"""The page of commands and their options, from their definitions; `python -m tests.commands_page` writes it."""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from twisted.python import usage

from mqbroker.cli import cli
from mqbroker.daemons.broker import BrokerConsoleOptions
from mqbroker.daemons.broker import Options as TwistdBroker
from mqbroker.daemons.namesrv import NamesrvConsoleOptions
from mqbroker.daemons.namesrv import Options as TwistdNamesrv

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "commands.rst"
BEGIN, END = ".. commands begin\n\n", "\n.. commands end\n"
DAEMONS: dict[str, type[usage.Options]] = {
    "mqnamesrv": NamesrvConsoleOptions,
    "mqbroker": BrokerConsoleOptions,
    "twistd namesrv": TwistdNamesrv,
    "twistd mqbroker": TwistdBroker,
}
#: Options of this many commands or more are described once.
SHARED_MIN = 4

Options = list[tuple[str, str]]


def commands(group: click.Group = cli, name: str = "mq") -> Iterator[tuple[str, click.Command]]:
    """Each command of `mq` that is no group, with its words."""
    for word, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def options_of(command: click.Command) -> Options:
    """The options of a command of `mq`: how each is written, and what it does."""
    found = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        value = "" if option.is_flag else f" {option.make_metavar(click.Context(command))}"
        written = ", ".join(f"{name}{value}" for name in option.opts)
        sentences = [(option.help or "").strip()]
        if option.envvar:
            sentences.append(f"Environment: ``{option.envvar}``.")
        default = option.default
        if isinstance(default, int | str) and not isinstance(default, bool) and str(default):
            sentences.append(f"Default: ``{default}``.")
        found.append((written, " ".join(sentences)))
    return found


def options_of_daemon(kind: type[usage.Options]) -> Options:
    """The same for a daemon's command line."""
    options = kind()
    shorts = {options.synonyms[letter]: letter for letter in options.shortOpt.replace(":", "")}
    found = []
    for word in sorted(options.longOpt):
        name = word.rstrip("=")
        value = " VALUE" if word.endswith("=") else ""
        written = f"-{shorts[name]}{value}, --{name}{value}" if name in shorts else f"--{name}{value}"
        found.append((written, f"{' '.join(str(options.docs[name]).split()).rstrip('.')}."))
    return found


def render() -> str:
    """The page's sections in reStructuredText."""
    found = {name: (command, options_of(command)) for name, command in commands()}
    counts = Counter(option for _, options in found.values() for option in options)
    shared = [option for option, count in counts.items() if count >= SHARED_MIN]
    parts = [
        _section(
            "Options that commands share", "", "Of commands that connect to name servers and brokers.", "mq", shared
        )
    ]
    for name, (command, options) in found.items():
        context = click.Context(command, info_name=name)
        is_connecting = any(option in shared for option in options)
        help_text = inspect.cleandoc(command.help or "").replace("\b\n", "").partition("\f")[0].strip()
        if is_connecting:
            help_text += "\n\nIt takes the options that commands share, too."
        own = [option for option in options if option not in shared]
        usage_line = " ".join([name, *command.collect_usage_pieces(context)])
        parts.append(_section(f"``{name}``", usage_line, help_text, name, own))
    for name, kind in DAEMONS.items():
        parts.append(_section(f"``{name}``", f"{name} [OPTIONS]", "", name, options_of_daemon(kind)))
    return "\n".join(parts)


def _section(title: str, usage_line: str, text: str, program: str, options: Options) -> str:
    lines = [title, "-" * len(title), ""]
    if usage_line:
        lines += ["::", "", f"    {usage_line}", ""]
    for paragraph in filter(None, text.split("\n\n")):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), 116, break_on_hyphens=False), ""]
    lines += [f".. program:: {program}", ""]
    for written, what in options:
        lines += [f".. option:: {written}", ""]
        lines += [*textwrap.wrap(what, 116, initial_indent="   ", subsequent_indent="   ", break_on_hyphens=False), ""]
    return "\n".join(lines)


def page_with(text: str, page: str) -> str:
    """The page with the sections in their place."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}{text}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(render(), PAGE.read_text()))
