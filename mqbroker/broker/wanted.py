"""Which messages of its queue a pull wants: by the subscription it brings along, or by its group's.

Checks, their order and remarks are PullMessageProcessor's of 4.9.7, but for expressions that cannot be read: a Java
broker takes those of a pull for expressions that match everything; here they are refused.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from mqbroker.broker.allowance import ReadingAllowance
from mqbroker.broker.clients import ConsumerRegistry
from mqbroker.broker.filters import TAG_KINDS, FilterTable, compile_kind
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.matching import ExpressionMatching, RetryMatching
from mqbroker.broker.subscriptions import ALL, parse_subscription
from mqbroker.errors import BadExpression, MQError, Refused
from mqbroker.remoting.handlers import IConnection
from mqbroker.store.matching import IMatching
from mqbroker.wire.bodies import SubscriptionData, SubscriptionGroupConfig
from mqbroker.wire.codes import FAQ, RETRY_PREFIX, PullSysFlag, ResponseCode
from mqbroker.wire.headers import PullMessageRequestHeader


class Wanted(NamedTuple):
    """What a get is asked for; all messages where both are None."""

    tags_codes: AbstractSet[int] | None
    matching: IMatching | None


EVERYTHING = Wanted(None, None)


def not_supported(kind: str | None) -> Refused:
    """What a consumer is told whose expressions this broker does not take."""
    remark = f"The broker does not support consumer to filter message by {str(kind)[:80]}"
    return Refused(ResponseCode.SYSTEM_ERROR, remark)


class PullSubscriptions:
    """Finds out what pulls want."""

    def __init__(
        self,
        consumers: ConsumerRegistry,
        filters: FilterTable,
        allowance: ReadingAllowance,
        live: LiveSettings,
    ) -> None:
        self._consumers = consumers
        self._filters = filters
        self._allowance = allowance
        self._live = live

    def wanted(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig, connection: IConnection
    ) -> Wanted:
        """What a pull of an existing group wants. Raises Refused."""
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            if header.expression_type not in TAG_KINDS:
                return Wanted(None, self._brought(header, connection))
            if header.subscription == ALL:
                return (
                    Wanted(None, self._retries(header, connection))
                    if self._live.current.filter_support_retry
                    else EVERYTHING
                )
            subscription = _parsed(header)
        else:
            subscription = self._registered(header, group)
            if subscription.expression_type not in TAG_KINDS:
                return Wanted(None, self._filter(header, subscription))
        matching = self._retries(header, connection) if self._live.current.filter_support_retry else None
        if subscription.sub_string == ALL or subscription.class_filter_mode:
            return Wanted(None, matching)
        return Wanted(subscription.code_set, matching)

    def _brought(self, header: PullMessageRequestHeader, connection: IConnection) -> IMatching:
        """What an expression in the pull itself wants."""
        if not header.subscription:
            raise _not_parsed()
        if not self._live.current.enable_property_filter:
            raise not_supported(header.expression_type)
        try:
            charge = self._allowance.of(connection)
            return ExpressionMatching(compile_kind(header.expression_type, header.subscription, charge))
        except BadExpression:
            raise _not_parsed() from None

    def _registered(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> SubscriptionData:
        live = self._consumers.group(header.consumer_group)
        if live is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if not group.consume_broadcast_enable and live.message_model == "BROADCASTING":
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        wanted = live.subscriptions.get(header.topic)
        if wanted is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if wanted.sub_version < header.sub_version:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return wanted

    def _filter(self, header: PullMessageRequestHeader, subscription: SubscriptionData) -> IMatching | None:
        """What the expression of a group wants."""
        found = self._filters.get(header.topic, header.consumer_group)
        if found is None:
            remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise Refused(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        if found.client_version < header.sub_version:
            remark = "the consumer's consumer filter data not latest"
            raise Refused(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
        if not self._live.current.enable_property_filter:
            raise not_supported(subscription.expression_type)
        return None if subscription.class_filter_mode else ExpressionMatching.of(found)

    def _retries(self, header: PullMessageRequestHeader, connection: IConnection) -> IMatching | None:
        """With filterSupportRetry: what the group of a retry topic wants of the topics behind it."""
        if not header.topic.startswith(RETRY_PREFIX):
            return None
        group, charge = header.topic[len(RETRY_PREFIX) :], self._allowance.of(connection)
        return RetryMatching(partial(self._filters.get, group=group, charge=charge))


def _parsed(header: PullMessageRequestHeader) -> SubscriptionData:
    try:
        return parse_subscription(header.topic, header.subscription, header.expression_type)
    except MQError:
        raise _not_parsed() from None


def _not_parsed() -> Refused:
    return Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
