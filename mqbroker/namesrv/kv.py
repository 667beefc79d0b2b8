"""The key-value configuration: namespaces of keys, such as the order of topics' queues. Rules only, no files.

Source: KVConfigManager of 4.9.7; the JSON form is that of its kvConfig.json.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mqbroker.wire.body import Body

#: Topic to "brokerName:queues;...": which queues an ordered topic has.
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"

#: Of namespaces, keys and values together. The whole file is written at each change.
BYTES_MAX = 4 * 1024 * 1024


@attrs.frozen
class KvWrapper(Body):
    """All namespaces, as kvConfig.json has them."""

    config_table: dict[str, dict[str, str]] = attrs.field(factory=dict)


class KvConfig:
    """Text by namespace and key."""

    def __init__(self, content: KvWrapper | None = None) -> None:
        namespaces = content.config_table.items() if content else ()
        self._table = {name: dict(keys) for name, keys in namespaces if keys or name == ORDER_TOPIC_NAMESPACE}
        self._size = sum(_size(name) + sum(map(_size, keys), sum(map(_size, keys.values()))) for name, keys in self)

    def __iter__(self) -> Iterator[tuple[str, dict[str, str]]]:
        return iter(self._table.items())

    def get(self, namespace: str, key: str) -> str | None:
        """The value; None where there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace; None where it has no key. Not to be changed."""
        return self._table.get(namespace)

    def has_room_for(self, namespace: str, key: str, value: str) -> bool:
        """Whether `put` would stay within BYTES_MAX; what makes nothing larger always does."""
        grown = self._grown(namespace, key, value)
        return grown <= 0 or self._size + grown <= BYTES_MAX

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self._size += self._grown(namespace, key, value)
        self._table.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        """Take out a key, if it is there, and with the last one its namespace: in Java it stays, and its name with it.

        That of ordered topics stays: brokers are told by it that there are none any more.
        """
        keys = self._table.get(namespace, {})
        value = keys.pop(key, None)
        if value is not None:
            self._size -= _size(key) + _size(value)
            if not keys and namespace != ORDER_TOPIC_NAMESPACE:
                del self._table[namespace]
                self._size -= _size(namespace)

    def to_json(self) -> bytes:
        """What is kept on the disk."""
        return KvWrapper(self._table).to_json()

    def _grown(self, namespace: str, key: str, value: str) -> int:
        keys = self._table.get(namespace)
        if keys is None:
            return _size(namespace) + _size(key) + _size(value)
        former = keys.get(key)
        return _size(value) + (_size(key) if former is None else -_size(former))


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
