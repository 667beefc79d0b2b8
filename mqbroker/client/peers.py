"""Members of one group on one event loop: a program is warned if they have different subscriptions.

Java's client (4.9.7) refuses the second member if it broadcasts, and is silent otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import count
from weakref import WeakValueDictionary

from mqbroker.wire.bodies import SubscriptionData
from mqbroker.wire.codes import RETRY_PREFIX

log = logging.getLogger(__name__)

#: Members whose subscriptions changed within this time, seconds, are not compared: a program changes one by one.
_CHANGING_S = 5.0
#: Longest text of a member's subscriptions in a warning.
_SHOWN_MAX = 200

_numbers = count()
#: The members that have joined, in the order of joining.
_joined: WeakValueDictionary[int, Peer] = WeakValueDictionary()


class Peer:
    """A member of `group`, as the other members on its event loop see it."""

    def __init__(
        self,
        group: str,
        client_id: Callable[[], str],
        subscriptions: Mapping[str, SubscriptionData],
        steady: Callable[[], float],
    ) -> None:
        """`subscriptions` always has the member's present ones; `steady` is a clock that is never set."""
        self.group = group
        self.client_id = client_id
        self.home: Hashable = None
        self.name_servers: frozenset[str] = frozenset()
        self._subscriptions = subscriptions
        self._steady = steady
        self._changed_at = float("-inf")
        self._has_warned = False

    def join(self, home: Hashable, name_servers: tuple[str, ...]) -> None:
        """From now on members that join later on the event loop `home` compare themselves with this one."""
        self.home, self.name_servers = home, frozenset(name_servers)
        self.changed()
        _joined[next(_numbers)] = self

    def leave(self) -> None:
        """From now on it is not compared."""
        self.name_servers = frozenset()

    def changed(self) -> None:
        """Called when the subscriptions have changed."""
        self._changed_at = self._steady()

    @property
    def is_changing(self) -> bool:
        """Whether the subscriptions have just changed."""
        return self._steady() - self._changed_at < _CHANGING_S

    def wanted(self) -> dict[str, tuple[str, frozenset[str] | str]]:
        """Its subscriptions by topic, without the group's retry topic: the tags (none: all messages), or an expression
        of another type."""
        return {
            topic: (each.expression_type, each.tags_set if each.expression_type == "TAG" else each.sub_string)
            for topic, each in self._subscriptions.items()
            if not topic.startswith(RETRY_PREFIX)
        }

    def shown(self) -> str:
        """Its subscriptions as a warning shows them."""
        each = (f"{topic} ({self._subscriptions[topic].sub_string})" for topic in sorted(self.wanted()))
        text = ", ".join(each) or "none"
        return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."

    def compare(self) -> None:
        """Warn, once, if a member that joined before this one has other subscriptions."""
        if self.is_changing:
            return
        wanted = self.wanted()
        other = next((peer for peer in self._earlier() if peer.wanted() != wanted), None)
        if other is not None and not self._has_warned:
            log.warning(
                "group %s has members with different subscriptions in this process: %s has %s, and %s has %s. Brokers"
                " treat all members of a group alike, so that each may miss messages that only it subscribes to:"
                " subscribe both to the same topics with the same expressions, or give each a group of its own",
                self.group,
                other.client_id(),
                other.shown(),
                self.client_id(),
                self.shown(),
            )
        self._has_warned = other is not None

    def _earlier(self) -> Iterator[Peer]:
        for ref in _joined.valuerefs():
            peer = ref()
            if peer is self:
                return
            if peer is not None and peer.is_beside(self):
                yield peer

    def is_beside(self, other: Peer) -> bool:
        """Whether both are members of one group, and may be compared."""
        return (
            (self.home, self.group) == (other.home, other.group)
            and not self.name_servers.isdisjoint(other.name_servers)
            and not self.is_changing
        )
