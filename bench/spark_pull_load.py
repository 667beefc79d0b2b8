"""Pulls all messages of a topic as a task of Spark does, and decodes nothing: python -m bench.spark_pull_load
NAME_SERVER TOPIC ROUNDS.

Prints a line of JSON for each round: rows, and seconds of this process's CPU and of the clock. Spark has no part in it.
"""

import json
import sys
import time

from mqbroker.errors import MQError
from mqbroker.spark.connections import client_for
from mqbroker.spark.offsets import QueueRange
from mqbroker.spark.options import parse_options
from mqbroker.spark.reading import RetryDeadline, read_chunks


def main() -> None:
    name_server, topic, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    options = parse_options({"nameServer": name_server, "topic": topic}, streaming=False)
    client = client_for(options)
    queues = client.queues(topic)
    for _ in range(rounds):
        began, clock, rows = time.process_time(), time.monotonic(), 0
        for queue, bound in zip(queues, client.bounds(queues), strict=True):
            if isinstance(bound, MQError):
                raise bound
            deadline = RetryDeadline(60, time.monotonic, time.sleep)
            for chunk in read_chunks(client, QueueRange(queue, *bound), options.pull_batch, deadline):
                rows += chunk.end - chunk.start
        spent = {"cpu": time.process_time() - began, "seconds": time.monotonic() - clock}
        print(json.dumps({"rows": rows} | spent), flush=True)


if __name__ == "__main__":
    main()
