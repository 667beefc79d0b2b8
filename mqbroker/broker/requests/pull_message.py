"""Pull requests, code 11, with long polling.

Response codes and remarks are those of PullMessageProcessor of 4.9.7.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.broker.broker_stats import PullCounts
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.long_polling import BYTES_PER_WEIGHT, HeldPull, HeldPulls
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.requests.pull_plans import PullPlans
from mqbroker.broker.subscription_resolver import MessageFilter, SubscriptionResolver
from mqbroker.broker.topic_table import TopicTable
from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused, StoreBusy, StoreError
from mqbroker.remoting.failures import OVERLOADED
from mqbroker.remoting.handlers import IConnection, RawRequest, failure_response
from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import MessageQueue, OffsetMovedEvent, SubscriptionGroupConfig
from mqbroker.wire.codes import (
    FAQ,
    MASTER_ID,
    OFFSET_MOVED_EVENT,
    VERSION,
    Perm,
    Prop,
    PullSysFlag,
    ResponseCode,
    SysFlag,
)
from mqbroker.wire.command import JSON, ONEWAY_FLAG, RemotingCommand, encode_command
from mqbroker.wire.headers import PullMessageRequestHeader, PullMessageResponseHeader, decode_header
from mqbroker.wire.properties import reencode_properties

T = TypeVar("T")

log = Logger()

#: Maximum number of pulls of one connection that wait for the disk, so that others' pulls are not refused.
COLD_ON_CONNECTION_MAX = 1000
#: Pulls that are answered before any response is sent: bounds the memory for a peer that sends thousands and reads
#: nothing.
PULLS_AT_ONCE_MAX = 8
#: Maximum time for which a pull is held.
SUSPEND_MS_MAX = 600_000

_CODES = {
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_FOUND = (
    '{"code":0,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","maxOffset":"%d","minOffset":"%d"},'
    '"flag":1,"language":"PYTHON","opaque":%d'
)
#: The part of such a response behind the opaque.
FOUND_TAIL = f',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'.encode()
_LENGTHS = struct.Struct(">II")
EVENTS_PER_SECOND_MAX = 100
#: How long a slave holds a pull at an offset that it lacks, and a master that may be deposed any: another may be the
#: master.
LACKING_MS_MAX = 1000
#: Why a broker of a group does not skip messages that it cannot read.
UNREADABLE = (
    "service not available now. A part of this broker's log has just been found to be damaged: another broker of its "
    "group may have the messages"
)


class _Pull(NamedTuple):
    """A checked pull."""

    header: PullMessageRequestHeader
    group: SubscriptionGroupConfig
    filter: MessageFilter
    opaque: int
    flag: int
    serialize_type: int


@attrs.define(eq=False)
class PullRequests:
    """Answers pulls from the store, or holds them until messages arrive or their time is over.

    A slave commits no offsets, and moves no consumer to another offset, unless offsetCheckInSlave is set: it may lack
    what its master has. A master that may be deposed serves nothing: consumers wait at their offsets, and ask again a
    moment later.
    """

    _store: MessageStore
    _topics: TopicTable
    _groups: GroupTable
    _offsets: OffsetTable
    _subscriptions: SubscriptionResolver
    _held: HeldPulls
    _live: LiveSettings
    _clock: IReactorTime
    _gets: PullCounts
    _moved: OffsetMovedEvents
    _is_slave: bool = False
    #: Whether a broker of a group may serve consumers now; None without a group.
    _may_serve: Callable[[], bool] | None = None
    #: Where pulls that were checked leave a plan for the next ones like them; None without the compiled module.
    plans: PullPlans | None = None
    #: Number of a connection's pulls that wait for the disk.
    _cold: dict[IConnection, int] = attrs.field(init=False, factory=dict)

    def pull(self, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of pulls; held ones, and those whose messages are not resident, later over `connection`. The
        Deferred fires when all of the latter are answered."""
        if len(requests) == 1:
            return self._pull_one(requests[0], connection)
        answers = [self._pull_one(request, connection) for request in requests]
        try:
            return b"".join(answers)  # type: ignore[arg-type]  # the quickest way to know that none comes later
        except TypeError:
            return _answered_later(answers, connection)

    def _pull_one(self, request: RawRequest, connection: IConnection) -> bytes | Deferred[bytes]:
        ext, opaque, flag, _, serialize_type = request
        if flag & ONEWAY_FLAG:  # a oneway pull needs no response
            return b""
        try:
            header = decode_header(PullMessageRequestHeader, ext)
            pull = self._check(header, opaque, flag, serialize_type, connection)
            answer = self._get(pull, header.queue_offset, connection)
        except Exception as error:
            answer = _failed(error, opaque, serialize_type)
        return answer

    # --- checks

    def _check(
        self, header: PullMessageRequestHeader, opaque: int, flag: int, serialize_type: int, connection: IConnection
    ) -> _Pull:
        settings = self._live.current
        if not settings.broker_permission & Perm.READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{settings.broker_ip1}] pulling message is forbidden")
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group[:255]}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            remark = f"subscription group no permission, {header.consumer_group}"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        topic = self._topics.get(header.topic)
        if topic is None:
            remark = f"topic[{header.topic[:255]}] not exist, apply first please! {FAQ}"
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & Perm.READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{connection.remote_addr}]",
            )
        message_filter = self._subscriptions.resolve(header, group, connection)
        if self.plans is not None:
            self.plans.add(header, message_filter, suggested_broker(settings, group, suggest_slave=False))
        return _Pull(header, group, message_filter, opaque, flag, serialize_type)

    # --- answers

    def _get(self, pull: _Pull, offset: int, connection: IConnection) -> bytes | Deferred[bytes]:
        """The response's frame; empty if the pull is held now."""
        header = pull.header
        if self._cold and self._cold.get(connection, 0) >= COLD_ON_CONNECTION_MAX:
            raise StoreBusy(f"{COLD_ON_CONNECTION_MAX} pulls of the connection wait for the disk")
        if self._may_serve is not None and not self._may_serve():
            return self._answer(self._nothing(header, offset), pull, offset, connection)
        what = header.topic, header.queue_id, offset, header.max_msg_nums, None, *pull.filter
        damages = self._store.damages_found
        result = self._store.get(*what)
        if not isinstance(result, Deferred) and result.next_offset >= result.max_offset:
            # A reader at the end must find all acknowledged messages; a pull that is held gets them as soon.
            is_held = result.status is not GetMessageStatus.FOUND and header.sys_flag & PullSysFlag.SUSPEND
            is_more = not is_held and self._store.dispatch_queue(header.topic, header.queue_id)
            if is_more or (result.status is not GetMessageStatus.FOUND and self._store.dispatch_delayed()):
                result = self._store.get(*what)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET and header.commit_offset >= 0:
            self.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        if isinstance(result, Deferred):
            self._cold[connection] = self._cold.get(connection, 0) + 1
            result.addBoth(self._ended, connection)
            result.addCallback(self._unless_damaged, damages)
            answer = result.addCallback(self._answer_cold, pull, offset, connection, self._clock.seconds())
            return answer.addErrback(lambda failure: _failed(failure.value, pull.opaque, pull.serialize_type))
        self._unless_damaged(result, damages)
        return self._answer(result, pull, offset, connection)

    def _unless_damaged(self, result: GetMessageResult, damages: int) -> GetMessageResult:
        """Return `result`. Raises Refused in a group if the read found new damage of the log, so that no consumer skips
        messages that another broker has: the consumer asks again, and the group knows by then. `damages`: the number of
        damaged ranges before the read."""
        if self._may_serve is not None and self._store.damages_found != damages:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, UNREADABLE)
        return result

    def _nothing(self, header: PullMessageRequestHeader, offset: int) -> GetMessageResult:
        """The response while the broker does not serve."""
        low, high = self._store.bounds(header.topic, header.queue_id) or (0, 0)
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0, False)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the offset that came with a pull."""
        if self._is_slave:
            return
        try:
            self._offsets.commit(group, topic, queue_id, offset)
        except Refused as error:  # only a commit without a pull is answered with the refusal
            log.debug("the offset that {group} sent with a pull is not committed: {why}", group=group, why=error.remark)

    def _ended(self, result: T, connection: IConnection) -> T:
        self._cold[connection] -= 1
        if not self._cold[connection]:
            del self._cold[connection]
        return result

    def _answer_cold(
        self, result: GetMessageResult, pull: _Pull, offset: int, connection: IConnection, since: float
    ) -> bytes:
        answer = self._answer(result, pull, offset, connection)
        header, gets = pull.header, self._gets
        ms = int((self._clock.seconds() - since) * 1000)
        gets.longest_ms = max(gets.longest_ms, ms)
        if result.status is GetMessageStatus.FOUND:
            gets.found[header.topic, header.consumer_group, header.queue_id][3] += ms
        return answer

    def _answer(self, result: GetMessageResult, pull: _Pull, offset: int, connection: IConnection) -> bytes:
        if result.status is GetMessageStatus.FOUND:
            return self._found(pull, result)
        code, result = self._code(result, offset)
        self._gets.missed += 1
        if (
            code == ResponseCode.PULL_NOT_FOUND
            and not connection.closed
            and pull.header.sys_flag & PullSysFlag.SUSPEND
            and self._hold(pull, offset, connection, result)
        ):
            return b""
        return self._not_found(pull, code, result, offset)

    def _code(self, result: GetMessageResult, offset: int) -> tuple[int, GetMessageResult]:
        """The response code and response of a pull at `offset` that found nothing."""
        if result.status in (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE):
            code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        else:
            code = _CODES[result.status]
        if code == ResponseCode.PULL_OFFSET_MOVED and self._is_slave and not self._live.current.offset_check_in_slave:
            return ResponseCode.PULL_NOT_FOUND, result._replace(next_offset=offset)
        return code, result

    def _broker_id(self, pull: _Pull, result: GetMessageResult) -> int:
        """The broker to pull from next: a slave if the master would read the messages from disk."""
        return suggested_broker(self._live.current, pull.group, suggest_slave=result.suggest_slave)

    def _found(self, pull: _Pull, result: GetMessageResult) -> bytes:
        """The response's frame if there are messages."""
        header = pull.header
        self._gets.count(header.topic, header.consumer_group, header.queue_id, result)
        if pull.serialize_type != JSON:
            return self._frame(pull, ResponseCode.SUCCESS, result)
        return found_frame(pull.opaque, self._broker_id(pull, result), result)

    def _not_found(self, pull: _Pull, code: int, result: GetMessageResult, offset: int) -> bytes:
        if code == ResponseCode.PULL_OFFSET_MOVED:
            header = pull.header
            self._moved.store(header.consumer_group, header.topic, header.queue_id, offset, result.next_offset)
        return self._frame(pull, code, result)

    def _frame(self, pull: _Pull, code: int, result: GetMessageResult) -> bytes:
        answer = RemotingCommand.response(
            RemotingCommand(0, opaque=pull.opaque, serialize_type=pull.serialize_type),
            code,
            result.status.name,
            PullMessageResponseHeader(
                suggest_which_broker_id=self._broker_id(pull, result),
                next_begin_offset=result.next_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ),
            b"".join(result.pieces),
        )
        return encode_command(answer)

    # --- long polling

    def _hold(self, pull: _Pull, offset: int, connection: IConnection, result: GetMessageResult) -> bool:
        header = pull.header
        wait_ms = header.suspend_timeout_millis if self._live.current.long_polling_enable else (
            self._live.current.short_polling_time_ms
        )  # fmt: skip
        may_serve = self._may_serve is None or self._may_serve()
        is_lacking = not may_serve or (self._is_slave and offset != result.max_offset)
        wait_ms = max(0, min(wait_ms, LACKING_MS_MAX if is_lacking else SUSPEND_MS_MAX))
        deadline = self._clock.seconds() + wait_ms / 1000
        weight = 1 + (len(header.subscription or "") + len(header.bname or "")) // BYTES_PER_WEIGHT

        def check(held: HeldPull, last: bool) -> bool:
            return self._check_again(pull, held, last)

        return self._held.hold(HeldPull(connection, header.topic, header.queue_id, offset, deadline, check, weight))

    def _check_again(self, pull: _Pull, held: HeldPull, last: bool) -> bool:
        """Retry a held pull; False if it stays held, behind messages that it does not match."""
        header, offset = pull.header, held.offset
        if self._may_serve is not None and not self._may_serve():
            if last:
                nothing = self._nothing(header, offset)
                held.connection.write(self._not_found(pull, ResponseCode.PULL_NOT_FOUND, nothing, offset))
            return last
        try:
            result = self._store.get(header.topic, header.queue_id, offset, header.max_msg_nums, None, *pull.filter)
            if isinstance(result, Deferred):  # the new messages have been evicted already
                later = result.addCallback(lambda found: self._answer_held(pull, found, offset))
                later.addErrback(lambda failure: _failed(failure.value, pull.opaque, pull.serialize_type))
                later.addCallback(held.connection.write)
                return True
            if not last and self._goes_on_waiting(result, offset):
                self._gets.missed += 1
                if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
                    held.offset = result.next_offset
                return False
            answer = self._answer_held(pull, result, offset)
        except Exception as error:
            answer = _failed(error, pull.opaque, pull.serialize_type)
        held.connection.write(answer)
        return True

    def _answer_held(self, pull: _Pull, result: GetMessageResult, offset: int) -> bytes:
        if result.status is GetMessageStatus.FOUND:
            return self._found(pull, result)
        self._gets.missed += 1
        code, result = self._code(result, offset)
        return self._not_found(pull, code, result, offset)

    def _goes_on_waiting(self, result: GetMessageResult, offset: int) -> bool:
        if result.status is GetMessageStatus.FOUND:
            return False
        if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            return True
        return self._code(result, offset)[0] == ResponseCode.PULL_NOT_FOUND


