"""The requests that a name server answers, one method each. It must never know of files or ports.

Source of codes, bodies and remarks: DefaultRequestProcessor of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import orjson
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.errors import Refused
from mqbroker.namesrv.answers import RouteBodies, encode_route, success_parts
from mqbroker.namesrv.kv import BYTES_MAX, ORDER_TOPIC_NAMESPACE, KvConfig
from mqbroker.namesrv.product_env import PASSED_ON, ProductEnvironment
from mqbroker.namesrv.routes import RouteTable, Which, each, of_flag
from mqbroker.remoting.handlers import Answer, HandlerTable, IConnection, RawRequest
from mqbroker.remoting.walks import Walks
from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import FAQ, RequestCode, ResponseCode, TopicSysFlag
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.frame import JSON
from mqbroker.wire.headers import (
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    decode_header,
)

log = Logger()


#: The version by its ordinal since which routes are strict JSON.
V4_9_4 = 401

#: So long is what is worth keeping, and so many of it are kept.
LONG_BYTES = 64 * 1024
LONG_BODIES_MAX = 8

#: Of no more topics a list is made at once; of more, so many in a step.
AT_ONCE_MAX = 5000
STEP_TOPICS = 50
#: The same of brokers, of which each takes 50 us, and of keys.
BROKERS_AT_ONCE_MAX = 100
KEYS_AT_ONCE_MAX = 5000


def _is_unit_sub_of_no_unit(flag: int) -> bool:
    return flag & (TopicSysFlag.UNIT | TopicSysFlag.UNIT_SUB) == TopicSysFlag.UNIT_SUB


#: The topics that codes list, where the code alone says which.
_BY_CODE: Mapping[int, Which] = {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: each,
    RequestCode.GET_UNIT_TOPIC_LIST: of_flag(lambda flag: bool(flag & TopicSysFlag.UNIT)),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: of_flag(lambda flag: bool(flag & TopicSysFlag.UNIT_SUB)),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: of_flag(_is_unit_sub_of_no_unit),
}


class RouteProcessor:
    """Who asks where topics and brokers are.

    :param elsewhere: is asked about topics that no broker has here.
    """

    def __init__(
        self,
        routes: RouteTable[IConnection],
        kv: KvConfig,
        walks: Walks,
        *,
        order_message_enable: bool,
        elsewhere: ProductEnvironment | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self.order_message_enable = order_message_enable
        self._routes = routes
        self._bodies = RouteBodies(routes)
        self._kv = kv
        self._walks = walks
        self._topics_in_turns = walks.bounded(self._list_topics)
        self._brokers_in_turns = walks.bounded(self._list_brokers)
        self._long: dict[object, bytes] = {}
        self._versions = (-1, -1)

    def register_on(self, table: HandlerTable) -> None:
        if self._elsewhere is None:
            table.register_batch(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.take_routes)
        else:
            table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.route_here_or_there)
        table.register(RequestCode.GET_BROKER_CLUSTER_INFO, self.cluster_info)
        for code in (RequestCode.GET_TOPICS_BY_CLUSTER, *_BY_CODE):
            table.register(code, self.topics)
        table.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.system_topics)
        table.register(RequestCode.DELETE_TOPIC_IN_NAMESRV, self.delete_topic)

    def take_routes(self, run: list[RawRequest], connection: IConnection) -> bytes:
        """All questions of one read: the plain ones for topics that have routes are answered from what is kept."""
        version = connection.peer_version if type(connection.peer_version) is int else 0
        is_strict = version >= V4_9_4
        body_of = None if self.order_message_enable else self._bodies.body
        answers: list[bytes] = []
        for ext_fields, opaque, flag, _, serialize_type in run:
            if body_of is not None and serialize_type == JSON and not flag and (is_strict or len(ext_fields) == 1):
                body = body_of(ext_fields.get("topic"), is_strict)
                if body is not None:
                    answers += success_parts(opaque, body)
                    continue
            request = RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                ext_fields,
                opaque=opaque,
                flag=flag,
                version=version,
                serialize_type=serialize_type,
            )
            if not request.is_oneway:
                answers.append(encode_command(self._answered(request)))
        return b"".join(answers)

    def _answered(self, request: RemotingCommand) -> RemotingCommand:
        try:
            return self.route(request)
        except Refused as refused:
            return RemotingCommand.response(request, refused.code, refused.remark)

    def route(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_header(GetRouteInfoRequestHeader, request.ext_fields)
        order_conf = self._kv.get(ORDER_TOPIC_NAMESPACE, header.topic) if self.order_message_enable else None
        body = self._bodies.body(header.topic, _is_strict(request, header), order_conf)
        if body is None:
            remark = f"No topic route info in name server for the topic: {header.topic}{FAQ}"
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, remark)
        return RemotingCommand.response(request, body=body)

    async def route_here_or_there(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """As a name server for cluster tests answers."""
        answer = self.route(request)
        is_here = answer.code != ResponseCode.TOPIC_NOT_EXIST
        if is_here or self._elsewhere is None or PASSED_ON in request.ext_fields:
            return answer
        header = decode_header(GetRouteInfoRequestHeader, request.ext_fields)
        route = await self._elsewhere.route(header.topic)
        if route is None:
            return answer
        return RemotingCommand.response(request, body=encode_route(route, _is_strict(request, header)))

    def cluster_info(self, request: RemotingCommand, connection: IConnection) -> Answer:
        body = self._kept(request.code)
        if body is None and self._routes.brokers_count > BROKERS_AT_ONCE_MAX:
            return self._brokers_in_turns(request, connection)
        if body is None:
            body = self._keep(request.code, self._routes.cluster_info().to_json())
        return RemotingCommand.response(request, body=body)

    async def _list_brokers(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        body = await self._made(request.code, lambda: self._walks.written(self._routes.cluster_info()))
        return RemotingCommand.response(request, body=body)

    def topics(self, request: RemotingCommand, connection: IConnection) -> Answer:
        """All topics, or those that the code is about."""
        key, which = self._wanted(request)
        body = self._kept(key)
        if body is None and self._routes.topics_count > AT_ONCE_MAX:
            return self._topics_in_turns(request, connection)
        if body is None:
            body = self._keep(key, self._routes.topics(which).to_json())
        return RemotingCommand.response(request, body=body)

    async def _list_topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        key, which = self._wanted(request)

        async def make() -> bytes:
            parts = []
            for part in self._routes.topics_in_parts(which, STEP_TOPICS):
                if part:
                    parts.append(orjson.dumps(part)[1:-1])
                await self._walks.step()
            return b'{"topicList":[%b]}' % b",".join(parts)

        return RemotingCommand.response(request, body=await self._made(key, make))

    async def _made(self, key: object, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """What is kept by now, or what `make` gives, which is kept where nothing changed meanwhile."""
        body = self._kept(key)
        if body is not None:
            await self._walks.turn()  # many may have waited for it, and to write it takes a ms
            return body
        versions = self._versions
        body = await make()
        return self._keep(key, body) if versions == self._current_versions() else body

    def _wanted(self, request: RemotingCommand) -> tuple[object, Which]:
        """Which topics a request asks for, and what they are known by."""
        if request.code == RequestCode.GET_TOPICS_BY_CLUSTER:
            cluster = decode_header(GetTopicsByClusterRequestHeader, request.ext_fields).cluster
            return (request.code, cluster), self._routes.of_cluster(cluster)
        return request.code, _BY_CODE[request.code]

    def system_topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._routes.system_topics().to_json())

    def _current_versions(self) -> tuple[int, int]:
        return self._routes.brokers_version, self._routes.topics_version

    def _kept(self, key: object) -> bytes | None:
        """The bytes of a whole table. Long ones are kept until brokers or topics change."""
        versions = self._current_versions()
        if versions != self._versions:
            self._long.clear()
            self._versions = versions
        return self._long.get(key)

    def _keep(self, key: object, body: bytes) -> bytes:
        if len(body) >= LONG_BYTES:
            if len(self._long) >= LONG_BODIES_MAX:
                self._long.clear()
            self._long[key] = body
        return body

    def delete_topic(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(DeleteTopicFromNamesrvRequestHeader, request.ext_fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        log.info("{peer} deleted topic {topic}", peer=connection.remote_addr, topic=header.topic)
        return RemotingCommand.response(request)


def _is_strict(request: RemotingCommand, header: GetRouteInfoRequestHeader) -> bool:
    return request.version >= V4_9_4 or bool(header.accept_standard_json_only)


class KvProcessor:
    """The key-value configuration. `save` puts it on the disk and fires True, or False where that failed."""

    def __init__(self, kv: KvConfig, walks: Walks, save: Callable[[], Deferred[bool]]) -> None:
        self._walks = walks
        self._keys_in_turns = walks.bounded(self._list_keys)
        self._kv = kv
        self._save = save

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.PUT_KV_CONFIG, self.put)
        table.register(RequestCode.GET_KV_CONFIG, self.get)
        table.register(RequestCode.DELETE_KV_CONFIG, self.delete)
        table.register(RequestCode.GET_KVLIST_BY_NAMESPACE, self.list_namespace)

    def get(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(GetKVConfigRequestHeader, request.ext_fields)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return RemotingCommand.response(request, header=GetKVConfigResponseHeader(value=value))

    def list_namespace(self, request: RemotingCommand, connection: IConnection) -> Answer:
        namespace = decode_header(GetKVListByNamespaceRequestHeader, request.ext_fields).namespace
        values = self._kv.namespace(namespace)
        if values is None:
            remark = f"No config item, Namespace: {namespace}"
            return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, remark)
        if len(values) > KEYS_AT_ONCE_MAX:
            return self._keys_in_turns(request, connection)
        return RemotingCommand.response(request, body=KVTable(values).to_json())

    async def _list_keys(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        namespace = decode_header(GetKVListByNamespaceRequestHeader, request.ext_fields).namespace
        body = await self._walks.written(KVTable(dict(self._kv.namespace(namespace) or {})))
        return RemotingCommand.response(request, body=body)

    async def put(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(PutKVConfigRequestHeader, request.ext_fields)
        if not self._kv.has_room_for(header.namespace, header.key, header.value):
            remark = f"the key-value configuration is full: {BYTES_MAX} bytes of text at most"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        self._kv.put(header.namespace, header.key, header.value)
        return await self._saved(request)

    async def delete(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(DeleteKVConfigRequestHeader, request.ext_fields)
        self._kv.delete(header.namespace, header.key)
        return await self._saved(request)

    async def _saved(self, request: RemotingCommand) -> RemotingCommand:
        # Java answers SUCCESS even where the file could not be written.
        if not await self._save():
            raise Refused(ResponseCode.SYSTEM_ERROR, "the key-value configuration could not be written to the disk")
        return RemotingCommand.response(request)
