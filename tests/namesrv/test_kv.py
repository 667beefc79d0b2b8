"""The key-value configuration's rules and its form on the disk."""

from mqbroker.namesrv.kv import KvConfig, KvWrapper


def test_values_by_namespace_and_key():
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
    assert kv.namespace("N") == {}
    assert kv.namespace("M") is None


def test_the_form_on_the_disk_is_javas():
    kv = KvConfig()
    kv.put("N", "k", "v")
    assert kv.to_json() == b'{"configTable":{"N":{"k":"v"}}}'
    again = KvConfig(KvWrapper.from_json(kv.to_json()))
    again.put("N", "l", "w")
    assert again.namespace("N") == {"k": "v", "l": "w"}
    assert kv.namespace("N") == {"k": "v"}
