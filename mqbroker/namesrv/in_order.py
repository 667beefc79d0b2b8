"""Work that takes more than a turn, one after another for each connection. It must never know what the work is."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from twisted.internet.defer import Deferred

from mqbroker.errors import Refused
from mqbroker.remoting.handlers import IConnection
from mqbroker.remoting.limits import Shares
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand

Work = Callable[[], Awaitable[RemotingCommand]]


class InOrder:
    """Runs the work of each connection in the order it came; that of different connections runs side by side.

    :param bytes_max: what the work that waits or runs may hold, of all connections together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._shares = Shares()
        self._waiting: dict[IConnection, deque[tuple[Work, int, Deferred[RemotingCommand]]]] = {}

    def is_busy(self, connection: IConnection) -> bool:
        return connection in self._waiting

    def run(self, connection: IConnection, work: Work, size: int) -> Deferred[RemotingCommand]:
        """Fire with what `work` gives. It holds `size` bytes. Raises Refused where too much waits already, of all or of
        this connection and its address."""
        if not self._shares.take(connection, size, self._bytes_max):
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._shares.taken} bytes of requests wait to be read")
        done: Deferred[RemotingCommand] = Deferred()
        waiting = self._waiting.get(connection)
        if waiting is not None:
            waiting.append((work, size, done))
        else:
            waiting = self._waiting[connection] = deque([(work, size, done)])
            Deferred.fromCoroutine(self._serve(connection, waiting))
        return done

    async def _serve(
        self, connection: IConnection, waiting: deque[tuple[Work, int, Deferred[RemotingCommand]]]
    ) -> None:
        # A loop, as one piece of work that began the next would nest as deep as a peer likes.
        while waiting:
            work, size, done = waiting.popleft()
            try:
                answer = await work()
            except Exception:
                done.errback()
            else:
                done.callback(answer)
            self._shares.give_back(connection, size)
        del self._waiting[connection]
