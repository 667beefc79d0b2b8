"""Topic routes: the queues of a topic and the addresses of its brokers, from the name servers, cached.

`Route` is a value; `Routes` is the cache of a client, and `SharedRoutes` what clients with the same connections were
answered. A route that was good is kept while the name servers are away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial

import attrs

from mqbroker.client.address_server import is_url
from mqbroker.client.errors import (
    ClientClosed,
    ClientError,
    Creates,
    NameServerUnreachable,
    NoBrokerForTopic,
    TlsFailed,
    TopicNotFound,
)
from mqbroker.client.net import Net, Signal, Task
from mqbroker.errors import ConnectionClosed, MQError, Refused
from mqbroker.wire.bodies import BrokerData, ClusterInfo, MessageQueue, TopicList, TopicRouteData
from mqbroker.wire.body import ANSWERED_DIALECT_BYTES_MAX, BadBody
from mqbroker.wire.codes import AUTO_CREATE_TOPIC, MASTER_ID, Perm, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import GetRouteInfoRequestHeader
from mqbroker.wire.long_bodies import parse_long_body

log = logging.getLogger(__name__)

#: A route marked as stale is requested again after this long at the earliest.
_STALE_RETRY_S = 1.0
#: A route that a broker has left is requested again after this long, for some time: one that restarts is back soon.
_LEFT_RETRY_S, _LEFT_S = 3.0, 60.0
#: Time without a response after which the next name server is asked as well, seconds.
_SILENT_S = 0.3
#: A refresh uses the route that another client with the same connections requested within this time, seconds.
_SHARED_S = 1.0
#: Topics whose last routes are shared; those requested longest ago are dropped first.
_SHARED_MAX = 4096
#: Queues of one topic on all brokers, twice what one broker may have: a client makes an object for each, in 0.1 s.
ROUTE_QUEUES_MAX = 131_072


def java_order(text: str) -> bytes:
    """A key that sorts as Java's compareTo does: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """By topic, broker name and queue id, as Java sorts them."""
    return sorted(queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id))


@attrs.frozen
class Route:
    """The route of `topic`. `brokers` maps a broker name to addresses by broker id; `is_default` marks TBW102's
    route."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    is_default: bool = False
    clusters: frozenset[str] = frozenset()

    def master(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def any_address(self, broker_name: str, prefer_id: int = MASTER_ID) -> str | None:
        """The address of `prefer_id`, else the master's, else any other of the set."""
        addresses = self.brokers.get(broker_name, {})
        if prefer_id in addresses:
            return addresses[prefer_id]
        return next(
            (addresses[broker_id] for broker_id in (MASTER_ID, *sorted(addresses)) if broker_id in addresses), None
        )


def _addresses(datas: Iterable[BrokerData]) -> dict[str, Mapping[int, str]]:
    return {data.broker_name: dict(data.broker_addrs) for data in datas}


def route_of(topic: str, data: TopicRouteData, queues_max: int = ROUTE_QUEUES_MAX) -> Route:
    """Convert a name server's data, `queues_max` of the queues on each broker. Messages go to masters only: queues of a
    set without one are not published to."""
    brokers = _addresses(data.broker_datas)
    publish: list[MessageQueue] = []
    subscribe: list[MessageQueue] = []
    for each in sorted(data.queue_datas, key=lambda each: java_order(each.broker_name)):
        has_master = MASTER_ID in brokers.get(each.broker_name, {})
        writes = min(each.write_queue_nums, queues_max) if each.perm & Perm.WRITE and has_master else 0
        reads = min(each.read_queue_nums, queues_max) if each.perm & Perm.READ else 0
        queues = [MessageQueue(topic, each.broker_name, n) for n in range(max(writes, reads))]
        publish += queues[: max(0, writes)]
        subscribe += queues[: max(0, reads)]
    clusters = frozenset(each.cluster for each in data.broker_datas if each.cluster)
    return Route(topic, tuple(publish), tuple(subscribe), brokers, clusters=clusters)


def default_topic_route(topic: str, data: TopicRouteData, queues: int) -> Route:
    """The route of the auto-create topic, for sending to a `topic` that the send itself will create."""
    return attrs.evolve(route_of(topic, data, queues), subscribe_queues=(), is_default=True)


