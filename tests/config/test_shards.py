"""The settings of each shard, from those of the file; and what cannot be divided into shards."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from mqbroker.config import BrokerSettings, load_broker_settings
from mqbroker.config.shards import ports_of, shard_settings
from mqbroker.errors import BadSetting
from tests.config.test_load import HOST, Loader


@pytest.fixture
def broker(tmp_path: Path) -> Loader:
    return Loader(tmp_path / "broker.conf", load_broker_settings)


def of(**given: Any) -> BrokerSettings:
    return load_broker_settings(overrides=[(key, str(value)) for key, value in given.items()], host=HOST)


def test_without_shards_nothing_changes() -> None:
    settings = of(brokerName="a", haMasterAddress="10.0.0.1:10912")
    assert (settings.shards, settings.shard, settings.shard_of) == (1, 0, "a")
    assert shard_settings(settings, 0) == settings


def test_the_first_shard_is_the_broker_itself() -> None:
    settings = of(brokerName="a", shards=4)
    first = shard_settings(settings, 0)
    assert first.store.memory_shares == 4
    assert attrs.evolve(first, store=attrs.evolve(first.store, memory_shares=1)) == settings


def test_another_has_a_name_ports_and_paths_of_its_own() -> None:
    settings = of(brokerName="a", shards=4, listenPort=20000, haListenPort=20003, haMasterAddress="10.0.0.1:30003")
    third = shard_settings(settings, 2)
    assert (third.broker_name, third.shard_of, third.shard, third.shards) == ("a-2", "a", 2, 4)
    assert (third.broker_cluster_name, third.broker_id) == (settings.broker_cluster_name, settings.broker_id)
    assert ports_of(third) == [("listenPort", 20020), ("haListenPort", 20023), ("the VIP channel", 20018)]
    assert third.ha_master_address == "10.0.0.1:30023"
    assert third.broker_addr == "192.0.2.7:20020"
    assert third.store.store_path_root_dir == "/home/u/store/shard-2"
    assert third.store.store_path_commit_log == "/home/u/store/shard-2/commitlog"
    assert third.store.memory_shares == 4


@pytest.mark.parametrize(
    ("log", "of_shard"),
    [
        ("/data/logs/mine", "/data/shard-3/logs/mine"),
        ("/fast/commitlog", "/fast/commitlog-shard-3"),
        ("/data-2/log", "/data-2/log-shard-3"),
    ],
)
def test_a_log_of_its_own_path_is_never_in_that_of_another(log: str, of_shard: str) -> None:
    settings = of(shards=4, storePathRootDir="/data", storePathCommitLog=log)
    assert shard_settings(settings, 3).store.store_path_commit_log == of_shard


def test_free_ports_stay_free_ones() -> None:
    settings = of(shards=2, listenPort=0)
    assert ports_of(shard_settings(settings, 1)) == [("listenPort", 0), ("haListenPort", 0)]


def test_masters_with_an_ipv6_address() -> None:
    settings = of(shards=2, haMasterAddress="[::1]:10912")
    assert shard_settings(settings, 1).ha_master_address == "[::1]:10922"


@pytest.mark.parametrize("value", ["0", "65", "-1", "abc", "", "1.5"])
def test_how_many_there_may_be(broker: Loader, value: str) -> None:
    with pytest.raises(BadSetting, match=r"broker.conf:1: shards: .*(from 1 to 64|whole number)"):
        broker(f"shards={value}\n")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("listenPort=65000\nshards=55", "listenPort of shard 54 would be 65540, and 65535 is the highest port"),
        ("listenPort=10911\nhaListenPort=65530\nshards=2", "haListenPort of shard 1 would be 65540"),
        ("haListenPort=10921\nshards=2", "listenPort of shard 1 would be 10921, which is haListenPort of shard 0 too"),
        ("haListenPort=10919\nshards=2", "the VIP channel of shard 1 would be 10919, which is haListenPort of shard 0"),
        ("namesrvAddr=127.0.0.1:10921\nshards=2", "which is the port of the name server 127.0.0.1:10921 too"),
        ("namesrvAddr=a:1;192.0.2.7:10932\nshards=3", "haListenPort of shard 2 would be 10932, which is the port of"),
        ("haMasterAddress=10.0.0.1:65530\nshards=2", "haMasterAddress of shard 1 would be 10.0.0.1:65540"),
        (f"brokerName={'n' * 254}\nshards=2", "set a shorter brokerName"),
    ],
)
def test_what_cannot_be_is_told_at_the_setting(broker: Loader, lines: str, why: str) -> None:
    with pytest.raises(BadSetting) as caught:
        broker(lines)
    line = len(lines.splitlines())
    assert str(caught.value).startswith(f"{broker.path}:{line}: shards: ")
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "lines",
    [
        "listenPort=64900\nshards=64",
        "namesrvAddr=10.0.0.1:10921\nshards=2",  # of another machine
        "haListenPort=10919\nvipPortEnable=false\nshards=2",
        f"brokerName={'n' * 253}\nshards=10",
        "listenPort=0\nhaListenPort=0\nshards=64",
    ],
)
def test_what_can_be(broker: Loader, lines: str) -> None:
    settings = broker(lines)
    assert isinstance(settings, BrokerSettings)
    assert settings.shards > 1
    assert broker.warnings == []


def test_a_wrong_port_is_told_alone(broker: Loader) -> None:
    with pytest.raises(BadSetting, match=r":1: haListenPort: 10911 is the listenPort too"):
        broker("haListenPort=10911\nshards=2")
