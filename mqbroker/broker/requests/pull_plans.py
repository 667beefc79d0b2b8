"""Pull plans: cached results of checking a pull, for later pulls that differ only in their offsets.

A change of anything that the checks depend on (topics, groups, subscriptions, settings) drops all plans.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.subscription_resolver import MessageFilter
from mqbroker.broker.topic_table import TopicTable
from mqbroker.wire.codes import PullSysFlag
from mqbroker.wire.headers import PullMessageRequestHeader

#: With one more, all are dropped; and bytes of what makes pulls alike, in one that is kept.
PLANS_MAX = 50_000
KEY_BYTES_MAX = 512


class PullPlan(NamedTuple):
    """A pull that may be answered. `queue`: topic and queue id; `counted_as`: topic, group and queue id; `broker_id`:
    from which broker its consumer is to pull next."""

    queue: tuple[str, int]
    counted_as: tuple[str, str, int]
    tags_codes: AbstractSet[int] | None
    broker_id: int


class PullPlans:
    """Plans by what makes pulls alike."""

    def __init__(self, topics: TopicTable, groups: GroupTable, consumers: ConsumerRegistry, live: LiveSettings) -> None:
        self.by_key: dict[bytes, PullPlan] = {}
        topics.on_change.append(lambda name: self.by_key.clear())
        groups.on_change.append(lambda name: self.by_key.clear())
        consumers.on_change.append(self.by_key.clear)
        live.follow(lambda settings: self.by_key.clear(), "brokerPermission", "slaveReadEnable", "filterSupportRetry")

    def add(self, header: PullMessageRequestHeader, message_filter: MessageFilter, broker_id: int) -> None:
        """Keep the plan of a pull that passed all checks, unless it has a filter that reads messages."""
        key = None if message_filter.property_filter is not None else _key(header)
        if key is None or len(key) > KEY_BYTES_MAX:
            return
        if len(self.by_key) >= PLANS_MAX:
            self.by_key.clear()
        topic, queue_id = header.topic, header.queue_id
        counted_as = topic, header.consumer_group, queue_id
        self.by_key[key] = PullPlan((topic, queue_id), counted_as, message_filter.tags_codes, broker_id)


def _key(header: PullMessageRequestHeader) -> bytes | None:
    """See `kernel/pulls.pxi: take_pulls`; None for texts that could be taken for others."""
    has_own = "1" if header.sys_flag & PullSysFlag.SUBSCRIPTION else "0"
    texts = (header.consumer_group, header.topic, str(header.queue_id), str(header.sub_version))
    optional = (header.subscription, header.expression_type)
    if not "".join([*texts, *(text or "" for text in optional)]).isprintable():
        return None
    return "\0".join((has_own, *texts, *("\1" if text is None else text for text in optional))).encode()
