"""Make each known mistake in a copy of the sources and see the tests fail.

``python -m tests.mutations [--push | --part N/M] [part of a name]``. What fails with a mistake must pass
without it: that is checked at the end.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import zlib
from collections.abc import Iterable

from tests.mutations.known import KNOWN, Mutation
from tests.mutations.trials import survivors
from tests.sources import ROOT

#: ``--push``: the files that changed within these seconds before the last commit, and a part of all the others.
PUSH_SECONDS = 12 * 3600
ROTATION = 10
#: About as many in all, those of changed files in rotation, too: a push that changes all would take an hour.
PUSH_MAX = 60
#: At least so many are of changed files, if these have as many.
CHANGED_MIN = 12


def git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def changed_files() -> set[str]:
    """Files of the package that changed within PUSH_SECONDS before the last commit, or are not committed."""
    since = int(git("log", "-1", "--format=%ct")[0]) - PUSH_SECONDS
    committed = git("log", f"--since=@{since}", "--format=", "--name-only", "--", "mqbroker")
    uncommitted = git("diff", "--name-only", "HEAD", "--", "mqbroker")
    return {name.removeprefix("mqbroker/") for name in [*committed, *uncommitted]}


def part_of(chosen: Iterable[Mutation], part: int, parts: int) -> list[Mutation]:
    """The part-th of so many parts, by name: a new mistake moves no other to another part."""
    return [mutation for mutation in chosen if zlib.crc32(mutation.name.encode()) % parts == part % parts]


def choose(arguments: argparse.Namespace) -> list[Mutation]:
    wanted = " ".join(arguments.name)
    chosen = [mutation for mutation in KNOWN if wanted in mutation.name]
    if not chosen:
        raise SystemExit("\n  ".join([f"no known mistake has {wanted!r} in its name:", *(m.name for m in KNOWN)]))
    if arguments.part:
        part, _, parts = arguments.part.partition("/")
        return part_of(chosen, int(part), int(parts))
    if arguments.push:
        changed, turn = changed_files(), int(git("rev-list", "--count", "HEAD")[0])
        of_changed = [mutation for mutation in chosen if mutation.file in changed]
        others = part_of((mutation for mutation in chosen if mutation.file not in changed), turn, ROTATION)
        parts = math.ceil(len(of_changed) / max(CHANGED_MIN, PUSH_MAX - len(others))) or 1
        mutations = part_of(of_changed, turn, parts) + others
        of_changed_files = "all" if parts == 1 else f"one in {parts}"
        print(
            f"{len(mutations)} of {len(chosen)} mistakes: {of_changed_files} of changed files, one in {ROTATION} else"
        )
        return mutations
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--push", action="store_true", help="those of recently changed files, and a tenth of the rest")
    parser.add_argument("--part", metavar="N/M", help="the N-th of M parts")
    parser.add_argument("name", nargs="*", help="part of a name")
    chosen = choose(parser.parse_args())
    survived = survivors(chosen)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mistakes noticed")
    for mutation in survived:
        print(f"SURVIVED  {mutation.name}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
