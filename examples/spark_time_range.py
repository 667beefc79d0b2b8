"""Sends the last hour of a topic to another one. Needs PySpark 4.0 and Java 17."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("the last hour").getOrCreate()
brokers = {"nameServer": "127.0.0.1:9876"}
until = datetime.now(UTC)
messages = (
    spark.read.format("rocketmq")
    .options(
        **brokers,
        topic="clicks",
        startingTimestamp=(until - timedelta(hours=1)).isoformat(),
        endingTimestamp=until.isoformat(),
    )
    .load()
)
(
    messages.selectExpr("body", "tags", "keys", "uniqKey AS original")
    .write.format("rocketmq")
    .mode("append")
    # A second run with the same writeId sends only the messages that are missing.
    .options(
        **brokers,
        topic="clicks-again",
        guarantee="effectively-once",
        writeId="clicks-1",
        idColumns="original",
    )
    .save()
)
again = spark.read.format("rocketmq").options(**brokers, topic="clicks-again").load()
print(again.count(), "clicks again")
