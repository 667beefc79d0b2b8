"""Errors of the clients: each says what, why, and what to do next."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum

from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut, Unreachable
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode

#: The last of the delay levels that brokers have unless messageDelayLevel says otherwise.
DELAY_LEVEL_MAX = 18
#: The delays of the levels 1 to 18 on brokers whose messageDelayLevel is the default.
DELAY_LEVELS = tuple(
    timedelta(seconds=seconds) for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
)

#: Begins what brokers of either kind say where an account lacks something.
_ACL_REMARK = "AclException: "


class ClientError(MQError):
    """Base class of the errors that clients raise. `hint` says what to do next."""

    hint = ""

    def __str__(self) -> str:
        text = self.describe()
        return f"{text}. {self.hint}" if self.hint else text

    def describe(self) -> str:
        return super().__str__()


class NameServerUnreachable(ClientError):
    """None of the name servers answered. `tried` holds (address, reason) pairs."""

    retriable = True
    hint = "Check the address, and that the name server is running (it listens on 9876 by default)"

    def __init__(self, tried: Sequence[tuple[str, str]]) -> None:
        super().__init__(tried)
        self.tried = tried

    def describe(self) -> str:
        return "No name server answers: " + "; ".join(f"{addr}: {why}" for addr, why in self.tried)


class TlsFailed(ClientError, Unreachable):
    """A server was reached, but no trusted TLS connection could be established."""

    retriable = False

    def __init__(self, addr: str, why: str, hint: str) -> None:
        super().__init__(addr, why, hint)
        self.addr = addr
        self.why = why
        self.hint = hint

    def describe(self) -> str:
        return f"no encrypted connection to {self.addr}: {self.why}"


def is_about_account(error: BaseException) -> bool:
    """Whether access control refused a request: for its signature, its account, or a missing permission."""
    return isinstance(error, Refused) and _ACL_REMARK in error.remark


class Creates(Enum):
    """Whether the brokers that a name server knows create topics."""

    PERHAPS = "nobody asked"
    NO = "there are brokers, and none does"
    NO_BROKER = "there are no brokers"


class TopicNotFound(ClientError):
    """The name servers answer, but none knows `topic`."""

    retriable = True

    def __init__(self, topic: str, name_servers: Sequence[str], why: str, creates: Creates = Creates.PERHAPS) -> None:
        """`creates`: whether brokers create topics."""
        super().__init__(topic, name_servers, why, creates)
        self.topic = topic
        self.name_servers = name_servers
        self.why = why
        self.creates = creates

    def describe(self) -> str:
        return f"No route info of this topic: {self.topic}, asked {', '.join(self.name_servers)}: {self.why}"

    @property
    def hint(self) -> str:  # type: ignore[override]
        if self.creates is Creates.NO_BROKER:
            return "Check that a broker is running, and that its namesrvAddr lists the same name servers"
        command = f"mqadmin updateTopic -t {self.topic} -c CLUSTER -n {self.name_servers[0]}"
        create = f"create it with the mqadmin of a Java RocketMQ, which is not part of this package (`{command}`)"
        exists = "if it should exist, check that its broker is running and uses the same name servers"
        if self.creates is Creates.NO:
            return f"{create[0].upper()}{create[1:]}, or set autoCreateTopicEnable=true on a broker; {exists}"
        return f"Brokers with autoCreateTopicEnable=true create it at the first send; otherwise {create}; {exists}"


class NoBrokerForTopic(ClientError):
    """The topic has a route, but no broker on it can execute the request. `is_away`: one may be back soon."""

    retriable = True
    hint = "Check that its brokers are running and registered with the name server, and the topic's permissions"

    def __init__(self, topic: str, why: str, is_away: bool = False) -> None:
        super().__init__(topic, why, is_away)
        self.topic = topic
        self.why = why
        self.is_away = is_away

    def describe(self) -> str:
        return f"No broker for topic {self.topic}: {self.why}"


class UnexpectedResponse(ClientError):
    """A broker's response has other messages than requested; none of them is used. `is_of_index`: the request was a
    search by key, to find out whether a message was sent."""

    def __init__(self, queue: MessageQueue, why: str, is_of_index: bool = False) -> None:
        super().__init__(queue, why, is_of_index)
        self.queue = queue
        self.why = why
        self.is_of_index = is_of_index

    def describe(self) -> str:
        what = f"a search by key at {self.queue.broker_name}" if self.is_of_index else f"a pull of {self.queue}"
        return f"Unexpected response to {what}: {self.why}"

    @property
    def hint(self) -> str:  # type: ignore[override]
        if self.is_of_index:
            return "Whether the message was sent is unknown: look for it in the queues of its topic"
        return (
            "Leave the group's offset as it is, so that no message is skipped. Check that the name server names the"
            " right broker for the queue (`mq brokers`), and check that broker's store (`mq store check DIR`): a queue"
            " that differs from the log is rebuilt without loss (`mq store repair DIR`), and consuming continues. Only"
            " if the check reports the messages at this offset as lost, set the offset behind them"
        )


class SendFailed(ClientError):
    """Every attempt failed. `attempts` holds (broker name, address, error) for each; the message may be stored.

    It may be stored where an attempt timed out or lost its connection: only then is the outcome unknown.
    """

    retriable = True

    def __init__(self, topic: str, attempts: Sequence[tuple[str, str, MQError]]) -> None:
        super().__init__(topic, attempts)
        self.topic = topic
        self.attempts = attempts

    def describe(self) -> str:
        tries = Counter(f"{broker} at {addr}: {type(e).__name__}: {e}" for broker, addr, e in self.attempts)
        told = (what if count == 1 else f"{what} ({count} times)" for what, count in tries.items())
        often = "once" if len(self.attempts) == 1 else f"{len(self.attempts)} times"
        return f"Send to topic {self.topic} failed {often}: {'; '.join(told)}"

    @property
    def hint(self) -> str:  # type: ignore[override]
        if not self.attempts:
            return ""
        _, addr, error = self.attempts[-1]
        if isinstance(error, TlsFailed):
            return ""  # it has said what to do
        if isinstance(error, Refused):
            return refusal_hint(error)
        if isinstance(error, ConnectionClosed):
            return f"{addr} was reached: see the log of that broker"
        if isinstance(error, RequestTimedOut):
            return f"{addr} did not respond in time: check whether that broker is overloaded, and see its log"
        return (
            "The broker may be down, or the address that it registered (brokerIP1) may be wrong:"
            f" check that {addr} is reachable from here"
        )


def refusal_hint(error: Refused) -> str:
    """Advice for a broker's refusal; its remark says most."""
    if is_about_account(error):
        return "Check the account's permissions in the broker's plain_acl.yml"
    return _REFUSAL_HINTS.get(error.code, "The broker refused it: see its remark, or its log")


