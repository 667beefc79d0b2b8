"""Requests about routes: the brokers and queues of topics. Knows no files or ports.

Routes are encoded once for all topics that have the same queues, and cached until the brokers change. A name server for
cluster tests asks another environment's name servers about topics that it does not have (ClusterTestRequestProcessor).
Source of codes, bodies and remarks: DefaultRequestProcessor of 4.9.7.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import orjson
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.errors import MQError, Refused, Unreachable
from mqbroker.namesrv.config_requests import ORDER_TOPIC_NAMESPACE, KvConfig
from mqbroker.namesrv.route_table import RouteTable, Which, each, of_flag
from mqbroker.namesrv.topic_queue_table import TopicQueues
from mqbroker.remoting.client import RemotingClient
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.handlers import Answer, Call, HandlerTable, IConnection, RawRequest, answers
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import TopicList, TopicRouteData
from mqbroker.wire.body import ANSWERED_DIALECT_BYTES_MAX
from mqbroker.wire.bounded_cache import BoundedCache
from mqbroker.wire.codes import FAQ, RequestCode, ResponseCode, TopicSysFlag
from mqbroker.wire.command import JSON, RESPONSE_FLAG, RemotingCommand, encode_command

log = Logger()


#: Ordinal of the first version whose routes are strict JSON.
V4_9_4 = 401

#: Minimum length of cached bodies, and their number.
LONG_BYTES = 64 * 1024
LONG_BODIES_MAX = 8

#: Longest list of topics that is built in one step, and the topics of a step of longer ones.
AT_ONCE_MAX = 5000
STEP_TOPICS = 50
#: The same of brokers, of which each takes 50 us.
BROKERS_AT_ONCE_MAX = 100
#: Bytes of cached routes, each a few hundred per broker; beyond it the cache is cleared.
KEPT_BYTES_MAX = 64 * 1024 * 1024
_LENGTHS = struct.Struct(">II")
_OPAQUE = 2**30
_HEAD, _TAIL = (
    encode_command(RemotingCommand(ResponseCode.SUCCESS, opaque=_OPAQUE, flag=RESPONSE_FLAG))[8:].split(b"%d" % _OPAQUE)
)  # fmt: skip
TIMEOUT_MS = 5_000
#: Maximum number of pending requests to the other environment.
ASKED_MAX = 256
#: Marks a forwarded request, so that name servers that refer to each other do not loop.
PASSED_ON = "clusterTestPassedOn"


def _is_unit_sub_of_no_unit(flag: int) -> bool:
    return flag & (TopicSysFlag.UNIT | TopicSysFlag.UNIT_SUB) == TopicSysFlag.UNIT_SUB


#: The topics that each list code returns.
_BY_CODE: Mapping[int, Which] = {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: each,
    RequestCode.GET_UNIT_TOPIC_LIST: of_flag(lambda flag: bool(flag & TopicSysFlag.UNIT)),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: of_flag(lambda flag: bool(flag & TopicSysFlag.UNIT_SUB)),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: of_flag(_is_unit_sub_of_no_unit),
}


@attrs.define(eq=False)
class RouteRequests:
    """Handlers of requests for routes and lists.

    :param elsewhere: is asked about topics that no broker here has.
    """

    _routes: RouteTable[IConnection]
    _kv: KvConfig
    _tasks: CooperativeTasks
    order_message_enable: bool
    _elsewhere: ProductEnvironment | None
    _bodies: RouteBodies = attrs.field(init=False)
    _long: dict[object, bytes] = attrs.field(init=False, factory=dict)
    _versions: tuple[int, int] = attrs.field(init=False, default=(-1, -1))

    def __attrs_post_init__(self) -> None:
        self._bodies = RouteBodies(self._routes)

    def register_on(self, table: HandlerTable) -> None:
        table.serve(self)
        if self._elsewhere is None:
            table.register_batch(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.answer_routes)
        else:
            table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.route_here_or_there)

    def answer_routes(self, run: list[RawRequest], connection: IConnection) -> bytes:
        """Answer all requests of one read: plain ones for topics with routes from the cache."""
        version = connection.peer_version if type(connection.peer_version) is int else 0
        is_strict = version >= V4_9_4
        body_of = None if self.order_message_enable else self._bodies.body
        frames: list[bytes] = []
        for ext_fields, opaque, flag, _, serialize_type in run:
            if body_of is not None and serialize_type == JSON and not flag and (is_strict or len(ext_fields) == 1):
                body = body_of(ext_fields.get("topic"), is_strict)
                if body is not None:
                    frames += success_parts(opaque, body)
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
                frames.append(encode_command(self._answered(request)))
        return b"".join(frames)

    def _answered(self, request: RemotingCommand) -> RemotingCommand:
        try:
            return self.route(request)
        except Refused as refused:
            return RemotingCommand.response(request, refused.code, refused.remark)

    def route(self, request: RemotingCommand) -> RemotingCommand:
        header = h.decode_header(h.GetRouteInfoRequestHeader, request.ext_fields)
        order_conf = self._kv.get(ORDER_TOPIC_NAMESPACE, header.topic) if self.order_message_enable else None
        body = self._bodies.body(header.topic, _is_strict(request, header), order_conf)
        if body is None:
            remark = f"No topic route info in name server for the topic: {header.topic}{FAQ}"
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, remark)
        return RemotingCommand.response(request, body=body)

    async def route_here_or_there(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Answer as a name server for cluster tests."""
        answer = self.route(request)
        is_here = answer.code != ResponseCode.TOPIC_NOT_EXIST
        if is_here or self._elsewhere is None or PASSED_ON in request.ext_fields:
            return answer
        header = h.decode_header(h.GetRouteInfoRequestHeader, request.ext_fields)
        route = await self._elsewhere.route(header.topic)
        if route is None:
            return answer
        return RemotingCommand.response(request, body=encode_route(route, _is_strict(request, header)))

    @answers(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster_info(self, call: Call[None]) -> bytes | Answer:
        return self._table(
            call,
            call.request.code,
            self._routes.brokers_count <= BROKERS_AT_ONCE_MAX,
            lambda: self._routes.cluster_info().to_json(),
            lambda: self._tasks.written(self._routes.cluster_info()),
        )

    @answers(*_BY_CODE)
    def topics(self, call: Call[None]) -> bytes | Answer:
        """All topics, or those of the code."""
        code = call.request.code
        return self._topics(call, code, lambda: _BY_CODE[code])

    @answers(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_of_cluster(self, call: Call[h.GetTopicsByClusterRequestHeader]) -> bytes | Answer:
        cluster = call.header.cluster
        return self._topics(call, (call.request.code, cluster), lambda: self._routes.of_cluster(cluster))

    def _topics(self, call: Call[h.Header | None], key: object, which: Callable[[], Which]) -> bytes | Answer:
        async def in_steps() -> bytes:
            parts = []
            for part in self._routes.topics_in_parts(which(), STEP_TOPICS):
                if part:
                    parts.append(orjson.dumps(part)[1:-1])
                await self._tasks.step()
            return b'{"topicList":[%b]}' % b",".join(parts)

        is_short = self._routes.topics_count <= AT_ONCE_MAX
        return self._table(call, key, is_short, lambda: self._routes.topics(which()).to_json(), in_steps)

    def _table(
        self,
        call: Call[h.Header | None],
        key: object,
        is_short: bool,
        at_once: Callable[[], bytes],
        in_steps: Callable[[], Awaitable[bytes]],
    ) -> bytes | Answer:
        """The body of a whole table, cached as `key`; long ones are encoded one at a time."""
        body = self._kept(key)
        if body is not None or is_short:
            return self._keep(key, at_once()) if body is None else body

        async def in_turn(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
            return RemotingCommand.response(request, body=await self._made(key, in_steps))

        return self._tasks.bounded(in_turn)(call.request, call.connection)

    async def _made(self, key: object, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The cached value, or the result of `make`, which is cached if nothing changed meanwhile."""
        body = self._kept(key)
        if body is not None:
            await self._tasks.turn()  # many may have waited for it, and the write takes a ms
            return body
        versions = self._versions
        body = await make()
        return self._keep(key, body) if versions == self._current_versions() else body

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, call: Call[None]) -> TopicList:
        return self._routes.system_topics()

    def _current_versions(self) -> tuple[int, int]:
        return self._routes.brokers_version, self._routes.topics_version

    def _kept(self, key: object) -> bytes | None:
        """The bytes of a whole table. Long ones are cached until brokers or topics change."""
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

    @answers(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, call: Call[h.DeleteTopicFromNamesrvRequestHeader]) -> None:
        topic = call.header.topic
        self._routes.delete_topic(topic, call.header.cluster_name)
        log.info("{peer} deleted topic {topic}", peer=call.connection.remote_addr, topic=topic)


def _is_strict(request: RemotingCommand, header: h.GetRouteInfoRequestHeader) -> bool:
    return request.version >= V4_9_4 or bool(header.accept_standard_json_only)


class RouteBodies:
    """Bodies of responses to GET_ROUTEINFO_BY_TOPIC."""

    def __init__(self, routes: RouteTable[IConnection]) -> None:
        self._routes = routes
        self._kept: BoundedCache[tuple[TopicQueues, bool], bytes] = BoundedCache(KEPT_BYTES_MAX, KEPT_BYTES_MAX // 16)
        self._brokers_version = -1

    def body(self, topic: str | None, strict: bool, order_conf: str | None = None) -> bytes | None:
        """The route of `topic`, as strict JSON or in the dialect; None if no broker has it."""
        topic_queues = self._routes.topic_queues(topic) if topic is not None else None
        if topic_queues is None:
            return None
        if order_conf is not None:
            return self._encoded(topic_queues, strict, order_conf)
        if self._brokers_version != self._routes.brokers_version:
            self._kept.clear()
            self._brokers_version = self._routes.brokers_version
        body = self._kept.get((topic_queues, strict))
        if body is None:
            body = self._encoded(topic_queues, strict, None)
            self._kept.keep((topic_queues, strict), body, len(body))
        return body

    def _encoded(self, topic_queues: TopicQueues, strict: bool, order_conf: str | None) -> bytes:
        route = attrs.evolve(self._routes.route_by(topic_queues), order_topic_conf=order_conf)
        return encode_route(route, strict)


def success_parts(opaque: int, body: bytes) -> tuple[bytes, bytes, bytes]:
    """The parts of a SUCCESS response's frame with JSON header and only a body."""
    header = b"%b%d%b" % (_HEAD, opaque, _TAIL)
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)), header, body


def encode_route(route: TopicRouteData, strict: bool) -> bytes:
    """Encode in the dialect; or as strict JSON, with quoted numeric keys, sorted as in Java."""
    if not strict:
        return route.to_json()
    return orjson.dumps(route.to_value(), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)


class ProductEnvironment(Service):
    """The name servers at `addresses`, which are asked in turn until one responds."""

    def __init__(self, client: RemotingClient, addresses: Sequence[str], name: str) -> None:
        self._client = client
        self._addresses = addresses
        self._name = name
        self._asked = 0
        #: Addresses that did not respond when they were last asked.
        self._silent: set[str] = set()

    async def route(self, topic: str) -> TopicRouteData | None:
        """The route of `topic` there; None if it has none, or none of them responds.

        Raises Refused if too many requests are pending.
        """
        if self._asked >= ASKED_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._asked} questions to {self._name} are not answered yet")
        self._asked += 1
        try:
            for address in self._addresses:
                try:
                    route = await self._ask(address, topic)
                except Unreachable as error:
                    if address not in self._silent:
                        self._silent.add(address)
                        log.warn("environment {name}: {why}", name=self._name, why=str(error))
                else:
                    self._silent.discard(address)
                    return route
        except MQError as error:
            log.info("environment {name}, topic {topic}: {why}", name=self._name, topic=topic, why=str(error))
        finally:
            self._asked -= 1
        return None

    async def _ask(self, address: str, topic: str) -> TopicRouteData | None:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, h.GetRouteInfoRequestHeader(topic=topic))
        request.ext_fields[PASSED_ON] = "true"
        answer = await self._client.invoke_async(address, request, TIMEOUT_MS)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code:
            raise Refused(answer.code, answer.remark or "")
        return TopicRouteData.from_json(answer.body, ANSWERED_DIALECT_BYTES_MAX)

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        return self._client.close()
