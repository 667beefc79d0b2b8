"""The bundle for executors on which nothing can be installed: PySpark, Arrow and NumPy are all that is there."""

import os
import stat
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mqbroker.spark.bundle import main, write_bundle
from mqbroker.spark.errors import NotOnExecutors
from tests.spark.homes import home_of_spark
from tests.spark.session import short_lived_jvm
from tests.spark.test_spark import Cluster, cluster, publish  # noqa: F401 - a fixture

PROGRAM = """
import sys
sys.path += sys.argv[3:]
import mqbroker.spark
from pyspark.sql import SparkSession
assert ".zip" in mqbroker.spark.__file__, mqbroker.spark.__file__
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
for artifact in sys.argv[3:]:
    spark.addArtifact(artifact, pyfile=True)
mqbroker.spark.register(spark)
copy = sys.argv[2] + "Copy"
options = {"nameServer": sys.argv[1], "topic": sys.argv[2]}
frame = spark.read.format("rocketmq").options(**options).load()
frame.selectExpr("body", "keys").write.format("rocketmq").mode("append").options(**options | {"topic": copy}).save()
copies = spark.read.format("rocketmq").options(**options | {"topic": copy}).load()
columns = "CAST(body AS STRING)", "properties['KEYS']", "keys[0]"
print(sorted(tuple(row) for row in copies.selectExpr(*columns).collect()))
print([name for name in ("orjson", "twisted", "click") if name in sys.modules])
"""


def bare_python(folder: Path) -> Path:
    """An interpreter without site-packages; PYTHONPATH has these packages alone."""
    packages = folder / "packages"
    packages.mkdir()
    for name in ("pyspark", "py4j", "pyarrow", "numpy"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        home = Path(spec.origin).parent
        for part in (home, *home.parent.glob(f"{name}.libs")):
            (packages / part.name).symlink_to(part)
    python = folder / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    python.write_text(f'#!/bin/sh\nexec "{base}" -S "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


@pytest.mark.spark
@pytest.mark.daemons
@pytest.mark.parametrize("way", ["--py-files", "addArtifact"])
def test_a_bundle_is_all_that_executors_need(cluster: Cluster, tmp_path: Path, way: str) -> None:  # noqa: F811
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    from mqbroker.spark import api

    if not api.HAS_SOURCES:
        pytest.skip("PySpark 3.5 has no data sources in Python")
    topic = "Bundled" + way.strip("-")
    publish(cluster, topic, 3, keys=["k"])
    python, bundle, program = bare_python(tmp_path), tmp_path / "bundle.zip", tmp_path / "program.py"
    write_bundle(bundle)
    program.write_text(PROGRAM)
    home = home_of_spark(tmp_path)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path / "packages"),
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
    } | {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    settings = {
        "spark.ui.enabled": "false",
        **dict.fromkeys(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), short_lived_jvm()),
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    done = subprocess.run(
        [
            *(str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]"),
            *(("--py-files", str(bundle)) if way == "--py-files" else ()),
            *(part for item in settings.items() for part in ("--conf", "=".join(item))),
            *(str(program), cluster.name_server, topic),
            *((str(bundle),) if way == "addArtifact" else ()),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[done.stderr.find("Traceback") :][:5000]
    wanted = [(f"message {n}", "k", "k") for n in range(3)]
    assert done.stdout.splitlines()[-2:] == [str(wanted), "[]"]


def test_what_workers_import_is_in_the_bundle(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    python, bundle = bare_python(tmp_path), tmp_path / "bundle.zip"
    write_bundle(bundle)
    names = ["mqbroker.spark." + name for name in ("connections", "decode", "packing", "reading", "source", "writing")]
    done = subprocess.run(
        [python, "-c", f"import {', '.join(names)}; print(mqbroker.__file__)"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(bundle), str(tmp_path / "packages")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == f"{bundle}/mqbroker/__init__.py\n"


def test_a_bundle_has_no_daemons_and_nothing_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.zip"
    assert main([str(path)]) == 0
    assert "call mqbroker.spark.register(spark)" in capsys.readouterr().out
    with zipfile.ZipFile(path) as bundle:
        names = bundle.namelist()
    for package in ("mqbroker/spark", "pyspark_rocketmq", "attr", "attrs"):
        assert f"{package}/__init__.py" in names
    assert all(name.endswith(".py") for name in names)
    assert not [name for name in names if name.startswith(("mqbroker/broker/", "mqbroker/store/", "mqbroker/cli/"))]
    first = path.read_bytes()
    write_bundle(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize("arguments", [[], ["bundle"], ["a.zip", "b.zip"]])
def test_a_bundle_wants_one_name_of_a_zip(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m mqbroker.spark.bundle FILE.zip\n"


def test_a_bundle_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none" / "b.zip")]) == 1
    assert "none/b.zip cannot be written: No such file or directory" in capsys.readouterr().err


class Refusing:
    """A session whose executors fail."""

    def __init__(self, error: str) -> None:
        self._error = error

    @property
    def sparkContext(self) -> "Refusing":  # noqa: N802 - Spark's
        return self

    def parallelize(self, *_: Any) -> "Refusing":
        return self

    def map(self, *_: Any) -> "Refusing":
        return self

    def collect(self) -> None:
        raise RuntimeError(self._error)


def test_executors_without_the_package_are_told() -> None:
    pytest.importorskip("pyspark")
    from mqbroker.spark import api, register

    if not api.HAS_SOURCES:
        pytest.skip("PySpark 3.5 has no data sources in Python")
    with pytest.raises(NotOnExecutors, match="the Python of the executors cannot import mqbroker: install it there"):
        register(Refusing("Traceback\n  ...\nModuleNotFoundError: No module named 'mqbroker'\n"))
    with pytest.raises(RuntimeError, match="of something else"):
        register(Refusing("of something else"))