@attrs.define
class _Entry:
    """Cache entry of one topic: its route, or the error. One attempt at a time asks for it."""

    route: Route | None = None
    checked_at: float = 0.0
    #: When a request along the route failed, if one did.
    stale_at: float | None = None
    error: MQError | None = None
    asked: int = 0
    #: Brokers that have left the route, the last of them at `left_at`.
    left: frozenset[str] = frozenset()
    left_at: float = 0.0
    #: The waiters for the attempt under way, and whether that looks for the auto-create topic, too.
    waiters: list[Signal] = attrs.Factory(list)
    is_asking: bool = False
    creates: bool = False
    #: Callers of `get` that wait; later ones must not overtake them, even if the route has arrived.
    waiting: int = 0


@attrs.define(eq=False)
class _Asked:
    """The last request for a topic's route, made at `at`: the answer, and who waits for it."""

    at: float
    data: TopicRouteData | None = None
    route: Route | None = None
    waiters: list[Signal] | None = attrs.Factory(list)

    def end(self) -> None:
        waiters, self.waiters = self.waiters or (), None
        for signal in waiters:
            signal.set()


@attrs.define(eq=False)
class SharedRoutes:
    """What the clients that share connections know together: the name server that answered last, and the last request
    for each route."""

    answered_by: str = ""
    asked: dict[str, _Asked] = attrs.Factory(dict)

    def begin(self, topic: str, at: float) -> _Asked:
        """Note that a client asks for a topic's route."""
        self.asked.pop(topic, None)
        if len(self.asked) >= _SHARED_MAX:
            del self.asked[next(iter(self.asked))]
        asked = self.asked[topic] = _Asked(at)
        return asked


