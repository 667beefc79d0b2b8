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
    help="The broker's settings file, for file sizes, delay levels and the commit log's directory. Without it,"
    " sizes are detected.",
)
COMMIT_LOG = click.option(
    "--commitlog", type=click.Path(exists=True, file_okay=False), help="The commit log's directory, if not in DIR."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def store() -> None:
    """Check, repair and print store directories, including those of Java brokers.

    DIR is the broker's storePathRootDir, which contains commitlog/ and consumequeue/. Only `repair --write` changes
    anything in it.
    """


@store.command()
@DIRECTORY
@CONFIG
@COMMIT_LOG
@click.option("--live", is_flag=True, help="Check a store that a broker has open; a write in progress may look torn.")
@JSON
def check(directory: str, config: str | None, commitlog: str | None, live: bool, as_json: bool) -> None:
    """Read the whole store and report what is wrong. Exits with 0 if nothing is, else with 1.

    Every record of the log is read and compared with consume queues and index, in both directions. Nothing is
    written, locked or created.
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
@click.option("--write", is_flag=True, help="Do the repair. Without this option it is only described.")
@click.option(
    "--fence",
    is_flag=True,
    help="Overwrite damaged parts of the log with empty records, and create filler files for missing segments, so "
    "that Java brokers keep what follows.",
)
@click.option("--move-foreign", is_flag=True, help="Move files that do not belong to a store out of the way.")
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
    """Show what would repair the store, and do it with --write.

    Consume queues and index are rebuilt from the log, and an incomplete record at the log's end is cut off. No complete
    record is lost: what is replaced is first moved or copied to a new directory repair-DATE-TIME in DIR. Exits with 1
    if something is left to do, or cannot be done.
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
@click.option("--topic", metavar="TOPIC", help="Only messages of this topic.")
@click.option(
    "--queue", "queue_id", type=click.IntRange(0), metavar="ID", help="Only messages of the queue with this number."
)
@click.option(
    "--from",
    "start",
    metavar="OFFSET",
    type=click.IntRange(0),
    help="Start at this offset: a queue offset with --topic and --queue, else an offset in the log.",
)
@click.option("--to", "end", type=click.IntRange(0), metavar="OFFSET", help="Stop before this offset.")
@click.option("--key", metavar="KEY", help="Only messages with this key or unique key.")
@click.option("--max", "count", type=click.IntRange(1), metavar="N", help="Print at most this many.")
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
    """Print messages, one per line, in the order of the log.

    Columns, separated by tabs: offset in the log, topic, queue, queue offset, store time, size of the record, tags,
    keys, and the beginning of the body.
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
