"""Send requests, codes 10, 310 and 320: from request bytes to record to response bytes.

All sends of one read are checked by `send_rules`, and become one append and one write. SUCCESS means: appended to the
log, in a topic that is on disk; and, under SYNC_FLUSH unless the message has WAIT=false, synced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.requests.send_rules import SendRules
from mqbroker.config import BrokerSettings
from mqbroker.errors import FlushTimedOut, MessageRefused, MQError, Refused, StoreBusy, StoreError, StoreUnwritable
from mqbroker.ha.acknowledgements import Acknowledgements, SlaveNotAvailable, SlaveTimedOut
from mqbroker.remoting.handlers import BatchHandler, IConnection, RawRequest, failure_response
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode_batch_answer, encode_command
from mqbroker.wire.headers import read_send_header
from mqbroker.wire.record import NewMessage

log = Logger()

#: Bytes of responses, of one connection or for each of several.
A = TypeVar("A")

#: (first message, count, queue, opaque, flag, response frame if it is answered already, whether that waits for the
#: disk)
Pending = tuple[int, int, int, int, int, bytes | None, bool]


class SendRequests:
    """Handles send requests: checks, appends, answers.

    :param store_host: 8 or 20 bytes, this broker's address in message ids.
    :param acknowledgements: of slaves, under SYNC_MASTER.
    """

    def __init__(
        self,
        store: MessageStore,
        rules: SendRules,
        live: LiveSettings,
        store_host: bytes,
        stats: BrokerStats,
        acknowledgements: Acknowledgements | None = None,
    ) -> None:
        self._store = store
        self._acknowledgements = acknowledgements
        self.sent_together = stats.sent_together
        self._rules = rules
        settings = live.current
        self._sync = settings.store.flush_disk_type == "SYNC_FLUSH"
        #: Whether responses wait for the disk or for slaves.
        self.waits = self._sync or acknowledgements is not None
        #: Returns why nothing may be appended for now; None where that never is.
        self.why_refused: Callable[[], str] | None = None
        if acknowledgements is not None:
            self.why_refused = lambda: acknowledgements.why_refused
        self._msg_id_prefix = store_host.hex().upper()
        self._common_fields = common_fields(settings)
        live.follow(self._settings_changed, "traceOn")

    def _settings_changed(self, settings: BrokerSettings) -> None:
        self._common_fields = common_fields(settings)

    def handler(self, code: int) -> BatchHandler:
        """The handler of runs of requests of `code`."""

        def send(requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
            return self.send(code, requests, connection)

        return send

    def send(self, code: int, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of requests of `code`."""
        messages: list[NewMessage] = []
        pending: list[Pending] = []
        saved: Deferred[bool] | None = None
        for request in requests:
            saved = self._add(code, request, connection, messages, pending) or saved
        return self._answer_when_saved(messages, pending, connection, saved)

    def _answer_when_saved(
        self,
        messages: list[NewMessage],
        pending: list[Pending],
        connection: IConnection,
        saved: Deferred[bool] | None,
    ) -> bytes | Deferred[bytes]:
        """Store and answer the sends of one read. `saved` fires when new topics are on disk."""
        if saved is None:
            return self._append(messages, pending, connection)
        answers = self._append(messages, pending, None)
        return saved.addCallback(lambda _: answers)

    def _append(
        self, messages: list[NewMessage], pending: list[Pending], connection: IConnection | None
    ) -> bytes | Deferred[bytes]:
        """Store the messages and answer; over `connection`, if given, responses that do not wait for the disk are sent
        first."""
        if not messages:
            return self.answers([], pending)
        if self.why_refused is not None and (why := self.why_refused()):
            self._store.statistics.failed_puts += len(messages)
            return self.answers([], pending, refusal=_store_refusal(StoreUnwritable(why)))
        try:
            appended = self._store.append(messages)
        except MessageRefused:
            messages, pending, appended = self._append_each(messages, pending)
            if not appended:
                return self.answers([], pending)
        except StoreError as error:
            self._store.statistics.failed_puts += len(messages)
            return self.answers([], pending, refusal=_store_refusal(error))
        if not self.waits or not any(each[-1] for each in pending):
            return self.answers(appended, pending)
        if connection is not None and (ready := [each for each in pending if not each[-1]]):
            connection.write(self.answers(appended, ready))
            pending = [each for each in pending if each[-1]]

        begin, last = appended[0][0], appended[-1]
        return self.confirmed(begin, last[0] + last[2], partial(self.answers, appended, pending))

    def confirmed(self, begin: int, end: int, answer: Callable[[int, Refused | None], A]) -> Deferred[A]:
        """Fires with the responses to messages that are in the log from `begin` to `end`, once these are where the
        broker promises them: `answer` makes those with a code, or a refusal."""

        def late(failure: Failure) -> A:
            # The messages are stored; only their sync is not confirmed.
            error = failure.value
            if isinstance(error, FlushTimedOut):
                return answer(ResponseCode.FLUSH_DISK_TIMEOUT, None)
            if not isinstance(error, StoreError):
                failure.raiseException()
            return answer(ResponseCode.SYSTEM_ERROR, _store_refusal(error))

        if self._acknowledgements is None:
            return self._store.durable(end).addCallbacks(lambda _: answer(ResponseCode.SUCCESS, None), late)
        codes = self._replicated(begin, end, self._acknowledgements)
        return codes.addCallbacks(lambda code: answer(code, None), late)

    def _replicated(self, begin: int, end: int, acknowledgements: Acknowledgements) -> Deferred[int]:
        """Fires with the response code for messages that a slave has, and under SYNC_FLUSH the disk; fails as `durable`
        but for a slave's failures, which are codes."""
        codes = acknowledgements.replicated(begin, end).addCallbacks(_success, _slave_code)
        if not self._sync:
            return codes
        durable = self._store.durable(end)

        def both(code: int) -> Deferred[int]:
            # As in Java, what a slave lacks is reported before what the disk lacks.
            return durable.addCallbacks(lambda _: code, lambda failure: code or failure)

        return codes.addCallback(both)

    def _append_each(
        self, messages: list[NewMessage], pending: list[Pending]
    ) -> tuple[list[NewMessage], list[Pending], list[Appended]]:
        """Append send by send, as one of them cannot be stored; returns the appended ones, the pending responses, and
        the places."""
        stored: list[NewMessage] = []
        appended: list[Appended] = []
        answers: list[Pending] = []
        for first, count, queue_id, opaque, flag, ready, wait in pending:
            part = messages[first : first + count]
            answer = ready
            try:
                if part:
                    appended += self._store.append(part)
            except StoreError as error:
                self._store.statistics.failed_puts += count
                refusal = failure_response(RemotingCommand(0, opaque=opaque), self._refusal(error))
                answer = encode_command(refusal)
                part = []
            answers.append((len(stored), len(part), queue_id, opaque, flag, answer, wait))
            stored += part
        return stored, answers, appended

    def _refusal(self, error: StoreError) -> Refused:
        if isinstance(error, MessageRefused):
            return self._rules.refusal(error)
        return _store_refusal(error)

    def answers(
        self,
        appended: Sequence[Appended],
        pending: Sequence[Pending],
        code: int = ResponseCode.SUCCESS,
        refusal: Refused | None = None,
    ) -> bytes:
        """The response frames of `pending`, in one piece."""
        frames: list[bytes] = []
        for first, count, queue_id, opaque, flag, ready, _ in pending:
            if flag & ONEWAY_FLAG:
                continue
            if ready is not None:
                frames.append(ready)
            elif refusal is not None:
                frames.append(encode_command(failure_response(RemotingCommand(0, opaque=opaque), refusal)))
            else:
                records = appended[first : first + count]
                ids = ",".join([f"{self._msg_id_prefix}{offset:016X}" for offset, *_ in records])
                fields = {"queueId": str(queue_id), **self._common_fields, "msgId": ids}
                fields["queueOffset"] = str(records[0][1])
                frames.append(encode_batch_answer(RemotingCommand(code, fields, opaque=opaque, flag=RESPONSE_FLAG)))
        return b"".join(frames)

    def _add(
        self,
        code: int,
        request: RawRequest,
        connection: IConnection,
        messages: list[NewMessage],
        pending: list[Pending],
    ) -> Deferred[bool] | None:
        """Check one send; add its messages or its refusal. Returns a Deferred if its topic is not on disk
        yet."""
        ext, opaque, flag, body, serialize_type = request
        try:
            header = read_send_header(code, ext)
            new, queue_id, wait = self._rules.check(header, code, body, connection)
        except Exception as error:
            command = RemotingCommand(code, ext, body, opaque=opaque, flag=flag, serialize_type=serialize_type)
            pending.append((0, 0, 0, opaque, flag, encode_command(failure_response(command, error)), False))
            return None
        if len(new) > 1:
            self.sent_together(header.topic, len(new))
        pending.append((len(messages), len(new), queue_id, opaque, flag, None, wait))
        messages.extend(new)
        return self._rules.saved()


def _success(_: None) -> int:
    return ResponseCode.SUCCESS


def _slave_code(failure: Failure) -> int:
    failure.trap(SlaveNotAvailable, SlaveTimedOut)  # type: ignore[no-untyped-call]
    if isinstance(failure.value, SlaveTimedOut):
        return ResponseCode.FLUSH_SLAVE_TIMEOUT
    return ResponseCode.SLAVE_NOT_AVAILABLE


def _store_refusal(error: MQError) -> Refused:
    if isinstance(error, StoreBusy):
        return Refused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now. {error}")


def common_fields(settings: BrokerSettings) -> dict[str, str]:
    """The extFields of a SUCCESS response that are the same in each; they stand between the queue id and the message
    ids."""
    return {"TRACE_ON": "true" if settings.trace_on else "false", "MSG_REGION": settings.region_id}
