"""A small Spark session: two threads, loopback only, nothing written outside of `scratch`."""

import os
import sys
from pathlib import Path
from typing import Any

SOURCE = str(Path(__file__).parent.parent.parent)


def session_environment(scratch: object) -> dict[str, str]:
    """What has to be in the environment: Python workers run this interpreter, and find the source uninstalled."""
    # The JVM lives shortly: a fast start counts for more than fast code.
    jvm = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={scratch} -Duser.home={scratch}"
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{jvm}' pyspark-shell",
        "PYTHONPATH": os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")])),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def start_session(scratch: object, master: str = "local[2]") -> Any:
    """Start Spark in this process, whose environment is that of `session_environment`."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("mqbroker tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": f"{scratch}/local",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.streaming.pollingDelay": "20ms",
        # A busy machine starts Python slowly.
        "spark.python.authenticate.socketTimeout": "60s",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
