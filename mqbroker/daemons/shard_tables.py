"""Gives a new shard the topics and groups of the first, so that clients spread over both."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from mqbroker.config import BrokerRole, BrokerSettings
from mqbroker.config.shards import shard_settings
from mqbroker.errors import MQError
from mqbroker.store.os_disk import replace_file
from mqbroker.wire.bodies import SubscriptionGroupWrapper, TopicConfigSerializeWrapper

_TOPICS, _GROUPS = "topics.json", "subscriptionGroup.json"


def begin_new_stores(settings: BrokerSettings) -> list[int]:
    """Give shards that have no topics yet those of shard 0, and its groups; returns which. Raises OSError.

    Not ordered topics: which queue a producer selects depends on how many there are. A slave gets its master's tables.
    """
    if settings.store.broker_role is BrokerRole.SLAVE:
        return []
    tables = _tables(settings)
    begun = []
    for shard in range(1, settings.shards):
        folder = _table_folder(shard_settings(settings, shard))
        if tables and not os.path.exists(os.path.join(folder, _TOPICS)):
            begun.append(shard)
            for name, data in tables.items():
                replace_file(os.path.join(folder, name), data)
    return begun


def _tables(settings: BrokerSettings) -> dict[str, bytes]:
    """The contents of the tables for a new shard; none where shard 0 has none, or cannot read them."""
    folder = _table_folder(settings)
    try:
        topics = TopicConfigSerializeWrapper.from_json(Path(folder, _TOPICS).read_bytes(), None)
        groups = SubscriptionGroupWrapper.from_json(Path(folder, _GROUPS).read_bytes(), None)
    except (FileNotFoundError, MQError):  # its start says what is wrong with them
        return {}
    table = {
        name: topic
        for name, topic in topics.topic_config_table.items()
        if not topic.order and name != settings.broker_name
    }
    return {_GROUPS: groups.to_json(), _TOPICS: attrs.evolve(topics, topic_config_table=table).to_json()}


def _table_folder(settings: BrokerSettings) -> str:
    return os.path.join(settings.store.store_path_root_dir, "config")