_REFUSAL_HINTS: dict[int, str] = {
    ResponseCode.SYSTEM_BUSY: "The broker is overloaded: send less at a time, or give it faster disks",
    ResponseCode.SERVICE_NOT_AVAILABLE: (
        "The broker accepts no messages now: check whether its disk is full, and see its log; it may also be"
        " stopping, or be a slave"
    ),
    ResponseCode.NO_PERMISSION: "The topic, or the broker (brokerPermission), does not allow writes",
    ResponseCode.TOPIC_NOT_EXIST: (
        "The broker does not have the topic: create it there; a send creates it only if autoCreateTopicEnable=true"
    ),
}


class BatchFailed(ClientError):
    """Some messages of a batch were stored, others not. `results` has the result, or the error, of each message."""

    retriable = True
    hint = "Resend the messages that have an error in `results`"

    def __init__(self, results: Sequence[object]) -> None:
        super().__init__(results)
        self.results = results

    def describe(self) -> str:
        errors = [result for result in self.results if isinstance(result, MQError)]
        what = "message was" if len(errors) == 1 else "messages were"
        return f"{len(errors):,} of {len(self.results):,} {what} not sent: {errors[0]}"


class BadMessage(ClientError):
    """A message that cannot be sent: empty, too large, or with reserved properties."""


