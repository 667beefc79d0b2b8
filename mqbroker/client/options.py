"""Options of producers and consumers, with the Java client's defaults. Values only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from math import inf
from typing import Any, TypeVar

import attrs

from mqbroker.client.address_server import address_of, is_url
from mqbroker.client.allocation import Allocation, RebalanceListener, allocate_averagely, check_allocation
from mqbroker.client.errors import BadArgument
from mqbroker.client.hooks import MessageFilter
from mqbroker.client.identity import CredentialsFile
from mqbroker.client.names import check_namespace, check_topic
from mqbroker.client.observers import ConsumeObserver, SendObserver
from mqbroker.client.offset_stores import OffsetStore
from mqbroker.client.tls import ClientTls
from mqbroker.errors import MQError
from mqbroker.remoting.hooks import ConnectionListener, RpcHook
from mqbroker.wire.codes import AUTO_CREATE_TOPIC, ResponseCode
from mqbroker.wire.names import split_address
from mqbroker.wire.signature import Credentials


def parse_name_servers(addresses: str | Iterable[str] | None) -> tuple[str, ...]:
    """Parse "host:port;host:port" or a list of such, or the URL of an address server; by default what NAMESRV_ADDR in
    the environment has. Raises BadArgument naming the invalid one."""
    if addresses is None:
        addresses = os.environ.get("NAMESRV_ADDR") or None
    parts: Any = addresses.replace(",", ";").split(";") if isinstance(addresses, str) else addresses
    if isinstance(parts, bytes) or not isinstance(parts, Iterable):
        raise BadArgument("name_servers", "host:port, several joined by ';', or a list of such", addresses)
    parts = list(parts)
    for part in parts:
        if not isinstance(part, str):
            raise BadArgument("each name server", "host:port", part)
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    for address in found:
        if is_url(address):
            address_of(address)
            if len(found) > 1:
                raise BadArgument("name_servers", "an address server alone, which lists them", addresses)
            continue
        try:
            split_address(address)
        except MQError:
            raise BadArgument("each name server", "host:port", address) from None
    if not found:
        raise BadArgument("name_servers", "host:port, several joined by ';', or a list of such", addresses)
    return found


Options = TypeVar("Options")


def options_of(options: Options | None, kind: Callable[[], Options]) -> Options:
    """The options, by default those of `kind`. Raises BadArgument on those of another client."""
    if options is None:
        return kind()
    if not isinstance(options, kind):  # type: ignore[arg-type]
        raise BadArgument("options", f"{kind.__name__}(...)", options)
    return options


def check_number(name: str, value: object, low: float, high: float = inf, *, kind: type = int) -> None:
    """Raises BadArgument unless it is a number of `kind`, int or float, within the bounds."""
    kinds = (int,) if kind is int else (int, float)
    if type(value) not in kinds or not low <= value <= high:  # type: ignore[operator]
        what = "a whole number" if kind is int else "a number"
        bounds = f"of at least {low:g}" if high == inf else f"from {low:g} to {high:g}"
        raise BadArgument(name, f"{what} {bounds}", value)


def to_seconds(value: float | timedelta) -> float:
    """A duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def milliseconds(name: str, value: float | timedelta, low: float = 0.001) -> int:
    """A duration in whole milliseconds, and at least one unless it is 0. Raises BadArgument."""
    value = to_seconds(value)
    check_number(name, value, low, _SECONDS_MAX, kind=float)
    return max(round(value * 1000), 1 if value else 0)


def to_timestamp(value: datetime | int | None) -> Any:
    """A point in time as milliseconds since the epoch; what is none is left as it is."""
    return int(value.timestamp() * 1000) if isinstance(value, datetime) and value.tzinfo is not None else value


