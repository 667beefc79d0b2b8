"""How the report of a check looks: for people, and for programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import attrs
import click

from mqbroker.cli.lines import visible
from mqbroker.cli.progress import size_text
from mqbroker.store.offline.check import Report
from mqbroker.store.offline.findings import Finding, Severity, when

_COLORS = {Severity.LOST: "red", Severity.BROKEN: "yellow", Severity.NOTE: "cyan"}


def report_lines(report: Report, holder: str) -> Iterator[str]:
    """Findings first, the worst last of all, so that what matters stands right above the summary."""
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
    yield visible(f"{place} @ {finding.offset}: {finding.kind}: {finding.what}").join((f"{name} ", ""))
    if finding.advice:
        yield f"       {finding.advice}"


def summary_lines(report: Report, holder: str) -> Iterator[str]:
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
        f"{counts[Severity.BROKEN]} things to mend, {counts[Severity.NOTE]} notes{lost}"
    )


def _stopped(report: Report, holder: str) -> str:
    if holder:
        return f"no: {holder}, and the end may have changed meanwhile"
    return "normally" if report.small.is_stopped else "no: the last broker was killed, or the machine was"


def report_as_dict(report: Report, holder: str) -> dict[str, Any]:
    """All of the report, with names that stay."""
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
        "totals": report.totals.as_dict(),
        "findings": [attrs.asdict(finding) for finding in report.findings.kept],
        "findings_left_out": report.findings.left_out,
    }
