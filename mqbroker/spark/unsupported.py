"""What stands for the data source where PySpark is older than it needs: it says so, and does nothing else.

Spark imports every package named pyspark_* to find its sources. One that cannot be imported is not found, and neither
are the others.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource

from mqbroker.spark.errors import PySparkTooOld


class UnsupportedSource(DataSource):
    """Format "rocketmq", refusing whatever is asked of it."""

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
