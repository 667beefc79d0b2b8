"""Options of producers and consumers, with the Java client's defaults. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import attrs
from attrs.validators import ge, gt, in_, le, optional

from mqbroker.client.tls import ClientTls
from mqbroker.errors import MQError
from mqbroker.wire.names import split_address
from mqbroker.wire.signature import Credentials


def parse_name_servers(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Parse "host:port;host:port" or a list of such. Raises MQError naming the invalid one."""
    parts = addresses.replace(",", ";").split(";") if isinstance(addresses, str) else addresses
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    for address in found:
        try:
            split_address(address)
        except MQError:
            raise MQError(f"name server {address!r} is not host:port") from None
    if not found:
        raise MQError("no name server given: pass host:port, or several joined by ';'")
    return found


class ConsumeFrom(Enum):
    """Where a group without a committed offset starts in a queue."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@attrs.frozen(kw_only=True)
class ClientOptions:
    """Options common to producers and consumers."""

    #: Signs requests, for brokers with access control.
    credentials: Credentials | None = None
    #: Encrypts all connections; None leaves them plain.
    tls: ClientTls | None = None
    #: How long a route is used before it is requested again.
    route_age_s: float = 30.0


@attrs.frozen(kw_only=True)
class ProducerOptions(ClientOptions):
    """All attempts of a send end after `send_timeout_ms`, counted from its turn among the sends in flight; a time that
    is given with a send includes the wait for that turn.

    `retries` bounds the attempts after the first; None means only the time does. A message that a broker refuses is
    sent three times at most, unless the broker is busy or not in service.
    """

    send_timeout_ms: int = attrs.field(default=3000, validator=ge(1))
    retries: int | None = attrs.field(default=None, validator=optional(ge(0)))
    #: Maximum number, and bytes, of sends in flight; more wait in order.
    sends_in_flight_max: int = attrs.field(default=1000, validator=ge(1))
    sends_in_flight_bytes_max: int = attrs.field(default=16 * 1024 * 1024, validator=ge(1))
    compress_over_bytes: int = attrs.field(default=4096, validator=ge(1))
    compress_level: int = attrs.field(default=5, validator=[ge(0), le(9)])
    message_bytes_max: int = attrs.field(default=4 * 1024 * 1024, validator=ge(1))
    #: Number of queues of a topic that the send creates.
    default_topic_queues: int = attrs.field(default=4, validator=ge(1))
    #: Send past brokers that have failed, or took half a second and more, for a while, where the topic has others.
    avoid_slow_brokers: bool = True
    heartbeat_s: float = 30.0


@attrs.frozen(kw_only=True)
class PushOptions(ClientOptions):
    """`consume_timestamp_ms` is used with ConsumeFrom.TIMESTAMP; None is half an hour before the start."""

    concurrency: int = attrs.field(default=20, validator=ge(1))
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    consume_timestamp_ms: int | None = None
    max_reconsume_times: int = attrs.field(default=16, validator=ge(-1))
    pull_batch: int = attrs.field(default=32, validator=[ge(1), le(1024)])
    queue_messages_max: int = attrs.field(default=1000, validator=ge(1))
    queue_bytes_max: int = attrs.field(default=100 * 1024 * 1024, validator=ge(1))
    #: A queue is not pulled while more messages than this follow its first unconsumed one.
    queue_span_max: int = attrs.field(default=2000, validator=ge(1))
    #: A message that the listener has held for so long is sent back to the broker; the listener's later result is
    #: ignored.
    consume_timeout_s: float = attrs.field(default=900.0, validator=gt(0))
    suspend_ms: int = 15_000
    pull_timeout_ms: int = 30_000
    request_timeout_ms: int = 3000
    rebalance_s: float = 20.0
    heartbeat_s: float = 30.0
    commit_s: float = 5.0
    #: How long a new queue waits while the group has other members, so that its former owner can commit.
    takeover_pause_s: float = 0.3
    #: How long a message waits that neither the listener consumed nor the broker accepted.
    local_retry_s: float = 5.0
    #: How long the pull of a queue pauses after an error.
    pull_error_pause_s: float = 1.0
    #: How long close() waits for listeners that still run.
    close_timeout_s: float = 10.0


@attrs.frozen(kw_only=True)
class PullOptions(ClientOptions):
    """`read_from` is the broker id that is pulled from; another of the set if it has no address."""

    request_timeout_ms: int = 3000
    pull_timeout_ms: int = 10_000
    read_from: int = attrs.field(default=0, validator=in_(range(64)))
