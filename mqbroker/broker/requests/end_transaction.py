"""Ends transactions: code 37 commits or rolls back a half message, code 323 resumes the checks of one that was given
up.

All requests of one read become one append. A half message is settled once: settling it again returns SUCCESS and stores
nothing. Checks and remarks are EndTransactionProcessor's and AdminBrokerProcessor's of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.access.accounts import IAccessControl
from mqbroker.broker.requests.send_rules import message_refusal
from mqbroker.broker.system_topics import NoRealTarget, without
from mqbroker.broker.transactions.half_message import QUEUE_ID, PlainHalfMessages, committed, put_back
from mqbroker.broker.transactions.half_queue import HalfQueue
from mqbroker.config import StoreSettings
from mqbroker.errors import LmqQueuesExceeded, MessageRefused, MQError, MultiDispatchRefused, Refused, StoreError
from mqbroker.remoting.handlers import Call, IConnection, RawRequest, answers, failure_response
from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import (
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    Prop,
    RequestCode,
    ResponseCode,
    SysFlag,
)
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command
from mqbroker.wire.headers import (
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
    decode_header,
)
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, dispatch_names, find_property
from mqbroker.wire.record import NewMessage, RawRecord, Record, decode_raw, decode_record

log = Logger()

#: Bytes of half messages that are collected before they are stored.
GATHERED_BYTES_MAX = 1024 * 1024

_OUTCOMES = (SysFlag.TRANSACTION_NOT, SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK)
#: Types that settle a half message -> whether they commit it.
_SETTLING = {str(SysFlag.TRANSACTION_COMMIT): True, str(SysFlag.TRANSACTION_ROLLBACK): False}
_GROUP = f"{Prop.PRODUCER_GROUP}\x01".encode()
_REAL_TOPIC = f"{Prop.REAL_TOPIC}\x01".encode()
_SCHEDULE = SCHEDULE_TOPIC.encode()
_NOT_RESUMED = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."


class _End(NamedTuple):
    """The fields of one request."""

    group: bytes
    offset: int
    physical_offset: int
    outcome: int


@attrs.define
class _Run:
    """State of the requests of one read."""

    connection: IConnection
    answers: list[bytes] = attrs.field(factory=list)
    #: Half messages to settle, each with the message that replaces it, if any.
    endings: dict[int, NewMessage | None] = attrs.field(factory=dict)
    #: Requests to answer then, with the half message of each.
    asked: list[tuple[RawRequest, int]] = attrs.field(factory=list)
    gathered_bytes: int = 0
    #: Others may have settled half messages since they were collected, or put them back.
    has_waited: bool = False

    def answer(self, request: RawRequest, error: Exception | None = None) -> None:
        is_oneway = request[2] & ONEWAY_FLAG
        if is_oneway and error is None:
            return
        command = _command(request)
        answer = RemotingCommand.response(command) if error is None else failure_response(command, error)
        if not is_oneway:
            self.answers.append(encode_command(answer))


class EndTransactionRequests:
    """Commits and rolls back half messages."""

    def __init__(
        self,
        store: MessageStore,
        half_queue: HalfQueue,
        settings: StoreSettings,
        rights: IAccessControl,
        readable_queue: Callable[[str, int], int],
    ) -> None:
        """`readable_queue`: see TopicTable."""
        self._store = store
        self._readable_queue = readable_queue
        self._rights = rights
        self._half_queue = half_queue
        self._record_at = store.recent_records(TRANS_HALF_TOPIC, QUEUE_ID)
        self._plain = PlainHalfMessages()
        self._message_bytes_max = settings.max_message_size
        self._delay_level_max = settings.delay_level_count

    # --- 37

    def end(self, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of END_TRANSACTION requests."""
        run = _Run(connection)
        taken = self._end_plain(run, requests) if self._half_queue.is_ready else 0
        if taken == len(requests):
            self._settle(run)
            return b"".join(run.answers)
        return Deferred.fromCoroutine(self._end_later(run, requests[taken:]))

    def _end_plain(self, run: _Run, requests: list[RawRequest]) -> int:
        """Handle requests up to one that has to wait for the disk; returns their number. Hot: the usual end of a usual
        half message is handled here alone."""
        record_at = self._record_at
        committed_from = self._plain.committed
        is_open = self._half_queue.settled.is_open
        for taken, request in enumerate(requests):
            ext, _, flag, _, _ = request
            try:
                is_committed = _SETTLING[ext["commitOrRollback"]]
                group, _ = ext["producerGroup"], ext["msgId"]
                digits = ext["tranStateTableOffset"] + ext["commitLogOffset"]
                if not (digits.isdecimal() and digits.isascii()):
                    raise ValueError
                offset, physical_offset = int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"])
                record = record_at(offset, physical_offset)
                if record is None or offset in run.endings or not is_open(offset):
                    raise ValueError
                message = committed_from(record, offset, physical_offset, group)
                self._check_sender(run, request, [message[0]])
            except (KeyError, ValueError):
                # Wrong and unusual requests take the general path.
                if not self._end_in_memory(run, request):
                    return taken
                continue
            except Refused as error:
                run.answer(request, error)
                continue
            run.endings[offset] = self._for_consumers(message) if is_committed else None
            if not flag & ONEWAY_FLAG:
                run.asked.append((request, offset))
            run.gathered_bytes += len(record)
            if run.gathered_bytes > GATHERED_BYTES_MAX:
                self._settle(run)
        return len(requests)

    def _end_in_memory(self, run: _Run, request: RawRequest) -> bool:
        """Handle a request, unless it has to wait for the disk: then False."""
        try:
            end = _parse(request[0])
            if end.outcome == SysFlag.TRANSACTION_NOT:  # its producer is checked again later
                run.answer(request)
                return True
            record = self._find_in_memory(end)
            if record is None:
                return False
            self._add(run, request, end, record)
        except Exception as error:
            run.answer(request, _as_refusal(error))
        return True

    async def _end_later(self, run: _Run, requests: list[RawRequest]) -> bytes:
        run.has_waited = True
        await self._half_queue.ready()
        for request in requests:
            if self._end_in_memory(run, request):
                continue
            try:
                end = _parse(request[0])
                self._add(run, request, end, await self._find(end))
            except Exception as error:
                run.answer(request, _as_refusal(error))
        self._settle(run)
        return b"".join(run.answers)

    def _find_in_memory(self, end: _End) -> RawRecord | None:
        """The half message, if it is resident and matches the request; None if it needs the general path."""
        if end.offset >= self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID):
            self._store.dispatch_now()
        found = self._store.get(TRANS_HALF_TOPIC, QUEUE_ID, max(0, end.offset), 1)
        if isinstance(found, Deferred):
            found.addErrback(lambda failure: None)  # `_find` reads it again
            return None
        record = _first(found)
        return record if record is not None and _mismatch(record, end) is None else None

    async def _find(self, end: _End) -> RawRecord:
        """The half message. Raises Refused if it does not exist or match; StoreError."""
        # One that was just stored may be in the transient store; it can be found after this commit.
        data = await self._store.queries.record(end.physical_offset)
        if end.offset >= self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID):
            self._store.dispatch_now()
        queued = self._store.get(TRANS_HALF_TOPIC, QUEUE_ID, max(0, end.offset), 1)
        found = _first(await queued if isinstance(queued, Deferred) else queued)
        if found is not None and _mismatch(found, end) is None:
            return found
        # Errors refer to the message at that place of the log, as the Java broker's do.
        if data is None or decode_record(data).topic != TRANS_HALF_TOPIC:
            raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        why = _mismatch(decode_raw(memoryview(data), 0), end)
        raise Refused(ResponseCode.SYSTEM_ERROR, why or "The transaction state table offset wrong")

    def _add(self, run: _Run, request: RawRequest, end: _End, record: RawRecord) -> None:
        """Add the request's result. Raises Refused if its sender may not end the transaction."""
        named = dispatch_names(record.properties)
        self._check_sender(run, request, [find_property(record.properties, _REAL_TOPIC), *named])
        settled = self._half_queue.settled
        # It may have been put back since its producer, or the checked one, learned its offset.
        offset = settled.where(record.queue_offset)
        if offset in run.endings or settled.is_settled(offset):
            run.asked.append((request, offset))
            return
        if not settled.is_possible(offset):
            raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        is_committed = end.outcome == SysFlag.TRANSACTION_COMMIT
        message = committed(record, self._delay_level_max) if is_committed else None
        run.endings[offset] = self._for_consumers(message) if message is not None else None
        run.asked.append((request, offset))
        run.gathered_bytes += record.size
        if run.gathered_bytes > GATHERED_BYTES_MAX:
            self._settle(run)

    def _for_consumers(self, message: NewMessage) -> NewMessage:
        """A committed message for a queue that consumers read: its topic may have fewer than when it was sent. Hot."""
        topic, named = message[:2]
        queue_id = self._readable_queue(topic.decode(), named)
        # The queues of the schedule topic are the levels.
        return message if queue_id == named or topic == _SCHEDULE else (topic, queue_id, *message[2:])

    def _check_sender(self, run: _Run, request: RawRequest, topics: list[bytes]) -> None:
        ext, _, _, body, _ = request
        names = [topic.decode("utf-8", "replace") for topic in topics]
        self._rights.check_topics(RequestCode.END_TRANSACTION, ext, body, run.connection, names)

    def _settle(self, run: _Run) -> None:
        """Store the collected messages, and add the responses."""
        endings, run.endings = run.endings, {}
        asked, run.asked = run.asked, []
        run.gathered_bytes = 0
        if run.has_waited:
            endings = self._still_open(endings)
        why: dict[int, Refused] = {}
        try:
            self._half_queue.settle(endings)
        except MessageRefused:
            why = self._settle_each(endings)
        except StoreError as error:
            why = dict.fromkeys(endings, _unavailable(error))
        where = self._half_queue.settled.where
        for request, offset in asked:
            run.answer(request, why.get(where(offset)))

    def _still_open(self, endings: dict[int, NewMessage | None]) -> dict[int, NewMessage | None]:
        """Drop half messages that others settled meanwhile, and update the offsets of those put back."""
        settled = self._half_queue.settled
        still_open: dict[int, NewMessage | None] = {}
        for offset, message in endings.items():
            now_at = settled.where(offset)
            if not settled.is_settled(now_at):
                still_open.setdefault(now_at, message)
        return still_open

    def _settle_each(self, endings: dict[int, NewMessage | None]) -> dict[int, Refused]:
        """Settle them one by one, as the store refuses one of them; returns those that failed, and why."""
        why = {}
        for offset, message in endings.items():
            try:
                try:
                    self._half_queue.settle({offset: message})
                except MultiDispatchRefused as error:
                    if message is None or isinstance(error, LmqQueuesExceeded):  # which may pass
                        raise
                    log.error(
                        "a committed message for {topic} is not added to its other queues (INNER_MULTI_DISPATCH): "
                        "{why}",
                        topic=message[0],
                        why=str(error),
                    )
                    own = (*message[:9], without(message[9], Prop.INNER_MULTI_DISPATCH))
                    self._half_queue.settle({offset: own})
            except MessageRefused as error:
                why[offset] = message_refusal(error, self._message_bytes_max)
            except StoreError as error:
                why[offset] = _unavailable(error)
        return why

    # --- 323

    @answers(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    async def resume(self, call: Call[ResumeCheckHalfMessageRequestHeader]) -> None:
        """Put a message of TRANS_CHECK_MAX_TIME_TOPIC, or a half message, back with its check count reset."""
        await self._half_queue.ready()
        try:
            _, physical_offset = parse_offset_message_id(call.header.msg_id or "")
        except MQError:
            raise Refused(ResponseCode.SYSTEM_ERROR, _NOT_RESUMED) from None
        data = await self._store.queries.record(physical_offset)
        if data is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, _NOT_RESUMED)
        record = decode_record(data)
        again = put_back(record, {**record.properties, Prop.TRANSACTION_CHECK_TIMES: "0"})
        if len(again[9]) > PROPERTIES_BYTES_MAX:  # one without a count is given up at once only if it is too old
            again = put_back(record, record.properties)
        try:
            self._put_back(record, again)
        except StoreError as error:
            remark = f"Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed. {error}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from None

    def _put_back(self, record: Record, again: NewMessage) -> None:
        if record.topic == TRANS_CHECK_MAX_TIME_TOPIC:
            self._store.append([again])
            return
        settled = self._half_queue.settled
        offset = settled.where(record.queue_offset)
        if record.topic != TRANS_HALF_TOPIC or settled.is_settled(offset):
            why = "it is neither a half message that is not settled nor one that was given up"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{_NOT_RESUMED} {why}")
        self._half_queue.put_back({offset: again})


