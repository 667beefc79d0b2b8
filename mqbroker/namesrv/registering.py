"""Brokers that come, go and ask what is known of them. It must never know of files or ports.

What one connection says is taken in the order it was said. A long registration is read in steps, between which others
are served. Source of codes, bodies and remarks: DefaultRequestProcessor of 4.9.7.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Generator

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator
from twisted.logger import Logger

from mqbroker.errors import Refused
from mqbroker.namesrv.in_order import InOrder
from mqbroker.namesrv.kv import ORDER_TOPIC_NAMESPACE, KvConfig
from mqbroker.namesrv.routes import Registered, Registration, RouteTable
from mqbroker.remoting.handlers import Answer, HandlerTable, IConnection
from mqbroker.wire.bodies import DataVersion, KVTable
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_header,
)
from mqbroker.wire.registration import Steps, read_registration

log = Logger()

#: The version by its ordinal since which registrations name filter servers.
V3_0_11 = 37

#: A shorter body is read at once: some hundred topics, a ms or two.
SHORT_BYTES = 64 * 1024

#: Long bodies that wait or are being read, of all brokers together. A frame is 16 MiB at most.
WAITING_BYTES_MAX = 128 * 1024 * 1024

#: How long others wait while a long registration is read.
TURN_SECONDS = 0.01
NEXT_TURN_SECONDS = 1e-6

#: No name or address that a broker has is as long.
NAME_LENGTH_MAX = 1024

#: Check values of a body are computed in pieces of so many bytes.
DIGEST_BYTES = 1024 * 1024
CRC32_MASK = 0x7FFFFFFF

Handler = Callable[[RemotingCommand, IConnection], RemotingCommand]


class BrokerProcessor:
    """Answers the requests of brokers, and those that change what their topics may."""

    def __init__(self, routes: RouteTable[IConnection], kv: KvConfig, clock: IReactorTime) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._cooperator = Cooperator(self._turn, lambda call: clock.callLater(NEXT_TURN_SECONDS, call))
        self._in_order = InOrder(WAITING_BYTES_MAX)

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.REGISTER_BROKER, self.register)
        table.register(RequestCode.UNREGISTER_BROKER, self._after_others(self.unregister))
        table.register(RequestCode.QUERY_DATA_VERSION, self._after_others(self.query_data_version))
        table.register(RequestCode.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_permission)
        table.register(RequestCode.ADD_WRITE_PERM_OF_BROKER, self.add_write_permission)

    # --- registering

    def register(self, request: RemotingCommand, connection: IConnection) -> Answer:
        header = decode_header(RegisterBrokerRequestHeader, request.ext_fields)
        _check_names(header)
        if len(request.body) <= SHORT_BYTES and not self._in_order.is_busy(connection):
            return _run(self._register(request, header, connection))

        async def in_turns() -> RemotingCommand:
            answers: list[RemotingCommand] = []
            await self._cooperator.coiterate(_kept(self._register(request, header, connection), answers))
            return answers[0]

        return self._in_order.run(connection, in_turns, len(request.body))

    def _register(
        self, request: RemotingCommand, header: RegisterBrokerRequestHeader, connection: IConnection
    ) -> Steps[RemotingCommand]:
        """Answer in steps. Nothing is changed before the last."""
        crc32, digest = yield from _check_values(request)
        if header.body_crc32 and header.body_crc32 != crc32:
            log.warn("registration of {addr}: the body's crc32 does not match", addr=header.broker_addr)
            raise Refused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        registered = self._routes.renew(header.broker_addr, digest, connection, _now_ms(self._clock))
        if registered is None:
            registration = yield from _read(request, header, digest)
            # One that is gone was taken out already, and would stay.
            if connection.closed:
                raise Refused(ResponseCode.SYSTEM_ERROR, "the connection closed")
            registered = self._routes.register(registration, connection, _now_ms(self._clock))
            _log_registration(registration, registered)
        return self._told(request, registered)

    def _told(self, request: RemotingCommand, registered: Registered) -> RemotingCommand:
        order_topics = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        return RemotingCommand.response(
            request,
            header=RegisterBrokerResponseHeader(
                ha_server_addr=registered.ha_server_addr, master_addr=registered.master_addr
            ),
            body=KVTable(order_topics).to_json() if order_topics is not None else b"",
        )

    # --- one after another

    def _turn(self) -> Callable[[], bool]:
        end = self._clock.seconds() + TURN_SECONDS
        return lambda: self._clock.seconds() >= end

    def _after_others(self, handler: Handler) -> Callable[[RemotingCommand, IConnection], Answer]:
        """`handler`, after what the same connection asked before."""

        def handle(request: RemotingCommand, connection: IConnection) -> Answer:
            if not self._in_order.is_busy(connection):
                return handler(request, connection)

            async def later() -> RemotingCommand:
                return handler(request, connection)

            return self._in_order.run(connection, later, len(request.body))

        return handle

    # --- the rest

    def unregister(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(UnRegisterBrokerRequestHeader, request.ext_fields)
        if self._routes.unregister(header.broker_name, header.broker_addr, header.broker_id):
            log.info("broker unregistered, {name} {addr}", name=header.broker_name, addr=header.broker_addr)
        return RemotingCommand.response(request)

    def query_data_version(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(QueryDataVersionRequestHeader, request.ext_fields)
        changed = self._routes.changed(header.broker_addr, DataVersion.from_json(request.body))
        if not changed:
            self._routes.touch(header.broker_addr, _now_ms(self._clock))
        known = self._routes.version_of(header.broker_addr)
        return RemotingCommand.response(
            request,
            header=QueryDataVersionResponseHeader(changed=changed),
            body=known.to_json() if known is not None else b"",
        )

    def wipe_write_permission(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        name = decode_header(WipeWritePermOfBrokerRequestHeader, request.ext_fields).broker_name
        count = self._routes.wipe_write_permission(name)
        log.info(
            "{peer} wiped write permission of {n} topics on {name}", peer=connection.remote_addr, n=count, name=name
        )
        return RemotingCommand.response(request, header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def add_write_permission(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        name = decode_header(AddWritePermOfBrokerRequestHeader, request.ext_fields).broker_name
        count = self._routes.add_write_permission(name)
        log.info(
            "{peer} gave write permission to {n} topics on {name}", peer=connection.remote_addr, n=count, name=name
        )
        return RemotingCommand.response(request, header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))


def _run(steps: Steps[RemotingCommand]) -> RemotingCommand:
    """Take all steps at once."""
    answers: list[RemotingCommand] = []
    for _ in _kept(steps, answers):
        pass
    return answers[0]


def _kept(steps: Steps[RemotingCommand], answers: list[RemotingCommand]) -> Generator[None, None, None]:
    """The same steps, with what they return put into `answers`."""
    answers.append((yield from steps))


def _check_values(request: RemotingCommand) -> Steps[tuple[int, bytes]]:
    """What `bodyCrc32` must be, and a digest of all that the request says."""
    digest = hashlib.blake2b(repr((request.version, sorted(request.ext_fields.items()))).encode(), digest_size=16)
    crc32 = 0
    body = memoryview(request.body)
    for at in range(0, len(body), DIGEST_BYTES):
        piece = body[at : at + DIGEST_BYTES]
        crc32 = zlib.crc32(piece, crc32)
        digest.update(piece)
        yield
    return crc32 & CRC32_MASK, digest.digest()


def _read(request: RemotingCommand, header: RegisterBrokerRequestHeader, digest: bytes) -> Steps[Registration]:
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
    )


def _check_names(header: RegisterBrokerRequestHeader) -> None:
    for name in ("broker_name", "broker_addr", "cluster_name", "ha_server_addr"):
        if len(getattr(header, name)) > NAME_LENGTH_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the {name} is longer than {NAME_LENGTH_MAX} characters")


def _now_ms(clock: IReactorTime) -> int:
    return int(clock.seconds() * 1000)


def _log_registration(registration: Registration, registered: Registered) -> None:
    illegal = registration.topics.illegal_count
    if illegal:
        addr = registration.broker_addr
        log.warn("{addr} registers {n} topics with illegal names; they get no routes", addr=addr, n=illegal)
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
            "broker {name} {id} is now at {addr}, not at {former}",
            name=registration.broker_name,
            id=registration.broker_id,
            addr=registration.broker_addr,
            former=registered.replaced,
        )
