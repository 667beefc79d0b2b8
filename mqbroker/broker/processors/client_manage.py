"""Heartbeats, farewells and client checks: codes 34, 35 and 46."""

from __future__ import annotations

import attrs

from mqbroker.access.rights import IRights
from mqbroker.broker.allowance import ReadingAllowance
from mqbroker.broker.clients import ConsumerRegistry, ProducerRegistry, check_client_id
from mqbroker.broker.filters import TAG_KINDS, compile_kind
from mqbroker.broker.groups import GroupTable
from mqbroker.broker.subscriptions import ALL, TAGS_MAX, parse_subscription
from mqbroker.broker.topics import TopicTable
from mqbroker.broker.wanted import not_supported
from mqbroker.config import BrokerSettings
from mqbroker.errors import BadExpression, Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.bodies import CheckClientRequestBody, ConsumerData, HeartbeatData, SubscriptionData
from mqbroker.wire.codes import RETRY_PREFIX, RequestCode, ResponseCode, TopicSysFlag
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UnregisterClientRequestHeader, decode_header
from mqbroker.wire.names import TOPIC_LENGTH_MAX, check_group, check_topic

#: Of one group in one heartbeat.
SUBSCRIPTIONS_MAX = 10_000
#: Of a client's producers, and of its consumers: each takes up to 60 us to join.
GROUPS_OF_CLIENT_MAX = 1000
#: Of one subscription.
EXPRESSION_LENGTH_MAX = 65_536
#: Of what says how a group consumes, and in which language its expressions are.
WORD_LENGTH_MAX = 64


class ClientManageProcessor:
    """Keeps the registries of clients."""

    def __init__(
        self,
        consumers: ConsumerRegistry,
        producers: ProducerRegistry,
        groups: GroupTable,
        topics: TopicTable,
        allowance: ReadingAllowance,
        settings: BrokerSettings,
        rights: IRights,
    ) -> None:
        self._rights = rights
        self._consumers = consumers
        self._producers = producers
        self._groups = groups
        self._topics = topics
        self._allowance = allowance
        self.settings_changed(settings)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Go by these from now on."""
        self._takes_expressions = settings.enable_property_filter

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.HEART_BEAT, self.heartbeat)
        table.register(RequestCode.UNREGISTER_CLIENT, self.unregister)
        table.register(RequestCode.CHECK_CLIENT_CONFIG, self.check_client)

    def heartbeat(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """All groups of one client. Nothing is taken where any of its names is illegal."""
        data = HeartbeatData.from_json(request.body)
        client_id = check_client_id(data.client_id)
        count = max(len(data.producer_data_set), len(data.consumer_data_set))
        if count > GROUPS_OF_CLIENT_MAX:
            remark = f"{count} groups of one client: {GROUPS_OF_CLIENT_MAX} at most; share them among several"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        for producer in data.producer_data_set:
            check_group(producer.group_name)
        consumers = [_checked(consumer) for consumer in data.consumer_data_set]
        for consumer in consumers:
            group = self._groups.find(consumer.group_name)
            retry_topic = RETRY_PREFIX + consumer.group_name
            if group is not None and len(retry_topic) <= TOPIC_LENGTH_MAX:
                sys_flag = TopicSysFlag.UNIT_SUB if consumer.unit_mode else 0
                self._topics.create_internal(retry_topic, group.retry_queue_nums, sys_flag)
            notify = group is None or group.notify_consumer_ids_changed_enable
            self._consumers.register(connection, client_id, request.language, request.version, consumer, notify)
        account = self._rights.account_of(request.ext_fields, request.body, connection)
        for producer in data.producer_data_set:
            self._producers.register(
                connection, client_id, request.language, request.version, producer.group_name, account
            )
        return RemotingCommand.response(request)

    def unregister(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(UnregisterClientRequestHeader, request.ext_fields)
        if header.producer_group is not None:
            self._producers.unregister(connection, header.producer_group)
        if header.consumer_group is not None:
            group = self._groups.get(header.consumer_group)
            notify = group is None or group.notify_consumer_ids_changed_enable
            self._consumers.unregister(connection, header.consumer_group, notify)
        return RemotingCommand.response(request)

    def check_client(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Whether a subscription could be served."""
        wanted = CheckClientRequestBody.from_json(request.body).subscription_data
        if wanted is None or wanted.expression_type in TAG_KINDS:
            return RemotingCommand.response(request)
        if not self._takes_expressions:
            raise not_supported(wanted.expression_type)
        try:
            compile_kind(wanted.expression_type, wanted.sub_string, self._allowance.of(connection))
        except BadExpression as why:
            raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(why)) from None
        return RemotingCommand.response(request)


def _checked(consumer: ConsumerData) -> ConsumerData:
    """`consumer` with names checked, and with the hashes of its tags, which not every client sends."""
    check_group(consumer.group_name)
    if len(consumer.subscription_data_set) > SUBSCRIPTIONS_MAX:
        remark = f"{len(consumer.subscription_data_set)} subscriptions of one group: {SUBSCRIPTIONS_MAX} at most"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    for word in (consumer.consume_type, consumer.message_model, consumer.consume_from_where):
        _check_word(word)
    subscriptions = [_with_codes(subscription) for subscription in consumer.subscription_data_set]
    return attrs.evolve(consumer, subscription_data_set=subscriptions)


def _with_codes(subscription: SubscriptionData) -> SubscriptionData:
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
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{word[:WORD_LENGTH_MAX]!r} and so on is no word of the protocol's")