def _command(request: RawRequest) -> RemotingCommand:
    ext, opaque, flag, _, serialize_type = request
    code = RequestCode.END_TRANSACTION
    return RemotingCommand(code, ext, b"", opaque=opaque, flag=flag, serialize_type=serialize_type)


def _parse(ext: dict[str, str]) -> _End:
    """The fields of a request. Raises Refused and MQError."""
    header = decode_header(EndTransactionRequestHeader, ext)
    if header.commit_or_rollback not in _OUTCOMES:
        raise Refused(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
    group = header.producer_group.encode("utf-8", "replace")
    return _End(group, header.tran_state_table_offset, header.commit_log_offset, header.commit_or_rollback)


def _first(found: GetMessageResult) -> RawRecord | None:
    """The first message of the result, if any."""
    if found.status is not GetMessageStatus.FOUND or not found.pieces:
        return None
    return decode_raw(memoryview(found.pieces[0] if len(found.pieces) == 1 else b"".join(found.pieces)), 0)


def _mismatch(record: RawRecord, end: _End) -> str | None:
    """The mismatch between a request and its half message."""
    if find_property(record.properties, _GROUP) != end.group:
        return "The producer group wrong"
    if record.queue_offset != end.offset:
        return "The transaction state table offset wrong"
    if record.physical_offset != end.physical_offset:
        return "The commit log offset wrong"
    return None


def _as_refusal(error: Exception) -> Exception:
    """The refusal for an error."""
    if isinstance(error, NoRealTarget):
        return Refused(ResponseCode.SYSTEM_ERROR, f"the half message cannot be committed: {error}")
    return _unavailable(error) if isinstance(error, OSError) else error


def _unavailable(error: Exception) -> Refused:
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"Service not available now. {error}")
