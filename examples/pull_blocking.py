"""Reads a topic's queues from the group's offsets to their ends, by blocking calls."""

from mqbroker.client.blocking import PullConsumer

read = 0
with PullConsumer("127.0.0.1:9876", "reports") as consumer:
    for queue in consumer.queues("orders"):
        offset = consumer.committed(queue) or consumer.min_offset(queue)
        while offset < consumer.max_offset(queue):
            result = consumer.pull(queue, offset)
            read += len(result.messages)
            offset = result.next_offset
        consumer.commit(queue, offset)
print(read, "messages read")
