"""Homes of Spark. Workers of a cluster keep the files of applications there, so that each cluster gets its own."""

from importlib.util import find_spec
from pathlib import Path


def home_of_spark(folder: Path) -> Path:
    """A new one in `folder`, of links to PySpark's files."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = folder / "home"
    home.mkdir()
    for part in Path(spec.origin).parent.iterdir():
        (home / part.name).symlink_to(part.resolve())
    return home