class Routes:
    """The routes of the topics in use, from the first of `name_servers` that answers.

    `age_s`: older routes are requested again on use; None if `refresh_all` is called regularly instead.
    """

    def __init__(
        self,
        net: Net,
        name_servers: tuple[str, ...],
        *,
        age_s: float | None,
        default_topic_queues: int = 4,
        create_topic_key: str = AUTO_CREATE_TOPIC,
        timeout_ms: int = 3000,
    ) -> None:
        self._net = net
        self._name_servers = name_servers
        self._age_s = age_s
        self._default_topic_queues = default_topic_queues
        self._create_topic_key = create_topic_key
        self._timeout_ms = timeout_ms
        self._entries: dict[str, _Entry] = {}
        self._first = net.rng.randrange(len(name_servers))
        self._url = name_servers[0] if is_url(name_servers[0]) else None

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers that were given, or that the address server listed last."""
        return self._name_servers

    async def _servers(self) -> list[str]:
        """The name servers, the one that answered last first. Raises NameServerUnreachable."""
        if self._url is not None and self._name_servers != (found := await self._net.name_servers(self._url)):
            self._name_servers, self._first = found, self._net.rng.randrange(len(found))
        last = self._net.routes.answered_by
        first = self._name_servers.index(last) if last in self._name_servers else self._first
        return [*self._name_servers[first:], *self._name_servers[:first]]

    async def check(self) -> None:
        """Raises NameServerUnreachable or TlsFailed unless a name server answers."""
        await self._ask(AUTO_CREATE_TOPIC)

    async def get(self, topic: str, *, create: bool = False, timeout_s: float | None = None) -> Route:
        """Return the route; with `create`, that of the auto-create topic if `topic` does not exist yet.

        Raises TopicNotFound or NameServerUnreachable, unless an older route is known.
        """
        route = self.known(topic, create=create)
        if route is not None:
            return route
        entry = self._entry(topic)
        entry.waiting += 1
        try:
            return await self._update(entry, topic, create=create, timeout_s=timeout_s)
        finally:
            entry.waiting -= 1

    def known(self, topic: str, *, create: bool = False) -> Route | None:
        """As `get`, but None if it would have to wait."""
        entry = self._entries.get(topic)
        return None if entry is None or entry.waiting or not self._is_good(entry, create) else entry.route

    def last(self, topic: str) -> Route | None:
        """The last route received, however old it is."""
        entry = self._entries.get(topic)
        return None if entry is None else entry.route

    async def refresh_all(self) -> None:
        """Request the route of every topic in use."""
        for topic, entry in list(self._entries.items()):
            if entry.route is not None:
                await self._update(entry, topic, create=entry.route.is_default)

    def mark_stale(self, topic: str) -> None:
        """Mark the route as stale, as a request along it failed: it is requested again early."""
        if topic in self._entries:
            self._entries[topic].stale_at = self._net.steady()

    def has_left(self, topic: str) -> bool:
        """Whether a broker has left the route lately, and is not back."""
        entry = self._entries.get(topic)
        return entry is not None and bool(entry.left) and self._net.steady() - entry.left_at < _LEFT_S

    def brokers(self) -> dict[str, Mapping[int, str]]:
        """All brokers of all routes in use."""
        routes = [entry.route for entry in self._entries.values() if entry.route is not None]
        return {name: addresses for route in routes for name, addresses in route.brokers.items()}

    async def address(self, queue: MessageQueue, prefer_id: int = MASTER_ID, *, master_only: bool = False) -> str:
        """The address for requests about `queue`. Raises NoBrokerForTopic if its broker has left."""
        route = self.known(queue.topic) or await self.get(queue.topic)
        if master_only:
            addr = route.master(queue.broker_name)
        else:
            addr = route.any_address(queue.broker_name, prefer_id)
        if addr is None:
            self.mark_stale(queue.topic)
            raise NoBrokerForTopic(queue.topic, f"the name server knows no address of broker {queue.broker_name}")
        return addr

    def _is_good(self, entry: _Entry, create: bool) -> bool:
        """Whether the entry's route needs no refresh."""
        if entry.route is None or (entry.route.is_default and not create):
            return False
        age = self._net.steady() - entry.checked_at
        if entry.stale_at is not None:
            return age < _STALE_RETRY_S
        if entry.left and age >= _LEFT_RETRY_S and self.has_left(entry.route.topic):
            return False
        return self._age_s is None or age < self._age_s

    def _entry(self, topic: str) -> _Entry:
        entry = self._entries.get(topic)
        if entry is None:
            entry = self._entries[topic] = _Entry()
        return entry

    async def _update(self, entry: _Entry, topic: str, *, create: bool, timeout_s: float | None = None) -> Route:
        """Ask the name servers; concurrent callers share one attempt, which goes on when one of them gives up."""
        until = None if timeout_s is None else self._net.steady() + timeout_s
        while True:
            asked = entry.asked
            if not entry.is_asking:
                entry.is_asking, entry.creates = True, create
                entry.error = ConnectionClosed("the client is closed") if entry.route is None else entry.error
                self._net.spawn(self._ask_for(entry, topic, create), partial(self._asked, entry))
            looked_for_default = entry.creates or not create
            if entry.asked == asked:
                await self._attempt_ended(entry, until, timeout_s)
            if entry.route is not None and (create or not entry.route.is_default):
                return entry.route
            if looked_for_default:
                raise entry.error or TopicNotFound(topic, self._name_servers, "they do not know it")

    async def _attempt_ended(self, entry: _Entry, until: float | None, timeout_s: float | None) -> None:
        signal = self._net.signal()
        entry.waiters.append(signal)
        try:
            left_s = None if until is None else max(0.0, until - self._net.steady())
            if not await signal.wait(left_s):
                why = f"no answer within the {timeout_s:.3g} s that were left"
                raise NameServerUnreachable([(addr, why) for addr in self._name_servers])
        finally:
            entry.waiters.remove(signal)

    async def _ask_for(self, entry: _Entry, topic: str, create: bool) -> None:
        try:
            former, entry.route, entry.error = entry.route, await self._fetch(entry, topic, create=create), None
            gone = (former or entry.route).brokers.keys() - entry.route.brokers.keys()
            entry.left = (entry.left | gone) - entry.route.brokers.keys()
            if gone:
                entry.left_at = self._net.steady()
        except MQError as error:
            if entry.route is not None:
                # Warn once: the next success may be many attempts away.
                level = logging.WARNING if entry.error is None else logging.DEBUG
                # Without advice on how to create the topic, which exists.
                why = error.describe() if isinstance(error, ClientError) else error
                log.log(level, "keeping the former route of %s: %s", topic, why)
            entry.error = error

    def _asked(self, entry: _Entry) -> None:
        """An attempt has ended."""
        entry.asked += 1
        entry.checked_at = self._net.steady()
        entry.stale_at, entry.is_asking = None, False
        for signal in entry.waiters:
            signal.set()

    async def _fetch(self, entry: _Entry, topic: str, *, create: bool) -> Route:
        shared, now = self._net.routes, self._net.steady()
        last = shared.asked.get(topic)
        after = max(entry.checked_at, entry.stale_at or 0.0)
        if entry.route is not None and last is not None and last.at > after and last.at >= now - _SHARED_S:
            if last.waiters is not None:
                last.waiters.append(signal := self._net.signal())
                await signal.wait(_SILENT_S)
            if last.route is not None:
                return last.route
        asked = shared.begin(topic, now)
        try:
            asked.data = await self._ask(topic)
            if asked.data is not None:
                known = last.route if last is not None and last.data == asked.data else None
                asked.route = known or route_of(topic, asked.data)
                return asked.route
        finally:
            asked.end()
        data = await self._ask(self._create_topic_key) if create else None
        if data is not None:
            return default_topic_route(topic, data, self._default_topic_queues)
        creates, more = (Creates.NO, ", and no broker creates topics on a send") if create else (Creates.PERHAPS, "")
        if await self._knows_no_broker():
            creates, more = Creates.NO_BROKER, ", nor any broker"
        raise TopicNotFound(topic, self._name_servers, f"they do not know it{more}", creates)

    async def _knows_no_broker(self) -> bool:
        """Whether the name server that answered last has no broker registered."""
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            answer = await self._net.invoke((await self._servers())[0], request, self._timeout_ms)
            return (
                answer.code == ResponseCode.SUCCESS
                and not ClusterInfo.from_json(answer.body, ANSWERED_DIALECT_BYTES_MAX).broker_addr_table
            )
        except MQError:
            return False

    async def topics(self, code: int = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) -> frozenset[str]:
        """The topics that the first name server to answer lists. Raises NameServerUnreachable."""
        errors: dict[str, MQError] = {}
        for addr in await self._servers():
            try:
                answer = await self._net.invoke(addr, RemotingCommand.request(code), self._timeout_ms)
                if answer.code != ResponseCode.SUCCESS:
                    raise Refused(answer.code, answer.remark or "")
                return TopicList.from_value(parse_long_body(answer.body, TopicList)).topic_list
            except MQError as error:
                errors[addr] = error
        raise self._none_answers(errors)

    async def _ask(self, topic: str) -> TopicRouteData | None:
        """Ask the name servers in turn, and the next one as well if one does not respond for a moment; None if those
        that respond do not know the topic."""
        addrs = await self._servers()
        outcomes: dict[str, TopicRouteData | MQError | None] = {}
        answered = self._net.signal()

        async def ask(addr: str) -> None:
            request = RemotingCommand.request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic)
            )
            try:
                outcomes[addr] = _read_answer(await self._net.invoke(addr, request, self._timeout_ms))
            except MQError as error:
                outcomes[addr] = error

        def ended(addr: str) -> None:
            outcomes.setdefault(addr, ConnectionClosed("the client is closed"))
            answered.set()

        tasks: list[Task] = []
        try:
            for addr in addrs:
                tasks.append(self._net.spawn(ask(addr), partial(ended, addr)))
                while True:
                    for found, data in outcomes.items():
                        if isinstance(data, TopicRouteData):
                            self._net.routes.answered_by = found
                            return data
                    if len(outcomes) == len(tasks):
                        break
                    is_last = len(tasks) == len(addrs)
                    if not await answered.wait(None if is_last else _SILENT_S):
                        break
        finally:
            for task in tasks:
                task.cancel()
        errors = {addr: error for addr in addrs if isinstance(error := outcomes[addr], MQError)}
        if len(errors) < len(addrs):
            return None
        raise self._none_answers(errors)

    def _none_answers(self, errors: Mapping[str, MQError]) -> MQError:
        if self._net.is_closed:
            return ClientClosed("this client was closed")
        if all(isinstance(error, TlsFailed) for error in errors.values()):
            return next(iter(errors.values()))  # they do respond, and the error says what to do
        return NameServerUnreachable([(addr, f"{type(error).__name__}: {error}") for addr, error in errors.items()])


def _read_answer(answer: RemotingCommand) -> TopicRouteData | None:
    """Raises Refused, and BadBody on a route that no name server has: one hostile broker may have registered it."""
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(answer.code, answer.remark or "")
    data = TopicRouteData.from_json(answer.body, ANSWERED_DIALECT_BYTES_MAX)
    names = {each.broker_name for each in data.queue_datas}
    if len(names) < len(data.queue_datas):
        raise BadBody("a route that has the queues of a broker twice")
    count = sum(max(0, each.read_queue_nums, each.write_queue_nums) for each in data.queue_datas)
    if count > ROUTE_QUEUES_MAX:
        raise BadBody(f"a route of {count} queues, {ROUTE_QUEUES_MAX} at most: who registered them?")
    return data
