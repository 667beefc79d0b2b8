"""Makes sessions of clicks: those of a user with less than 30 minutes between them.

Needs PySpark 4.0 and Java 17.
"""

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, session_window

spark = SparkSession.builder.appName("sessions").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", 2)
messages = (
    spark.readStream.format("rocketmq")
    .options(nameServer="127.0.0.1:9876", topic="clicks", startingOffsets="earliest")
    .load()
)
clicks = (
    messages.selectExpr("CAST(body AS STRING) AS text", "storeTimestamp")
    .selectExpr("from_json(text, 'user STRING, at TIMESTAMP') AS c", "storeTimestamp")
    # One clock that is ahead would make the clicks of all others late.
    .where("c.at <= storeTimestamp + INTERVAL 1 MINUTE")
    .select("c.*")
)
sessions = (
    clicks.withWatermark("at", "1 hour")
    .groupBy("user", session_window("at", "30 minutes").alias("time"))
    .agg(count("*").alias("clicks"))
)
query = (
    sessions.selectExpr("user", "time.start", "time.end", "clicks")
    .writeStream.format("parquet")
    .option("checkpointLocation", "sessions.checkpoint")
    .trigger(availableNow=True)  # without it the query runs until it is stopped
    .start("sessions.parquet")
)
query.awaitTermination()
for row in spark.read.parquet("sessions.parquet").orderBy("start").collect():
    print(row.user, row.clicks)
