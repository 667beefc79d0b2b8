"""A copy of the sources, in which tests may be run after something in it was changed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def copy_sources(source: Path, copy: Path, copy_file: Callable[[str, str], Any] = shutil.copy2) -> None:
    """Copy what tests need; with times, so that what Python compiled for the source is good for the copy too.

    With `os.link` the files are the same: a file that is to differ must be removed before it is written.
    """
    for name in ("mqbroker", "mqbroker_demo", "tests", "twisted", "conf", "docs", "pyproject.toml", "setup.cfg"):
        if (source / name).is_dir():
            # Other processes may be compiling: what Python writes under these names is renamed at once.
            ignore = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(source / name, copy / name, ignore=ignore, copy_function=copy_file)
        else:
            copy_file(str(source / name), str(copy / name))
