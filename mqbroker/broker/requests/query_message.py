"""Single messages and queue entries: by key (code 12), by offset (33), and the entries of a consume queue (321)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import attrs

from mqbroker.access.accounts import IAccessControl
from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.broker.filter_table import TAG_KINDS, ConsumerFilter, FilterTable, filter_data
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.subscription_resolver import ALL, ExpressionFilter
from mqbroker.errors import Refused
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.handlers import Call, answers
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.store.message_store import MessageStore
from mqbroker.store.queries import QueueEntry
from mqbroker.wire import headers as h
from mqbroker.wire.admin_bodies import ConsumeQueueData, QueryConsumeQueueResponseBody
from mqbroker.wire.bodies import SubscriptionData
from mqbroker.wire.codes import UNIQUE_MSG_QUERY_FLAG, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand

#: Maximum number of entries in one response.
ENTRIES_MAX = 10_000

#: Whether an entry with this tags code, or with this unit, is given to a group, as far as a queue can tell.
Passes = Callable[[int, ExtUnit | None], bool]


@attrs.frozen
class MessageRequests:
    """Looks messages up in the store."""

    store: MessageStore
    live: LiveSettings
    rights: IAccessControl

    @answers(RequestCode.QUERY_MESSAGE)
    async def by_key(self, call: Call[h.QueryMessageRequestHeader]) -> RemotingCommand:
        """Messages of a topic that have a key, within times of storing in ms."""
        header, settings = call.header, self.live.current.store
        by_unique_key = call.request.ext_fields.get(UNIQUE_MSG_QUERY_FLAG, "").lower() == "true"
        count_max = settings.default_query_max_num if by_unique_key else header.max_num
        count = max(0, min(count_max, settings.max_msgs_num_batch))
        found = await self.store.query(header.topic, header.key, count, header.begin_timestamp, header.end_timestamp)
        timestamp, offset = self.store.index_end if found.candidates else (0, 0)
        answer = h.QueryMessageResponseHeader(index_last_update_timestamp=timestamp, index_last_update_phyoffset=offset)
        if not found.records:
            remark = "can not find message, maybe time range not correct"
            return RemotingCommand.response(call.request, ResponseCode.QUERY_NOT_FOUND, remark, answer)
        return RemotingCommand.response(call.request, header=answer, body=b"".join(found.records))

    @answers(RequestCode.VIEW_MESSAGE_BY_ID)
    async def by_offset(self, call: Call[h.ViewMessageRequestHeader]) -> bytes:
        """The record at an offset of the log."""
        record = await self.store.queries.record(call.header.offset)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {call.header.offset}")
        request = call.request
        self.rights.check_record(request.code, request.ext_fields, request.body, call.connection, record)
        return record


@attrs.frozen
class QueueEntryRequests:
    """Shows entries of consume queues as they are on the disk, and which of them a group would be given."""

    store: MessageStore
    consumers: ConsumerRegistry
    filters: FilterTable
    tasks: CooperativeTasks

    @answers(RequestCode.QUERY_CONSUME_QUEUE, bounded=True)
    async def entries(self, call: Call[h.QueryConsumeQueueRequestHeader]) -> RemotingCommand:
        """Entries from `index` on; for a group that is online with whether each would pass its filter."""
        header = call.header
        topic, queue_id = header.topic or "", header.queue_id
        bounds = self.store.bounds(topic, queue_id)
        if bounds is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic[:255]} is not exist!")
        start, end = bounds
        subscription, filter_text, is_given = self._filter(header.consumer_group, topic)
        shown = []
        remark = None
        if not start <= header.index < end:
            remark = f"Index {header.index} of {queue_id}@{topic} is not exist!"
        else:
            for offset in range(header.index, min(end, header.index + min(header.count, ENTRIES_MAX))):
                await self.tasks.step()
                entry = await self.store.queries.queue_entry(topic, queue_id, offset)
                if entry is None:  # deleted by retention meanwhile
                    break
                shown.append(_entry_view(entry, is_given))
        body = QueryConsumeQueueResponseBody(subscription, filter_text, shown, end, start)
        return RemotingCommand.response(call.request, remark=remark, body=await self.tasks.written(body))

    def _filter(self, group: str | None, topic: str) -> tuple[SubscriptionData | None, str | None, Passes | None]:
        if group is None:
            return None, None, None
        online = self.consumers.group(group)
        subscription = online.subscriptions.get(topic) if online is not None else None
        if subscription is None:
            return None, f"{group}@{topic} is not online!", None
        registered = self.filters.get(topic, group)
        # Java's value without one.
        shown = filter_data(registered).to_json().decode() if registered is not None else "null"
        return subscription, shown, passes(subscription, registered)


def passes(subscription: SubscriptionData, registered: ConsumerFilter | None) -> Passes:
    """Filters by the hashes of tags, or the bit map for an expression; undecidable messages pass."""
    if subscription.expression_type not in TAG_KINDS:
        if registered is None:
            return lambda tags_code, unit: True
        property_filter = ExpressionFilter.of(registered)
        return lambda tags_code, unit: unit is None or property_filter.may_match(unit)
    if subscription.sub_string == ALL or subscription.class_filter_mode:
        return lambda tags_code, unit: True
    codes = subscription.code_set
    return lambda tags_code, unit: tags_code in codes


def _entry_view(entry: QueueEntry, is_given: Passes | None) -> ConsumeQueueData:
    unit = entry.unit
    missing = f"Cq extend not exist!addr: {entry.code}" if entry.has_unit and unit is None else None
    return ConsumeQueueData(
        entry.physical_offset,
        entry.size,
        entry.code,
        extend_data_json=_unit_json(unit) if unit is not None else None,
        bit_map=_bits(unit.bit_map) if unit is not None and unit.bit_map else None,
        eval=is_given is not None and unit is not None and is_given(unit.tags_code, unit),
        msg=missing,
    )


def _unit_json(unit: ExtUnit) -> str:
    """A unit as Java writes it."""
    fields: dict[str, object] = {"msgStoreTime": unit.store_timestamp_ms, "size": unit.size, "tagsCode": unit.tags_code}
    if unit.bit_map:
        fields["filterBitMap"] = base64.b64encode(unit.bit_map).decode()
    return json.dumps(dict(sorted(fields.items())), separators=(",", ":"))


def _bits(bit_map: bytes) -> str:
    """The bits, the highest first; a line ends before each byte that begins eight others."""
    return "".join(f"{bit_map[at]:08b}" + ("\n" if at % 8 == 0 else "") for at in reversed(range(len(bit_map))))
