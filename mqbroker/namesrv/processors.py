"""The requests that a name server answers, one method each. It must never know of files or ports.

Source of codes, bodies and remarks: DefaultRequestProcessor of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.errors import Refused
from mqbroker.namesrv.kv import BYTES_MAX, ORDER_TOPIC_NAMESPACE, KvConfig
from mqbroker.namesrv.routes import Registered, Registration, RouteTable
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.bodies import DataVersion, KVTable, RegisterBrokerBody, TopicConfigSerializeWrapper, TopicRouteData
from mqbroker.wire.codes import DLQ_PREFIX, FAQ, RETRY_PREFIX, RequestCode, ResponseCode, TopicSysFlag
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_header,
)
from mqbroker.wire.names import check_group
from mqbroker.wire.registration import body_crc32, decode_registration

log = Logger()


#: Versions by their ordinals: registrations since then name filter servers, routes since then are strict JSON.
V3_0_11 = 37
V4_9_4 = 401


class BrokerProcessor:
    """Brokers that come, go and ask what is known of them."""

    def __init__(self, routes: RouteTable[IConnection], kv: KvConfig, clock: IReactorTime) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.REGISTER_BROKER, self.register)
        table.register(RequestCode.UNREGISTER_BROKER, self.unregister)
        table.register(RequestCode.QUERY_DATA_VERSION, self.query_data_version)
        table.register(RequestCode.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_permission)
        table.register(RequestCode.ADD_WRITE_PERM_OF_BROKER, self.add_write_permission)

    def register(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(RegisterBrokerRequestHeader, request.ext_fields)
        if header.body_crc32 and header.body_crc32 != body_crc32(request.body):
            log.warn("registration of {addr}: the body's crc32 does not match", addr=header.broker_addr)
            raise Refused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = _registration_body(request, header.compressed)
        registration = Registration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_addr=header.broker_addr,
            broker_id=header.broker_id,
            ha_server_addr=header.ha_server_addr,
            topics=_legal_topics(body.topic_config_serialize_wrapper, header.broker_addr),
            filter_servers=body.filter_server_list if request.version >= V3_0_11 else None,
        )
        registered = self._routes.register(registration, connection, _now_ms(self._clock))
        _log_registration(registration, registered)
        order_topics = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        return RemotingCommand.response(
            request,
            header=RegisterBrokerResponseHeader(
                ha_server_addr=registered.ha_server_addr, master_addr=registered.master_addr
            ),
            body=KVTable(order_topics).to_json() if order_topics is not None else b"",
        )

    def unregister(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(UnRegisterBrokerRequestHeader, request.ext_fields)
        if self._routes.unregister(header.broker_name, header.broker_addr, header.broker_id):
            log.info("broker unregistered, {name} {addr}", name=header.broker_name, addr=header.broker_addr)
        return RemotingCommand.response(request)

    def query_data_version(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(QueryDataVersionRequestHeader, request.ext_fields)
        changed = self._routes.changed(header.broker_addr, DataVersion.from_json(request.body))
        if not changed:
            self._routes.touch(header.broker_addr, _now_ms(self._clock))
        known = self._routes.version_of(header.broker_addr)
        return RemotingCommand.response(
            request,
            header=QueryDataVersionResponseHeader(changed=changed),
            body=known.to_json() if known is not None else b"",
        )

    def wipe_write_permission(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        name = decode_header(WipeWritePermOfBrokerRequestHeader, request.ext_fields).broker_name
        count = self._routes.wipe_write_permission(name)
        log.info(
            "{peer} wiped write permission of {n} topics on {name}", peer=connection.remote_addr, n=count, name=name
        )
        return RemotingCommand.response(request, header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def add_write_permission(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        name = decode_header(AddWritePermOfBrokerRequestHeader, request.ext_fields).broker_name
        count = self._routes.add_write_permission(name)
        log.info(
            "{peer} gave write permission to {n} topics on {name}", peer=connection.remote_addr, n=count, name=name
        )
        return RemotingCommand.response(request, header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))


class RouteProcessor:
    """Who asks where topics and brokers are."""

    def __init__(self, routes: RouteTable[IConnection], kv: KvConfig, *, order_message_enable: bool) -> None:
        self.order_message_enable = order_message_enable
        self._routes = routes
        self._kv = kv

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.route)
        table.register(RequestCode.GET_BROKER_CLUSTER_INFO, self.cluster_info)
        table.register(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self.topics)
        table.register(RequestCode.GET_TOPICS_BY_CLUSTER, self.topics_of_cluster)
        table.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.system_topics)
        table.register(RequestCode.DELETE_TOPIC_IN_NAMESRV, self.delete_topic)
        table.register(RequestCode.GET_UNIT_TOPIC_LIST, self.unit_topics)
        table.register(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, self.unit_sub_topics)
        table.register(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self.unit_sub_topics_of_no_unit)

    def route(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(GetRouteInfoRequestHeader, request.ext_fields)
        route = self._routes.route(header.topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {header.topic}{FAQ}"
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, remark)
        if self.order_message_enable:
            route = attrs.evolve(route, order_topic_conf=self._kv.get(ORDER_TOPIC_NAMESPACE, header.topic))
        strict = request.version >= V4_9_4 or bool(header.accept_standard_json_only)
        return RemotingCommand.response(request, body=_strict_json(route) if strict else route.to_json())

    def cluster_info(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._routes.cluster_info().to_json())

    def topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._routes.topics().to_json())

    def topics_of_cluster(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        cluster = decode_header(GetTopicsByClusterRequestHeader, request.ext_fields).cluster
        return RemotingCommand.response(request, body=self._routes.topics_of_cluster(cluster).to_json())

    def system_topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._routes.system_topics().to_json())

    def unit_topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return self._flagged(request, lambda flag: bool(flag & TopicSysFlag.UNIT))

    def unit_sub_topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return self._flagged(request, lambda flag: bool(flag & TopicSysFlag.UNIT_SUB))

    def unit_sub_topics_of_no_unit(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        both = TopicSysFlag.UNIT | TopicSysFlag.UNIT_SUB
        return self._flagged(request, lambda flag: flag & both == TopicSysFlag.UNIT_SUB)

    def _flagged(self, request: RemotingCommand, is_wanted: Callable[[int], bool]) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._routes.topics_by_flag(is_wanted).to_json())

    def delete_topic(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(DeleteTopicFromNamesrvRequestHeader, request.ext_fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        log.info("{peer} deleted topic {topic}", peer=connection.remote_addr, topic=header.topic)
        return RemotingCommand.response(request)


class KvProcessor:
    """The key-value configuration. `save` puts it on the disk and fires True, or False where that failed."""

    def __init__(self, kv: KvConfig, save: Callable[[], Deferred[bool]]) -> None:
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

    def list_namespace(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        namespace = decode_header(GetKVListByNamespaceRequestHeader, request.ext_fields).namespace
        values = self._kv.namespace(namespace)
        if values is None:
            remark = f"No config item, Namespace: {namespace}"
            return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return RemotingCommand.response(request, body=KVTable(values).to_json())

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


def _now_ms(clock: IReactorTime) -> int:
    return int(clock.seconds() * 1000)


def _strict_json(route: TopicRouteData) -> bytes:
    """With quoted numeric keys, sorted as in Java."""
    return orjson.dumps(route.to_value(), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)


def _registration_body(request: RemotingCommand, compressed: bool) -> RegisterBrokerBody:
    if request.version >= V3_0_11 or not request.body:
        return decode_registration(request.body, compressed=compressed)
    return RegisterBrokerBody(TopicConfigSerializeWrapper.from_json(request.body))


def _legal_topics(topics: TopicConfigSerializeWrapper, broker_addr: str) -> TopicConfigSerializeWrapper:
    """The topics without those that no client could ask for by a legal name."""
    table = {key: topic for key, topic in topics.topic_config_table.items() if _is_legal(topic.topic_name)}
    skipped = len(topics.topic_config_table) - len(table)
    if not skipped:
        return topics
    log.warn("{addr} registers {n} topics with illegal names; they get no routes", addr=broker_addr, n=skipped)
    return attrs.evolve(topics, topic_config_table=table)


def _is_legal(topic: str) -> bool:
    # Topics made for a group are as long as groups may be, and theirs is the longer limit.
    try:
        check_group(topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX))
    except Refused:
        return False
    return True


def _log_registration(registration: Registration, registered: Registered) -> None:
    if registered.is_new:
        log.info(
            "new broker registered, {name} {id} {addr} HAServer: {ha}",
            name=registration.broker_name,
            id=registration.broker_id,
            addr=registration.broker_addr,
            ha=registration.ha_server_addr,
        )
    if registered.replaced is not None:
        log.warn(
            "broker {name} {id} is now at {addr}, not at {former}",
            name=registration.broker_name,
            id=registration.broker_id,
            addr=registration.broker_addr,
            former=registered.replaced,
        )
