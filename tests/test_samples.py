"""The samples of the pages: Python compiles and its imports exist, commands and options are known, settings load."""

import ast
import importlib
import re
import shlex
import textwrap
from collections.abc import Iterator
from itertools import dropwhile, takewhile
from pathlib import Path

import attrs
import click
import pytest

from mqbroker.cli import cli
from mqbroker.config import load_broker_settings, load_namesrv_settings
from mqbroker.daemons.broker import BrokerConsoleOptions
from mqbroker.daemons.namesrv import NamesrvConsoleOptions
from tests.samples import cluster
from tests.sessions import steps

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("docs/**/*.rst")), ROOT / "README.rst", ROOT / "CONTRIBUTING.rst"]
DAEMONS = {"mqbroker": BrokerConsoleOptions, "mqnamesrv": NamesrvConsoleOptions, "namesrv": NamesrvConsoleOptions}


@attrs.frozen
class Sample:
    """A literal block: its text without indentation, and where it is."""

    place: str
    is_python: bool
    text: str
    #: Of its page.
    folder: str
    #: Why it cannot be run: the text of a comment `.. not run: WHY` above it.
    why_not_run: str | None = None


def samples() -> Iterator[Sample]:
    start = r"^(\.\. code-block:: \w+(?:\n +:.*)*|(?!\.\.).*::)\n\n"
    block = re.compile(start + r"((?:(?: {4}.*)?\n)+)", re.MULTILINE)
    for page in PAGES:
        text = page.read_text() + "\n"
        for found in block.finditer(text):
            kind, body = found.groups()
            line = text.count("\n", 0, found.start(2)) + 1
            # The comment is above the paragraph that leads to the block, or above the directive.
            above = text[: text.rfind("\n\n", 0, found.start(1)) + 1].rstrip("\n").rpartition("\n")[2]
            why_not_run = above.removeprefix(".. not run: ") if above.startswith(".. not run: ") else None
            begins = ("    def ", "    from ", "    import ")
            is_python = kind.startswith(".. code-block:: python") or (kind[0] != "." and body.startswith(begins))
            yield Sample(f"{page.name}:{line}", is_python, textwrap.dedent(body), page.parent.name, why_not_run)


def commands() -> Iterator[tuple[str, list[str]]]:
    """The lines that somebody types, in words, each with its place; without a prompt, comments and what is piped to."""
    for sample in samples():
        for line in sample.text.splitlines():
            if re.match(r"(\$ )?(mq|mqbroker|mqnamesrv|twistd|tox|pip install .*&& \w+)( |$)", line):
                words = shlex.split(line.removeprefix("$ "), comments=True)
                words = words[words.index("&&") + 1 :] if words[0] == "pip" and "&&" in words else words
                yield sample.place, list(takewhile(lambda word: word not in ("|", ">", "2>", "&", "&&"), words))


def missing_imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("pyspark"):
            module = importlib.import_module(node.module)
            yield from (f"{node.module}.{name.name}" for name in node.names if not hasattr(module, name.name))


