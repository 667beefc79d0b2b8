"""Counts words, and keeps the number of each in another topic, as it changes.

Needs PySpark 4.0 and Java 17.
"""

import mqbroker.spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("words").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", 2)
brokers = {"nameServer": "127.0.0.1:9876"}
lines = (
    spark.readStream.format("rocketmq")
    .options(**brokers, topic="lines", startingOffsets="earliest")
    .load()
)
words = lines.selectExpr("explode(split(CAST(body AS STRING), ' ')) AS word")
counts = (
    words.groupBy("word")
    .count()
    .selectExpr("word AS key", "CAST(count AS STRING) AS value")
)
sink = mqbroker.spark.foreach_batch(
    **brokers, topic="words", guarantee="effectively-once", idColumns="key"
)
query = (
    counts.writeStream.outputMode("update")
    .foreachBatch(sink)
    .option("checkpointLocation", "words.checkpoint")
    .trigger(availableNow=True)  # without it the query runs until it is stopped
    .start()
)
query.awaitTermination()
written = spark.read.format("rocketmq").options(**brokers, topic="words").load()
for row in written.selectExpr("keys[0] AS word", "CAST(body AS STRING) AS n").collect():
    print(row.word, row.n)
