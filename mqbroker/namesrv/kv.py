"""The key-value configuration: namespaces of keys, such as the order of topics' queues. Rules only, no files.

Source: KVConfigManager of 4.9.7; the JSON form is that of its kvConfig.json.
"""

from __future__ import annotations

import attrs

from mqbroker.wire.bodies import Body

#: Topic to "brokerName:queues;...": which queues an ordered topic has.
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"


@attrs.frozen
class KvWrapper(Body):
    """All namespaces, as kvConfig.json has them."""

    config_table: dict[str, dict[str, str]] = attrs.field(factory=dict)


class KvConfig:
    """Text by namespace and key."""

    def __init__(self, content: KvWrapper | None = None) -> None:
        self._table = {name: dict(keys) for name, keys in content.config_table.items()} if content else {}

    def get(self, namespace: str, key: str) -> str | None:
        """The value; None where there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace; None where it never had a key. Not to be changed."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self._table.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        """Take out a key, if it is there. Its namespace stays, as in Java."""
        self._table.get(namespace, {}).pop(key, None)

    def to_json(self) -> bytes:
        """What is kept on the disk."""
        return KvWrapper(self._table).to_json()
