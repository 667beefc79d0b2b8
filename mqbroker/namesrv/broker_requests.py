"""Requests of brokers: registration, unregistration, version of topics, write permission. Knows no files or ports.

The requests of one connection are handled in their order. A long registration is decoded in steps, between which others
are served. Source of codes, bodies and remarks: DefaultRequestProcessor of 4.9.7.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.errors import Refused
from mqbroker.namesrv.config_requests import ORDER_TOPIC_NAMESPACE, KvConfig
from mqbroker.namesrv.route_table import Registered, Registration, RouteTable
from mqbroker.remoting.cooperative_tasks import StepRunner, run_at_once
from mqbroker.remoting.handlers import Call, IConnection, Result, answered, answers
from mqbroker.remoting.limits import Shares
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import QUEUES_MAX, DataVersion, KVTable
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.registration import Steps, read_registration

log = Logger()


Work = Callable[[], Awaitable[RemotingCommand]]
#: Ordinal of the first version whose registrations have filter servers.
V3_0_11 = 37
#: A shorter body is decoded at once: some hundred topics, a ms or two.
SHORT_BYTES = 64 * 1024
#: Queues whose permissions are changed in one step: a ms.
SHORT_QUEUES = 1000
#: Bytes counted for a waiting permission request.
PERMISSION_BYTES = 1024
#: Bytes of long bodies that wait or are being decoded, of all brokers. A frame is 16 MiB at most.
WAITING_BYTES_MAX = 128 * 1024 * 1024
#: Longest name or address of a broker.
NAME_LENGTH_MAX = 1024
#: Bytes of a body whose checksum is computed in one step.
DIGEST_BYTES = 1024 * 1024
CRC32_MASK = 0x7FFFFFFF


class ConnectionSequencer:
    """Runs the work of each connection in order, and of different connections concurrently.

    :param bytes_max: bytes held by waiting and running work, of all connections.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._shares = Shares()
        self._waiting: dict[IConnection, deque[tuple[Work, int, Deferred[RemotingCommand]]]] = {}

    def is_busy(self, connection: IConnection) -> bool:
        return connection in self._waiting

    def run(self, connection: IConnection, work: Work, size: int) -> Deferred[RemotingCommand]:
        """Run `work`, which holds `size` bytes; fires with its result. Raises Refused if too much waits already, in all
        or of this connection and its address."""
        if not self._shares.acquire(connection, size, self._bytes_max):
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
        # A loop: if each work started the next, a peer could cause any depth of recursion.
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


class BrokerRequests:
    """Handlers of brokers' requests, and of changes of their topics' permission."""

    def __init__(self, routes: RouteTable[IConnection], kv: KvConfig, clock: IReactorTime) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._runner = StepRunner(clock)
        self._sequencer = ConnectionSequencer(WAITING_BYTES_MAX)
        self._permissions = DeferredLock()

    # --- registering

    @answers(RequestCode.REGISTER_BROKER)
    def register(self, call: Call[h.RegisterBrokerRequestHeader]) -> RemotingCommand | Deferred[RemotingCommand]:
        header, request, connection = call.header, call.request, call.connection
        _check_names(header)
        if len(request.body) <= SHORT_BYTES and not self._sequencer.is_busy(connection):
            return run_at_once(self._register(request, header, connection))

        def in_turns() -> Awaitable[RemotingCommand]:
            return self._runner.run(self._register(request, header, connection))

        return self._sequencer.run(connection, in_turns, len(request.body))

    def _register(
        self, request: RemotingCommand, header: h.RegisterBrokerRequestHeader, connection: IConnection
    ) -> Steps[RemotingCommand]:
        """Handle a registration in steps. Nothing is changed before the last."""
        crc32, digest = yield from _check_values(request)
        if header.body_crc32 and header.body_crc32 != crc32:
            line = "registration of {addr} refused: the body's crc32 does not match; check the network of that broker"
            log.warn(line, addr=header.broker_addr)
            raise Refused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        now_ms = _now_ms(self._clock)
        registered = self._routes.renew(header.broker_addr, digest, connection, now_ms, request.opaque)
        if registered is None:
            registration = yield from _read(request, header, digest)
            # A closed connection's brokers were removed already; this one would stay.
            if connection.closed:
                raise Refused(ResponseCode.SYSTEM_ERROR, "the connection closed")
            registered = self._routes.register(registration, connection, _now_ms(self._clock))
            _log_registration(registration, registered)
        return self._answer(request, registered)

    def _answer(self, request: RemotingCommand, registered: Registered) -> RemotingCommand:
        order_topics = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        return RemotingCommand.response(
            request,
            header=h.RegisterBrokerResponseHeader(
                ha_server_addr=registered.ha_server_addr, master_addr=registered.master_addr
            ),
            body=KVTable(order_topics).to_json() if order_topics is not None else b"",
        )

    # --- one after another

    def _after_others(self, call: Call[Any], answer: Callable[[], Result]) -> Result | Deferred[RemotingCommand]:
        """Run `answer` after the earlier requests of the same connection."""
        if not self._sequencer.is_busy(call.connection):
            return answer()

        async def later() -> RemotingCommand:
            return answered(call.request, answer())

        return self._sequencer.run(call.connection, later, len(call.request.body))

    # --- the rest

    @answers(RequestCode.UNREGISTER_BROKER)
    def unregister(self, call: Call[h.UnRegisterBrokerRequestHeader]) -> Result | Deferred[RemotingCommand]:
        header = call.header

        def answer() -> None:
            if self._routes.unregister(header.broker_name, header.broker_addr, header.broker_id):
                log.info("broker unregistered, {name} {addr}", name=header.broker_name, addr=header.broker_addr)

        return self._after_others(call, answer)

    @answers(RequestCode.QUERY_DATA_VERSION)
    def query_data_version(self, call: Call[h.QueryDataVersionRequestHeader]) -> Result | Deferred[RemotingCommand]:
        addr = call.header.broker_addr

        def answer() -> RemotingCommand:
            changed = self._routes.changed(addr, DataVersion.from_json(call.request.body))
            if not changed:
                self._routes.touch(addr, _now_ms(self._clock))
            known = self._routes.version_of(addr)
            header = h.QueryDataVersionResponseHeader(changed=changed)
            return RemotingCommand.response(call.request, header=header, body=known.to_json() if known else b"")

        return self._after_others(call, answer)

    @answers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def set_write_permission(
        self, call: Call[h.WipeWritePermOfBrokerRequestHeader | h.AddWritePermOfBrokerRequestHeader]
    ) -> RemotingCommand | Deferred[RemotingCommand]:
        """Change the topics in steps, at once if these are few; never interleaved with those of other requests, as a
        broker's topics could end with some of both."""
        name, peer = call.header.broker_name, call.connection.remote_addr

        def steps() -> Steps[RemotingCommand]:
            header: h.Header
            if call.request.code == RequestCode.WIPE_WRITE_PERM_OF_BROKER:
                count = yield from self._routes.wipe_write_permission(name)
                log.info(
                    "{peer} wiped write permission of {n} topics on {name}, and of those that it registers later, "
                    "until addWritePerm or until its restart",
                    peer=peer,
                    n=count,
                    name=name,
                )
                header = h.WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
            else:
                count = yield from self._routes.add_write_permission(name)
                log.info("{peer} gave write permission to {n} topics on {name}", peer=peer, n=count, name=name)
                header = h.AddWritePermOfBrokerResponseHeader(add_topic_count=count)
            return answered(call.request, header)

        is_short = self._routes.queues_beside(name) <= SHORT_QUEUES
        if is_short and not self._permissions.locked and not self._sequencer.is_busy(call.connection):
            return run_at_once(steps())

        async def in_turns() -> RemotingCommand:
            async with self._permissions:
                return await self._runner.run(steps())

        return self._sequencer.run(call.connection, in_turns, max(len(call.request.body), PERMISSION_BYTES))