def suggested_broker(settings: BrokerSettings, group: SubscriptionGroupConfig, *, suggest_slave: bool) -> int:
    """The broker from which a consumer is to pull next."""
    if not settings.slave_read_enable:
        return MASTER_ID
    return group.which_broker_when_consume_slowly if suggest_slave else group.broker_id


def found_frame(opaque: int, broker_id: int, result: GetMessageResult) -> bytes:
    """The response's frame, with a JSON header, if there are messages."""
    _, next_offset, min_offset, max_offset, pieces, _, _ = result
    text = (_FOUND % (broker_id, next_offset, max_offset, min_offset, opaque)).encode() + FOUND_TAIL
    size = sum(map(len, pieces))
    return b"".join((_LENGTHS.pack(4 + len(text) + size, len(text)), text, *pieces))


def _answered_later(answers: list[bytes | Deferred[bytes]], connection: IConnection) -> Deferred[bytes]:
    """Send what is ready, and each of the rest when it is; fires when all are sent."""
    connection.write(b"".join([answer for answer in answers if isinstance(answer, bytes)]))
    later = [answer.addCallback(connection.write) for answer in answers if isinstance(answer, Deferred)]
    return gatherResults(later).addCallback(lambda _: b"")


def _failed(error: BaseException | None, opaque: int, serialize_type: int) -> bytes:
    if isinstance(error, StoreBusy):
        error = OVERLOADED
    command = RemotingCommand(0, opaque=opaque, serialize_type=serialize_type)
    return encode_command(failure_response(command, error))


