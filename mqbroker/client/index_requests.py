"""Look-ups of unique keys in the brokers' index, and how far that has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mqbroker.client.errors import NoBrokerForTopic, TopicNotFound, UnexpectedResponse
from mqbroker.client.net import Net
from mqbroker.client.routes import Routes
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import KVTable, MessageQueue
from mqbroker.wire.codes import UNIQUE_MSG_QUERY_FLAG, Prop, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import QueryMessageRequestHeader
from mqbroker.wire.record import decode_records

#: A response has as many messages at most, as Java's defaultQueryMaxNum says. Keys of other messages may have the same
#: hash.
_FOUND_MAX = 32
#: Requests that are sent at once.
_TOGETHER_MAX = 64
_LATEST_MS = 2**63 - 1


class IndexRequests:
    """Requests to all brokers of a topic: to the master of each, or a slave where there is none."""

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
        messages of the same hash that the answer cannot be known.
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
        """Of each broker of `topic` where its log ends, and up to where messages are in its index.

        Raises as `find` does, and NoBrokerForTopic if a broker does not tell.
        """
        brokers = await self.brokers(topic)
        requests = [(addr, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)) for addr in brokers.values()]
        answers = await self._net.invoke_many(requests, self._timeout_ms)
        return {name: _position(topic, answer) for name, answer in zip(brokers, answers, strict=True)}


def _request(topic: str, key: str) -> RemotingCommand:
    header = QueryMessageRequestHeader(
        topic=topic, key=key, max_num=_FOUND_MAX, begin_timestamp=0, end_timestamp=_LATEST_MS
    )
    command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
    command.ext_fields[UNIQUE_MSG_QUERY_FLAG] = "true"
    return command


def _is_found(answer: RemotingCommand | MQError, queue: MessageQueue, key: str) -> bool:
    if isinstance(answer, MQError):
        raise answer
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return False
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(answer.code, answer.remark or "")
    records = decode_records(answer.body)
    if any(record.properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) == key for record in records):
        return True
    if len(records) >= _FOUND_MAX:
        why = f"its index has {len(records)} messages and more of the hash of key {key}, so that it cannot be found"
        raise UnexpectedResponse(queue, why)
    return False


def _position(topic: str, answer: RemotingCommand | MQError) -> tuple[int, int]:
    if isinstance(answer, MQError):
        raise answer
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(answer.code, answer.remark or "")
    table: Mapping[str, str] = KVTable.from_json(answer.body).table
    try:
        end = int(table["commitLogMaxOffset"])
        return end, end - int(table["dispatchBehindBytes"])
    except (KeyError, ValueError):
        raise NoBrokerForTopic(topic, "a broker does not say how far its index has come", True) from None
