"""What the three faces share: where a client's methods find the core that does the work.

A face makes its methods from the cores' coroutines, one line each, by its own `call`: `send = call(ProducerCore.send,
started)`. Parameters, types and docstrings are the core's.
"""

from __future__ import annotations

import functools
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from mqbroker.client.broker_requests import MemberRequests, PullConsumerRequests
from mqbroker.client.hooks import Hooks
from mqbroker.client.identity import Identity
from mqbroker.client.instance import Asked, share
from mqbroker.client.loop_net import LoopNet
from mqbroker.client.names import check_group
from mqbroker.client.options import ClientOptions, parse_name_servers
from mqbroker.client.producer import ProducerCore
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.client.running_info import thread_stacks
from mqbroker.client.transactions import TransactionCore
from mqbroker.wire.bodies import MessageQueue

P = ParamSpec("P")
T = TypeVar("T")

#: The core of a client.
core = attrgetter("_core")
#: The network of a client.
net_of: Callable[[Any], LoopNet] = attrgetter("_core._net")
#: The offset requests of a pull consumer's core.
offsets = attrgetter("_core.offsets")
#: The questions of any client's core.
queries = attrgetter("_core.queries")


def started(client: Any) -> ProducerCore:
    """The core of a producer. Raises ClientClosed if it is not started, or was closed."""
    producer: ProducerCore = core(client)
    return producer.started()


def transactions(client: Any) -> TransactionCore:
    """As `started`, of a producer of transactions."""
    started(client)
    found: TransactionCore = core(client)
    return found


@contextmanager
def on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """On the main thread, call `stop` at each SIGINT and SIGTERM instead of their usual effect."""
    former: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # another thread
        for number in (signal.SIGINT, signal.SIGTERM):
            former[number] = signal.signal(number, lambda number, frame: stop())
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class Named:
    """Shows a client by its kind and group. Its methods have their own names, not those of the cores, as in a TypeError
    for wrong arguments."""

    _group: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, shown in vars(cls).items():
            method = getattr(shown, "__wrapped__", None)
            if method is not None:
                public = shown.__qualname__ = f"{cls.__name__.lstrip('_')}.{name}"
                if name != method.__name__ and method.__name__ in vars(cls):
                    continue  # `send_async` calls what `send` does
                names = method.__dict__.setdefault("public_names", set())
                names.add(public)
                method.__qualname__ = public if len(names) == 1 else name  # several clients have it

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} of group {self._group}>"


class OnLoop(Named):
    """A client with a core on an event loop."""

    def _share(
        self, net: LoopNet, name_servers: str | Iterable[str] | None, group: str, options: ClientOptions, *key: Hashable
    ) -> tuple[tuple[str, ...], Identity]:
        """Have `net` use the connections of other clients with the same name servers and `key`. Returns the addresses
        of the name servers, and the client's identity. Raises MQError."""
        servers, self._group = parse_name_servers(name_servers), check_group(group)
        net.hooks, is_member = Hooks(options.observers, net.steady), isinstance(self, Member)
        key = *key, net.hooks.key
        return servers, share(net, self._asked, servers, group, options.unit_name, *key, is_member=is_member)

    def _asked(self) -> Asked:
        """What answers the brokers' requests to this client."""
        found = core(self)
        if isinstance(found, ProducerCore):
            return found
        if isinstance(found, PullConsumerCore):
            return PullConsumerRequests(found.group)
        return MemberRequests(lambda: found, thread_stacks)


class AwaitedContext(ABC):
    """A client whose `start` and `close` are awaited, as coroutines or Deferreds: `async with` calls both."""

    @abstractmethod
    def start(self) -> Awaitable[None]: ...

    @abstractmethod
    def close(self) -> Awaitable[None]: ...

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Member(Named):
    """A client that is a member of its group."""

    @property
    def client_id(self) -> str:
        """The id of this client, as brokers know it; empty before the start."""
        found: str = core(self).client_id
        return found

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """The queues that it reads now."""
        found: frozenset[MessageQueue] = core(self).assigned
        return found


def at_once(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a client's method that calls a method of the core which waits for nothing."""

    @functools.wraps(method)
    def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(core(client), *args, **kwargs)

    return calling