def check_timestamp(name: str, value: object) -> None:
    """Raises BadArgument unless it is a number of milliseconds."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadArgument(name, "a datetime with a time zone, or milliseconds since the epoch", value)


def _timestamp(options: object, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        check_timestamp(f"{type(options).__name__}.{field.name}", value)


def _number(low: float, high: float = inf, *, kind: type = int, may_be_none: bool = False) -> Any:
    def check(options: object, field: attrs.Attribute[Any], value: object) -> None:
        if value is not None or not may_be_none:
            check_number(f"{type(options).__name__}.{field.name}", value, low, high, kind=kind)

    return check


_SECONDS_MAX = 1e9


def _seconds(low: float = 0.001, high: float = _SECONDS_MAX) -> Any:
    return _number(low, high, kind=float)


def _instance(kind: type, *, may_be_none: bool = False) -> Any:
    def check(options: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, kind) and not (value is None and may_be_none):
            right = f"one of {kind.__name__}" if issubclass(kind, Enum) else f"{kind.__name__}(...)"
            right = "True or False" if kind is bool else right
            raise BadArgument(f"{type(options).__name__}.{field.name}", right, value)

    return check


def _to_set(value: Any) -> Any:
    return frozenset(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _codes(options: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, frozenset) or not all(isinstance(code, int) and code > 0 for code in value):
        raise BadArgument(f"{type(options).__name__}.{field.name}", "several response codes", value)


def _observers(*kinds: type) -> Any:
    kinds = *kinds, RpcHook, ConnectionListener

    def check(options: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, tuple) or not all(isinstance(each, kinds) for each in value):
            right = f"several of {', '.join(kind.__name__ for kind in kinds)}"
            raise BadArgument(f"{type(options).__name__}.observers", right, value)

    def convert(value: Any) -> Any:
        return tuple(value) if isinstance(value, Iterable) else value

    return attrs.field(default=(), converter=convert, validator=check)


def _namespace(options: object, field: attrs.Attribute[Any], value: object) -> None:
    check_namespace(value)


def _unit_name(options: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value.isascii() or len(value) > 64 or not (value.isidentifier() or not value):
        raise BadArgument("unit_name", "text of at most 64 letters, digits and _", value)


def _account(options: object, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, Credentials | CredentialsFile):
        raise BadArgument(f"{type(options).__name__}.credentials", "Credentials(...) or CredentialsFile(...)", value)


def _topic(options: object, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        check_topic(value)


#: Response codes after which another broker may accept the message, as in DefaultMQProducer of 4.9.7, and a busy
#: broker's.
RETRIABLE_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)

#: Brokers take a client for gone that sent no heartbeat for 120 s.
_HEARTBEAT_S_MAX = 100.0


class ConsumeFrom(Enum):
    """Where a group without a committed offset starts in a queue."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@attrs.frozen(kw_only=True)
class ClientOptions:
    """Options common to producers and consumers. Durations, whose names end in `_s`, are seconds or a `timedelta`."""

    #: The account that signs requests, for brokers with access control. A CredentialsFile is read again when it
    #: changes.
    credentials: Credentials | CredentialsFile | None = attrs.field(default=None, validator=_account)
    #: Encrypts all connections; None leaves them plain.
    tls: ClientTls | None = attrs.field(default=None, validator=_instance(ClientTls, may_be_none=True))
    #: The end of the client's id, which distinguishes units that share name servers; as with Java's clients.
    unit_name: str = attrs.field(default="", validator=_unit_name)
    #: A prefix of topics and groups, so that several systems may share brokers; as with Java's clients.
    namespace: str = attrs.field(default="", validator=_namespace)
    #: How long a route is used before it is requested again.
    route_age_s: float = attrs.field(default=30.0, converter=to_seconds, validator=_seconds())
    #: The maximum duration of close(), whatever brokers and name servers do. Listeners may run until 3 s before its
    #: end, or for half of it if it is shorter than 6 s; the rest is for requests to brokers.
    close_timeout_s: float = attrs.field(default=10.0, converter=to_seconds, validator=_seconds(0.0))
    #: RpcHooks see each request of the client, which then takes the general path, and ConnectionListeners what becomes
    #: of its connections. Clients with different ones share no connections.
    observers: Sequence[object] = _observers()


