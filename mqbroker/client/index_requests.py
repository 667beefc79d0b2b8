"""Questions to brokers about messages and topics: look-ups in their index and how far that has come, and what Java's
clients inherit from MQAdmin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from mqbroker.client.errors import BadArgument, NoBrokerForTopic, TopicNotFound, UnexpectedResponse
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.names import bare_message, check_queue, check_topic, is_text, within
from mqbroker.client.net import Net, checked
from mqbroker.client.options import check_number, check_timestamp, to_timestamp
from mqbroker.client.routes import ROUTE_QUEUES_MAX, Routes
from mqbroker.errors import MQError
from mqbroker.wire.bodies import KVTable, MessageQueue
from mqbroker.wire.codes import AUTO_CREATE_TOPIC, UNIQUE_MSG_QUERY_FLAG, Perm, Prop, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    CreateTopicRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
    decode_header,
)
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.names import join_address
from mqbroker.wire.properties import split_keys
from mqbroker.wire.record import decode_records

#: A response has as many messages at most, as Java's defaultQueryMaxNum says. Keys of other messages may have the same
#: hash.
_FOUND_MAX = 32
#: Requests that are sent at once.
_TOGETHER_MAX = 64
_INDEX_TRIES, _INDEX_PAUSE_S = 10, 0.1
_LATEST_MS = 2**63 - 1
_YEAR_9999_MS = 253_370_764_800_000


class IndexRequests:
    """Requests to all brokers of a topic: to the master of each, or a slave without a master."""

    def __init__(self, net: Net, routes: Routes, timeout_ms: int) -> None:
        self._net = net
        self._routes = routes
        self._timeout_ms = timeout_ms

    async def brokers(self, topic: str) -> dict[str, str]:
        """The addresses of a topic's brokers, by name; none if the topic does not exist yet.

        Raises NameServerUnreachable.
        """
        try:
            route = await self._routes.get(topic)
        except TopicNotFound:
            return {}
        found = {name: route.any_address(name) for name in route.brokers}
        return {name: address for name, address in found.items() if address is not None}

    async def find(self, topic: str, keys: Sequence[str]) -> list[bool]:
        """Whether a message of `topic` with each of the unique keys is in the index of any of its brokers.

        Raises Refused, Unreachable where a broker does not answer, and UnexpectedResponse where the index has so many
        messages of the same hash that the result is unknown.
        """
        addresses = [*(await self.brokers(topic)).items()]
        found = [False] * len(keys)
        for name, address in addresses:
            left = [n for n, is_found in enumerate(found) if not is_found]
            for at in range(0, len(left), _TOGETHER_MAX):
                some = left[at : at + _TOGETHER_MAX]
                requests = [(address, _request(topic, keys[n])) for n in some]
                answers = await self._net.invoke_many(requests, self._timeout_ms)
                for n, answer in zip(some, answers, strict=True):
                    found[n] = _is_found(answer, MessageQueue(topic, name, 0), keys[n])
        return found

    async def positions(self, topic: str) -> dict[str, tuple[int, int]]:
        """For each broker of `topic`, the end of its log, and the offset up to which messages are in its index.

        Raises as `find` does, and NoBrokerForTopic if a broker does not report them.
        """
        brokers = await self.brokers(topic)
        requests = [(addr, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)) for addr in brokers.values()]
        answers = await self._net.invoke_many(requests, self._timeout_ms)
        return {name: _position(topic, answer) for name, answer in zip(brokers, answers, strict=True)}

    async def places(self, topic: str, key: str, *, is_unique: bool = True) -> list[tuple[MessageQueue, int]] | None:
        """The queues and offsets of the messages of `topic` with this unique key, or with this key, once the index has
        all that is in the log now; None if that takes more than a second, or the index may not find all of them.

        Raises as `positions` does.
        """
        ends = {name: end for name, (end, _) in (await self.positions(topic)).items()}
        for _ in range(_INDEX_TRIES):
            if all(indexed >= ends.get(name, 0) for name, (_, indexed) in (await self.positions(topic)).items()):
                break
            await self._net.sleep(_INDEX_PAUSE_S)
        else:
            return None
        brokers = await self.brokers(topic)
        request = _request(topic, key, is_unique=is_unique)
        answers = await self._net.invoke_many([(addr, request) for addr in brokers.values()], self._timeout_ms)
        found: list[tuple[MessageQueue, int]] = []
        for name, answer in zip(brokers, answers, strict=True):
            if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            records = decode_records(checked(answer).body)
            if len(records) >= _FOUND_MAX:
                return None
            for each in records:
                unique = each.properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
                keys = [unique] if is_unique else split_keys(each.properties.get(Prop.KEYS, ""))
                if each.topic == topic and key in keys:
                    found.append((MessageQueue(topic, name, each.queue_id), each.queue_offset))
        return found


class Queries:
    """What any client may ask. Topics are as the user knows them, without `namespace`."""

    def __init__(self, net: Net, routes: Routes, timeout_ms: int, namespace: str = "") -> None:
        self._net = net
        self._routes = routes
        self._timeout_ms = timeout_ms
        self._namespace = namespace

    async def create_topic(self, topic: str, queues: int = 4, *, like: str = AUTO_CREATE_TOPIC) -> None:
        """Create a topic on all brokers that have the topic `like`, by default those that create topics by themselves.
        If it exists, set its number of queues.

        Raises TopicNotFound if there are no such brokers, Refused or Unreachable if one of them does not create it.
        """
        check_topic(topic)
        check_number("queues", queues, 1, ROUTE_QUEUES_MAX)
        header = CreateTopicRequestHeader(
            topic=within(self._namespace, topic),
            default_topic=check_topic(like),
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=Perm.READ | Perm.WRITE,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        route = await self._routes.get(like)
        addresses = [addr for name in route.brokers if (addr := route.master(name)) is not None]
        if not addresses:
            raise NoBrokerForTopic(like, "no master of it is up", True)
        request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        for answer in await self._net.invoke_many([(addr, request) for addr in addresses], self._timeout_ms):
            checked(answer)

    async def message(self, topic: str, msg_id: str) -> ReceivedMessage | None:
        """Return the message of `topic` with this id: the producer's (`msg_id`) or the broker's (`offset_msg_id`).

        None if no message has it. Raises TopicNotFound, Refused, Unreachable, and BadArgument.
        """
        _check_text("msg_id", msg_id)
        found = await self._by_key(topic, msg_id, is_unique=True)
        if found:
            return found[0]
        try:
            store_host, offset = parse_offset_message_id(msg_id)
        except MQError:
            return None
        address = join_address(*store_host)
        route = await self._routes.get(within(self._namespace, check_topic(topic)))
        # Only brokers of the topic are asked: an id that is a producer's holds the address of that.
        for name, addresses in route.brokers.items():
            if address in addresses.values():
                request = RemotingCommand.request(
                    RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset)
                )
                answer = await self._net.invoke(address, request, self._timeout_ms)
                is_found = answer.code == ResponseCode.SUCCESS
                return next(iter(self._read(answer.body, name, route.topic)), None) if is_found else None
        return None

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
    ) -> list[ReceivedMessage]:
        """Return the messages of `topic` with `key` among their keys that were stored between the two times, oldest
        first; at most `max_count` of each broker. Times are datetimes with a zone, or milliseconds since the epoch.

        Raises TopicNotFound, Refused, Unreachable, and BadArgument.
        """
        _check_text("key", key)
        check_number("max_count", max_count, 1, 1024)
        times = [to_timestamp(0 if begin is None else begin), to_timestamp(_LATEST_MS if end is None else end)]
        for name, time in zip(("begin", "end"), times, strict=True):
            check_timestamp(name, time)
        return await self._by_key(topic, key, max_count, *times)

    async def first_store_time(self, queue: MessageQueue) -> datetime | None:
        """Return when the first message that a queue still has was stored; None if it has no message.

        Raises TopicNotFound, NoBrokerForTopic, Refused, Unreachable, and BadArgument.
        """
        check_queue(queue)
        within_namespace = MessageQueue(within(self._namespace, queue.topic), queue.broker_name, queue.queue_id)
        address = await self._routes.address(within_namespace)
        header = GetEarliestMsgStoretimeRequestHeader(topic=within_namespace.topic, queue_id=queue.queue_id)
        request = RemotingCommand.request(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        answer = checked(await self._net.invoke(address, request, self._timeout_ms))
        found = decode_header(GetEarliestMsgStoretimeResponseHeader, answer.ext_fields).timestamp
        return datetime.fromtimestamp(found / 1000, UTC) if 0 <= found < _YEAR_9999_MS else None

    async def _by_key(
        self,
        topic: str,
        key: str,
        max_count: int = _FOUND_MAX,
        begin: int = 0,
        end: int = _LATEST_MS,
        *,
        is_unique: bool = False,
    ) -> list[ReceivedMessage]:
        inside = within(self._namespace, check_topic(topic))
        route = await self._routes.get(inside)
        names = [(name, addr) for name in route.brokers if (addr := route.any_address(name)) is not None]
        request = _request(inside, key, max_count, begin, end, is_unique=is_unique)
        answers = await self._net.invoke_many([(addr, request) for _, addr in names], self._timeout_ms)
        found: list[ReceivedMessage] = []
        for (name, _), answer in zip(names, answers, strict=True):
            if isinstance(answer, MQError) or answer.code != ResponseCode.QUERY_NOT_FOUND:
                found += self._read(checked(answer).body, name, inside)
        # Others may have the same hash.
        same = [message for message in found if (message.msg_id == key if is_unique else key in message.keys)]
        return sorted(same, key=lambda message: message.store_timestamp_ms)

    def _read(self, records: bytes, broker_name: str, topic: str) -> list[ReceivedMessage]:
        """The messages that are stored in `topic`, or were sent to it, without the namespace."""
        messages, _, _ = ReceivedMessage.read(records, broker_name)
        return [bare_message(self._namespace, each) for each in messages if topic in (each.topic, each.queue.topic)]


def _check_text(name: str, value: object) -> None:
    """Raises BadArgument."""
    if not value or not is_text(value):
        raise BadArgument(name, "text that UTF-8 can encode", value)


def _request(
    topic: str, key: str, max_count: int = _FOUND_MAX, begin: int = 0, end: int = _LATEST_MS, *, is_unique: bool = True
) -> RemotingCommand:
    header = QueryMessageRequestHeader(
        topic=topic, key=key, max_num=max_count, begin_timestamp=begin, end_timestamp=end
    )
    command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
    command.ext_fields[UNIQUE_MSG_QUERY_FLAG] = "true" if is_unique else "false"
    return command


def _is_found(answer: RemotingCommand | MQError, queue: MessageQueue, key: str) -> bool:
    if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.QUERY_NOT_FOUND:
        return False
    records = decode_records(checked(answer).body)
    if any(record.properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) == key for record in records):
        return True
    if len(records) >= _FOUND_MAX:
        why = f"its index has {len(records)} messages and more of the hash of key {key}, so that it cannot be found"
        raise UnexpectedResponse(queue, why, is_of_index=True)
    return False


def _position(topic: str, answer: RemotingCommand | MQError) -> tuple[int, int]:
    table: Mapping[str, str] = KVTable.from_json(checked(answer).body).table
    try:
        end = int(table["commitLogMaxOffset"])
        return end, end - int(table["dispatchBehindBytes"])
    except (KeyError, ValueError):
        raise NoBrokerForTopic(topic, "a broker does not report how far its index is", True) from None
