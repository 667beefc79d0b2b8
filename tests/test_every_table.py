"""What a table has after each change of it, a start reads from its file: of every table, by every method.

A method, or a table, that is not in `every_table.py` fails here. MQBROKER_TABLE_SEEDS chooses how many histories each
table has.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.access.acl_yaml import BadAcl
from mqbroker.ha.epochs import BadHistory
from tests.broker.bench import START
from tests.every_table import TABLES, Kept
from tests.kept_tables import SOURCE

SEEDS = int(os.environ.get("MQBROKER_TABLE_SEEDS", "10"))
CHANGES = [(name, number) for name, kept in TABLES.items() for number in range(len(kept.changes))]
#: Calls by which a class writes a file, and classes that do so for no table of their own. What is given a JsonFile, or
#: is loaded from one elsewhere, is a table as well.
WRITES = ("JsonFile", "replace_file", "disk.replace", "disk.write", "save_changes", "os.replace")
NO_TABLES = {
    "store/jsonfile.py": "the file itself",
    "config/changes.py": "the settings, see tests/config/test_changes.py",
    "store/os_disk.py": "the disk",
    "broker/broker_service.py": "makes the files of tables",
    "broker/assembly.py": "makes the tables of its files",
    "broker/broker_group.py": "has the epochs written, see epochs; its failures are in tests/ha",
    "namesrv/namesrv_service.py": "has the KV configuration written",
    "broker/delay_cursors.py": "a content of delays",
    "broker/versioned_table.py": "of topics and of groups",
    "broker/own_store.py": "a mark",
    "store/log_scrub.py": "checksums, which are made again where they are lost, see tests/store/test_log_scrub.py",
    "ha/member_note.py": "one page, see tests/ha/test_member_note.py",
    **dict.fromkeys(("store/opening.py", "store/store_files.py", "store/truncation.py"), "the mark `abort`"),
}


def a_clock() -> Clock:
    clock = Clock()
    clock.advance(START)
    return clock


def prepared(kept: Kept, root: Path, clock: Clock) -> Any:
    table = kept.make(root, clock)
    for change in kept.prepared:
        change(table)
    kept.persist(table)
    return table


def check_same(kept: Kept, table: Any, root: Path, clock: Clock) -> None:
    kept.persist(table)
    assert kept.content(kept.make(root, clock)) == kept.content(table)


@pytest.mark.parametrize(("name", "number"), CHANGES, ids=lambda value: str(value))
def test_a_start_reads_what_a_change_made(name: str, number: int, tmp_path: Path) -> None:
    kept, clock = TABLES[name], a_clock()
    table = prepared(kept, tmp_path, clock)
    before = kept.content(kept.make(tmp_path, clock))
    assert before == kept.content(table)
    kept.changes[number][1](table)
    check_same(kept, table, tmp_path, clock)
    assert kept.content(table) != before, "this changes nothing"


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", TABLES)
def test_a_start_reads_what_many_changes_made(name: str, seed: int, tmp_path: Path) -> None:
    """In any order, written now and then, and read by a new process now and then, which goes on."""
    kept, clock, rng = TABLES[name], a_clock(), Random(seed)
    table = prepared(kept, tmp_path, clock)
    actions = [change for _, change in kept.changes] + kept.prepared
    for _ in range(rng.randrange(2, 30)):
        with contextlib.suppress(BadHistory):  # an epoch that is not new
            refused = rng.choice(actions)(table)
            if isinstance(refused, Deferred):  # an account that is not there
                refused.addErrback(lambda failure: failure.trap(BadAcl))
        if rng.random() < 0.3:
            kept.persist(table)
        if rng.random() < 0.2:
            check_same(kept, table, tmp_path, clock)
        if rng.random() < 0.1:
            kept.persist(table)
            table = kept.make(tmp_path, clock)
    check_same(kept, table, tmp_path, clock)


@pytest.mark.parametrize("name", TABLES)
def test_every_method_that_changes_a_table_is_there(name: str) -> None:
    kept = TABLES[name]
    public = {each for each, value in inspect.getmembers(kept.kind) if not each.startswith("_") and callable(value)}
    changing = {method for method, _ in kept.changes}
    unknown = public - changing - kept.readers
    assert not unknown, f"add a change by {sorted(unknown)} to every_table.py, or name it among the readers"
    assert changing <= public


def test_every_class_that_writes_a_file_is_there() -> None:
    kinds = {kind for kept in TABLES.values() for kind in (kept.kind, kept.writer) if kind is not None}
    known = {Path(inspect.getfile(kind)).relative_to(SOURCE).as_posix() for kind in kinds}
    found = set(_writing())
    assert found - known - NO_TABLES.keys() == set()
    # No table is there by hand alone: one that is added in its way will be found.
    assert known - found == {"broker/client_registry.py"}, "its file is written by members_file.py"
    assert NO_TABLES.keys() <= found


def _writing() -> Iterator[str]:
    """The modules that write a file, are given one, or have a class that another module loads from one."""
    for folder in ("access", "broker", "client", "config", "ha", "namesrv", "store"):
        for path in (SOURCE / folder).rglob("*.py"):
            if "offline" in path.parts:
                continue
            tree = ast.parse(path.read_text())
            nodes = list(ast.walk(tree))
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            given = [ast.unparse(node.annotation) for node in nodes if isinstance(node, ast.arg) and node.annotation]
            writes = any(ast.unparse(call.func).endswith(WRITES) for call in calls)
            if writes or any(kind in ("JsonFile", "JsonFile | None") for kind in given):
                yield path.relative_to(SOURCE).as_posix()
            loaded = {
                name.id
                for call in calls
                if ast.unparse(call.func).endswith("file.load")
                for name in ast.walk(call)
                if isinstance(name, ast.Name)
            }
            for node in nodes:
                if isinstance(node, ast.ImportFrom) and any(name.name in loaded for name in node.names):
                    package, _, module = (node.module or "").partition(".")
                    if package == "mqbroker" and not module.startswith("wire."):  # a body, which is no table
                        yield f"{module.replace('.', '/')}.py"
