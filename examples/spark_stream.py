"""Streams what a topic has into Parquet files. Needs PySpark 4.0 and Java 17."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("orders").getOrCreate()
orders = (
    spark.readStream.format("rocketmq")
    .option("nameServer", "127.0.0.1:9876")
    .option("topic", "orders")
    .option("startingOffsets", "earliest")
    .load()
)
query = (
    orders.selectExpr("queueId", "queueOffset", "CAST(body AS STRING) AS text")
    .writeStream.format("parquet")
    .option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True)  # without it the query runs until it is stopped
    .start("orders.parquet")
)
query.awaitTermination()
print(spark.read.parquet("orders.parquet").count(), "orders")
