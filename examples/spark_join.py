"""Joins bills with their payments within a day. Needs PySpark 4.0 and Java 17."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

spark = SparkSession.builder.appName("paid bills").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", 2)


def read(topic, fields, time):
    messages = (
        spark.readStream.format("rocketmq")
        .options(nameServer="127.0.0.1:9876", topic=topic, startingOffsets="earliest")
        .load()
    )
    texts = messages.selectExpr(
        "CAST(body AS STRING) AS text", f"storeTimestamp AS {time}"
    )
    rows = texts.selectExpr(f"from_json(text, '{fields}') AS row", time)
    return rows.select("row.*", time).withWatermark(time, "10 minutes")


bills = read("bills", "bill BIGINT, amount BIGINT", "billedAt")
payments = read("payments", "bill BIGINT", "paidAt").withColumnRenamed("bill", "paid")
paid = bills.join(
    payments,
    expr(
        # A minute before: the clocks of two brokers differ.
        "bill = paid AND paidAt >= billedAt - INTERVAL 1 MINUTE"
        " AND paidAt <= billedAt + INTERVAL 1 DAY"
    ),
)
query = (
    paid.select("bill", "amount", "billedAt", "paidAt")
    .writeStream.format("parquet")
    .option("checkpointLocation", "paid.checkpoint")
    .trigger(availableNow=True)  # without it the query runs until it is stopped
    .start("paid.parquet")
)
query.awaitTermination()
for row in spark.read.parquet("paid.parquet").orderBy("bill").collect():
    print(row.bill, row.amount)
