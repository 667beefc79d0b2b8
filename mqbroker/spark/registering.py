"""Registers the format where Spark does not find it by itself, and checks that the executors can use it."""

from __future__ import annotations

import re
from typing import Any

from mqbroker.spark.errors import NotOnExecutors, PySparkTooOld

_missing = re.compile(r"No module named '([\w.]+)'").search


def register(spark: Any) -> None:
    """Make the format rocketmq known to this session: where packages come by --py-files, Spark does not look for it.

    A small job checks that the executors can import what they need. Call it again in each new session. Raises
    NotOnExecutors, and PySparkTooOld before PySpark 4.0.
    """
    from pyspark import __version__
    from pyspark.sql.utils import is_remote

    from mqbroker.spark import api

    if not api.HAS_SOURCES:
        raise PySparkTooOld(__version__)
    from mqbroker.spark.source import RocketMQDataSource

    def check(_: int) -> None:
        # What reads and writes import, which is found in the zip or installed.
        import mqbroker.spark.connections
        import mqbroker.spark.decode
        import mqbroker.spark.packing
        import mqbroker.spark.writing  # noqa: F401

    try:
        # By remote sessions nothing is checked: they have no tasks without pandas.
        if not is_remote():
            spark.sparkContext.parallelize(range(2), 2).map(check).collect()
    except Exception as error:
        found = _missing(str(error))
        if found is None:
            raise
        raise NotOnExecutors(found[1]) from None
    spark.dataSource.register(RocketMQDataSource)
