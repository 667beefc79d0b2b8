"""Registry of the connected producers and consumers of each group, from heartbeats, and notification of group changes.

NOTIFY_CONSUMER_IDS_CHANGED makes the consumers of a group rebalance. Changes of a group before its consumers are
notified are combined into one notification. Large groups are notified in batches, one per reactor turn, so that other
work is not delayed; a group that changes meanwhile is queued again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mqbroker.broker.live_settings import LiveSettings, full
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.bodies import ConsumerData, SubscriptionData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import NotifyConsumerIdsChangedRequestHeader

log = Logger()


#: Consumers notified in one turn, which takes a ms or two; the next turn is delayed by SECONDS_EACH for each of them.
TURN_CONSUMERS = 100
SECONDS_EACH = 50e-6
#: A client that sends no heartbeat for a group for this long is removed from it.
CLIENT_EXPIRY_SECONDS = 120.0
NO_HEARTBEAT = "{client} sent no heartbeat for group {group} in {seconds:.0f} s and is removed from it"
CLIENT_ID_LENGTH_MAX = 255
#: The limit of subscriptions of all groups together, as a multiple of clientsMax.
SUBSCRIPTIONS_PER_CLIENT = 10
#: Bytes of the texts of these subscriptions: a million of them have 60 each.
SUBSCRIPTION_BYTES_MAX = 64 * 1024 * 1024
#: Memory of a tag besides its text: its hash, and its places in two sets.
TAG_COST_BYTES = 100


class Notifications:
    """Notifies consumers that their group has changed.

    :param consumers_of: returns the connections of a group's consumers; empty if there is no such group.
    """

    def __init__(self, clock: IReactorTime, consumers_of: Callable[[str], Collection[IConnection]]) -> None:
        self._clock = clock
        self._consumers_of = consumers_of
        #: Groups that changed since their consumers were notified, oldest change first.
        self._changed: dict[str, None] = {}
        self._under_way: Iterator[IConnection] = iter(())
        self._group = ""
        self._call: IDelayedCall | None = None
        self._is_stopped = False

    def changed(self, group: str) -> None:
        """Schedule a notification of the consumers of `group`."""
        self._changed[group] = None
        if self._call is None and not self._is_stopped:
            self._call = self._clock.callLater(0, self._turn)

    def stop(self) -> None:
        """Stop notifying."""
        self._is_stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _turn(self) -> None:
        told = TURN_CONSUMERS
        try:
            told = self._notify_some()
        finally:
            # Also when the last batch is done, so that later changes wait for the next turn.
            self._call = self._clock.callLater(told * SECONDS_EACH, self._turn) if told else None

    def _notify_some(self) -> int:
        """Notify up to TURN_CONSUMERS consumers; returns how many were notified."""
        for told in range(TURN_CONSUMERS):
            connection = self._next()
            if connection is None:
                return told
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=self._group)
            connection.invoke_oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))
        return TURN_CONSUMERS

    def _next(self) -> IConnection | None:
        """The next consumer to notify; None if all were notified."""
        while (connection := next(self._under_way, None)) is None:
            if not self._changed:
                return None
            self._group = next(iter(self._changed))
            del self._changed[self._group]
            self._under_way = iter(list(self._consumers_of(self._group)))
        return connection


def check_client_id(client_id: str) -> str:
    """Return `client_id`; raise Refused if it is empty or too long."""
    if not client_id or len(client_id) > CLIENT_ID_LENGTH_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the client id must have 1 to {CLIENT_ID_LENGTH_MAX} characters")
    return client_id


@attrs.define
class Client:
    """One client of one group, on its connection."""

    client_id: str
    language: int
    version: int
    #: When its last heartbeat came, seconds of the registry's clock.
    last_seen: float
    #: The account it authenticated as; None without access control.
    account: str | None = None


@attrs.define
class ConsumerGroup:
    """The connected clients and the subscriptions of a consumer group."""

    consume_type: str
    message_model: str
    consume_from_where: str
    clients: dict[IConnection, Client] = attrs.field(factory=dict)
    subscriptions: dict[str, SubscriptionData] = attrs.field(factory=dict)
    #: Size of the subscriptions' texts.
    text_bytes: int = 0
    #: The ids of members of the run before, whose heartbeats are awaited.
    expected: dict[str, None] = attrs.field(factory=dict)

    def client_ids(self) -> list[str]:
        """The ids of all members, with the expected ones."""
        return list(dict.fromkeys([*(client.client_id for client in self.clients.values()), *self.expected]))


class ConsumerRegistry:
    """Consumer groups by name, limited to clientsMax consumers in total.

    :param clock: its seconds are of a clock that is never set.
    :param on_gone: called with the name of a group when its last consumer is removed.
    """

    def __init__(self, clock: IReactorTime, live: LiveSettings, on_gone: Callable[[str], None]) -> None:
        self._live = live
        self._on_gone = on_gone
        self._count = 0
        self._subscriptions = 0
        self._text_bytes = 0
        self._joined: dict[IConnection, set[str]] = {}
        self._now = clock.seconds
        self._notifications = Notifications(clock, self._connections)
        self._groups: dict[str, ConsumerGroup] = {}
        #: Called when a group's message model or subscriptions changed, or it is gone.
        self.on_change: list[Callable[[], None]] = []
        #: Whether members joined or left since it was last set to False.
        self.is_changed = False
        self._is_frozen = False

    def group(self, name: str) -> ConsumerGroup | None:
        """A group that is online; None if it has no connected client."""
        group = self._groups.get(name)
        return group if group is not None and group.clients else None

    def known(self, name: str) -> ConsumerGroup | None:
        """A group that is online, or whose members are expected."""
        return self._groups.get(name)

    def members(self) -> Iterator[tuple[ConsumerData, list[str]]]:
        """Each group, with the ids of its members."""
        for name, group in self._groups.items():
            subscriptions = list(group.subscriptions.values())
            kind = group.consume_type, group.message_model, group.consume_from_where
            yield ConsumerData(name, *kind, subscriptions), group.client_ids()

    def expect(self, data: ConsumerData, client_ids: Iterable[str]) -> None:
        """Count these clients as members until they come, or until `expect_no_more`."""
        group = ConsumerGroup(data.consume_type, data.message_model, data.consume_from_where)
        group.subscriptions = _newest({}, data.subscription_data_set)
        group.expected = dict.fromkeys(client_ids)
        if group.expected:
            self._groups[data.group_name] = group
            group.text_bytes = sum(map(_text_bytes, group.subscriptions.values()))
            self._subscriptions += len(group.subscriptions)
            self._text_bytes += group.text_bytes

    def expect_no_more(self) -> None:
        """Remove the clients that were expected and did not come."""
        for name, group in list(self._groups.items()):
            for client_id in list(group.expected):
                log.info("consumer {client} of {group} did not reconnect", client=client_id, group=name)
                self.leave_before_joining(client_id, name)

    def leave_before_joining(self, client_id: str, group_name: str, notify: bool = True) -> None:
        """Remove a client that is only expected."""
        group = self._groups.get(group_name)
        if group is not None and client_id in group.expected:
            del group.expected[client_id]
            self._left(group_name, group, notify)

    def freeze(self) -> None:
        """Keep the members as they are though connections close."""
        self._is_frozen = True

    def find(self, group_name: str, client_id: str) -> tuple[IConnection, Client] | None:
        """The connection of one client of a group, and the client; None if it is not online.

        If the client has several connections, it is the one that joined last of those that are open.
        """
        group = self._groups.get(group_name)
        if group is not None:
            for connection, client in reversed(group.clients.items()):
                if client.client_id == client_id and not connection.closed:
                    return connection, client
        return None

    def names(self) -> list[str]:
        """The groups online."""
        return [name for name, group in self._groups.items() if group.clients]

    def groups_subscribed(self, topic: str) -> list[str]:
        """The groups online that subscribe to a topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def has_left(self, group_name: str, topic: str) -> bool:
        """Whether a group is online and subscribes to topics, but not to this one."""
        group = self._groups.get(group_name)
        return group is not None and bool(group.subscriptions) and topic not in group.subscriptions

    def register(
        self, connection: IConnection, client_id: str, language: int, version: int, data: ConsumerData, notify: bool
    ) -> None:
        """Register one group of a heartbeat. With `notify`, its consumers are notified if the client is new or the
        group's topics changed.

        Raises Refused if there are too many clients or subscriptions.
        """
        group = self._groups.get(data.group_name)
        # Those that are kept because they are newer count, not what the heartbeat has of these topics.
        subscriptions = _newest({} if group is None else group.subscriptions, data.subscription_data_set)
        text_bytes = sum(map(_text_bytes, subscriptions.values()))
        self._check_room(group, connection, len(subscriptions), text_bytes)
        if group is None:
            group = ConsumerGroup(data.consume_type, data.message_model, data.consume_from_where)
            self._groups[data.group_name] = group
        before = group.message_model, group.subscriptions
        kept = group.consume_type, group.consume_from_where
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        is_new = connection not in group.clients
        group.clients[connection] = Client(client_id, language, version, self._now())
        changed = is_new and client_id not in group.expected
        group.expected.pop(client_id, None)
        if is_new:
            self.is_changed = True
            self._count += 1
            self._joined.setdefault(connection, set()).add(data.group_name)
            log.info("consumer {client} joins {group}", client=client_id, group=data.group_name)
        changed |= subscriptions.keys() != group.subscriptions.keys()
        self._subscriptions += len(subscriptions) - len(group.subscriptions)
        group.subscriptions = subscriptions
        self._text_bytes += text_bytes - group.text_bytes
        group.text_bytes = text_bytes
        if before != (group.message_model, group.subscriptions):
            self.is_changed = True
            self._tell_changed()
        elif kept != (group.consume_type, group.consume_from_where):
            self.is_changed = True
        if changed and notify:
            self._notify(data.group_name)

    def _check_room(
        self, group: ConsumerGroup | None, connection: IConnection, subscriptions: int, text_bytes: int
    ) -> None:
        clients_max = self._live.current.clients_max
        if (group is None or connection not in group.clients) and self._count >= clients_max:
            raise full("consumers", self._count, "clientsMax")
        more = subscriptions - (len(group.subscriptions) if group is not None else 0)
        if more > 0 and self._subscriptions + more > SUBSCRIPTIONS_PER_CLIENT * clients_max:
            raise full("subscriptions", self._subscriptions, f"{SUBSCRIPTIONS_PER_CLIENT} times clientsMax")
        more = text_bytes - (group.text_bytes if group is not None else 0)
        if more > 0 and self._text_bytes + more > SUBSCRIPTION_BYTES_MAX:
            remark = (
                f"the subscriptions of all consumers have {self._text_bytes} bytes, {SUBSCRIPTION_BYTES_MAX} at most"
            )
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{remark}: subscribe to fewer tags")

    def unregister(self, connection: IConnection, group_name: str, notify: bool = True) -> None:
        """Remove `connection` from one group."""
        group = self._groups.get(group_name)
        if group is None or (client := group.clients.pop(connection, None)) is None:
            return
        self._count -= 1
        _leave(self._joined, connection, group_name)
        log.info("consumer {client} leaves {group}", client=client.client_id, group=group_name)
        self._left(group_name, group, notify)

    def _left(self, group_name: str, group: ConsumerGroup, notify: bool) -> None:
        """A member has left; without any the group is gone."""
        self.is_changed = True
        if not group.clients and not group.expected:
            self._subscriptions -= len(group.subscriptions)
            self._text_bytes -= group.text_bytes
            del self._groups[group_name]
            self._tell_changed()
            self._on_gone(group_name)
        elif notify:
            self._notify(group_name)

    def connection_closed(self, connection: IConnection) -> None:
        """Remove `connection` from all groups."""
        if self._is_frozen:
            return
        for name in list(self._joined.get(connection, ())):
            self.unregister(connection, name)

    def expire(self) -> None:
        """Remove consumers whose heartbeats stopped. Their connections stay open: others may use them too."""
        deadline = self._now() - CLIENT_EXPIRY_SECONDS
        for name, group in list(self._groups.items()):
            for connection, client in list(group.clients.items()):
                if client.last_seen <= deadline:
                    log.info(NO_HEARTBEAT, client=client.client_id, group=name, seconds=CLIENT_EXPIRY_SECONDS)
                    self.unregister(connection, name)

    def stop(self) -> None:
        """Stop notifying."""
        self._notifications.stop()

    def _tell_changed(self) -> None:
        for callback in self.on_change:
            callback()

    def _notify(self, name: str) -> None:
        if self._live.current.notify_consumer_ids_changed_enable:
            self._notifications.changed(name)

    def _connections(self, name: str) -> Collection[IConnection]:
        group = self._groups.get(name)
        return () if group is None else group.clients


