"""How Spark finds the format "rocketmq": it looks into every package named pyspark_*. All else is in mqbroker.spark."""

try:
    import pyspark.sql.streaming.datasource  # noqa: F401 - came with the version that is needed
except ImportError:
    from mqbroker.spark.unsupported import UnsupportedSource as DefaultSource
else:
    from mqbroker.spark.source import RocketMQDataSource as DefaultSource  # type: ignore[assignment]

__all__ = ["DefaultSource"]
