"""`mq store`: check, repair and dump of a store directory that no broker has open."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from mqbroker.cli.failures import FAILED, Failure, told

if TYPE_CHECKING:
    from mqbroker.store.offline.detected_layout import Given

DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(exists=True))
CONFIG = click.option(
    "-c",
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    help="The broker's settings: file sizes, delay levels, the directory of the log. Without them sizes are found out.",
)
COMMIT_LOG = click.option(
    "--commitlog", type=click.Path(exists=True, file_okay=False), help="The directory of the log, where not in DIR."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@click.group()
def store() -> None:
    """Check, mend and print store directories, those of Java brokers too.

    DIR is the storePathRootDir: the directory that holds commitlog/ and consumequeue/. Only `repair --write` changes
    anything in it.
    """


@store.command()
@DIRECTORY
@CONFIG
@COMMIT_LOG
@click.option("--live", is_flag=True, help="Check though a broker has it open; what is being written may look torn.")
@JSON
def check(directory: str, config: str | None, commitlog: str | None, live: bool, as_json: bool) -> None:
    """Read the whole store and report what is wrong with it: exit code 0 where nothing is, else 1.

    The log is read record by record, and compared with consume queues and index both ways. Nothing is written, locked
    or created.
    """
    with told():
        from mqbroker.cli.progress import ProgressLine
        from mqbroker.cli.store_output import report_as_dict, report_lines
        from mqbroker.daemons.shard_stores import shards_in
        from mqbroker.store.layout import lock_holder
        from mqbroker.store.offline.check import check_store
        from mqbroker.store.os_disk import OsDisk

        given = _given(directory, config, commitlog)
        holder = lock_holder(os.path.join(directory, "lock")) if os.path.isdir(directory) else ""
        if holder and not live:
            raise Failure(f"{directory}: {holder}; stop it first, or check with --live what it has written so far")
        with ProgressLine("checking") as progress:
            report = check_store(OsDisk(), directory, given, progress.at, is_live=bool(holder))
        others = [os.path.join(directory, f"shard-{shard}") for shard in shards_in(directory)]
        if as_json:
            click.echo(json.dumps({**report_as_dict(report, holder), "other_shards": others}))
        else:
            for line in report_lines(report, holder):
                click.echo(line)
            if others:
                click.echo(f"not read   {', '.join(others)}: stores of other shards, to be checked one by one")
    if not report.findings.is_clean:
        raise SystemExit(FAILED)


@store.command()
@DIRECTORY
@CONFIG
@COMMIT_LOG
@click.option("--write", is_flag=True, help="Do it. Without this it is only said what would be done.")
@click.option(
    "--fence",
    is_flag=True,
    help="Overwrite damaged stretches of the log with records that stand for nothing, and put fillers in place of "
    "missing segments, so that Java brokers keep what follows.",
)
@click.option("--move-foreign", is_flag=True, help="Move files that are none of a store's out of the way.")
@JSON
def repair(
    directory: str,
    config: str | None,
    commitlog: str | None,
    write: bool,
    fence: bool,
    move_foreign: bool,
    as_json: bool,
) -> None:
    """Say what would mend the store, and with --write do it.

    Consume queues and index are built anew from the log, and a torn end of the log is cut off. Nothing whole is lost:
    what is replaced is moved or copied to a new directory repair-DATE-TIME in DIR first. Exit code 1 where there is
    something to do, or something cannot be done.
    """
    with told():
        from mqbroker.cli.store_output import run_repair

        given = _given(directory, config, commitlog)
        done = run_repair(directory, given, write=write, fence=fence, move_foreign=move_foreign, as_json=as_json)
    if not done:
        raise SystemExit(FAILED)


@store.command()
@DIRECTORY
@CONFIG
@COMMIT_LOG
@click.option("--topic", help="Only of this topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only of the queue with this number.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    help="From this offset on: of the queue with --topic and --queue, else of the log.",
)
@click.option("--to", "end", type=click.IntRange(0), help="Up to this offset, which is not part of it.")
@click.option("--key", help="Only with this key or unique key.")
@click.option("--max", "count", type=click.IntRange(1), help="So many at most.")
@click.option("--queues", "what", flag_value="queues", help="List the consume queues with their offsets instead.")
@click.option("--index", "what", flag_value="index", help="List the index files with their headers instead.")
@click.option("--checkpoint", "what", flag_value="checkpoint", help="Show the checkpoint instead.")
@JSON
def dump(  # noqa: PLR0913 - an option each
    directory: str,
    config: str | None,
    commitlog: str | None,
    topic: str | None,
    queue_id: int | None,
    start: int | None,
    end: int | None,
    key: str | None,
    count: int | None,
    what: str | None,
    as_json: bool,
) -> None:
    """Print messages, one a line, in the order of the log.

    Columns, between tabs: offset in the log, topic, queue, queue offset, store time, size of the record, tags, keys,
    and how the body begins.
    """
    with told():
        from mqbroker.cli import store_output
        from mqbroker.store.offline.dump import Selection

        selection = Selection(topic, queue_id, start, end, key)
        given = _given(directory, config, commitlog)
        if what is None:
            store_output.print_messages(directory, given, selection, count, as_json)
        else:
            store_output.print_heads(directory, given, selection, what, as_json)


def _given(directory: str, config: str | None, commit_log: str | None) -> Given:
    """The store's settings from the command line and the broker's settings, of the shard that has the directory."""
    from mqbroker.store.offline.detected_layout import Given

    if config is None:
        return Given(commit_log=commit_log)
    from mqbroker.config import load_broker_settings
    from mqbroker.config.shards import SHARD_DIRECTORY, shard_settings

    of_file = load_broker_settings(config, warn=lambda warning: click.echo(warning, err=True))
    shard = SHARD_DIRECTORY.fullmatch(os.path.basename(os.path.abspath(directory)))
    settings = shard_settings(of_file, int(shard[1]) if shard else 0).store
    return Given(
        commit_log=commit_log or settings.store_path_commit_log,
        segment_bytes=settings.mapped_file_size_commit_log,
        queue_file_bytes=settings.mapped_file_size_consume_queue,
        slots=settings.max_hash_slot_num,
        capacity=settings.max_index_num,
        delay_levels=settings.message_delay_level,
        ext_file_bytes=settings.mapped_file_size_consume_queue_ext if settings.enable_consume_queue_ext else None,
        multi_dispatch=settings.enable_multi_dispatch,
    )
