"""Keeps the number of messages of each tag in a topic, as it changes.

Needs PySpark 4.0 and Java 17.
"""

import mqbroker.spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("counts").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", 2)
brokers = {"nameServer": "127.0.0.1:9876"}
orders = (
    spark.readStream.format("rocketmq")
    .options(**brokers, topic="orders", startingOffsets="earliest")
    .load()
)
counts = (
    orders.groupBy("tags")
    .count()
    .selectExpr("coalesce(tags, 'none') AS key", "CAST(count AS STRING) AS value")
)
sink = mqbroker.spark.foreach_batch(
    **brokers, topic="counts", guarantee="effectively-once", idColumns="key"
)
query = (
    counts.writeStream.outputMode("update")
    .foreachBatch(sink)
    .option("checkpointLocation", "counts.checkpoint")
    .trigger(availableNow=True)  # without it the query runs until it is stopped
    .start()
)
query.awaitTermination()
written = spark.read.format("rocketmq").options(**brokers, topic="counts").load()
for row in written.selectExpr("keys[0] AS tag", "CAST(body AS STRING) AS n").collect():
    print(row.tag, row.n)
