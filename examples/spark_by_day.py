"""Keeps a topic as Parquet, a folder for each day. Start it again to continue.

Needs PySpark 4.0 and Java 17.
"""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("orders by day").getOrCreate()
# Days begin at midnight of this zone, not of the machine's.
spark.conf.set("spark.sql.session.timeZone", "UTC")
orders = (
    spark.readStream.format("rocketmq")
    .options(nameServer="127.0.0.1:9876", topic="orders", startingOffsets="earliest")
    .load()
)
days = orders.selectExpr(
    "to_date(storeTimestamp) AS day",
    "CAST(body AS STRING) AS text",
    "tags",
    "queueId",
    "queueOffset",
)
query = (
    days.writeStream.format("parquet")
    .partitionBy("day")
    .option("checkpointLocation", "days.checkpoint")
    .trigger(availableNow=True)  # without it the query runs until it is stopped
    .start("days.parquet")
)
query.awaitTermination()
kept = spark.read.parquet("days.parquet")
print(kept.count(), "orders of", kept.select("day").distinct().count(), "day")
