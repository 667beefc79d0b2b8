"""Assembly of the name server from its parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from mqbroker.config import NamesrvSettings
from mqbroker.config.changes import rewrite_conf
from mqbroker.namesrv.broker_requests import BrokerRequests
from mqbroker.namesrv.config_requests import KvConfig, KvRequests, KvWrapper, SettingsRequests
from mqbroker.namesrv.route_requests import ProductEnvironment, RouteRequests
from mqbroker.namesrv.route_table import RouteTable
from mqbroker.remoting.client import Connector, RemotingClient
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.extensions import load_extensions
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.limits import Limits
from mqbroker.remoting.listening import ListeningService
from mqbroker.remoting.ordered import OrderedService
from mqbroker.remoting.server import ConnectionEvent, RemotingServerFactory
from mqbroker.remoting.steady_clock import SteadyClock
from mqbroker.remoting.tcp import Buffers
from mqbroker.remoting.tls import ServerTls, TlsWatch
from mqbroker.repeated_call import RepeatedCall
from mqbroker.store.disk import IDisk
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import IWorker, ThreadWorker

log = Logger()

#: Interval of the check for silent brokers.
SCAN_SECONDS = 10.0


class ExpiryService(Service):
    """Removes brokers that have not registered for too long. Their connections stay open: others may use them too."""

    def __init__(self, routes: RouteTable[IConnection], clock: SteadyClock) -> None:
        self._routes = routes
        self._clock = clock
        self._loop = RepeatedCall(self._scan, clock=clock.timers)

    def startService(self) -> None:
        self._loop.start(SCAN_SECONDS, now=False)

    def stopService(self) -> None:
        self._loop.stop()

    def _scan(self) -> None:
        for addr in self._routes.expire(int(self._clock.seconds() * 1000)):
            log.warn("broker {addr} did not register for 120 s: removed", addr=addr)


class ThreadPoolService(Service):
    """A thread pool that runs while the service does. Threads are started on demand."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    def startService(self) -> None:
        self._pool.start()

    def stopService(self) -> None:
        self._pool.stop()


class Namesrv(OrderedService):
    """The name server as a service. `ports` has its actual port once it runs."""

    def __init__(
        self,
        others: list[IService],
        listening: ListeningService,
        look: Callable[[], object],
        adopt: Callable[[NamesrvSettings], list[str]],
    ) -> None:
        """`look` checks the certificates' files; `adopt` applies settings, and returns the keys that it does not."""
        super().__init__([*others, listening])
        self._listening = listening
        self._look = look
        self._adopt = adopt

    def startService(self) -> Deferred[None]:
        return super().startService().addCallback(self._log_started)

    def _log_started(self, _: None) -> None:
        if self.running:
            log.info("The Name Server boot success. port {port}", port=self._listening.port)

    def adopt(self, settings: NamesrvSettings) -> list[str]:
        """Apply re-read settings that may change while it runs, and reload certificates; returns the other keys that
        differ."""
        if self.running:
            self._look()
        return self._adopt(settings)

    @property
    def ports(self) -> dict[str, int]:
        return {"remoting": self._listening.port}


def make_namesrv(
    settings: NamesrvSettings,
    reactor: Any,
    worker: IWorker | None = None,
    connector: Connector | None = None,
    files_max: int = sys.maxsize,
    steady: Callable[[], float] | None = None,
    disk: IDisk | None = None,
) -> Namesrv:
    """Make a name server; `worker` writes its file to `disk`: by default a thread of its own, and the real disk. With
    `files_max` open files no connection is accepted. `steady` returns seconds of a clock that is never set, by default
    the reactor's.

    Raises StoreDamaged if kvConfig.json cannot be read, BadTls if certificates cannot be used, BadExtension
    as `load_extensions`. Starting fails with Twisted's CannotListenError.
    """
    pool = ThreadPool(0, 1, "disk")
    worker = worker or ThreadWorker(deferToThreadPool, reactor, pool)
    kv_file = JsonFile(settings.kv_config_path, worker, disk or OsDisk())
    kv = KvConfig(kv_file.load(KvWrapper.from_json))
    routes: RouteTable[IConnection] = RouteTable()
    extensions = load_extensions(settings.server.extensions, reactor.seconds)
    table = HandlerTable(extensions=extensions)
    steady_clock = SteadyClock(reactor, steady)
    table.serve(BrokerRequests(routes, kv, steady_clock))
    elsewhere = _product_environment(settings, reactor, connector, steady)
    # A name server for cluster tests always returns ordered topics, as in Java.
    order_message_enable = settings.order_message_enable or settings.cluster_test
    tasks = CooperativeTasks(reactor)
    route_processor = RouteRequests(routes, kv, tasks, order_message_enable, elsewhere)
    route_processor.register_on(table)

    def apply(changed: NamesrvSettings) -> None:
        route_processor.order_message_enable = changed.order_message_enable or changed.cluster_test

    def save(changes: Mapping[str, str]) -> Deferred[bool]:
        work = worker.run(lambda: rewrite_conf(settings.config_store_path, changes))
        return work.addCallbacks(lambda _: True, lambda failure: _not_saved(settings.config_store_path, failure))

    configuration = SettingsRequests(settings, apply, save)
    table.serve(configuration)
    table.serve(KvRequests(kv, tasks, lambda: kv_file.save(kv.to_json)))
    server = settings.server

    def on_event(event: ConnectionEvent, connection: RemotingProtocol) -> None:
        if event is not ConnectionEvent.CONNECT:
            for addr in routes.drop_connection(connection):
                log.info("the connection of broker {addr} closed: removed", addr=addr)

    tls = ServerTls(settings.tls, reactor)
    factory = RemotingServerFactory(table, reactor, Limits.of(server, files_max), on_event, tls, steady, extensions)
    listening = ListeningService(
        reactor,
        server.listen_port,
        factory,
        backlog=server.server_socket_backlog,
        interface=server.bind_address,
        buffers=Buffers.of(server),
    )
    watches: list[IService] = [TlsWatch(tls, worker.run, reactor)] if tls.has_files else []
    others: list[IService] = [ThreadPoolService(pool), *watches, ExpiryService(routes, steady_clock)]
    others += [] if elsewhere is None else [elsewhere]
    return Namesrv(others, listening, partial(tls.look, worker.run), configuration.adopt)


def _product_environment(
    settings: NamesrvSettings, reactor: Any, connector: Connector | None, steady: Callable[[], float] | None
) -> ProductEnvironment | None:
    if not settings.cluster_test:
        return None
    client = RemotingClient(reactor, connector=connector, steady=steady)
    return ProductEnvironment(client, settings.namesrv_addr, settings.product_env_name)


def _not_saved(path: str, failure: Failure) -> bool:
    log.error("{path} could not be written: {why}", path=path, why=failure.getErrorMessage())
    return False