class BadArgument(ClientError):
    """An option or argument that cannot be used; nothing was done."""

    def __init__(self, name: str, right: str, value: object) -> None:
        """`right` describes valid values."""
        super().__init__(name, right, value)
        self.name = name
        self.right = right

    def describe(self) -> str:
        return f"{self.name} must be {self.right}, not {short(self.args[2])}"


def short(value: object) -> str:
    """An invalid value, shortened for an error or a warning."""
    return f"{reprlib.repr(value)} of type {type(value).__name__}"


class Forbidden(ClientError):
    """An observer of this program refused a send, or an RPC hook a request: raise it in `before_send`, or
    `before_request`. `why` is its reason."""

    hint = "Nothing was sent: check the observers in the client's options"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class HookFailed(ClientError):
    """An RPC hook of this program failed, and with it the request. `hook` is its method."""

    hint = "The log has what it raised. After `before_request` nothing was sent; after `after_response` it was done"

    def __init__(self, hook: str, why: str) -> None:
        super().__init__(hook, why)
        self.hook, self.why = hook, why

    def describe(self) -> str:
        return f"the RPC hook {self.hook} failed: {self.why}"


class BadOffsetFile(ClientError):
    """The local file of offsets cannot be used."""

    hint = "Mend or remove it, which starts the queues where consume_from says, or name another: LocalOffsets(path)"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def describe(self) -> str:
        return f"the file of offsets {self.path} cannot be used: {self.why}"


class ClientClosed(ClientError):
    """The client was closed, or not started."""

    hint = "Create a new one; a client can be started and closed only once"


class OtherLoop(ClientError):
    """A client of asyncio was used on another event loop than the one that it began on."""

    hint = (
        "Create and start it in the coroutine that `asyncio.run` runs, one for each loop; with threads, use"
        " mqbroker.client.blocking"
    )

    def __init__(self, is_closed: bool) -> None:
        super().__init__(is_closed)
        self.is_closed = is_closed

    def describe(self) -> str:
        return "this client belongs to " + ("an event loop that has ended" if self.is_closed else "another event loop")


class WouldDeadlock(ClientError):
    """A blocking call on the thread that would have to do its work."""

    hint = "Use `send_async` there, or hand the call to another thread"


class BadListener(ClientError):
    """A listener that cannot handle messages."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why, hint)
        self.why = why
        self.hint = hint

    def describe(self) -> str:
        return self.why


class NoSubscription(ClientError):
    """A push consumer was started without a subscription."""

    hint = "Call subscribe(topic) before start(), or before entering `with`; topics can be added later"


class NotHandled(Exception):  # raised by a face, not seen by users
    """The listener could not be called for a message: no result is reported, and the group's next member gets it."""


class RetryLater(Exception):  # raised by a user's listener, not by this package
    """Raise it in a listener to have the message delivered again.

    With `delay_level` 0 the broker chooses the delay, which grows each time; 1 to 18 is one of its levels; -1 sends the
    message to the dead letters at once. A timedelta selects the level that has exactly this delay by default. Raises
    ValueError for other values.
    """

    def __init__(self, delay_level: int | timedelta = 0) -> None:
        if isinstance(delay_level, timedelta):
            if delay_level not in DELAY_LEVELS:
                raise ValueError(f"RetryLater: {delay_level} is the delay of no level; nearest_delay_level() finds one")
            delay_level = DELAY_LEVELS.index(delay_level) + 1
        if type(delay_level) is not int or not -1 <= delay_level <= DELAY_LEVEL_MAX:
            raise ValueError(
                f"RetryLater: delay_level must be an int from -1 to {DELAY_LEVEL_MAX}, not {delay_level!r}"
            )
        super().__init__(delay_level)
        self.delay_level = delay_level


class SuspendQueue(Exception):  # raised by a user's listener, not by this package
    """Raise it in an orderly listener: the queue waits for `seconds`, a number from 0.01 to 30 or a timedelta, and then
    the message is delivered again. Raises ValueError for other values."""

    def __init__(self, seconds: float | timedelta) -> None:
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if type(seconds) not in (int, float) or not 0.01 <= seconds <= 30:
            raise ValueError(f"SuspendQueue: seconds must be a number from 0.01 to 30, not {seconds!r}")
        super().__init__(seconds)
        self.seconds = seconds
