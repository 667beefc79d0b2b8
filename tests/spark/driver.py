"""A Spark driver to be killed: it streams a topic to parquet files until then.

Arguments: name server, topic, checkpoint directory, sink directory, directory for Spark's own files.
"""

import os
import sys

from tests.spark.session import session_environment, start_session


def main() -> None:
    name_server, topic, checkpoint, sink, scratch = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    spark = start_session(scratch)
    messages = spark.readStream.format("rocketmq").option("nameServer", name_server).option("topic", topic).load()
    columns = messages.select("brokerName", "queueId", "queueOffset", "body")
    query = columns.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(sink)
    query.awaitTermination()


main()
