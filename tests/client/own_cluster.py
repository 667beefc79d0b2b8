"""Our own name server and broker in memory, and the three faces of the clients as one: calls return what they come to.

Twisted's face reaches the servers over links in memory; the others over sockets, whose bytes threads carry to the same
protocols. Time stands still unless a test moves it.
"""

import asyncio
import contextlib
import functools
import socket
import threading
from random import Random

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from mqbroker.broker.broker_service import BrokerService
from mqbroker.client import aio, blocking, deferred
from mqbroker.config import NamesrvSettings, NettySettings
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from tests.broker.bench import make_settings
from tests.broker.service.running import Reactor
from tests.remoting.link import CLIENT, SERVER, End, Network

TURNS_MAX = 10_000


class OwnCluster:
    """One name server and one broker, "a", which creates topics on a send."""

    def __init__(self, root):
        self.reactor, self.network = Reactor(), Network()
        self._lock = threading.RLock()
        self._sockets, self._threads = [], []
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [listener.getsockname()[1] for listener in self._listeners]
        self.name_server, self.broker_addr = (f"127.0.0.1:{port}" for port in ports)
        namesrv = NamesrvSettings(
            config_store_path=str(root / "x"),
            kv_config_path=str(root / "kv.json"),
            server=NettySettings(listen_port=ports[0]),
        )
        self._namesrv = make_namesrv(namesrv, self.reactor, InlineWorker())
        self._namesrv.startService()
        settings = attrs.evolve(
            make_settings(root / "store", vip_port_enable=False),
            broker_name="a",
            broker_ip1="127.0.0.1",
            server=NettySettings(listen_port=ports[1]),
            namesrv_addr=(self.name_server,),
        )
        self.broker = BrokerService(
            settings,
            self.reactor,
            disk=OsDisk(),
            rng=Random(1),
            worker=InlineWorker(),
            connector=self.network.connector,
        )
        self.network.servers[self.name_server] = self.reactor.tcpServers[0][1]
        self.broker.startService()
        self.network.servers[self.broker_addr] = self.reactor.tcpServers[1][1]
        self.turn()
        for listener, addr in zip(self._listeners, (self.name_server, self.broker_addr), strict=True):
            self._begin(self._accept, listener, self.network.servers[addr])

    @property
    def parts(self):
        return self.broker._assembly

    def turn(self, seconds=0.0):
        """Let the reactor go round, and bytes move; then `seconds` pass, half a second at a time."""
        with self._lock:
            self.reactor.advance(0)
            self._move()
            while seconds > 0:
                self.reactor.advance(min(0.5, seconds))
                seconds -= 0.5
                self._move()
            self.reactor.advance(0)
            self._move()

    def close(self):
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for _, connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        done = maybeDeferred(self.broker.stopService)
        for _ in range(10):
            self.turn(0.5)
        assert done.called
        self._namesrv.stopService()

    def _begin(self, function, *args):
        self._threads.append(threading.Thread(target=function, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self, listener, factory):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._begin(self._serve, connection, factory)

    def _serve(self, connection, factory):
        end, protocol = End(CLIENT, SERVER), factory.buildProtocol(CLIENT)
        with self._lock, contextlib.suppress(OSError):
            self._sockets.append((end, connection))
            protocol.makeConnection(end)
        with connection:
            while data := self._received(connection):
                with self._lock:
                    protocol.dataReceived(data)
                    self.turn()
            with self._lock:
                self._sockets.remove((end, connection))
                protocol.connectionLost(end.closing or Failure(ConnectionError("closed")))

    @staticmethod
    def _received(connection):
        try:
            return connection.recv(65536)
        except OSError:
            return b""

    def _move(self):
        self.network.pump()
        for end, connection in self._sockets:
            with contextlib.suppress(OSError):
                if end.outbox:
                    connection.sendall(end.taken(len(end.outbox)))
                if end.closing is not None:
                    connection.shutdown(socket.SHUT_RDWR)


class Face:
    """One face of the clients; `make` gives clients whose calls return, or raise, what they come to."""

    module = None

    def __init__(self, cluster):
        self.cluster = cluster

    def make(self, name, *args, **options):
        return Called(self, getattr(self.module, name)(*self._given, self.cluster.name_server, *args, **options))

    _given = ()

    def wait(self, call, *args, **fields):
        raise NotImplementedError

    def get(self, queue):
        """What comes next into a SimpleQueue."""
        raise NotImplementedError

    def close(self):
        pass


class Called:
    """A client of a face, whose calls wait."""

    def __init__(self, face, client):
        self._face, self._client = face, client

    def __getattr__(self, name):
        found = getattr(self._client, name)
        return functools.partial(self._face.wait, found) if callable(found) else found

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.close()


class OnTwisted(Face):
    """Over links in memory, on the clock of the servers."""

    module = deferred

    @property
    def _given(self):
        return (self.cluster.reactor,)

    def make(self, *args, **options):
        return super().make(*args, connector=self.cluster.network.connector, **options)

    def wait(self, call, *args, **fields):
        found = []
        result = call(*args, **fields)
        if not isinstance(result, Deferred):
            return result
        result.addBoth(found.append)
        self._turn_until(lambda: found)
        if isinstance(found[0], Failure):
            found[0].raiseException()
        return found[0]

    def get(self, queue):
        self._turn_until(lambda: not queue.empty())
        return queue.get()

    def _turn_until(self, condition):
        for _ in range(TURNS_MAX):
            if condition():
                return
            self.cluster.turn()
        raise AssertionError("nothing moves any more")


class OnAsyncio(Face):
    """Over sockets, on a loop that turns while a test waits."""

    module = aio

    def __init__(self, cluster):
        super().__init__(cluster)
        self._loop = asyncio.new_event_loop()

    def wait(self, call, *args, **fields):
        async def main():
            return await call(*args, **fields)

        return self._loop.run_until_complete(main())

    def get(self, queue):
        return self.wait(asyncio.to_thread, queue.get, timeout=20)

    def close(self):
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class OnSockets(Face):
    """Over sockets, by calls that block."""

    module = blocking

    def wait(self, call, *args, **fields):
        return call(*args, **fields)

    def get(self, queue):
        return queue.get(timeout=20)
