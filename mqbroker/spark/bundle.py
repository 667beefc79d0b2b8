"""A zip of all that a worker imports: ``python -m mqbroker.spark.bundle FILE.zip``.

For ``--py-files`` and ``addArtifact``, where nothing can be installed on the executors. Their interpreter needs
PySpark, Arrow and NumPy only; in the zip are this package without its daemons, and attrs. All of it is pure Python.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

#: The parts of this package that clients and the format need.
_PARTS = ("client", "config", "kernel", "remoting", "spark", "wire")
#: Other distributions of pure Python, and the other package of this one.
_PACKAGES = ("attr", "attrs", "pyspark_rocketmq")
#: A constant, so that the same files make the same zip.
_TIME = (1980, 1, 1, 0, 0, 0)


def write_bundle(path: str | Path) -> int:
    """Write the zip; returns the number of files in it. Raises OSError."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, file in sorted(_files()):
            bundle.writestr(zipfile.ZipInfo(name, _TIME), file.read_bytes(), zipfile.ZIP_DEFLATED)
        return len(bundle.namelist())


def _files() -> Iterator[tuple[str, Path]]:
    root = Path(__file__).parent.parent
    for name in ("__init__.py", "errors.py"):
        yield f"mqbroker/{name}", root / name
    folders = [(f"mqbroker/{part}", root / part) for part in _PARTS]
    for package in _PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folders.append((package, Path(spec.origin).parent))
    for inside, folder in folders:
        for file in folder.rglob("*.py"):
            yield f"{inside}/{file.relative_to(folder).as_posix()}", file


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 1 or not arguments[0].endswith(".zip"):
        print("usage: python -m mqbroker.spark.bundle FILE.zip", file=sys.stderr)  # noqa: T201 - a command
        return 2
    try:
        count = write_bundle(arguments[0])
    except OSError as error:
        print(f"{arguments[0]} cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"{arguments[0]} has {count} files: pass it to Spark with --py-files or addArtifact(pyfile=True),")  # noqa: T201
    print("and call mqbroker.spark.register(spark) in the program")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
