"""A copy of the sources, in which tests may be run after something in it was changed."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent


def copy_sources(source: Path, copy: Path) -> None:
    """Copy what tests need; with times, so that what Python compiled for the source is good for the copy too."""
    for name in ("mqbroker", "mqbroker_demo", "tests", "twisted", "conf", "docs", "pyproject.toml", "setup.cfg"):
        if (source / name).is_dir():
            # Other processes may be compiling: what Python writes under these names is renamed at once.
            shutil.copytree(source / name, copy / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        else:
            shutil.copy2(source / name, copy / name)
