"""What PySpark offers to data sources, of whichever version is installed: all that differs between them is here.

PySpark 3.5 has no data sources in Python; the readers are plain objects there, and `frames` calls them. 4.0 and 4.1 ask
a stream for its latest offset without saying where the query stands, and know no limits.
"""

from __future__ import annotations

from typing import Any

import attrs

try:
    from pyspark.sql import datasource
except ImportError:  # 3.5
    datasource = None

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # before 4.2
    limits = None


@attrs.frozen
class _Partition:
    value: Any


@attrs.frozen
class _AllAvailable:
    pass


@attrs.frozen
class _MaxRows:
    max_rows: int


class _Nothing:
    """In place of an interface that this version does not have."""


DataSource: Any = getattr(datasource, "DataSource", _Nothing)
DataSourceReader: Any = getattr(datasource, "DataSourceReader", _Nothing)
DataSourceStreamReader: Any = getattr(datasource, "DataSourceStreamReader", _Nothing)
DataSourceArrowWriter: Any = getattr(datasource, "DataSourceArrowWriter", _Nothing)
InputPartition: Any = getattr(datasource, "InputPartition", _Partition)
WriterCommitMessage: Any = getattr(datasource, "WriterCommitMessage", _Nothing)
ReadAllAvailable: Any = getattr(limits, "ReadAllAvailable", _AllAvailable)
ReadMaxRows: Any = getattr(limits, "ReadMaxRows", _MaxRows)
SupportsTriggerAvailableNow: Any = getattr(limits, "SupportsTriggerAvailableNow", type("_NotBefore42", (), {}))

#: PySpark 4.0 has no writer of Arrow batches for streams: rows come one by one.
HAS_ARROW_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
DataSourceStreamWriter: Any = getattr(
    datasource, "DataSourceStreamArrowWriter", getattr(datasource, "DataSourceStreamWriter", _Nothing)
)
#: Whether Spark looks for data sources in Python.
HAS_SOURCES = datasource is not None
#: Whether Spark says where a query stands when it asks for the latest offset.
TELLS_START = limits is not None


def arrow_schema_of(schema: Any) -> Any:
    """The Arrow schema that Spark demands of batches of `schema`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before 4.2 it takes no time zone, and uses this one.
    return to_arrow_schema(schema, timezone="UTC") if TELLS_START else to_arrow_schema(schema)
