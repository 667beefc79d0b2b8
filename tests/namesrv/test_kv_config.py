"""The key-value configuration's rules and its form on the disk."""

import pytest

from mqbroker.namesrv import config_requests as kv_module
from mqbroker.namesrv.config_requests import KvConfig, KvWrapper


def test_values_by_namespace_and_key() -> None:
    kv = KvConfig()
    assert kv.get("N", "k") is None
    assert kv.namespace("N") is None
    kv.put("N", "k", "v")
    kv.put("N", "k", "w")
    assert kv.get("N", "k") == "w"
    assert kv.namespace("N") == {"k": "w"}
    kv.delete("N", "k")
    kv.delete("N", "k")
    kv.delete("M", "k")
    assert kv.get("N", "k") is None
    assert kv.namespace("N") is None
    assert kv.namespace("M") is None


def test_the_form_on_the_disk_is_javas() -> None:
    kv = KvConfig()
    kv.put("N", "k", "v")
    assert kv.to_json() == b'{"configTable":{"N":{"k":"v"}}}'
    again = KvConfig(KvWrapper.from_json(kv.to_json()))
    again.put("N", "l", "w")
    assert again.namespace("N") == {"k": "v", "l": "w"}
    assert kv.namespace("N") == {"k": "v"}


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "BYTES_MAX", 10)
    kv = KvConfig(KvWrapper({"N": {"k": "four"}}))  # 6 bytes
    assert kv.has_room_for("N", "l", "abc")
    assert not kv.has_room_for("N", "l", "abcd")
    assert not kv.has_room_for("M", "l", "abc")
    assert kv.has_room_for("N", "k", "eightxxx")
    assert not kv.has_room_for("N", "k", "ninexxxxx")
    kv.put("N", "k", "eightxxx")
    assert not kv.has_room_for("N", "l", "")
    kv.delete("N", "k")
    assert kv.has_room_for("N", "l", "eightxxx")
    kv.put("N", "l", "\u00fc" * 4)
    assert not kv.has_room_for("N", "m", "")


def test_what_is_too_large_already_can_be_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "BYTES_MAX", 4)
    kv = KvConfig(KvWrapper({"N": {"k": "four"}}))
    assert kv.has_room_for("N", "k", "for")
    assert not kv.has_room_for("N", "k", "fives")


def test_what_is_deleted_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "BYTES_MAX", 100)
    kv = KvConfig(KvWrapper({"E" * 60: {}}))
    for number in range(1000):
        name = f"namespace-{number:020d}-" + "n" * 50
        assert kv.has_room_for(name, "k", "v")
        kv.put(name, "k", "v")
        kv.delete(name, "k")
        kv.delete(name, "k")
    assert kv.to_json() == b'{"configTable":{}}'
    assert kv.has_room_for("N", "k", "v" * 98)


def test_that_no_topic_is_ordered_any_more_is_told_to_brokers() -> None:
    kv = KvConfig()
    assert kv.namespace("ORDER_TOPIC_CONFIG") is None
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    kv.delete("ORDER_TOPIC_CONFIG", "T")
    assert kv.namespace("ORDER_TOPIC_CONFIG") == {}
    assert KvConfig(KvWrapper.from_json(kv.to_json())).namespace("ORDER_TOPIC_CONFIG") == {}
