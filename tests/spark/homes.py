"""Homes of Spark. Workers of a cluster keep the files of applications there, so that each cluster gets its own."""

from importlib.util import find_spec
from pathlib import Path


def home_of_spark(folder: Path) -> Path:
    """The one in `folder`, of links to PySpark's files.

    It lacks the archive of PySpark's modules, of which each Python process of Spark would compile what it imports, and
    list all of it again: it imports those that are installed, which are the same and compiled.
    """
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = folder / "home"
    if not home.exists():
        home.mkdir()
        for part in Path(spec.origin).parent.iterdir():
            if part.name != "python":
                (home / part.name).symlink_to(part.resolve())
    return home
