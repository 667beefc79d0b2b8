"""The entries of one consume queue as they are on the disk, and which of them a group would be given: code 321."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from mqbroker.broker.clients import ConsumerRegistry
from mqbroker.broker.filters import TAG_KINDS, ConsumerFilter, FilterTable, filter_data
from mqbroker.broker.matching import ExpressionMatching
from mqbroker.broker.subscriptions import ALL
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.walks import Walks
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.store.message_store import MessageStore
from mqbroker.store.queries import QueueEntry
from mqbroker.wire.admin_bodies import ConsumeQueueData, QueryConsumeQueueResponseBody
from mqbroker.wire.bodies import SubscriptionData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import QueryConsumeQueueRequestHeader, decode_header

#: As many entries are shown at most, however many are asked for.
ENTRIES_MAX = 10_000

#: Whether an entry with this tags code, or with this unit, is given to a group, as far as a queue can tell.
Passes = Callable[[int, ExtUnit | None], bool]


def passes(wanted: SubscriptionData, registered: ConsumerFilter | None) -> Passes:
    """By the hashes of tags, or the bit map for an expression; what a queue cannot tell passes."""
    if wanted.expression_type not in TAG_KINDS:
        if registered is None:
            return lambda tags_code, unit: True
        matching = ExpressionMatching.of(registered)
        return lambda tags_code, unit: unit is None or matching.may_match(unit)
    if wanted.sub_string == ALL or wanted.class_filter_mode:
        return lambda tags_code, unit: True
    codes = wanted.code_set
    return lambda tags_code, unit: tags_code in codes


class QueueEntriesProcessor:
    """Shows entries of consume queues."""

    def __init__(self, consumers: ConsumerRegistry, filters: FilterTable, store: MessageStore, walks: Walks) -> None:
        self._consumers = consumers
        self._filters = filters
        self._store = store
        self._walks = walks

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.QUERY_CONSUME_QUEUE, self._walks.bounded(self.entries))

    async def entries(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Entries from `index` on; for a group that is online with whether each would pass its filter."""
        header = decode_header(QueryConsumeQueueRequestHeader, request.ext_fields)
        topic, queue_id = header.topic or "", header.queue_id
        bounds = self._store.bounds(topic, queue_id)
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
                await self._walks.step()
                entry = await self._store.queries.queue_entry(topic, queue_id, offset)
                if entry is None:  # aged away meanwhile
                    break
                shown.append(_shown(entry, is_given))
        body = QueryConsumeQueueResponseBody(subscription, filter_text, shown, end, start)
        return RemotingCommand.response(request, remark=remark, body=await self._walks.written(body))

    def _filter(self, group: str | None, topic: str) -> tuple[SubscriptionData | None, str | None, Passes | None]:
        if group is None:
            return None, None, None
        online = self._consumers.group(group)
        subscription = online.subscriptions.get(topic) if online is not None else None
        if subscription is None:
            return None, f"{group}@{topic} is not online!", None
        registered = self._filters.get(topic, group)
        # As Java writes it where there is none.
        shown = filter_data(registered).to_json().decode() if registered is not None else "null"
        return subscription, shown, passes(subscription, registered)


def _shown(entry: QueueEntry, is_given: Passes | None) -> ConsumeQueueData:
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
