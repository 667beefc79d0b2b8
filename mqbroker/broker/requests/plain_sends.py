"""Plain sends, also of batches, by the compiled module: to existing topics without rules of their own, with properties
that need no check.

Other sends are left to `send_message`, which has the same result for the same bytes. Topics are known from the row
that a send by all rules makes, and that every change of the topic or of the settings drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import orjson
from twisted.logger import Logger

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.requests.send_message import Pending, SendRequests, common_fields
from mqbroker.broker.requests.send_rules import SendRules
from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused, StoreError
from mqbroker.kernel import compiled
from mqbroker.remoting.handlers import Answered, Asked, HandlerTable, PlainGuard, PlainRead, Taken
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, Prop, RequestCode, ResponseCode
from mqbroker.wire.command import JSON, RemotingCommand, encode_json_header

log = Logger()

#: Opaque, flag, queue id, physical offset, queue offset of each message that was taken; of how many messages the send
#: is, in the first of them.
_MARKS = Struct(">iiiqqi")


class PlainSends:
    """Takes plain requests of `code`, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE, from the bytes of reads.

    :param store_host: 8 or 20 bytes, this broker's address in records and message ids.
    """

    def __init__(
        self,
        code: int,
        store: MessageStore,
        rules: SendRules,
        sends: SendRequests,
        live: LiveSettings,
        store_host: bytes,
        guard: PlainGuard | None,
    ) -> None:
        self._code = code
        self._store, self._log, self._rules, self._sends = store, store.encoded_log, rules, sends
        self._store_host, self._guard, self._awaited = store_host, guard, store.awaited
        self._settings_changed(live.current)
        live.follow(self._settings_changed, "traceOn", "rejectTransactionMessage")

    def _settings_changed(self, settings: BrokerSettings) -> None:
        assert compiled is not None
        before_id = b'",' + orjson.dumps(common_fields(settings))[1:-1] + b',"msgId":"'
        tail = encode_json_header(RemotingCommand(0), 0).partition(b'"opaque":0')[2]
        self._compiled = compiled.Sends(
            self._code,
            self._store_host,
            self._store_host.hex().upper().encode(),
            f"{Prop.CLUSTER}\x01{settings.broker_cluster_name}".encode(),
            before_id,
            tail,
            self._rules.body_bytes_max,
            self._sends.waits,
            (SCHEDULE_TOPIC.encode(), self._rules.delay_level_max),
            (TRANS_HALF_TOPIC.encode(), 0 if settings.reject_transaction_message else 1),
            self._store.open_queue,
            self._guard,
        )

    def take(self, reads: Sequence[PlainRead]) -> Taken | Answered | None:
        """Take the plain sends at the beginnings of `reads`; see `HandlerTable.register_plain`."""
        log, why_refused = self._log, self._sends.why_refused
        if why_refused is not None and why_refused():  # the general path answers with the reason
            return None
        now, begin, room = log.next_place(int(reads[0][2].last_active * 1000))  # which is now
        found = self._compiled.take(reads, self._rules.plain_targets, now, begin, room)
        if found is None:
            return None
        answers: list[bytes]
        stops, answers, marks, count, records, last, numbers, batches = found
        try:
            log.append_encoded(records, count, last, now, numbers)
        except StoreError:  # nothing was stored, and whoever refuses them says why
            return None
        for topic, messages in batches:
            self._sends.sent_together(topic.decode(), messages)
        if any(self._awaited):
            self._store.appended([queue for queue, _ in numbers])
        if not self._sends.waits:
            return stops, answers

        def asked(number: int) -> list[Asked]:
            return [(opaque, flag, JSON) for opaque, flag, *_, count in _MARKS.iter_unpack(marks[number]) if count]

        def answer(code: int, refusal: Refused | None = None) -> list[bytes]:
            if code == ResponseCode.SUCCESS:
                return answers
            return [self._sends.answers(*_places(each), code, refusal) for each in marks]

        return Taken(stops, self._sends.confirmed(begin, log.end, answer), asked)


def _places(marks: bytes) -> tuple[list[Appended], list[Pending]]:
    appended: list[Appended] = []
    pending: list[Pending] = []
    for number, mark in enumerate(_MARKS.iter_unpack(marks)):
        opaque, flag, queue_id, physical_offset, queue_offset, count = mark
        appended.append((physical_offset, queue_offset, 0, 0))
        if count:
            pending.append((number, count, queue_id, opaque, flag, None, True))
    return appended, pending


def serve_plain_sends(
    table: HandlerTable,
    store: MessageStore,
    rules: SendRules,
    sends: SendRequests,
    live: LiveSettings,
    store_host: bytes,
) -> None:
    """Have plain sends taken by the compiled module, where it is there; log which path runs."""
    if compiled is None:
        log.warn(
            "the hot path runs in Python, several times slower than compiled: MQBROKER_KERNEL=off is set, or the "
            "package was installed without a C compiler; with one, install it again"
        )
    else:
        log.info("the hot path is compiled")
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            plain = PlainSends(code, store, rules, sends, live, store_host, table.plain_guard(code, "b"))
            table.register_plain(code, plain.take)
