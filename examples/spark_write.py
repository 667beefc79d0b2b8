"""Writes a receipt for each order to another topic, once each.

Needs PySpark 4.0 and Java 17.
"""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("receipts").getOrCreate()
brokers = {"nameServer": "127.0.0.1:9876"}
orders = (
    spark.readStream.format("rocketmq")
    .options(**brokers, topic="orders", startingOffsets="earliest")
    .load()
)
receipts = orders.selectExpr(
    "concat('receipt for ', CAST(body AS STRING)) AS body",
    "coalesce(tags, 'paid') AS tags",
    "uniqKey AS keys",  # a receipt is found by its order
    "uniqKey AS shardingKey",
)
query = (
    receipts.writeStream.format("rocketmq")
    .options(**brokers, topic="receipts", guarantee="effectively-once")
    .option("checkpointLocation", "receipts.checkpoint")
    .trigger(availableNow=True)  # without it the query runs until it is stopped
    .start()
)
query.awaitTermination()
written = spark.read.format("rocketmq").options(**brokers, topic="receipts").load()
print(written.count(), "receipts")
