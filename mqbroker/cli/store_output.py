"""Output of `mq store`, as text and as JSON: of a check, of a repair, and of a dump."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import attrs
import click
from twisted.internet.task import Clock

from mqbroker.cli.failures import Failure
from mqbroker.cli.lines import escape_controls
from mqbroker.cli.progress import ProgressLine, size_text
from mqbroker.store.checkpoint import Checkpoint
from mqbroker.store.layout import lock_holder, other_layout
from mqbroker.store.logscan import Damage
from mqbroker.store.offline.check import Report, check_store, read_checkpoint
from mqbroker.store.offline.detected_layout import Given, Layout, read_layout
from mqbroker.store.offline.dump import Selection, read_index_headers, read_messages, read_queues
from mqbroker.store.offline.findings import Finding, Findings, Severity, when
from mqbroker.store.offline.repair import Plan, Repair, make_plan
from mqbroker.store.os_disk import OsDisk
from mqbroker.wire.compression import UnreadableBody, decompress_body
from mqbroker.wire.names import join_address
from mqbroker.wire.record import Record

_COLORS = {Severity.LOST: "red", Severity.BROKEN: "yellow", Severity.NOTE: "cyan"}


def report_lines(report: Report, holder: str) -> Iterator[str]:
    """Findings first, the worst ones last, right above the summary."""
    order = [Severity.NOTE, Severity.BROKEN, Severity.LOST]
    for finding in sorted(report.findings.kept, key=lambda finding: order.index(finding.severity)):
        yield from _finding_lines(finding, report.layout.root)
    if report.findings.left_out:
        yield f"... and {report.findings.left_out} more"
    if report.findings.kept:
        yield ""
    yield from summary_lines(report, holder)


def _finding_lines(finding: Finding, root: str) -> Iterator[str]:
    name = click.style(f"{finding.severity:<6}", fg=_COLORS[finding.severity])
    place = os.path.relpath(finding.path, root) if finding.path else "commitlog"
    yield f"{name} " + escape_controls(f"{place} @ {finding.offset}: {finding.kind}: {finding.what}")
    if finding.advice:
        yield f"       {finding.advice}"


def summary_lines(report: Report, holder: str) -> Iterator[str]:
    """The result of a check in a few lines; `holder` is the process that has the store open."""
    totals, counts = report.totals, report.findings.counts
    sizes = f"{totals.segments} segments of {size_text(totals.segment_bytes)}"
    yield f"log        {sizes}, bytes {totals.log_first} to {totals.log_end}"
    damaged = f", {totals.damaged_bytes} damaged bytes" if totals.damaged_bytes else ""
    fenced = f", {totals.fenced_bytes} fenced bytes" if totals.fenced_bytes else ""
    yield f"records    {totals.records}, {size_text(totals.record_bytes)}{damaged}{fenced}"
    if totals.records:
        yield f"newest     {when(report.newest_ms)}"
    yield f"queues     {totals.queues} of {totals.topics} topics, {totals.queue_entries} entries"
    yield f"index      {totals.index_files} files, {totals.index_entries} entries"
    yield f"stopped    {_stopped(report, holder)}"
    if report.findings.is_clean and not counts[Severity.NOTE]:
        yield "result     clean"
        return
    lost = (
        f", {report.findings.messages_lost} messages lost that can be counted" if report.findings.messages_lost else ""
    )
    yield (
        f"result     {'clean; ' if report.findings.is_clean else ''}{counts[Severity.LOST]} losses, "
        f"{counts[Severity.BROKEN]} problems, {counts[Severity.NOTE]} notes{lost}"
    )


def _stopped(report: Report, holder: str) -> str:
    if holder:
        return f"no: {holder}, and the end may have changed meanwhile"
    return "normally" if report.small.is_stopped else "no: the last broker was killed, or the machine was"


def report_as_dict(report: Report, holder: str) -> dict[str, Any]:
    """The whole report, with stable names."""
    return {
        "root": report.layout.root,
        "commitlog": report.layout.commit_log,
        "clean": report.findings.is_clean,
        "stopped": report.small.is_stopped,
        "held_by": holder,
        "newest_store_timestamp_ms": report.newest_ms,
        "messages_lost": report.findings.messages_lost,
        "counts": {str(severity): count for severity, count in report.findings.counts.items()},
        "kinds": dict(report.findings.kinds),
        "totals": attrs.asdict(report.totals),
        "findings": [attrs.asdict(finding) for finding in report.findings.kept],
        "findings_left_out": report.findings.left_out,
    }


def run_repair(directory: str, given: Given, *, write: bool, fence: bool, move_foreign: bool, as_json: bool) -> bool:
    """Run a repair; returns whether nothing is left to do. Raises MQError and OSError."""
    disk = OsDisk()
    lock_path = os.path.join(directory, "lock")
    if not write:
        holder = lock_holder(lock_path) if os.path.isdir(directory) else ""
        if holder:
            raise Failure(f"{directory}: {holder}; stop it first")
        report = _check(disk, directory, given)
        plan = make_plan(report, fence=fence, move_foreign=move_foreign)
        _say(report, plan, "", as_json)
        return plan.is_empty and not plan.obstacles
    if other_layout(disk, directory) or not os.path.isdir(given.commit_log or os.path.join(directory, "commitlog")):
        _check(disk, directory, given)  # raises, before anything is created
    lock = disk.lock(lock_path)
    try:
        report = _check(disk, directory, given)
        plan = make_plan(report, fence=fence, move_foreign=move_foreign)
    except BaseException:
        lock.release()
        raise
    if plan.obstacles or plan.is_empty:
        lock.release()
        _say(report, plan, "", as_json)
        return not plan.obstacles
    folder = os.path.join(directory, time.strftime("repair-%Y%m%d-%H%M%S"))
    clock = Clock()
    clock.advance(time.time())
    with ProgressLine("building") as progress:
        Repair(disk, clock, report, plan, folder, lock).run(lambda step: progress.at(step.done, step.total))
    after = _check(disk, directory, given)
    rest = make_plan(after, fence=fence, move_foreign=move_foreign)
    if not as_json:
        for line in plan.lines():
            click.echo(escape_controls(f"done: {line}"))
    _say(after, rest, folder, as_json)
    return rest.is_empty and not rest.obstacles


def _check(disk: OsDisk, directory: str, given: Given) -> Report:
    with ProgressLine("checking") as progress:
        return check_store(disk, directory, given, progress.at)


def _say(report: Report, plan: Plan, folder: str, as_json: bool) -> None:
    if as_json:
        found = report_as_dict(report, "")
        found["repair"] = {"steps": plan.lines(), "obstacles": plan.obstacles, "left": plan.left, "saved_in": folder}
        click.echo(json.dumps(found))
        return
    for line in plan.lines():
        click.echo(escape_controls(f"to do: {line}"))
    for line in plan.obstacles:
        click.echo(escape_controls(f"in the way: {line}"))
    for line in plan.left:
        click.echo(escape_controls(f"left: {line}"))
    for line in summary_lines(report, ""):
        click.echo(line)
    if folder:
        click.echo(f"what was replaced is in {folder}; it can be deleted once the store is found good")
    elif plan.obstacles:
        click.echo("nothing was changed; nothing can be done before that is out of the way")
    elif plan.is_empty:
        click.echo("nothing to do")
    else:
        click.echo("nothing was changed; add --write to do it")


_BODY_CHARACTERS = 80


def print_messages(directory: str, given: Given, selection: Selection, count: int | None, as_json: bool) -> None:
    """Print the selected messages of a store, `count` at most."""
    disk = OsDisk()
    layout = _layout(disk, directory, given)
    total = sum(segment.size for segment in layout.segments)
    done = 0

    def passed(size: int) -> None:
        nonlocal done
        done += size
        if not sys.stdout.isatty():
            progress.at(done, total)

    found = False
    with ProgressLine("reading") as progress:
        for record in islice(_whole(read_messages(disk, layout, selection, passed)), count):
            found = True
            click.echo(json.dumps(as_dict(record), ensure_ascii=True) if as_json else line_of(record))
    if not found:
        click.echo("no such message is there; --queues lists the topics and the offsets of their queues", err=True)


def _layout(disk: OsDisk, directory: str, given: Given) -> Layout:
    """The layout, with its faults on standard error: readable parts are read."""
    findings = Findings()
    layout = read_layout(disk, directory, given, findings)
    for finding in findings.kept:
        click.echo(escape_controls(f"{finding.path}: {finding.what}"), err=True)
    return layout


def _whole(items: Iterator[Record | Damage]) -> Iterator[Record]:
    for item in items:
        if isinstance(item, Damage):
            click.echo(f"bytes {item.start} to {item.end} of the log hold no record: {item.why}", err=True)
        else:
            yield item


def line_of(record: Record) -> str:
    """A record as one line of text."""
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
    return "\t".join(escape_controls(cell).replace("\t", "\\t") for cell in cells)


def _body(record: Record) -> bytes:
    try:
        return decompress_body(record.body, record.sys_flag)
    except UnreadableBody:  # as it is stored, then
        return record.body


def as_dict(record: Record) -> dict[str, Any]:
    """A record as it is printed with --json."""
    body = _body(record)
    found = {
        "physical_offset": record.physical_offset,
        "size": record.store_size,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "store_timestamp_ms": record.store_timestamp,
        "store_host": join_address(*record.store_host),
        "born_timestamp_ms": record.born_timestamp,
        "born_host": join_address(*record.born_host),
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
        rows = read_queues(disk, layout, selection)
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
    return when(value) if name.endswith("_ms") and value > 0 else escape_controls(str(value))