@attrs.frozen(kw_only=True)
class ProducerOptions(ClientOptions):
    """Options of a producer. All attempts of a send end after `send_timeout_s`, counted from its turn among the sends
    in flight; a `timeout_s` that is given with a send includes the wait for its turn.

    `retries` limits the attempts after the first; with None only the time limits them. A message that a broker refuses
    is sent three times at most, unless the broker is busy or not in service.
    """

    #: The topic that gets the trace of sends, as RMQ_SYS_TRACE_TOPIC; None for no trace.
    trace_topic: str | None = attrs.field(default=None, validator=_topic)
    send_timeout_s: float = attrs.field(default=3.0, converter=to_seconds, validator=_seconds())
    retries: int | None = attrs.field(default=None, validator=_number(0, may_be_none=True))
    #: Maximum number, and bytes, of sends in flight; further sends wait in order.
    sends_in_flight_max: int = attrs.field(default=1000, validator=_number(1))
    sends_in_flight_bytes_max: int = attrs.field(default=16 * 1024 * 1024, validator=_number(1))
    #: Maximum number of `request` calls that wait for their replies; further calls wait in order.
    requests_in_flight_max: int = attrs.field(default=1000, validator=_number(1))
    #: How long a producer of transactions waits for `check`.
    check_timeout_s: float = attrs.field(default=60.0, converter=to_seconds, validator=_seconds())
    #: How long a send waits for others to the same queue, to share a request with them; each gets its own result. With
    #: 0 the sends of one iteration of the event loop share requests; with None each send is a request of its own.
    #: Messages that are delayed, compressed or part of a transaction are sent alone, and so are all with observers, a
    #: namespace, `retry_unstored` or `vip_channel`.
    linger_s: float | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(to_seconds),
        validator=_number(0.0, 10.0, kind=float, may_be_none=True),
    )
    #: Maximum size of such a request; a full one is sent at once.
    batch_bytes_max: int = attrs.field(default=128 * 1024, validator=_number(1))
    compress_over_bytes: int = attrs.field(default=4096, validator=_number(1))
    compress_level: int = attrs.field(default=5, validator=_number(0, 9))
    message_bytes_max: int = attrs.field(default=4 * 1024 * 1024, validator=_number(1))
    #: The topic whose brokers create the topics of sends, with its permission; Java's createTopicKey.
    create_topic_key: str = attrs.field(default=AUTO_CREATE_TOPIC, validator=_topic)
    #: Whether to send to the brokers' second port, which is two below the first; Java's sendMessageWithVIPChannel.
    vip_channel: bool = attrs.field(default=False, validator=_instance(bool))
    #: Number of queues of a topic that a send creates.
    default_topic_queues: int = attrs.field(default=4, validator=_number(1))
    #: Response codes after which a message is sent again, to another broker if there is one.
    retry_codes: frozenset[int] = attrs.field(default=RETRIABLE_CODES, converter=_to_set, validator=_codes)
    #: Whether to send a message to another broker as well if one has stored it, but not on disk or on a slave as its
    #: settings demand; the message may then be stored twice. Java's retryAnotherBrokerWhenNotStoreOK.
    retry_unstored: bool = attrs.field(default=False, validator=_instance(bool))
    #: Whether the topics that sends create belong to units; brokers mark them. Java's unitMode.
    unit_mode: bool = attrs.field(default=False, validator=_instance(bool))
    #: Whether to leave out brokers for a while that have failed or took half a second or more, if the topic has others.
    avoid_slow_brokers: bool = attrs.field(default=True, validator=_instance(bool))
    heartbeat_s: float = attrs.field(default=30.0, converter=to_seconds, validator=_seconds(high=_HEARTBEAT_S_MAX))
    #: SendObservers see each send; with any of them, sends take the general path, which costs up to three quarters of
    #: the rate.
    #: RpcHooks and ConnectionListeners: as of all clients.
    observers: Sequence[SendObserver | RpcHook | ConnectionListener] = _observers(SendObserver)


