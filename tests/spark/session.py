"""A small Spark session: two threads, loopback only, nothing written outside of `scratch`."""

import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.class_archive import archive_options
from tests.spark.homes import home_of_spark

SOURCE = str(Path(__file__).parent.parent.parent)
#: The JVM lives shortly: a fast start counts for more than fast code.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def short_lived_jvm() -> str:
    """Options of a JVM that lives shortly; the first caller of an environment waits until its classes are archived."""
    return f"{SHORT_LIVED} {class_archive_options()}"


@functools.cache
def class_archive_options() -> str:
    """Those that use the archive of this PySpark and this Java, which is kept with the packages of the environment."""
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    parts = [java.resolve(), Path(pyspark.__file__), Path(__file__).with_name("class_archive.py").read_text()]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return archive_options(Path(sys.prefix, f"spark-classes-{pyspark.__version__}-{digest}.jsa"), _make_archive)


def _make_archive(option: str) -> None:
    # One has 200 MB, and that of an earlier PySpark, Java or program is of no use. A JVM that runs keeps its own.
    for old in Path(sys.prefix).glob("spark-classes-*.jsa"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "tests.spark.class_archive", scratch, option]
        # A machine that is too slow for it goes without.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=SOURCE, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False)


def session_environment(scratch: object, options: str | None = None) -> dict[str, str]:
    """What has to be in the environment: Python workers run this interpreter, and find the source uninstalled.

    `options` are of a JVM that writes the archive of classes, and finds these where PySpark is installed.
    """
    home = {"SPARK_HOME": str(home_of_spark(Path(str(scratch))))} if options is None else {}
    jvm = short_lived_jvm() if options is None else f"{SHORT_LIVED} {options}"
    jvm += f" -Djava.io.tmpdir={scratch} -Duser.home={scratch}"
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{jvm}' pyspark-shell",
        "PYTHONPATH": os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")])),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **home,
    }


def start_session(scratch: object, master: str = "local[2]", more: Mapping[str, str] | None = None) -> Any:
    """Start Spark in this process, whose environment is that of `session_environment`; `more` are settings."""
    from pyspark.sql import SparkSession

    with suppress(ImportError):  # PySpark 3.5
        from pyspark.logger import PySparkLogger

        # Pytest adds its handlers to loggers that do not propagate: this one would make JSON of all later tests' text.
        PySparkLogger.addHandler = logging.Logger.addHandler
    builder = SparkSession.builder.master(master).appName("mqbroker tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": f"{scratch}/local",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.python.daemon.module": "tests.spark.worker_daemon",
        # Few rows: to compile a plan takes longer than to interpret it. The tests of the tutorial, bundle and demo do.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # A busy machine starts Python slowly.
        "spark.python.authenticate.socketTimeout": "60s",
        **(more or {}),
    }
    if "spark.executor.extraJavaOptions" not in settings:  # which waits for the archive, if that is not there yet
        settings["spark.executor.extraJavaOptions"] = short_lived_jvm()
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
