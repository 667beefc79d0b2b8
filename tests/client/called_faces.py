"""The three faces of the clients as one: calls return, or raise, what they come to."""

import asyncio
import functools
import threading
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqbroker.client import aio, blocking, deferred

TURNS_MAX = 10_000


class Face:
    """A face; `make` gives clients whose calls return, or raise, what they come to."""

    module: Any = None

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    def make(self, name: Any, *args: Any, **options: Any) -> Any:
        return Called(self, getattr(self.module, name)(*self._given, self.cluster.name_server, *args, **options))

    @property
    def _given(self) -> tuple[Any, ...]:
        return ()

    def wait(self, call: Any, *args: Any, **fields: Any) -> None:
        raise NotImplementedError

    def awaitable(self, coroutine: Any) -> Any:
        """What `wait` waits for."""
        return coroutine

    def get(self, queue: Any) -> None:
        """What comes next into a SimpleQueue."""
        raise NotImplementedError

    def turn(self) -> None:
        """Let servers and clients go on for a moment."""
        self.wait(asyncio.sleep, 0.01)

    def close(self) -> None:
        pass


class Called:
    """A client of a face, whose calls wait."""

    def __init__(self, face: Any, client: Any) -> None:
        self._face, self._client = face, client

    def __getattr__(self, name: Any) -> Any:
        found = getattr(self._client, name)
        return functools.partial(self._face.wait, found) if callable(found) else found

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class OnTwisted(Face):
    """Over links in memory, on the clock of the servers."""

    module = deferred

    @property
    def _given(self) -> Any:
        return (self.cluster.reactor,)

    def make(self, *args: Any, **options: Any) -> Any:
        return super().make(*args, connector=self.cluster.network.connector, **options)

    def wait(self, call: Any, *args: Any, **fields: Any) -> Any:
        found: list[Any] = []
        result = call(*args, **fields)
        if not isinstance(result, Deferred):
            return result
        result.addBoth(found.append)
        self._turn_until(lambda: found)
        if isinstance(found[0], Failure):
            found[0].raiseException()
        return found[0]

    def get(self, queue: Any) -> Any:
        self._turn_until(lambda: not queue.empty())
        return queue.get()

    def turn(self) -> None:
        self.cluster.settle()

    def awaitable(self, coroutine: Any) -> Any:
        return Deferred.fromCoroutine(coroutine)

    def _turn_until(self, condition: Any) -> None:
        for _ in range(TURNS_MAX):
            if condition():
                return
            self.cluster.settle()
        raise AssertionError("nothing moves any more")


class OnAsyncio(Face):
    """Over sockets, on a loop that turns while a test waits."""

    module = aio

    def __init__(self, cluster: Any) -> None:
        super().__init__(cluster)
        self._loop = asyncio.new_event_loop()

    def wait(self, call: Any, *args: Any, **fields: Any) -> Any:
        async def main() -> Any:
            return await call(*args, **fields)

        return self._loop.run_until_complete(main())

    def get(self, queue: Any) -> Any:
        return self.wait(asyncio.to_thread, queue.get, timeout=20)

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class OnSockets(Face):
    """Over sockets, by calls that block."""

    module = blocking

    def wait(self, call: Any, *args: Any, **fields: Any) -> Any:
        return call(*args, **fields)

    def get(self, queue: Any) -> Any:
        return queue.get(timeout=20)

    def turn(self) -> None:
        threading.Event().wait(0.01)