@attrs.define(eq=False)
class OffsetMovedEvents:
    """Stores events.

    :param host: this broker's address in records, 8 or 20 bytes.
    """

    _store: MessageStore
    _broker_name: str
    _host: bytes
    _clock: IReactorTime
    _second: int = attrs.field(init=False, default=0)
    _told: int = attrs.field(init=False, default=0)

    def store(self, group: str, topic: str, queue_id: int, asked: int, offset: int) -> None:
        """Store the event that a pull of `group` at `asked` was redirected to `offset`."""
        now = self._clock.seconds()
        if int(now) != self._second:
            self._second, self._told = int(now), 0
        if self._told >= EVENTS_PER_SECOND_MAX:
            return
        self._told += 1
        log.info(
            "{group} asked for offset {asked} of {topic} {queue}: redirected to {offset}",
            group=group, asked=asked, topic=topic, queue=queue_id, offset=offset,
        )  # fmt: skip
        event = OffsetMovedEvent(group, MessageQueue(topic, self._broker_name, queue_id), asked, offset)
        properties = reencode_properties({Prop.KEYS: group, Prop.TAGS: group})
        flags = SysFlag.BORN_HOST_V6 if len(self._host) == 20 else 0
        message = (
            OFFSET_MOVED_EVENT.encode(), 0, 0, flags, int(now * 1000), self._host, 0, 0, event.to_json(), properties,
        )  # fmt: skip
        try:
            self._store.append([message])
        except StoreError as error:
            log.info("no event of a moved offset is stored: {why}", why=str(error))
