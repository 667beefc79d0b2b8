"""How messages, queues and headers look that `mq store dump` prints."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import attrs
import click

from mqbroker.cli.lines import visible
from mqbroker.cli.progress import ProgressLine
from mqbroker.store.checkpoint import Checkpoint
from mqbroker.store.logscan import Damage
from mqbroker.store.offline.check import read_checkpoint
from mqbroker.store.offline.dump import Selection, read_index_headers, read_messages, read_queues
from mqbroker.store.offline.findings import Findings, when
from mqbroker.store.offline.layout import Given, Layout, read_layout
from mqbroker.store.os_disk import OsDisk
from mqbroker.wire.record import BadRecord, Record, record_body

_BODY_CHARACTERS = 80


def print_messages(
    directory: str, given: Given, selection: Selection, count: int | None, as_json: bool, progress: ProgressLine | None
) -> None:
    disk = OsDisk()
    layout = _layout(disk, directory, given)
    total = sum(segment.size for segment in layout.segments)
    done = 0

    def passed(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress.at(done, total)

    found = False
    try:
        for record in islice(_whole(read_messages(disk, layout, selection, passed)), count):
            found = True
            click.echo(json.dumps(as_dict(record), ensure_ascii=True) if as_json else line_of(record))
    finally:
        if progress is not None:
            progress.close()
    if not found:
        click.echo("no such message is there; --queues lists the topics and the offsets of their queues", err=True)


def _layout(disk: OsDisk, directory: str, given: Given) -> Layout:
    """The layout, with what is wrong with it on the standard error: what can be read is read."""
    findings = Findings()
    layout = read_layout(disk, directory, given, findings)
    for finding in findings.kept:
        click.echo(visible(f"{finding.path}: {finding.what}"), err=True)
    return layout


def _whole(items: Iterator[Record | Damage]) -> Iterator[Record]:
    for item in items:
        if isinstance(item, Damage):
            click.echo(f"bytes {item.start} to {item.end} of the log hold no record: {item.why}", err=True)
        else:
            yield item


def line_of(record: Record) -> str:
    properties = record.properties
    body = _body(record)[: 4 * _BODY_CHARACTERS]
    cells = [
        str(record.physical_offset),
        record.topic,
        str(record.queue_id),
        str(record.queue_offset),
        when(record.store_timestamp),
        str(record.store_size),
        properties.get("TAGS", ""),
        properties.get("KEYS", ""),
        body.decode(errors="backslashreplace")[:_BODY_CHARACTERS],
    ]
    return "\t".join(visible(cell).replace("\t", "\\t") for cell in cells)


def _body(record: Record) -> bytes:
    try:
        return record_body(record)
    except BadRecord:  # as it is stored, then
        return record.body


def as_dict(record: Record) -> dict[str, Any]:
    body = _body(record)
    found = {
        "physical_offset": record.physical_offset,
        "size": record.store_size,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "store_timestamp_ms": record.store_timestamp,
        "store_host": "{}:{}".format(*record.store_host),
        "born_timestamp_ms": record.born_timestamp,
        "born_host": "{}:{}".format(*record.born_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_offset,
        "body_crc": record.body_crc,
        "properties": dict(record.properties),
    }
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(body).decode()
    return found


def print_heads(directory: str, given: Given, selection: Selection, what: str, as_json: bool) -> None:
    """The queues, the index headers or the checkpoint, one a line."""
    disk = OsDisk()
    layout = _layout(disk, directory, given)
    rows: Iterator[dict[str, Any]]
    if what == "queues":
        rows = (attrs.asdict(queue) for queue in read_queues(disk, layout, selection))
    elif what == "index":
        rows = ({"path": path, **attrs.asdict(header)} for path, header in read_index_headers(disk, layout))
    else:
        checkpoint = read_checkpoint(disk, layout.path("checkpoint"))
        rows = iter([_checkpoint_row(checkpoint)] if checkpoint is not None else [])
    columns: list[str] | None = None
    for row in rows:
        if as_json:
            click.echo(json.dumps(row))
            continue
        if columns is None:
            columns = list(row)
            click.echo("\t".join(columns))
        click.echo("\t".join(_cell(name, value) for name, value in row.items()))


def _checkpoint_row(checkpoint: Checkpoint) -> dict[str, Any]:
    row = attrs.asdict(checkpoint)
    row["queues_count"], row["queues_next_offsets_sum"] = row.pop("tally") or (None, None)
    return row


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return when(value) if name.endswith("_ms") and value > 0 else visible(str(value))
