"""What Spark finds where PySpark is older than 4.2. A package that looks like one stands for it, so none is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

#: As PySpark of 4.0 and 4.1 looks for data sources: a package that cannot be imported ends the search.
LOOKUP = """
from importlib import import_module
from pkgutil import iter_modules
from pyspark.sql.datasource import DataSource
for info in iter_modules():
    if info.name == "pyspark_rocketmq":
        found = import_module(info.name).DefaultSource
        assert issubclass(found, DataSource)
source = found({})
for ask in (source.schema, lambda: source.reader(None), lambda: source.streamReader(None)):
    try:
        ask()
    except Exception as error:
        print(found.name(), error)
"""


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4"])
def test_an_old_pyspark_finds_a_source_that_says_what_is_needed(tmp_path: Path, version: str) -> None:
    package = tmp_path / "pyspark"
    (package / "sql" / "streaming").mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    for name in ("sql/__init__.py", "sql/streaming/__init__.py"):
        (package / name).write_text("")
    (package / "sql" / "datasource.py").write_text(
        "class DataSource:\n    def __init__(self, options):\n        self.options = options\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", LOOKUP],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert set(lines) == {
        f'rocketmq the format "rocketmq" needs PySpark 4.2 or later, and this is {version}: install it with '
        "`pip install 'pyspark>=4.2,<5'` for the driver and for the Python of the workers"
    }
