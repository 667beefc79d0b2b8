"""`mq demo`: the whole system under load, a broker killed on the way, and a table that shows that nothing was lost."""

from __future__ import annotations

from pathlib import Path

import click

from mqbroker.cli.failures import FAILED, told

#: These take well under a minute on two cores, Spark included.
LINES_MAX = 40_000


@click.command()
@click.argument("directory", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--max-lines",
    metavar="N",
    type=click.IntRange(1),
    default=LINES_MAX,
    show_default=True,
    help="Publish whole files, up to this many lines in total; skip the rest.",
)
@click.option("--no-spark", is_flag=True, help="Skip the count by Spark.")
@click.option("--keep", is_flag=True, help="Keep the work directory, with settings, logs and messages.")
def demo(directory: Path | None, max_lines: int, no_spark: bool, keep: bool) -> None:
    """Publish the lines of the text files under DIRECTORY, consume them, and count their words.

    A name server and two brokers run in separate processes; one broker is killed half-way and restarted. Two consumers
    share the messages, and a Spark streaming query counts lines and words by file. At the end all counts are compared
    with a direct count of the files; exits with 1 if they differ. By default, DIRECTORY is this project's own text.
    """
    with told():
        from rich.console import Console

        from mqbroker_demo.corpus import read_corpus
        from mqbroker_demo.session import show

        corpus = read_corpus(directory, max_lines)
        equal = show(corpus, Console(), with_spark=not no_spark, keep=keep)
    if not equal:
        raise SystemExit(FAILED)
