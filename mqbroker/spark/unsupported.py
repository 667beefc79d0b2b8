"""Placeholder of the data source for versions of PySpark that are too old: it only says so.

Spark imports every package named pyspark_* to find its sources. If one cannot be imported, the others are not found
either.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource

from mqbroker.spark.errors import PySparkTooOld


class UnsupportedSource(DataSource):
    """Format "rocketmq", which refuses everything."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> NoReturn:
        """Raises PySparkTooOld, as do all others."""
        raise PySparkTooOld(pyspark.__version__)

    def reader(self, schema: Any) -> NoReturn:
        raise PySparkTooOld(pyspark.__version__)

    def streamReader(self, schema: Any) -> NoReturn:
        raise PySparkTooOld(pyspark.__version__)