def test_samples_in_python_compile_and_import_what_exists() -> None:
    found = [sample for sample in samples() if sample.is_python]
    assert len(found) >= 6
    for sample in found:
        compile(sample.text, sample.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert list(missing_imports(sample.text)) == [], sample.place


@pytest.mark.daemons
def test_samples_in_python_run(tmp_path: Path) -> None:
    """As they stand, but for the address. Whole programs are in examples/, and in tests/test_examples.py."""
    found = [sample for sample in samples() if sample.is_python]
    left_out = [sample for sample in found if sample.why_not_run]
    assert len(left_out) <= 2, "write a sample that runs, or a whole program in examples/"
    with cluster(tmp_path / "samples") as mq_dev:
        for sample in found:
            if sample not in left_out:
                mq_dev.run(sample.text)


def test_samples_for_a_shell_are_followed_or_say_why_not() -> None:
    """tests/docs/test_tutorial.py follows pages, and the README's brokers. How-to pages have tests of their own."""
    followed = {"tutorial", "howto"}
    # What installs the package, runs its tests, and the usage lines of the commands' page, which is generated.
    is_other = re.compile(r"pip install |(export .*\n)?tox |.* \[OPTIONS\]|mqnamesrv -c namesrv.conf --log-file").match
    prompt = re.compile(r"^(\$ |mq|twistd |tox|pip |python |etcdctl |tail |export |\(umask )", re.MULTILINE)
    found = [sample for sample in samples() if not sample.is_python and prompt.search(sample.text)]
    found = [sample for sample in found if sample.folder not in followed and not is_other(sample.text)]
    assert len(found) >= 12
    assert [sample.place for sample in found if not sample.why_not_run] == []
    assert len(found) <= 16, "show it on a page that is followed"


def test_what_stands_for_a_sample_that_is_not_run_exists() -> None:
    """A reason may name the test, or the page, that has it instead."""
    text = "".join(page.read_text() for page in PAGES)
    reasons = re.findall(r"^\.\. not run: (.+)$", text, re.MULTILINE)
    named = [path for reason in reasons for path in re.findall(r"\b(?:tests|docs)/\S+\.\w+", reason)]
    assert len(named) >= 10
    assert [path for path in named if not (ROOT / path).is_file()] == []


def parse_mq(words: list[str]) -> None:
    """Raises click's UsageError for a command or an option that `mq` does not have."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        below = command.commands.get(name)
        if below is None:
            raise click.UsageError(f"no command {name}")
        command = below
    command.make_parser(click.Context(command)).parse_args(list(words))


def parse_daemon(words: list[str]) -> None:
    """Raises AssertionError for an option that the daemon does not have."""
    if words[0] == "twistd":
        # Its own options come first; with a program of one's own there is no daemon.
        words = list(dropwhile(lambda word: word not in DAEMONS, words))
    if not words:
        return
    daemon, *rest = words
    options = DAEMONS[daemon]()
    known = {f"--{name.rstrip('=')}" for name in options.longOpt} | {
        f"-{letter}" for letter in options.shortOpt.replace(":", "")
    }
    assert {word.partition("=")[0] for word in rest if word.startswith("-")} <= known


def parse_tox(words: list[str], environments: set[str]) -> None:
    """Raises AssertionError for an environment that tox.ini does not have."""
    if "-e" in words:
        assert set(words[words.index("-e") + 1].split(",")) <= environments


def tox_environments() -> set[str]:
    sections = re.findall(r"^\[testenv:([^\]]+)\]", (ROOT / "tox.ini").read_text(), re.MULTILINE)
    generated = {f"wheels-py{version}" for version in (311, 312, 313, 314)}
    return {"py311", *generated, *(name for name in sections if "{" not in name)}


def test_commands_in_samples_exist_with_their_options() -> None:
    environments = tox_environments()
    found = list(commands())
    assert len(found) > 25
    for place, words in found:
        try:
            if words[0] == "mq":
                parse_mq(words[1:])
            elif words[0] == "tox":
                parse_tox(words, environments)
            else:
                parse_daemon(words)
        except (AssertionError, click.UsageError) as error:
            raise AssertionError(f"{place}: {' '.join(words)}: {error}") from error


def test_settings_in_samples_load_without_a_warning(tmp_path: Path) -> None:
    is_settings = re.compile(r"(#.*\n|[a-z]\w*=.*\n|\n)+").fullmatch
    # Files that pages have their reader save, and lines of such.
    files = [step for page in PAGES for step in steps(page) if step.file.endswith(".conf")]
    found = [(step.place, step.text, step.file.endswith("namesrv.conf")) for step in files]
    found += [(sample.place, sample.text, False) for sample in samples() if is_settings(sample.text + "\n")]
    assert len(found) >= 20
    for place, text, is_of_name_server in found:
        path = tmp_path / "daemon.conf"
        path.write_text(text)
        warnings: list[str] = []
        if is_of_name_server:
            load_namesrv_settings(str(path), warn=warnings.append)
        else:
            load_broker_settings(str(path), [("namesrvAddr", "127.0.0.1:9876")], environ={}, warn=warnings.append)
        assert warnings == [], place


@pytest.mark.parametrize("line", ["mq topics", "mq pub --nowhere", "mqbroker --nowhere", "tox -e nowhere"])
def test_a_wrong_command_is_found(line: str) -> None:
    words = line.split()
    parse = {"mq": lambda: parse_mq(words[1:]), "tox": lambda: parse_tox(words, tox_environments())}
    with pytest.raises((AssertionError, click.UsageError)):
        parse.get(words[0], lambda: parse_daemon(words))()
