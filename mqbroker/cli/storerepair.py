"""`mq store repair`: what is said and done."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from twisted.internet.task import Clock

from mqbroker.cli.failures import Failure
from mqbroker.cli.lines import visible
from mqbroker.cli.progress import ProgressLine
from mqbroker.cli.storetext import report_as_dict, summary_lines
from mqbroker.store.layout import other_layout
from mqbroker.store.lock import lock_holder
from mqbroker.store.offline.check import Report, check_store
from mqbroker.store.offline.layout import Given
from mqbroker.store.offline.repair import Plan, Repair, make_plan
from mqbroker.store.os_disk import OsDisk


def run_repair(directory: str, given: Given, *, write: bool, fence: bool, move_foreign: bool, as_json: bool) -> bool:
    """Whether nothing is left to do. Raises MQError and OSError."""
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
    with _progress("building") as progress:
        Repair(disk, clock, report, plan, folder, lock).run(lambda step: progress.at(step.done, step.total))
    after = _check(disk, directory, given)
    rest = make_plan(after, fence=fence, move_foreign=move_foreign)
    if not as_json:
        for line in plan.lines():
            click.echo(visible(f"done: {line}"))
    _say(after, rest, folder, as_json)
    return rest.is_empty and not rest.obstacles


@contextmanager
def _progress(what: str) -> Iterator[ProgressLine]:
    progress = ProgressLine(what, sys.stderr)
    try:
        yield progress
    finally:
        progress.close()


def _check(disk: OsDisk, directory: str, given: Given) -> Report:
    with _progress("checking") as progress:
        return check_store(disk, directory, given, progress.at)


def _say(report: Report, plan: Plan, folder: str, as_json: bool) -> None:
    if as_json:
        found = report_as_dict(report, "")
        found["repair"] = {"steps": plan.lines(), "obstacles": plan.obstacles, "left": plan.left, "saved_in": folder}
        click.echo(json.dumps(found))
        return
    for line in plan.lines():
        click.echo(visible(f"to do: {line}"))
    for line in plan.obstacles:
        click.echo(visible(f"in the way: {line}"))
    for line in plan.left:
        click.echo(visible(f"left: {line}"))
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
