"""What Spark finds where something is missing. A package that looks like PySpark stands for it, so none is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

#: As PySpark looks for data sources: a package that cannot be imported ends the search.
LOOKUP = """
import sys
from importlib import import_module
from pkgutil import iter_modules
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from pyspark.sql.datasource import DataSource
for info in iter_modules():
    if info.name == "pyspark_rocketmq":
        found = import_module(info.name).DefaultSource
        assert issubclass(found, DataSource)
source = found({})
for ask in (source.schema, lambda: source.reader(schema=None), lambda: source.streamReader(None),
            lambda: source.writer(schema=None, overwrite=False)):
    try:
        ask()
    except Exception as error:
        print(found.name(), error)
"""


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("mqbroker", "needs the package mqbroker, which "),
        ("attrs", "needs the package attrs, which "),
        ("pyspark.sql.types", "needs another version than PySpark 4.0.5: No module named 'pyspark.sql.types'"),
    ],
)
def test_a_source_is_always_found_and_says_what_is_missing(tmp_path: Path, missing: str, said: str) -> None:
    package = tmp_path / "pyspark"
    (package / "sql" / "pandas").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '4.0.5'\nclass TaskContext: pass\n")
    for name in ("sql/__init__.py", "sql/pandas/__init__.py"):
        (package / name).write_text("")
    (package / "sql" / "types.py").write_text("class StructType: pass\n")
    names = ("DataSourceReader", "DataSourceStreamReader", "DataSourceArrowWriter", "DataSourceStreamWriter")
    (package / "sql" / "datasource.py").write_text(
        "class DataSource:\n    def __init__(self, options):\n        self.options = options\n"
        + "".join(f"class {name}: pass\n" for name in names)
    )
    done = subprocess.run(
        [sys.executable, "-c", LOOKUP.replace("MISSING", repr({missing}))],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith('rocketmq the format "rocketmq" needs ')
        assert said in line
        assert "Install it with `pip install 'mqbroker[spark]'`" in line
