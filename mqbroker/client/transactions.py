"""Transactions: half messages that become visible when a local transaction commits; brokers check those that were not
settled. Java's TransactionMQProducer."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from enum import Enum
from typing import Any, cast

import attrs

from mqbroker.client.errors import BadArgument, BadMessage, short
from mqbroker.client.messages import Message, ReceivedMessage, SendResult, SendStatus, SystemMessage
from mqbroker.client.names import bare_message, check_topic, within
from mqbroker.client.observers import SendKind
from mqbroker.client.producer import ProducerCore
from mqbroker.client.send import checked
from mqbroker.errors import MQError
from mqbroker.wire.codes import Prop, RequestCode, SysFlag
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader, decode_header
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.names import join_address
from mqbroker.wire.record import decode_record

log = logging.getLogger(__name__)

#: Checks that may be under way at once; brokers ask again about others.
CHECKS_MAX = 64


class TransactionState(Enum):
    """How a local transaction has ended. With UNKNOWN the broker asks later."""

    COMMIT = SysFlag.TRANSACTION_COMMIT
    ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
    UNKNOWN = SysFlag.TRANSACTION_NOT


#: The names of Java's LocalTransactionState.
_JAVA_NAMES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


@attrs.frozen
class TransactionResult:
    """`sent`: the result of the half message. `state`: the state reported to the broker."""

    sent: SendResult
    state: TransactionState


#: Says how the local transaction of a half message has ended; may be a coroutine function, except on the blocking API.
Check = Callable[[ReceivedMessage], Any]

#: Executes the local transaction, for the message with its id in `unique_key`; likewise.
Execute = Callable[[Message], Any]


def check_functions(name: str, function: object, *, may_await: bool = True) -> None:
    """Raises BadArgument unless it can be called, and awaited where that is so."""
    if not callable(function) or (not may_await and inspect.iscoroutinefunction(function)):
        what = "a function" if may_await else "a plain function, which runs on a thread,"
        raise BadArgument(name, f"{what} that returns a TransactionState", function)


def check_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """The topics. Raises BadArgument."""
    if isinstance(topics, str) or not isinstance(cast(Any, topics), Iterable):
        raise BadArgument("topics", "several topics", topics)
    return tuple(check_topic(topic) for topic in topics)


class TransactionCore(ProducerCore):
    """A producer whose messages may depend on local transactions."""

    def __init__(
        self,
        *args: Any,
        check: Check,
        topics: Iterable[str] = (),
        call: Callable[[Check, ReceivedMessage], Awaitable[Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """`call` calls `check`, by default on the event loop."""
        super().__init__(*args, **kwargs)
        check_functions("check", check)
        self._topics = tuple(within(self._namespace, topic) for topic in check_topics(topics))
        self._check = check
        self._call = call or _call
        #: The ids of the half messages that are being checked.
        self._checking: set[str] = set()

    async def start(self) -> None:
        """Connect to a name server, and let the brokers of `topics` ask. Raises as a producer's `start` does."""
        await super().start()

    async def begin(self, connect: Callable[[], Awaitable[None]] | None = None) -> None:
        await super().begin(connect)
        if connect is None:
            self._tasks.append(self._net.spawn(self._become_known()))
        else:
            await self._become_known()

    async def _become_known(self) -> None:
        """Let the brokers of `topics` ask."""
        for topic in self._topics:
            try:
                await self._routes.get(topic, create=True)
            except MQError as error:
                log.warning("brokers cannot check transactions of topic %s yet: %s", topic, error)
        if self._topics:
            await self.heartbeats.send_to_all()

    async def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout_s: float | timedelta | None = None
    ) -> TransactionResult:
        """Send a half message, run `execute` with it, and commit it or roll it back, as that returns.

        `execute` gets the message with the id that `check` will see as `msg_id`, in `unique_key`. It is not called, and
        the message is rolled back, unless the broker has stored it as it should (SEND_OK). With
        TransactionState.UNKNOWN, or an exception, which is raised here, the broker asks later. Raises as `send` does,
        and BadArgument if `execute` returns something else.
        """
        check_functions("execute", execute)
        half, sent = await self.send_half(message, timeout_s=timeout_s)
        if sent.status is not SendStatus.SEND_OK:
            return await self.end(sent, TransactionState.ROLLBACK)
        try:
            found = execute(half)
            state = state_of(await found if inspect.isawaitable(found) else found)
        except BaseException:
            await self.end(sent, TransactionState.UNKNOWN)
            raise
        return await self.end(sent, state)

    async def send_half(
        self, message: Message, *, timeout_s: float | timedelta | None = None
    ) -> tuple[Message, SendResult]:
        """Send a half message: returns it, with its id, and the result; `end` follows."""
        if checked(message).delay_level:
            raise BadMessage(f"message to topic {message.topic}: a message of a transaction cannot be delayed")
        marks = {Prop.TRANSACTION_PREPARED: "true", Prop.PRODUCER_GROUP: self._group}
        half = SystemMessage.of(message, marks)
        sent = await self._observed(SendKind.TRANSACTION, [half], self.sends.send, None, self._until(timeout_s))
        return attrs.evolve(message, unique_key=sent.msg_id), sent

    async def end(self, sent: SendResult, state: TransactionState) -> TransactionResult:
        """Tell the broker how the transaction of a half message has ended, without a response: where that is lost, it
        asks."""
        _, offset = parse_offset_message_id(sent.offset_msg_id)
        header = EndTransactionRequestHeader(
            producer_group=self._group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=offset,
            commit_or_rollback=state.value,
            msg_id=sent.msg_id,
            transaction_id=sent.msg_id,
            bname=sent.queue.broker_name,
        )
        route = self._routes.known(within(self._namespace, sent.queue.topic), create=True)
        addr = None if route is None else route.master(sent.queue.broker_name)
        await self._tell(addr, header)
        self._trace_end(sent.queue.topic, sent.msg_id, addr, state)
        return TransactionResult(sent, state)

    async def _tell(self, addr: str | None, header: EndTransactionRequestHeader) -> None:
        try:
            if addr is None:
                raise MQError("its master is away")
            await self._net.send_oneway(addr, RemotingCommand.request(RequestCode.END_TRANSACTION, header))
        except MQError as error:
            log.warning(
                "broker %s was not notified of the end of the transaction of message %s, and will check it: %s",
                header.bname or addr,
                header.msg_id,
                error,
            )

    def takes(self, request: RemotingCommand) -> bool:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super().takes(request)
        try:
            properties = decode_record(request.body).properties
        except MQError:
            return False
        return properties.get(Prop.PRODUCER_GROUP) == self._group

    async def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return await super().answer(request)
        asking = self._net.asking  # before anything is awaited
        try:
            header = decode_header(CheckTransactionStateRequestHeader, request.ext_fields)
            message = ReceivedMessage.of_record(decode_record(request.body), header.bname or "")
        except MQError as error:
            log.info("a broker's question about a transaction cannot be read: %s", error)
            return None
        message = bare_message(self._namespace, message)
        group = message.properties.get(Prop.PRODUCER_GROUP)
        if group != self._group:
            log.info("a broker asks about a transaction of group %s", short(group))
        elif message.msg_id not in self._checking and not self._attempts.is_closed:
            if len(self._checking) >= CHECKS_MAX:
                log.info("%d checks of transactions are running; brokers repeat the others", CHECKS_MAX)
            else:
                self._checking.add(message.msg_id)
                ended = message.msg_id
                self._net.spawn(self._answer_check(message, header, asking), lambda: self._checking.discard(ended))
        return None

    async def _answer_check(
        self, message: ReceivedMessage, header: CheckTransactionStateRequestHeader, addr: str
    ) -> None:
        state = TransactionState.UNKNOWN
        try:
            state = state_of(await self._net.within(self._options.check_timeout_s, self._checked(message)))
        except TimeoutError:
            log.warning(
                "the check of the transaction of message %s takes longer than %g s (check_timeout_s): its state stays"
                " unknown",
                message.msg_id,
                self._options.check_timeout_s,
            )
        except Exception:
            log.exception("the check of the transaction of message %s failed: its state stays unknown", message.msg_id)
        end = EndTransactionRequestHeader(
            producer_group=self._group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=message.properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, message.msg_id),
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        addr = addr or join_address(*message.store_host)
        await self._tell(addr, end)
        self._trace_end(message.topic, message.msg_id, addr, state, is_from_check=True)

    def _trace_end(
        self, topic: str, msg_id: str, addr: str | None, state: TransactionState, *, is_from_check: bool = False
    ) -> None:
        if self._tracer is not None:
            self._tracer.ended(self._group, topic, msg_id, addr or "", _JAVA_NAMES[state], is_from_check=is_from_check)

    async def _checked(self, message: ReceivedMessage) -> Any:
        return await self._call(self._check, message)


async def _call(check: Check, message: ReceivedMessage) -> Any:
    found = check(message)
    return await found if inspect.isawaitable(found) else found


def state_of(found: object) -> TransactionState:
    """What a user's function has returned. Raises BadArgument."""
    if not isinstance(found, TransactionState):
        raise BadArgument("what the function returns", "a TransactionState", found)
    return found
