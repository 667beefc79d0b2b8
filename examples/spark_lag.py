"""Shows how far a stream is behind, after each batch, and serves it to Prometheus.

Needs PySpark 4.0 and Java 17.
"""

import threading

from mqbroker.spark.listener import ProgressListener
from pyspark.sql import SparkSession


class Dashboard(ProgressListener):
    ended = threading.Event()

    def onQueryProgress(self, event):
        super().onQueryProgress(event)
        for query in self.lags():
            for queue, lag in sorted(query.queues.items()):
                print(f"{queue.topic} {queue.queue_id}: {lag.messages} to read")

    def onQueryTerminated(self, event):
        super().onQueryTerminated(event)
        self.ended.set()


spark = SparkSession.builder.appName("lag").getOrCreate()
dashboard = Dashboard(port=9464)
spark.streams.addListener(dashboard)
clicks = (
    spark.readStream.format("rocketmq")
    .options(nameServer="127.0.0.1:9876", topic="clicks", startingOffsets="earliest")
    .option("maxOffsetsPerTrigger", 2)
    .load()
)
query = (
    clicks.writeStream.format("noop")
    .queryName("clicks")
    .option("checkpointLocation", "lag.checkpoint")
    .trigger(availableNow=True)  # without it the query runs until it is stopped
    .start()
)
query.awaitTermination()
dashboard.ended.wait(60)
spark.streams.removeListener(dashboard)
dashboard.close()
