"""What a member of a group has beside its listener: the observers of its options, its namespace, its filters, and the
trace of what it consumes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from mqbroker.client.hooks import Filters
from mqbroker.client.identity import Identity
from mqbroker.client.lag import Lag
from mqbroker.client.names import bare
from mqbroker.client.net import Ending, Net, every
from mqbroker.client.observers import ConsumeObserver, InNamespace, Observers
from mqbroker.client.options import MemberOptions, ProducerOptions
from mqbroker.client.producer import ProducerCore
from mqbroker.client.trace import Tracer
from mqbroker.wire.codes import INNER_TRACE_PRODUCER_PREFIX


class MemberObservers(Observers):
    """The observers of one member of `group`."""

    def __init__(
        self, net: Net, name_servers: tuple[str, ...], group: str, options: MemberOptions, identity: Identity
    ) -> None:
        self._net = net
        self._group = group
        self._options = options
        self._identity = identity
        self._tracer: Tracer | None = None
        if options.trace_topic:
            traces = f"{INNER_TRACE_PRODUCER_PREFIX}-{bare(group)}"
            producer = ProducerCore(net, name_servers, traces, ProducerOptions(), identity)
            self._tracer = Tracer(net, options.trace_topic, producer.send_unseen)
        doors = [InNamespace(options.namespace)] if options.namespace else []
        super().__init__([*doors, *options.observers, *filter(None, [self._tracer])], net.steady)
        self.filters = Filters(options.observers, group, options.namespace, net.steady)
        self._measuring = [each for each in self.consumers() if type(each).lagging is not ConsumeObserver.lagging]

    def loops(self, lag: Callable[[], Awaitable[Lag]]) -> list[Coroutine[Any, Any, None]]:
        """What runs as long as the member does."""
        found = []
        if self._tracer is not None:
            found.append(self._tracer.run())
        if self._measuring:

            async def measure() -> None:
                self._tell(await lag())

            found.append(every(self._net, self._options.lag_s, measure))
        return found

    async def close(self, ending: Ending, *, left: int) -> None:
        """The member is closed."""
        self._tell(Lag({}))
        if self._tracer is not None:
            await ending.step(self._tracer.unsent, self._tracer.flush(), left=left)

    def _tell(self, lag: Lag) -> None:
        for each in self._measuring:
            self._call(each.lagging, self._group, self._identity.client_id, lag)
