"""Counts the different numbers in the topic, with Spark."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
numbers = (
    spark.read.format("rocketmq")
    .option("nameServer", "127.0.0.1:9876")
    .option("topic", "numbers")
    .load()
)
count = numbers.selectExpr("CAST(body AS STRING)").distinct().count()
print(count, "different numbers")
spark.stop()