class MessageModel(Enum):
    """Whether the members of a group share the messages, or each gets all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@attrs.frozen(kw_only=True)
class MemberOptions(ClientOptions):
    """Options common to the members of groups.

    `consume_from_time` is used with ConsumeFrom.TIMESTAMP: a datetime with a time zone, or milliseconds since the
    epoch; None is half an hour before the start.
    """

    #: The topic that gets the trace of consumption, as RMQ_SYS_TRACE_TOPIC; None for no trace.
    trace_topic: str | None = attrs.field(default=None, validator=_topic)
    model: MessageModel = attrs.field(default=MessageModel.CLUSTERING, validator=_instance(MessageModel))
    #: Where offsets are kept; None is the broker, and a local file where each member gets all messages.
    offset_store: OffsetStore | None = attrs.field(default=None, validator=_instance(OffsetStore, may_be_none=True))
    #: How the members share the queues of a topic; it must be the same in all members of the group.
    allocation: Allocation = attrs.field(
        default=allocate_averagely,
        validator=lambda options, _, value: check_allocation(f"{type(options).__name__}.allocation", value),
    )
    #: Called with the queues that this member gets, gives up and loses.
    rebalance_listener: RebalanceListener | None = attrs.field(
        default=None, validator=_instance(RebalanceListener, may_be_none=True)
    )
    consume_from: ConsumeFrom = attrs.field(default=ConsumeFrom.LAST, validator=_instance(ConsumeFrom))
    consume_from_time: int | None = attrs.field(default=None, converter=to_timestamp, validator=_timestamp)
    pull_batch: int = attrs.field(default=32, validator=_number(1, 1024))
    queue_messages_max: int = attrs.field(default=1000, validator=_number(1))
    queue_bytes_max: int = attrs.field(default=100 * 1024 * 1024, validator=_number(1))
    #: Limits for the waiting messages of all queues of a topic together; None for no such limit.
    topic_messages_max: int | None = attrs.field(default=None, validator=_number(1, may_be_none=True))
    topic_bytes_max: int | None = attrs.field(default=None, validator=_number(1, may_be_none=True))
    #: A queue is not pulled while more messages than this follow its first unconsumed one.
    queue_span_max: int = attrs.field(default=2000, validator=_number(1))
    suspend_s: float = attrs.field(default=15.0, converter=to_seconds, validator=_seconds(0.0))
    pull_timeout_s: float = attrs.field(default=30.0, converter=to_seconds, validator=_seconds())
    request_timeout_s: float = attrs.field(default=3.0, converter=to_seconds, validator=_seconds())
    rebalance_s: float = attrs.field(default=20.0, converter=to_seconds, validator=_seconds())
    heartbeat_s: float = attrs.field(default=30.0, converter=to_seconds, validator=_seconds(high=_HEARTBEAT_S_MAX))
    commit_s: float = attrs.field(default=5.0, converter=to_seconds, validator=_seconds())
    #: How long a new queue waits while the group has other members, so that its former owner can commit. That one waits
    #: for two thirds of it for its listener to end with the queue's messages.
    takeover_pause_s: float = attrs.field(default=0.3, converter=to_seconds, validator=_seconds(0.0))
    #: How long the pull of a queue pauses after an error.
    pull_error_pause_s: float = attrs.field(default=1.0, converter=to_seconds, validator=_seconds())
    #: How often observers that count it are told the lag.
    lag_s: float = attrs.field(default=10.0, converter=to_seconds, validator=_seconds())
    #: ConsumeObservers see each message that the consumer gets, and MessageFilters each that was pulled. RpcHooks and
    #: ConnectionListeners: as of all clients.
    observers: Sequence[ConsumeObserver | MessageFilter | RpcHook | ConnectionListener] = _observers(
        ConsumeObserver, MessageFilter
    )

    def __attrs_post_init__(self) -> None:
        if self.suspend_s >= self.pull_timeout_s:
            right = f"less than pull_timeout_s, {self.pull_timeout_s:g}: the broker holds a pull for so long"
            raise BadArgument(f"{type(self).__name__}.suspend_s", right, self.suspend_s)


@attrs.frozen(kw_only=True)
class PushOptions(MemberOptions):
    """Options of a push consumer."""

    concurrency: int = attrs.field(default=20, validator=_number(1))
    #: Maximum number of messages that a program that iterates has not settled.
    unacked_max: int = attrs.field(default=1000, validator=_number(1))
    #: With a number, the listener gets lists of up to so many messages of a queue; with None, single messages.
    batch_max: int | None = attrs.field(default=None, validator=_number(1, 1024, may_be_none=True))
    #: Whether the listener gets the messages of a queue in order, one call after the other. The queue is locked at its
    #: broker, and waits if a message is not consumed.
    orderly: bool = attrs.field(default=False, validator=_instance(bool))
    #: How long such a queue waits.
    suspend_queue_s: float = attrs.field(default=1.0, converter=to_seconds, validator=_seconds(0.01, 30.0))
    #: Whether messages that were consumed in order are committed by themselves; otherwise when the listener returns
    #: COMMIT.
    auto_commit: bool = attrs.field(default=True, validator=_instance(bool))
    #: How often a message is delivered again before it becomes a dead letter; -1 means 16, and no limit if orderly.
    max_reconsume_times: int = attrs.field(default=-1, validator=_number(-1))
    #: After this time a message that the listener has is sent back to the broker, and the listener's result is ignored.
    consume_timeout_s: float = attrs.field(default=900.0, converter=to_seconds, validator=_seconds())
    #: How long a message waits that the listener did not consume and the broker did not take back.
    local_retry_s: float = attrs.field(default=5.0, converter=to_seconds, validator=_seconds())

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.auto_commit and not self.orderly:
            raise BadArgument("PushOptions.auto_commit", "True unless orderly=True", self.auto_commit)


@attrs.frozen(kw_only=True)
class LitePullOptions(MemberOptions):
    """Options of a lite pull consumer."""

    #: Whether messages that a poll returned are committed, every `commit_s`, once the next poll has begun.
    auto_commit: bool = attrs.field(default=True, validator=_instance(bool))


@attrs.frozen(kw_only=True)
class PullOptions(ClientOptions):
    """Options of a pull consumer. `read_from` is the id of the broker to pull from; if none has it, another of the same
    name."""

    request_timeout_s: float = attrs.field(default=3.0, converter=to_seconds, validator=_seconds())
    pull_timeout_s: float = attrs.field(default=10.0, converter=to_seconds, validator=_seconds())
    read_from: int = attrs.field(default=0, validator=_number(0, 63))
    #: MessageFilters see each message of `pull`. RpcHooks and ConnectionListeners: as of all clients.
    observers: Sequence[MessageFilter | RpcHook | ConnectionListener] = _observers(MessageFilter)
