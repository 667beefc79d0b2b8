"""How much of filter expressions one connection may have read.

Reading takes some 4 us a character, in which nobody else is served; an expression that is kept is not read again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from mqbroker.errors import Refused
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.codes import ResponseCode

#: Of a connection that had nothing read for a while: a quarter of a second.
CHARACTERS_AT_ONCE = 65_536
CHARACTERS_PER_SECOND = 4_096

#: Called with the number of characters of an expression before it is read. Raises Refused.
Charge = Callable[[int], None]


class ReadingAllowance:
    """Keeps account by connection.

    :param now: seconds, of any clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: What was left of it, and when.
        self._left: WeakKeyDictionary[IConnection, tuple[float, float]] = WeakKeyDictionary()

    def of(self, connection: IConnection) -> Charge:
        """What an expression that `connection` brings is charged to."""
        return partial(self._charge, connection)

    def _charge(self, connection: IConnection, characters: int) -> None:
        now = self._now()
        left, since = self._left.get(connection, (CHARACTERS_AT_ONCE, now))
        left = min(CHARACTERS_AT_ONCE, left + (now - since) * CHARACTERS_PER_SECOND)
        if characters > left:
            remark = (
                f"filter expressions come too fast: {characters} characters more, where a connection may bring "
                f"{CHARACTERS_PER_SECOND} new ones a second; try again later"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        self._left[connection] = left - characters, now
