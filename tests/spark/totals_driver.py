"""A Spark driver to be killed: from a topic to another one, through a stateful query.

Arguments: name server, source topic, target topic, checkpoint directory, directory for Spark's own files, and "once" to
end when all that is available is processed.
"""

import os
import sys

import mqbroker.spark
from tests.spark.session import session_environment, start_session


def main() -> None:
    name_server, source, target, checkpoint, scratch, mode = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    spark = start_session(scratch)
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
    if mode == "once":
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
