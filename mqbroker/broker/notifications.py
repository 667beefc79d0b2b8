"""NOTIFY_CONSUMER_IDS_CHANGED, by which the consumers of a group learn at once that they must share their queues anew.

Whatever changes in a group before its consumers are told is told once. Of thousands of consumers some are told in each
turn of the clock, so that nobody waits for them; a group that changes meanwhile is told again when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import NotifyConsumerIdsChangedRequestHeader

#: So many consumers are told in one turn, a ms or two; the next comes so much later for each of them.
TURN_CONSUMERS = 100
SECONDS_EACH = 50e-6


class Notifications:
    """Tells the consumers of groups that their group has changed.

    :param consumers_of: the connections of a group's consumers; none where there is no such group.
    """

    def __init__(self, clock: IReactorTime, consumers_of: Callable[[str], Collection[IConnection]]) -> None:
        self._clock = clock
        self._consumers_of = consumers_of
        #: Groups that changed since their consumers were told, in that order.
        self._changed: dict[str, None] = {}
        self._under_way: Iterator[IConnection] = iter(())
        self._group = ""
        self._call: IDelayedCall | None = None
        self._is_stopped = False

    def changed(self, group: str) -> None:
        """The consumers of `group` are to be told, soon."""
        self._changed[group] = None
        if self._call is None and not self._is_stopped:
            self._call = self._clock.callLater(0, self._turn)

    def stop(self) -> None:
        """Tell nobody any more."""
        self._is_stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _turn(self) -> None:
        told = TURN_CONSUMERS
        try:
            told = self._tell_some()
        finally:
            # Also where nobody is left: what changes now is told when those before have been paid for.
            self._call = self._clock.callLater(told * SECONDS_EACH, self._turn) if told else None

    def _tell_some(self) -> int:
        """Tell as many as one turn may; returns how many those were."""
        for told in range(TURN_CONSUMERS):
            connection = self._next()
            if connection is None:
                return told
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=self._group)
            connection.invoke_oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))
        return TURN_CONSUMERS

    def _next(self) -> IConnection | None:
        """Who is to be told next; None where everybody was."""
        while (connection := next(self._under_way, None)) is None:
            if not self._changed:
                return None
            self._group = next(iter(self._changed))
            del self._changed[self._group]
            self._under_way = iter(list(self._consumers_of(self._group)))
        return connection
