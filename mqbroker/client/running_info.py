"""What a push consumer tells an administrator of itself. Names and texts are those of ConsumerRunningInfo of 4.9.7."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import attrs

from mqbroker.client.assigned import AssignedQueue
from mqbroker.client.meters import Meters
from mqbroker.client.options import PushOptions
from mqbroker.wire.admin_bodies import ConsumerRunningInfo
from mqbroker.wire.bodies import MessageQueue, SubscriptionData
from mqbroker.wire.codes import VERSION_NAME

#: Queues beyond are left out of an answer; it is made within one turn of the loop.
QUEUES_TOLD_MAX = 4096


@attrs.frozen
class About:
    """What does not change while a consumer runs, and when it started, ms."""

    group: str
    name_servers: tuple[str, ...]
    options: PushOptions
    started_ms: int


def running_info(
    about: About,
    subscriptions: Iterable[SubscriptionData],
    assigned: Mapping[MessageQueue, AssignedQueue],
    meters: Meters,
) -> ConsumerRunningInfo:
    """The answer, without stacks."""
    wanted = sorted(subscriptions, key=lambda subscription: subscription.topic)
    return ConsumerRunningInfo(
        properties=_properties(about),
        subscription_set=wanted,
        mq_table={queue: assigned[queue].info() for queue in islice(sorted(assigned), QUEUES_TOLD_MAX)},
        status_table={subscription.topic: meters.of(subscription.topic).status() for subscription in wanted},
    )


def positions(topic: str, assigned: Mapping[MessageQueue, AssignedQueue]) -> dict[MessageQueue, int]:
    """The offsets that the consumer would commit now in its queues of `topic`, or in all where that is empty."""
    of_topic = (queue for queue in sorted(assigned) if topic in ("", queue.topic))
    known = ((queue, assigned[queue].committable) for queue in islice(of_topic, QUEUES_TOLD_MAX))
    return {queue: offset for queue, offset in known if offset is not None}


def _properties(about: About) -> dict[str, str]:
    options = about.options
    return {
        "consumerGroup": about.group,
        "messageModel": "CLUSTERING",
        "consumeFromWhere": options.consume_from.value,
        "consumeThreadMin": str(options.concurrency),
        "consumeThreadMax": str(options.concurrency),
        "consumeMessageBatchMaxSize": "1",
        "consumeConcurrentlyMaxSpan": str(options.queue_span_max),
        "consumeTimeout": str(int(options.consume_timeout_s // 60)),
        "maxReconsumeTimes": str(options.max_reconsume_times),
        "pullBatchSize": str(options.pull_batch),
        "pullThresholdForQueue": str(options.queue_messages_max),
        "pullThresholdSizeForQueue": str(options.queue_bytes_max // (1024 * 1024)),
        "PROP_NAMESERVER_ADDR": "".join(f"{addr};" for addr in about.name_servers),
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": VERSION_NAME,
        "PROP_CONSUMEORDERLY": "false",
        "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
        "PROP_CONSUMER_START_TIMESTAMP": str(about.started_ms),
    }
