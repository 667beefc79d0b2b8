"""Pull requests and their answers. Pure."""

from __future__ import annotations

from mqbroker.client.messages import PullStatus, RawPull, ReceivedMessage
from mqbroker.client.subscription import matches
from mqbroker.errors import Refused
from mqbroker.wire.bodies import MessageQueue, SubscriptionData
from mqbroker.wire.codes import PullSysFlag, RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import PullMessageRequestHeader, PullMessageResponseHeader, decode_header
from mqbroker.wire.record import decode_records

_STATUSES = frozenset(status.value for status in PullStatus)


def pull_request(
    queue: MessageQueue,
    offset: int,
    max_count: int,
    *,
    group: str,
    subscription: SubscriptionData,
    suspend_ms: int = 0,
    carry_subscription: bool = False,
) -> RemotingCommand:
    """Ask for up to `max_count` messages from `offset` on.

    With `suspend_ms` the broker holds the request that long where there is nothing new. `carry_subscription` sends the
    expression along, for a client that sends no heartbeats.
    """
    sys_flag = PullSysFlag.SUSPEND if suspend_ms else 0
    sys_flag |= PullSysFlag.SUBSCRIPTION if carry_subscription else 0
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_count,
        sys_flag=sys_flag,
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        subscription=subscription.sub_string if carry_subscription else None,
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type,
        bname=queue.broker_name,
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


def read_pull_answer(answer: RemotingCommand) -> RawPull:
    """Raises Refused where the broker did not look for messages at all."""
    if answer.code not in _STATUSES:
        raise Refused(answer.code, answer.remark or "")
    header = decode_header(PullMessageResponseHeader, answer.ext_fields)
    return RawPull(
        status=PullStatus(answer.code),
        next_offset=header.next_begin_offset,
        min_offset=header.min_offset,
        max_offset=header.max_offset,
        body=answer.body,
        broker_id=header.suggest_which_broker_id,
    )


def read_messages(pulled: RawPull, queue: MessageQueue, subscription: SubscriptionData) -> list[ReceivedMessage]:
    """The messages of an answer that the subscription wants. Raises BadRecord."""
    if pulled.status != PullStatus.FOUND:
        return []
    messages = [ReceivedMessage.of_record(record, queue.broker_name) for record in decode_records(pulled.body)]
    return [message for message in messages if matches(subscription, message.tags)]
