"""Send requests, codes 10, 310 and 320: from request bytes to record to response bytes.

`SendRequests.send_v2` is the hot path of the broker: all sends of one read become one append and one write. Plain sends
take a short path; all others - a new topic, a retry, a missing field - are checked by `send_rules`, one message at a
time. SUCCESS means: appended to the log, in a topic that is on disk; and, under SYNC_FLUSH unless the message has
WAIT=false, synced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.requests.send_rules import SendRules, read_send_header
from mqbroker.broker.system_topics import without_wait
from mqbroker.config import BrokerSettings
from mqbroker.errors import FlushTimedOut, MessageRefused, MQError, Refused, StoreBusy, StoreError
from mqbroker.ha.acknowledgements import Acknowledgements, SlaveNotAvailable, SlaveTimedOut
from mqbroker.remoting.handlers import IConnection, RawRequest, failure_response
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import (
    VERSION,
    Prop,
    RequestCode,
    ResponseCode,
    SysFlag,
)
from mqbroker.wire.command import JSON, ONEWAY_FLAG, RemotingCommand, encode_command
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX
from mqbroker.wire.record import NewMessage

log = Logger()

_LENGTHS = Struct(">II")
_NUMBERS_MAX = 4096
#: Bytes of responses, of one connection or for each of several.
A = TypeVar("A")

#: (first message, count, queue, opaque, flag, response frame if it is answered already, whether that waits for the
#: disk)
Pending = tuple[int, int, int, int, int, bytes | None, bool]


class _Numbers(dict[str, int]):
    """Cached int(): one lookup validates and converts. Raises ValueError."""

    def __init__(self, number_max: int) -> None:
        self._max = number_max

    def __missing__(self, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 19) or (number := int(text)) > self._max:
            raise ValueError(text)
        if len(self) >= _NUMBERS_MAX:
            self.clear()
        self[text] = number
        return number


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
        self._stats = stats
        self._rules = rules
        settings = live.current
        self._sync = settings.store.flush_disk_type == "SYNC_FLUSH"
        #: Whether responses wait for the disk or for slaves.
        self.waits = self._sync or acknowledgements is not None
        self._msg_id_prefix = store_host.hex().upper()
        self._answer = _answer_template(settings)
        self._prefixes: dict[int, str] = {}
        self._numbers = _Numbers(2**31 - 1)
        self._times = _Numbers(2**63 - 1)
        live.follow(self._settings_changed, "traceOn")
        self._cluster = f"{Prop.CLUSTER}\x01{settings.broker_cluster_name}"

    def _settings_changed(self, settings: BrokerSettings) -> None:
        self._answer = _answer_template(settings)

    # --- the hot path

    def send_v2(self, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of SEND_MESSAGE_V2 requests. Fields that a plain send does not use are not checked."""
        plain_topics = self._rules.plain_topics
        born_host = connection.remote_host
        host_flag = SysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0
        body_bytes_max = self._rules.body_bytes_max
        cluster = self._cluster
        divert_plain = self._rules.divert_plain
        numbers = self._numbers
        times = self._times
        messages: list[NewMessage] = []
        pending: list[Pending] = []
        saved: Deferred[bool] | None = None
        for request in requests:
            ext, opaque, flag, body, serialize_type = request
            try:
                topic, queues, topic_flags = plain_topics[ext["b"]]
                queue_id = numbers[ext["e"]]
                born_timestamp = times[ext["g"]]
                properties = ext["i"]
                if (
                    queue_id >= queues
                    or len(body) > body_bytes_max
                    or serialize_type != JSON
                    or ext.get("m", "false") != "false"
                ):
                    raise ValueError
                sys_flag = numbers[ext["f"]]
                stored_queue = queue_id
                if "DELAY\x01" in properties or "TRAN_MSG\x01" in properties:
                    topic, stored_queue, sys_flag, stored, wait = divert_plain(
                        topic, queue_id, sys_flag, properties, ext["a"]
                    )
                else:
                    properties, wait = without_wait(properties)
                    # Of two properties of one name the later counts, as for Java's readers.
                    stored = f"{properties}\x02{cluster}".encode() if properties else cluster.encode()
                message = (
                    topic,
                    stored_queue,
                    numbers[ext["h"]],
                    sys_flag | topic_flags | host_flag,
                    born_timestamp,
                    born_host,
                    numbers[ext.get("j", "0")],
                    0,
                    body,
                    stored,
                )
                if len(stored) > PROPERTIES_BYTES_MAX or message[3] & SysFlag.TRANSACTION_MASK:
                    raise ValueError
            except (KeyError, ValueError, TypeError):
                code = RequestCode.SEND_MESSAGE_V2
                saved = self._add_by_rules(code, request, connection, messages, pending) or saved
                continue
            pending.append((len(messages), 1, queue_id, opaque, flag, None, wait))
            messages.append(message)
        return self._answer_when_saved(messages, pending, connection, saved)

    def send_v1(self, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of SEND_MESSAGE requests, whose field names are long; few clients send them."""
        return self._send_by_rules(RequestCode.SEND_MESSAGE, requests, connection)

    def send_batches(self, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of SEND_BATCH_MESSAGE requests."""
        return self._send_by_rules(RequestCode.SEND_BATCH_MESSAGE, requests, connection)

    def _send_by_rules(self, code: int, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        messages: list[NewMessage] = []
        pending: list[Pending] = []
        saved: Deferred[bool] | None = None
        for request in requests:
            saved = self._add_by_rules(code, request, connection, messages, pending) or saved
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
        """The response frames of `pending`, in one piece; latin-1 preserves the length bytes."""
        template = self._answer
        id_prefix = self._msg_id_prefix
        prefixes = self._prefixes
        parts: list[str] = []
        for first, count, queue_id, opaque, flag, ready, _ in pending:
            if flag & ONEWAY_FLAG:
                continue
            if ready is not None:
                parts.append(ready.decode("latin-1"))
                continue
            if refusal is not None:
                request = RemotingCommand(0, opaque=opaque)
                parts.append(encode_command(failure_response(request, refusal)).decode("latin-1"))
                continue
            record = appended[first]
            if count == 1:
                ids = f"{id_prefix}{record[0]:016X}"
            else:
                ids = ",".join([f"{id_prefix}{a[0]:016X}" for a in appended[first : first + count]])
            header = template % (code, queue_id, ids, record[1], opaque)
            length = len(header)
            prefix = prefixes.get(length)
            if prefix is None:
                prefix = prefixes[length] = _LENGTHS.pack(length + 4, length).decode("latin-1")
            parts += (prefix, header)
        return "".join(parts).encode("latin-1")

    def _add_by_rules(
        self,
        code: int,
        request: RawRequest,
        connection: IConnection,
        messages: list[NewMessage],
        pending: list[Pending],
    ) -> Deferred[bool] | None:
        """Check one send by all rules; add its messages or its refusal. Returns a Deferred if its topic is not on disk
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
            self._stats.sent_together(header.topic, len(new))
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


def _answer_template(settings: BrokerSettings) -> str:
    """A SUCCESS response's header, to be filled with (code, queue id, message ids, queue offset, opaque)."""
    before_id, tail = answer_parts(settings)
    return (
        '{"code":%d,"extFields":{"queueId":"%d'
        + before_id.replace("%", "%%")
        + '%s","queueOffset":"%d"},"flag":1,"language":"PYTHON","opaque":%d'
        + tail
    )


def answer_parts(settings: BrokerSettings) -> tuple[str, str]:
    """What stands in a SUCCESS response's header between the queue id and the message ids, and behind the opaque."""
    trace = "true" if settings.trace_on else "false"
    region = json.dumps(settings.region_id)  # ASCII, with escapes
    before_id = f'","TRACE_ON":"{trace}","MSG_REGION":{region},"msgId":"'
    return before_id, f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
