"""How Spark finds the format "rocketmq": it looks into every package named pyspark_*. All else is in mqbroker.spark."""

from mqbroker.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
