"""Counts the dead letters of a group by their reason. Needs PySpark 4.0 and Java 17."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("dead letters").getOrCreate()
letters = (
    spark.read.format("rocketmq")
    .options(nameServer="127.0.0.1:9876", topic="%DLQ%delivery")
    .load()
)
# Dead letters whose retries are over have no reason, nor have those of Java's clients.
causes = letters.selectExpr(
    "properties['RETRY_TOPIC'] AS sentTo",
    "coalesce(properties['DEAD_LETTER_REASON'], 'retries are over') AS reason",
)
for row in causes.groupBy("sentTo", "reason").count().orderBy("count").collect():
    print(row["count"], "of", row.sentTo, "because of:", row.reason)
