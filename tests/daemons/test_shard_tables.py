"""The topics and groups that a new shard begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqbroker.config import BrokerSettings, load_broker_settings
from mqbroker.daemons.shard_tables import begin_new_stores
from mqbroker.wire.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)


def of(tmp_path: Path, *more: tuple[str, str]) -> BrokerSettings:
    given = [("storePathRootDir", str(tmp_path)), ("brokerName", "a"), ("shards", "3"), *more]
    return load_broker_settings(overrides=given)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The tables of the first shard."""
    config = tmp_path / "config"
    config.mkdir()
    topics = {name: TopicConfig(name, 4, 4, 6, order=name == "ordered") for name in ("t", "ordered", "a", "c")}
    (config / "topics.json").write_bytes(TopicConfigSerializeWrapper(topics).to_json())
    groups = {"g": SubscriptionGroupConfig("g", retry_max_times=3)}
    (config / "subscriptionGroup.json").write_bytes(SubscriptionGroupWrapper(groups).to_json())
    (config / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:7}}}')
    return config


def topics_of(tmp_path: Path, shard: int) -> set[str]:
    data = (tmp_path / f"shard-{shard}" / "config" / "topics.json").read_bytes()
    return set(TopicConfigSerializeWrapper.from_json(data).topic_config_table)


def test_new_shards_begin_with_topics_and_groups_of_the_first(tmp_path: Path, first: Path) -> None:
    assert begin_new_stores(of(tmp_path)) == [1, 2]
    # No ordered ones, and none that bears the broker's name.
    assert [topics_of(tmp_path, shard) for shard in (1, 2)] == [{"t", "c"}] * 2
    config = tmp_path / "shard-2" / "config"
    groups = SubscriptionGroupWrapper.from_json((config / "subscriptionGroup.json").read_bytes())
    assert groups.subscription_group_table["g"].retry_max_times == 3
    assert sorted(path.name for path in config.iterdir()) == ["subscriptionGroup.json", "topics.json"]


def test_a_shard_that_has_topics_keeps_them(tmp_path: Path, first: Path) -> None:
    begin_new_stores(of(tmp_path))
    (first / "topics.json").write_bytes(TopicConfigSerializeWrapper({"new": TopicConfig("new")}).to_json())
    assert begin_new_stores(of(tmp_path)) == []
    (tmp_path / "shard-1" / "config" / "topics.json").unlink()
    assert begin_new_stores(of(tmp_path)) == [1]
    assert [topics_of(tmp_path, shard) for shard in (1, 2)] == [{"new"}, {"t", "c"}]


def test_slaves_and_new_brokers_begin_with_nothing(tmp_path: Path, first: Path) -> None:
    slave = of(tmp_path, ("brokerRole", "SLAVE"), ("brokerId", "1"), ("namesrvAddr", "a:1"))
    assert begin_new_stores(slave) == []
    assert begin_new_stores(of(tmp_path / "other")) == []
    assert begin_new_stores(of(tmp_path, ("shards", "1"))) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"topicConfigTable": 7}'])
def test_tables_that_cannot_be_read_are_left_to_the_first_shard(tmp_path: Path, first: Path, content: bytes) -> None:
    (first / "topics.json").write_bytes(content)
    assert begin_new_stores(of(tmp_path)) == []
    assert not (tmp_path / "shard-1").exists()