def _text_bytes(subscription: SubscriptionData) -> int:
    """An upper bound of the memory that it takes besides its members."""
    tags = subscription.tags_set
    return (
        len(subscription.sub_string) + sum(map(len, tags)) + TAG_COST_BYTES * (len(tags) + len(subscription.code_set))
    )


def _newest(
    known: Mapping[str, SubscriptionData], subscriptions: Iterable[SubscriptionData]
) -> dict[str, SubscriptionData]:
    """The subscriptions of a heartbeat by topic; known ones in place of those that are not newer."""
    by_topic = {subscription.topic: subscription for subscription in subscriptions}
    for topic, subscription in by_topic.items():
        former = known.get(topic)
        if former is not None and former.sub_version >= subscription.sub_version:
            by_topic[topic] = former
    return by_topic


@attrs.define
class _Holder:
    """A connection with a client id: in how many groups it has it, and the account of its last heartbeat."""

    account: str | None
    groups: int = 0


class ProducerRegistry:
    """Producers of each group by connection, limited to clientsMax in total."""

    def __init__(self, now: Callable[[], float], live: LiveSettings) -> None:
        """`now` returns seconds of a clock that is never set."""
        self._now = now
        self._live = live
        self._count = 0
        self._joined: dict[IConnection, set[str]] = {}
        self._groups: dict[str, dict[IConnection, Client]] = {}
        #: The connections with each client id; the one that sent the last heartbeat is the last.
        self._holders: dict[str, dict[IConnection, _Holder]] = {}
        self._chosen = 0

    def group(self, name: str) -> dict[IConnection, Client]:
        return self._groups.get(name, {})

    def groups(self) -> dict[str, dict[IConnection, Client]]:
        """All groups with their producers; callers must not change it."""
        return self._groups

    def find(self, client_id: str) -> IConnection | None:
        """The connection of the producer with this id; of several open ones, that of the last heartbeat."""
        holders = reversed(self._holders.get(client_id, {}))
        return next((connection for connection in holders if not connection.closed), None)

    def choose(self, name: str, is_fit: Callable[[str | None], bool] = lambda account: True) -> IConnection | None:
        """Return the connection of a producer of the group whose account is fit, round robin; None without one."""
        clients = list(self.group(name).items())
        self._chosen += 1
        for at in range(self._chosen, self._chosen + len(clients)):
            connection, client = clients[at % len(clients)]
            if not connection.closed and is_fit(client.account):
                return connection
        return None

    def register(
        self,
        connection: IConnection,
        client_id: str,
        language: int,
        version: int,
        group_name: str,
        account: str | None = None,
    ) -> None:
        """Register one group of a heartbeat.

        Raises Refused if there are too many clients, or if the client id is in use by another account: its replies
        would go to an impostor."""
        others = self._holders.get(client_id, {})
        for other, holder in reversed(others.items()):
            if other is connection or other.closed:
                continue
            if holder.account != account:
                remark = f"the client id {client_id} is that of another account's client"
                raise Refused(ResponseCode.SYSTEM_ERROR, remark)
            break  # all other open connections have the account of this one
        known = self._groups.get(group_name, {}).get(connection)
        if known is None:
            if self._count >= self._live.current.clients_max:
                raise full("producers", self._count, "clientsMax")
            self._count += 1
            self._joined.setdefault(connection, set()).add(group_name)
        elif known.client_id != client_id:
            self._release_id(known.client_id, connection)
        self._groups.setdefault(group_name, {})[connection] = Client(client_id, language, version, self._now(), account)
        holders = self._holders.setdefault(client_id, {})
        holder = holders.pop(connection) if connection in holders else _Holder(account)
        holder.account = account
        if known is None or known.client_id != client_id:
            holder.groups += 1
        holders[connection] = holder

    def _release_id(self, client_id: str, connection: IConnection) -> None:
        """One group of `connection` does not have the client id any more."""
        holders = self._holders[client_id]
        holders[connection].groups -= 1
        if not holders[connection].groups:
            del holders[connection]
            if not holders:
                del self._holders[client_id]

    def unregister(self, connection: IConnection, group_name: str) -> None:
        clients = self._groups.get(group_name)
        if clients is None or (client := clients.pop(connection, None)) is None:
            return
        self._count -= 1
        _leave(self._joined, connection, group_name)
        if not clients:
            del self._groups[group_name]
        self._release_id(client.client_id, connection)

    def connection_closed(self, connection: IConnection) -> None:
        for name in list(self._joined.get(connection, ())):
            self.unregister(connection, name)

    def silent_s(self, client: Client) -> float:
        """Seconds since its last heartbeat."""
        return self._now() - client.last_seen

    def expire(self) -> None:
        """Remove producers whose heartbeats stopped. Their connections stay open: others may use them too."""
        deadline = self._now() - CLIENT_EXPIRY_SECONDS
        for name, clients in list(self._groups.items()):
            for connection, client in list(clients.items()):
                if client.last_seen <= deadline:
                    log.info(NO_HEARTBEAT, client=client.client_id, group=name, seconds=CLIENT_EXPIRY_SECONDS)
                    self.unregister(connection, name)


def _leave(joined: dict[IConnection, set[str]], connection: IConnection, group_name: str) -> None:
    groups = joined[connection]
    groups.discard(group_name)
    if not groups:
        del joined[connection]
