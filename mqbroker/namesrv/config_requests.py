"""Requests that show and change the name server's key-value configuration and its settings.

The JSON form of the former is that of Java's kvConfig.json. Java accepts any settings key but two paths, and ignores
unknown keys and unreadable values; here a request with one bad key changes nothing. Source of rules, codes and remarks:
KVConfigManager and DefaultRequestProcessor of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.config import NamesrvSettings, show_settings
from mqbroker.config.changes import NotChangeable, change_settings, differing_values, read_changes, with_effect
from mqbroker.errors import Refused
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.handlers import Answer, Call, IConnection, answers
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import KVTable
from mqbroker.wire.body import Body
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand

log = Logger()


#: Topic to "brokerName:queues;...": which queues an ordered topic has.
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"

#: Size of namespaces, keys and values together. The whole file is written at each change.
BYTES_MAX = 4 * 1024 * 1024
#: Longest list of keys that is built in one step.
KEYS_AT_ONCE_MAX = 5000
#: Settings that a request may change: never a path, or an address.
CHANGEABLE = frozenset({"orderMessageEnable"})
PATHS = frozenset({"kvConfigPath", "configStorePath"})


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
        """The value; None if the key does not exist."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace; None if it has no key. Not to be modified."""
        return self._table.get(namespace)

    def has_room_for(self, namespace: str, key: str, value: str) -> bool:
        """Whether `put` would stay within BYTES_MAX, or does not grow the whole."""
        grown = self._grown(namespace, key, value)
        return grown <= 0 or self._size + grown <= BYTES_MAX

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self._size += self._grown(namespace, key, value)
        self._table.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        """Delete a key, if it exists, and its namespace with the last one; in Java an empty namespace stays.

        The namespace of ordered topics stays: an empty one tells brokers that no topic is ordered any more.
        """
        keys = self._table.get(namespace, {})
        value = keys.pop(key, None)
        if value is not None:
            self._size -= _size(key) + _size(value)
            if not keys and namespace != ORDER_TOPIC_NAMESPACE:
                del self._table[namespace]
                self._size -= _size(namespace)

    def to_json(self) -> bytes:
        """The content of kvConfig.json."""
        return KvWrapper(self._table).to_json()

    def _grown(self, namespace: str, key: str, value: str) -> int:
        keys = self._table.get(namespace)
        if keys is None:
            return _size(namespace) + _size(key) + _size(value)
        former = keys.get(key)
        return _size(value) + (_size(key) if former is None else -_size(former))


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


@attrs.frozen
class KvRequests:
    """Reads and changes it. `save` writes it and fires True, or False if that failed."""

    kv: KvConfig
    tasks: CooperativeTasks
    save: Callable[[], Deferred[bool]]

    @answers(RequestCode.GET_KV_CONFIG)
    def get(self, call: Call[h.GetKVConfigRequestHeader]) -> h.GetKVConfigResponseHeader:
        namespace, key = call.header.namespace, call.header.key
        value = self.kv.get(namespace, key)
        if value is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return h.GetKVConfigResponseHeader(value=value)

    @answers(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def list_namespace(self, call: Call[h.GetKVListByNamespaceRequestHeader]) -> KVTable | Answer:
        namespace = call.header.namespace
        values = self.kv.namespace(namespace)
        if values is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        if len(values) <= KEYS_AT_ONCE_MAX:
            return KVTable(values)

        async def written(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
            body = await self.tasks.written(KVTable(dict(self.kv.namespace(namespace) or {})))
            return RemotingCommand.response(request, body=body)

        return self.tasks.bounded(written)(call.request, call.connection)

    @answers(RequestCode.PUT_KV_CONFIG)
    async def put(self, call: Call[h.PutKVConfigRequestHeader]) -> None:
        header = call.header
        if not self.kv.has_room_for(header.namespace, header.key, header.value):
            remark = f"the key-value configuration is full: {BYTES_MAX} bytes of text at most"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        self.kv.put(header.namespace, header.key, header.value)
        await self._saved()

    @answers(RequestCode.DELETE_KV_CONFIG)
    async def delete(self, call: Call[h.DeleteKVConfigRequestHeader]) -> None:
        self.kv.delete(call.header.namespace, call.header.key)
        await self._saved()

    async def _saved(self) -> None:
        # Java answers SUCCESS even if the file could not be written.
        if not await self.save():
            raise Refused(ResponseCode.SYSTEM_ERROR, "the key-value configuration could not be written to the disk")


@attrs.define(eq=False)
class SettingsRequests:
    """GET and UPDATE_NAMESRV_CONFIG.

    :param apply: called with changed settings.
    :param save: writes changes into the settings' file, and fires True, or False if that failed.
    """

    _settings: NamesrvSettings
    _apply: Callable[[NamesrvSettings], None]
    _save: Callable[[Mapping[str, str]], Deferred[bool]]

    def adopt(self, settings: NamesrvSettings) -> list[str]:
        """Apply re-read settings that may be changed; returns the other keys that differ."""
        differ = differing_values(self._settings, settings)
        changes = {key: value for key, value in differ.items() if key in CHANGEABLE}
        if changes:
            self._settings = change_settings(self._settings, changes, CHANGEABLE)
            self._apply(self._settings)
        return [key for key in differ if key not in CHANGEABLE]

    @answers(RequestCode.GET_NAMESRV_CONFIG)
    def show(self, call: Call[None]) -> bytes:
        return "".join(f"{line}\n" for line in show_settings(self._settings)).encode()

    @answers(RequestCode.UPDATE_NAMESRV_CONFIG)
    async def change(self, call: Call[None]) -> None:
        changes = read_changes(call.request.body)
        if not PATHS.isdisjoint(changes):
            raise Refused(ResponseCode.NO_PERMISSION, "Can not update config path")
        changes = with_effect(changes)
        if not changes:
            return
        try:
            self._settings = change_settings(self._settings, changes, CHANGEABLE)
        except NotChangeable as error:
            raise Refused(ResponseCode.NO_PERMISSION, str(error)) from None
        log.info("{peer} changed {changes}", peer=call.connection.remote_addr, changes=changes)
        self._apply(self._settings)
        if not await self._save(changes):
            path = self._settings.config_store_path
            remark = f"changed until the next start only: {path} could not be written"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
