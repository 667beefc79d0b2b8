"""A Spark driver to be killed: it streams a topic to parquet files until then.

Arguments: name server, topic, checkpoint directory, sink directory, directory for Spark's own files.
"""

import os
import sys
from typing import Any

import mqbroker.spark
from mqbroker.spark import api
from tests.spark.session import session_environment, start_session


def main() -> None:
    name_server, topic, checkpoint, sink, scratch = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    spark = start_session(scratch)

    def keep(frame: Any, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{sink}/batch={batch}")

    if api.HAS_SOURCES:
        messages = spark.readStream.format("rocketmq").option("nameServer", name_server).option("topic", topic).load()
        query = messages.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
    else:
        mqbroker.spark.stream(spark, keep, checkpoint=checkpoint, trigger_s=0.02, nameServer=name_server, topic=topic)


if __name__ == "__main__":
    main()
