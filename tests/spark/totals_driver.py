"""A Spark driver to be killed: from a topic to another one, through a stateful query. A query that ends is started
again, and why it ended becomes a line of ``ended`` in the directory for Spark's own files, of JSON.

Arguments: name server, source topic, target topic, checkpoint directory, and directory for Spark's own files.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from pyspark.errors import StreamingQueryException

import mqbroker.spark
from tests.spark.session import session_environment, start_session


def main() -> None:
    name_server, source, target, checkpoint, scratch = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    # A task that fails is tried again, as on a cluster.
    spark = start_session(scratch, "local[2,4]")
    messages = spark.readStream.format("rocketmq").options(
        nameServer=name_server, topic=source, startingOffsets="earliest", maxOffsetsPerTrigger="40"
    )
    numbers = messages.load().selectExpr("CAST(split(CAST(body AS STRING), ' ')[1] AS BIGINT) AS n")
    totals = numbers.groupBy((numbers.n % 7).alias("key")).agg({"n": "sum", "*": "count"})
    rows = totals.selectExpr("CAST(key AS STRING) AS key", "concat_ws(' ', key, `count(1)`, `sum(n)`) AS value")
    rows = rows.selectExpr("*", "key AS shardingKey")
    sink = mqbroker.spark.foreach_batch(
        nameServer=name_server, topic=target, guarantee="effectively-once", idColumns="key"
    )
    writer = rows.writeStream.outputMode("update").foreachBatch(sink).option("checkpointLocation", checkpoint)
    while True:
        query = writer.start()
        with suppress(StreamingQueryException):
            query.awaitTermination()
        with Path(scratch, "ended").open("a") as file:
            print(json.dumps(str(query.exception())), file=file)


if __name__ == "__main__":
    main()
