"""Requests of and about connected clients: heartbeats, connections, queue locks, and requests forwarded to a consumer.

Codes 34, 35, 41, 42, 46, 203, 204, 307, 309 and 328.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

import attrs
from twisted.internet.defer import Deferred

from mqbroker.access.accounts import IAccessControl
from mqbroker.broker.client_registry import Client, ConsumerRegistry, ProducerRegistry, check_client_id
from mqbroker.broker.filter_table import TAG_KINDS, CompileRateLimit, FilterTable, compile_kind
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.queue_locks import QueueLocks
from mqbroker.broker.requests.long_requests import LongRequests
from mqbroker.broker.subscription_resolver import ALL, TAGS_MAX, not_supported, parse_subscription
from mqbroker.broker.system_topics import QUEUE_ID_MAX
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import BadExpression, MQError, Refused, RequestTimedOut
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.handlers import Call, IConnection, answers
from mqbroker.store.message_store import MessageStore
from mqbroker.wire import headers as h
from mqbroker.wire.admin_bodies import ProducerInfo, ProducerTableInfo
from mqbroker.wire.bodies import (
    CheckClientRequestBody,
    Connection,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    ProducerConnection,
    SubscriptionData,
)
from mqbroker.wire.codes import (
    RETRY_PREFIX,
    V3_1_8_SNAPSHOT,
    LanguageCode,
    RequestCode,
    ResponseCode,
    TopicSysFlag,
    old_version_name,
)
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.long_bodies import STEP_ENTRIES, read_heartbeat, read_lock_request
from mqbroker.wire.names import TOPIC_LENGTH_MAX, check_group, check_topic
from mqbroker.wire.registration import Steps

#: Subscriptions of one group in one heartbeat.
SUBSCRIPTIONS_MAX = 10_000
#: Groups of a client's producers, and of its consumers: each takes up to 60 us to register.
GROUPS_OF_CLIENT_MAX = 1000
#: Characters in the expression of one subscription.
EXPRESSION_LENGTH_MAX = 65_536
#: Length of a consumer group's enumerated values, and of the type of its expressions.
WORD_LENGTH_MAX = 64
BROKER_NAME_LENGTH_MAX = 255
#: Time-out of a forwarded request.
TIMEOUT_MS = 10_000
#: Authentication fields of the administrator, which are not forwarded.
_CREDENTIALS = frozenset({"AccessKey", "Signature", "SecurityToken"})
#: Maximum number of pending requests to clients; more are refused.
CALLS_MAX = 256


@attrs.frozen
class ClientRequests:
    """Handles heartbeats, unregistration and client checks; maintains the client registries."""

    consumers: ConsumerRegistry
    producers: ProducerRegistry
    groups: GroupTable
    topics: TopicTable
    filters: FilterTable
    rate_limit: CompileRateLimit
    live: LiveSettings
    rights: IAccessControl
    long: LongRequests
    #: The heartbeats of connections that are being handled in steps.
    _in_steps: dict[IConnection, set[object]] = attrs.field(init=False, factory=dict)

    @answers(RequestCode.HEART_BEAT)
    def heartbeat(self, call: Call[None]) -> Deferred[None] | None:
        """All groups of one client. Nothing is registered if any name is illegal."""
        return self.long.run(call, self._heartbeat(call))

    def _heartbeat(self, call: Call[None]) -> Steps[None]:
        marks, mark = self._in_steps.setdefault(call.connection, set()), object()
        marks.add(mark)
        try:
            data = yield from read_heartbeat(call.request.body)
            yield from self._register(data, call, marks)
        finally:
            marks.discard(mark)
            if not marks and self._in_steps.get(call.connection) is marks:
                del self._in_steps[call.connection]

    def _register(self, data: HeartbeatData, call: Call[None], marks: set[object]) -> Steps[None]:
        request, connection = call.request, call.connection
        client_id = check_client_id(data.client_id)
        count = max(len(data.producer_data_set), len(data.consumer_data_set))
        if count > GROUPS_OF_CLIENT_MAX:
            remark = f"{count} groups of one client: {GROUPS_OF_CLIENT_MAX} at most; share them among several"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        for producer in data.producer_data_set:
            check_group(producer.group_name)
        consumers = []
        for consumer in data.consumer_data_set:
            consumers.append((yield from _checked(consumer)))
        language, version = request.language, request.version
        for consumer in consumers:
            if len(consumer.subscription_data_set) > STEP_ENTRIES:
                yield
            # After the end of the connection, or when the client has left, it would be registered for good.
            if connection.closed or self._in_steps.get(connection) is not marks:
                return
            group = self.groups.find(consumer.group_name)
            retry_topic = RETRY_PREFIX + consumer.group_name
            if group is not None and len(retry_topic) <= TOPIC_LENGTH_MAX:
                sys_flag = TopicSysFlag.UNIT_SUB if consumer.unit_mode else 0
                self.topics.create_internal(retry_topic, group.retry_queue_nums, sys_flag)
            notify = group is None or group.notify_consumer_ids_changed_enable
            self.consumers.register(connection, client_id, language, version, consumer, notify)
            charge = self.rate_limit.of(connection)
            self.filters.register_group(consumer.group_name, consumer.subscription_data_set, charge)
        account = self.rights.account_of(request.ext_fields, request.body, connection)
        for producer in data.producer_data_set:
            self.producers.register(connection, client_id, language, version, producer.group_name, account)

    @answers(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, call: Call[h.UnregisterClientRequestHeader]) -> None:
        header = call.header
        self._in_steps.pop(call.connection, None)
        if header.producer_group is not None:
            self.producers.unregister(call.connection, header.producer_group)
        if header.consumer_group is not None:
            group = self.groups.get(header.consumer_group)
            notify = group is None or group.notify_consumer_ids_changed_enable
            self.consumers.unregister(call.connection, header.consumer_group, notify)
            self.consumers.leave_before_joining(header.client_id or "", header.consumer_group, notify)

    @answers(RequestCode.CHECK_CLIENT_CONFIG)
    def check_client(self, call: Call[None]) -> None:
        """Check a subscription: refuse one that cannot be served."""
        subscription = CheckClientRequestBody.from_json(call.request.body).subscription_data
        if subscription is None or subscription.expression_type in TAG_KINDS:
            return
        if not self.live.current.enable_property_filter:
            raise not_supported(subscription.expression_type)
        try:
            charge = self.rate_limit.of(call.connection)
            compile_kind(subscription.expression_type, subscription.sub_string, charge)
        except BadExpression as why:
            raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(why)) from None


def _checked(consumer: ConsumerData) -> Steps[ConsumerData]:
    """`consumer` with checked names, and with the hashes of its tags, which not every client sends; in steps."""
    check_group(consumer.group_name)
    if len(consumer.subscription_data_set) > SUBSCRIPTIONS_MAX:
        remark = f"{len(consumer.subscription_data_set)} subscriptions of one group: {SUBSCRIPTIONS_MAX} at most"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    for word in (consumer.consume_type, consumer.message_model, consumer.consume_from_where):
        _check_word(word)
    given, subscriptions = consumer.subscription_data_set, list[SubscriptionData]()
    with_codes = partial(_with_codes, RETRY_PREFIX + consumer.group_name)
    for at in range(0, len(given), STEP_ENTRIES):
        subscriptions += map(with_codes, given[at : at + STEP_ENTRIES])
        if at:
            yield
    return attrs.evolve(consumer, subscription_data_set=subscriptions)


def _with_codes(retry_topic: str, subscription: SubscriptionData) -> SubscriptionData:
    if subscription.topic != retry_topic:  # whose name may be too long for a topic, as in 4.9.7
        check_topic(subscription.topic)
    _check_word(subscription.expression_type)
    tags = max(len(subscription.tags_set), len(subscription.code_set))
    length = max(len(subscription.sub_string), sum(map(len, subscription.tags_set)))
    if tags > TAGS_MAX or length > EXPRESSION_LENGTH_MAX:
        remark = f"a subscription of {tags} tags in {length} characters: "
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{remark}{TAGS_MAX} in {EXPRESSION_LENGTH_MAX} at most")
    if subscription.expression_type not in ("TAG", "") or subscription.code_set:
        return subscription
    if subscription.sub_string == ALL and not subscription.tags_set:  # nothing to add; there may be thousands
        return subscription
    parsed = parse_subscription(subscription.topic, subscription.sub_string, "TAG")
    return attrs.evolve(subscription, sub_string=parsed.sub_string, tags_set=parsed.tags_set, code_set=parsed.code_set)


def _check_word(word: str) -> None:
    if len(word) > WORD_LENGTH_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{word[:WORD_LENGTH_MAX]!r} and so on is not a word of the protocol")


@attrs.frozen
class ConnectionRequests:
    """Lists the connections of producers and consumers. `now` returns seconds since the epoch."""

    consumers: ConsumerRegistry
    producers: ProducerRegistry
    tasks: CooperativeTasks
    now: Callable[[], float]

    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def of_consumers(self, call: Call[h.GetConsumerConnectionListRequestHeader]) -> ConsumerConnection:
        group = self.consumers.group(call.header.consumer_group)
        if group is None:
            remark = f"the consumer group[{call.header.consumer_group}] not online"
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        return ConsumerConnection(
            _connections(group.clients),
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )

    @answers(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def of_producers(self, call: Call[h.GetProducerConnectionListRequestHeader]) -> ProducerConnection:
        clients = self.producers.group(call.header.producer_group)
        if not clients:
            remark = f"the producer group[{call.header.producer_group}] not exist"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        return ProducerConnection(_connections(clients))

    @answers(RequestCode.GET_ALL_PRODUCER_INFO, bounded=True)
    async def all_producers(self, call: Call[None]) -> bytes:
        """The producers online, by group."""
        producers: dict[str, list[ProducerInfo]] = {}
        for name, clients in list(self.producers.groups().items()):
            infos = producers[name] = []
            for at, client in list(clients.items()):
                await self.tasks.step()
                infos.append(
                    ProducerInfo(
                        client.client_id,
                        f"/{at.remote_addr}",  # as Java prints addresses
                        LanguageCode(client.language).name,
                        client.version,
                        int((self.now() - self.producers.silent_s(client)) * 1000),
                    )
                )
        return await self.tasks.written(ProducerTableInfo(producers))


def _connections(clients: dict[IConnection, Client]) -> list[Connection]:
    return [
        Connection(client.client_id, connection.remote_addr, LanguageCode(client.language).name, client.version)
        for connection, client in clients.items()
    ]


@attrs.frozen
class LockRequests:
    """Locks queues for consumers that consume in order."""

    locks: QueueLocks
    long: LongRequests

    @answers(RequestCode.LOCK_BATCH_MQ)
    def lock(self, call: Call[None]) -> bytes | Deferred[bytes]:
        """Lock queues for one client of a group; the response lists the requested queues it now holds."""
        return self.long.run(call, self._lock(call.request.body))

    def _lock(self, body: bytes) -> Steps[bytes]:
        asked = yield from _checked_lock(body)
        held: set[MessageQueue] = set()
        for some in in_parts(asked.mq_set):
            held |= self.locks.lock(asked.consumer_group, asked.client_id, some)
            yield
        parts = []
        for number, piece in enumerate(LockBatchResponseBody(frozenset(held)).json_pieces(), 1):
            parts.append(piece)
            if not number % STEP_ENTRIES:
                yield
        return b"".join(parts)

    @answers(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, call: Call[None]) -> Deferred[None] | None:
        return self.long.run(call, self._unlock(call.request.body))

    def _unlock(self, body: bytes) -> Steps[None]:
        asked = yield from _checked_lock(body)
        for some in in_parts(asked.mq_set):
            self.locks.unlock(asked.consumer_group, asked.client_id, some)
            yield


def in_parts(queues: Iterable[MessageQueue]) -> Iterator[list[MessageQueue]]:
    """So many that they take a ms or two."""
    left = iter(queues)
    while part := list(islice(left, STEP_ENTRIES)):
        yield part


def _checked_lock(body: bytes) -> Steps[LockBatchRequestBody]:
    """The queues to lock or unlock, with checked names; in steps."""
    asked = yield from read_lock_request(body)
    check_group(asked.consumer_group)
    check_client_id(asked.client_id)
    for number, queue in enumerate(asked.mq_set, 1):
        if not number % STEP_ENTRIES:
            yield
        check_topic(queue.topic)
        if not 0 <= queue.queue_id <= QUEUE_ID_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no topic has a queue {queue.queue_id}")
        if len(queue.broker_name) > BROKER_NAME_LENGTH_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the broker name is too long")
    return asked


@attrs.frozen
class ForwardedRequests:
    """Forwards administrators' requests to one consumer, and its response back.

    :param broker_name: sent to consumers as the broker of a message.
    """

    consumers: ConsumerRegistry
    calls: ClientCalls
    store: MessageStore
    broker_name: str

    @answers(RequestCode.GET_CONSUMER_RUNNING_INFO)
    async def running_info(self, call: Call[h.GetConsumerRunningInfoRequestHeader]) -> RemotingCommand:
        """A consumer's running info, with the stacks of its threads if jstackEnable is on."""
        request = call.request
        onward = RemotingCommand(request.code, _without_credentials(request), request.body)
        return await self._pass_on(request, onward, call.header.consumer_group, call.header.client_id)

    @answers(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    async def consume_directly(self, call: Call[h.ConsumeMessageDirectlyResultRequestHeader]) -> RemotingCommand:
        """Have a consumer consume one message now, by its id; the response has the result."""
        header, request = call.header, call.request
        _, offset = parse_offset_message_id(header.msg_id or "")
        record = await self.store.queries.record(offset)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        fields = _without_credentials(request) | {"brokerName": self.broker_name}
        onward = RemotingCommand(request.code, fields, record)
        return await self._pass_on(request, onward, header.consumer_group, header.client_id or "")

    async def _pass_on(
        self, request: RemotingCommand, onward: RemotingCommand, group: str, client_id: str
    ) -> RemotingCommand:
        found = self.consumers.find(group, client_id)
        if found is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        connection, client = found
        if client.version < V3_1_8_SNAPSHOT:
            remark = (
                f"The Consumer <{client_id}> Version <{old_version_name(client.version)}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT"
            )
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        try:
            told = await self.calls.call(connection, onward, TIMEOUT_MS)
        except MQError as error:
            raise call_failure(group, client_id, error) from error
        answer = RemotingCommand.response(request, told.code, told.remark, body=told.body)
        answer.ext_fields = told.ext_fields
        return answer


def _without_credentials(request: RemotingCommand) -> dict[str, str]:
    return {key: value for key, value in request.ext_fields.items() if key not in _CREDENTIALS}


class ClientCalls:
    """Requests to clients, a bounded number at a time."""

    def __init__(self) -> None:
        self._under_way = 0

    async def call(self, connection: IConnection, request: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """The client's response, whatever its code.

        Raises RequestTimedOut, ConnectionClosed, and Refused(SYSTEM_BUSY) if too many are pending.
        """
        if self._under_way >= CALLS_MAX:
            remark = f"{CALLS_MAX} requests to clients wait for their answers; try again later"
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        self._under_way += 1
        try:
            return await connection.invoke(request, timeout_ms)
        finally:
            self._under_way -= 1


def call_failure(group: str, client_id: str, error: MQError) -> Refused:
    """The refusal for a request that a client did not answer."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RequestTimedOut):
        return Refused(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}")
    return Refused(ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}")