def _check_values(request: RemotingCommand) -> Steps[tuple[int, bytes]]:
    """The expected `bodyCrc32`, and a digest of the whole request."""
    digest = hashlib.blake2b(repr((request.version, sorted(request.ext_fields.items()))).encode(), digest_size=16)
    crc32 = 0
    body = memoryview(request.body)
    for at in range(0, len(body), DIGEST_BYTES):
        piece = body[at : at + DIGEST_BYTES]
        crc32 = zlib.crc32(piece, crc32)
        digest.update(piece)
        yield
    return crc32 & CRC32_MASK, digest.digest()


def _read(request: RemotingCommand, header: h.RegisterBrokerRequestHeader, digest: bytes) -> Steps[Registration]:
    has_filter_servers = request.version >= V3_0_11
    body = request.body
    if body and not has_filter_servers:
        body = b'{"topicConfigSerializeWrapper":%b}' % body
    topics = yield from read_registration(body, compressed=header.compressed and has_filter_servers)
    return Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_addr=header.broker_addr,
        broker_id=header.broker_id,
        ha_server_addr=header.ha_server_addr,
        topics=topics,
        has_filter_servers=has_filter_servers,
        digest=digest,
        opaque=request.opaque,
    )


def _check_names(header: h.RegisterBrokerRequestHeader) -> None:
    for name in ("broker_name", "broker_addr", "cluster_name", "ha_server_addr"):
        if len(getattr(header, name)) > NAME_LENGTH_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the {name} is longer than {NAME_LENGTH_MAX} characters")


def _now_ms(clock: IReactorTime) -> int:
    return int(clock.seconds() * 1000)


def _log_registration(registration: Registration, registered: Registered) -> None:
    illegal = registration.topics.illegal_count
    if illegal:
        addr = registration.broker_addr
        line = "{addr} registers {n} topics with illegal names or more than {most} queues; they get no routes"
        log.warn(line, addr=addr, n=illegal, most=QUEUES_MAX)
    if registered.is_new:
        log.info(
            "new broker registered, {name} {id} {addr} HAServer: {ha}",
            name=registration.broker_name,
            id=registration.broker_id,
            addr=registration.broker_addr,
            ha=registration.ha_server_addr,
        )
    if registered.replaced is not None:
        log.warn(
            "broker {name} {id} is now at {addr}, not at {former}; if both run, give each its own brokerId",
            name=registration.broker_name,
            id=registration.broker_id,
            addr=registration.broker_addr,
            former=registered.replaced,
        )
    if registered.has_started_anew:
        log.info(
            "broker {name} was restarted: its topics have the write permission again that was wiped before",
            name=registration.broker_name,
        )
    elif registered.is_new and registered.is_wiped:
        log.warn(
            "broker {name} registered again without a restart: its topics stay without write permission, which was "
            "wiped; restore it with mqadmin addWritePerm",
            name=registration.broker_name,
        )
