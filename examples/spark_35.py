"""Reads and streams a topic without Spark's data sources, as on PySpark 3.5.

Start it again to continue: the directory orders.checkpoint has what is done.
"""

import sys

import mqbroker.spark
from pyspark.sql import SparkSession

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
spark = SparkSession.builder.appName("orders").getOrCreate()
options = {"nameServer": name_server, "topic": "orders"}

orders = mqbroker.spark.read(spark, "tags STRING, body BINARY", **options)
orders.groupBy("tags").count().show()


def keep(frame, batch):
    # A batch that is repeated replaces its own files.
    frame.selectExpr("CAST(body AS STRING) AS text").write.mode("overwrite").text(
        f"orders.text/batch={batch}"
    )
    print(f"batch {batch} is done")


mqbroker.spark.stream(
    spark,
    keep,
    checkpoint="orders.checkpoint",
    available_now=True,
    startingOffsets="earliest",
    **options,
)
