"""A broker in memory, for the tests of applications: started in some 30 ms, without a socket or a file::

    def test_orders_are_stored() -> None:
        with InMemoryBroker() as broker:
            with Producer(broker.name_servers, "orders-app") as producer:
                producer.send(Message("orders", b"paid"))
            (message,) = broker.messages("orders")
            assert message.body == b"paid"

It is this package's broker and name server, on a disk in memory and a thread of their own: queues, offsets, groups,
retries, delays and transactions are as in production. Clients of all three APIs of this process reach it, as many as
there are; other processes, forks among them, do not. It needs Twisted. There is no access control and no TLS.
"""

from __future__ import annotations

import errno
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from enum import Enum
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint, ITCPTransport
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.broker.broker_service import BrokerService
from mqbroker.client.connection import Connection
from mqbroker.client.errors import BadArgument
from mqbroker.client.loop_net import IN_MEMORY
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.names import check_group, check_topic
from mqbroker.client.options import check_number
from mqbroker.config import BrokerSettings, NamesrvSettings, NettySettings, StoreSettings, TlsMode, TlsSettings
from mqbroker.errors import MQError, Refused
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.store.memory_disk import MemoryDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire import headers as h
from mqbroker.wire.admin_bodies import TopicStatsTable
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, FrameDecoder, RemotingCommand, decode_command, encode_command
from mqbroker.wire.record import decode_records

__all__ = ["InMemoryBroker", "RequestKind"]

log = logging.getLogger(__name__)

T = TypeVar("T")

NAME: Final = "in-memory"
_TIMEOUT_S = 30.0
_PULL_MAX = 1024
_SEGMENT_BYTES = 16 * 1024 * 1024
#: As many calls that are due at one time and make others due then: more are a mistake.
_CALLS_MAX = 1_000_000

_numbers = itertools.count(1)


class RequestKind(Enum):
    """What a client asks for, by the codes of its requests."""

    SEND = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    PULL = (RequestCode.PULL_MESSAGE,)
    COMMIT = (RequestCode.UPDATE_CONSUMER_OFFSET,)
    SEND_BACK = (RequestCode.CONSUMER_SEND_MSG_BACK,)
    END_TRANSACTION = (RequestCode.END_TRANSACTION,)
    HEARTBEAT = (RequestCode.HEART_BEAT,)
    ROUTE = (RequestCode.GET_ROUTEINFO_BY_TOPIC,)


@attrs.define
class _Fault:
    """What is done to the next `times` requests with one of the `codes`."""

    codes: tuple[RequestCode, ...]
    times: int
    act: Callable[[_Accepted, RemotingCommand, bytes], None]


class _Reactor(Clock):
    """The clock of the servers, and what listens, by port."""

    def __init__(self) -> None:
        super().__init__()
        self.rightNow = time.time()
        self.factories: dict[int, Any] = {}

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> _Port:
        self.factories[port] = factory
        factory.doStart()
        return _Port(self, port)

    def move_to(self, target: float) -> None:
        """Make all calls that are due until then, each at its time."""
        for _ in range(_CALLS_MAX):
            due = min((call.getTime() for call in self.calls), default=target)
            self.advance(max(0.0, min(due, target) - self.rightNow))
            if due >= target:
                return
        raise RuntimeError("calls of the broker in memory make each other for ever")


class _Port:
    def __init__(self, reactor: _Reactor, port: int) -> None:
        self._reactor, self._port = reactor, port

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", self._port)

    def stopListening(self) -> None:  # noqa: N802
        self._reactor.factories.pop(self._port).doStop()

    def startReading(self) -> None:  # noqa: N802
        """Connections are accepted."""

    stopReading = startReading  # noqa: N815


@implementer(ITCPTransport)
class _Accepted:  # type: ignore[misc] # what protocols ask of a transport, not all
    """The server's end of a connection; `write` and `lost` are what is called with what it sends, and at its end."""

    #: What Twisted's transports keep of what was not sent.
    dataBuffer, offset, _tempDataLen = b"", 0, 0  # noqa: N815

    def __init__(self, broker: InMemoryBroker, write: Callable[[bytes], object], lost: Callable[[], object]) -> None:
        self.disconnecting = False
        self.protocol: Any = None
        self._broker, self._write, self._lost = broker, write, lost
        self._number = next(_numbers)
        self._decoder = FrameDecoder()
        self._is_reading = True
        self._unread: list[bytes] = []

    def opened(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.makeConnection(self)

    def turn_away(self) -> None:
        """End it before it was opened."""
        self.disconnecting = True
        self._lost()

    def given(self, data: bytes) -> None:
        """Called with what the other server has sent."""
        if not self.disconnecting:
            self.protocol.dataReceived(data)

    def received(self, data: bytes) -> None:
        """Called with what a client has sent."""
        if self.disconnecting:
            return
        if not self._is_reading:
            self._unread.append(data)
            return
        if not (self._broker.has_faults or self._decoder.pending_bytes):
            self.protocol.dataReceived(data)
            return
        for serialize_type, header, body in self._decoder.feed(data):
            command = decode_command(serialize_type, header, body)
            frame = encode_command(command)
            fault = None if command.is_response else self._broker.next_fault(command.code)
            if fault is None:
                self.protocol.dataReceived(frame)
            else:
                fault.act(self, command, frame)

    def ended(self) -> None:
        """Called when the client has closed it."""
        if not self.disconnecting:
            self.disconnecting = True
            self.protocol.connectionLost(_failure(ConnectionDone()))

    # what protocols call

    def write(self, data: bytes) -> None:
        if not self.disconnecting:
            self._write(bytes(data))

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        self._end(ConnectionDone())

    def abortConnection(self) -> None:
        self._end(ConnectionAborted())

    def _end(self, why: Exception) -> None:
        if not self.disconnecting:
            self.disconnecting = True
            self._broker.soon(lambda: self.protocol.connectionLost(_failure(why)))
            self._lost()

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 20_000 + self._number % 40_000)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 0)

    def setTcpNoDelay(self, enabled: bool) -> None:
        """There is no TCP."""

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Whoever writes is never paused: clients take all at once."""

    def unregisterProducer(self) -> None:
        """It has none."""

    def pauseProducing(self) -> None:
        self._is_reading = False

    def resumeProducing(self) -> None:
        self._is_reading = True
        unread, self._unread = self._unread, []
        self._broker.soon(lambda: self.received(b"".join(unread)))


def _failure(why: Exception) -> Failure:
    return Failure(why)  # type: ignore[no-untyped-call]


class _Dialled:
    """The client's end, as a transport of `client/connection.py`. Used on the client's thread."""

    def __init__(self, broker: InMemoryBroker, addr: str, connection: Any, call_soon: Callable[..., object]) -> None:
        self._broker, self._connection, self._call_soon = broker, connection, call_soon
        self._is_closing = False
        self._far = _Accepted(
            broker,
            lambda data: call_soon(lambda: None if self._is_closing else connection.data_received(data)),
            lambda: call_soon(self._lost),
        )
        broker.call(lambda: broker.accept(addr, self._far))

    def write(self, data: bytes) -> None:
        self._broker.call(lambda: self._far.received(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._broker.call(self._far.ended)
            self._call_soon(self._lost)

    abort = close

    def _lost(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._connection.lost(None)


@implementer(IStreamClientEndpoint)
class _Endpoint:
    """How the broker reaches its name server."""

    def __init__(self, broker: InMemoryBroker, addr: str) -> None:
        self._broker, self._addr = broker, addr

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        connected: Deferred[Any] = Deferred()
        self._broker.soon(lambda: self._connect(factory, connected))
        return connected

    def _connect(self, factory: IProtocolFactory, connected: Deferred[Any]) -> None:
        soon = self._broker.soon
        near: Any = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 0))
        far = _Accepted(
            self._broker, lambda data: soon(lambda: ours.received(data)), lambda: soon(lambda: ours.ended())
        )
        ours = _Accepted(self._broker, lambda data: soon(lambda: far.received(data)), lambda: soon(lambda: far.ended()))
        if self._broker.accept(self._addr, far):
            ours.opened(near)
            connected.callback(near)
        else:
            connected.errback(_failure(OSError(errno.ECONNREFUSED, "nobody listens there")))


class InMemoryBroker:
    """A name server and a broker, from the entry of this context to its end: clients are given `name_servers`.

    Topics are made by the first send to them, with 4 queues, as by a broker with autoCreateTopicEnable=true.
    Methods may be called on any thread; they wait for the broker, not for clients.
    """

    def __init__(self) -> None:
        host = f"127.77.{next(_numbers) % 256}.{next(_numbers) % 254 + 1}"
        self.name_servers = f"{host}:9876"
        self._addr = f"{host}:10911"
        self._reactor = _Reactor()
        self._acts: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._soon: list[Callable[[], object]] = []
        self._faults: list[_Fault] = []
        self._ahead_s = self._reactor.rightNow - time.monotonic()
        self._has_ended = False
        self._thread: threading.Thread | None = None
        disk = MemoryDisk()
        no_tls = TlsSettings(mode=TlsMode.DISABLED)
        self._namesrv = make_namesrv(
            NamesrvSettings(
                config_store_path="/namesrv/namesrv.properties",
                kv_config_path="/namesrv/kvConfig.json",
                server=NettySettings(listen_port=9876),
                tls=no_tls,
            ),
            self._reactor,
            InlineWorker(),
            disk=disk,
        )
        settings = BrokerSettings(
            broker_name=NAME,
            broker_ip1=host,
            broker_ip2=host,
            namesrv_addr=(self.name_servers,),
            server=NettySettings(listen_port=10911),
            tls=no_tls,
            vip_port_enable=False,
            store=StoreSettings(
                store_path_root_dir="/store",
                mapped_file_size_commit_log=_SEGMENT_BYTES,
                mapped_file_size_consume_queue=20_000,
                max_hash_slot_num=10_000,
                max_index_num=40_000,
            ),
        )
        self._service = BrokerService(
            settings,
            self._reactor,
            disk=disk,
            rng=Random(),
            worker=InlineWorker(),
            connector=lambda host, port: _Endpoint(self, f"{host}:{port}"),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start it: returns when clients can use it. Raises RuntimeError if it was started before."""
        if self._thread is not None:
            raise RuntimeError("a broker in memory can be started only once: create another one")
        self._thread = threading.Thread(target=self._run, name="mqbroker-in-memory", daemon=True)
        self._thread.start()
        is_up: Future[None] = Future()

        def begin() -> None:
            self._namesrv.startService()
            self._service.startService()
            self._service.started.addCallbacks(
                lambda _: is_up.set_result(None), lambda failure: is_up.set_exception(failure.value)
            )

        self._do(begin)
        is_up.result(_TIMEOUT_S)
        for addr in (self.name_servers, self._addr):
            IN_MEMORY[addr] = self

    def close(self) -> None:
        """End it. Clients that are still open lose their connections, and find nobody any more."""
        for addr in (self.name_servers, self._addr):
            IN_MEMORY.pop(addr, None)
        if self._thread is None or self._has_ended:
            return
        stopped: Future[None] = Future()

        def end() -> None:
            self._service.stopService().addBoth(lambda _: stopped.set_result(None))

        self._do(end)
        while not stopped.done():  # it gives clients some seconds to part
            self.advance(0.5)
        self._do(self._namesrv.stopService)
        self._has_ended = True
        self.call(lambda: None)
        self._thread.join(_TIMEOUT_S)

    # --- time

    def advance(self, seconds: float) -> None:
        """Set the broker's clock, which runs with real time, forward: what is due until then is done, such as the
        delivery of delayed messages and retries. The clients' clocks stay as they are."""
        check_number("seconds", seconds, 0, kind=float)

        def forward() -> None:
            self._ahead_s += seconds
            self._keep_time()

        self._do(forward)

    # --- failures

    def refuse(
        self,
        kind: RequestKind,
        *,
        times: int = 1,
        code: int = ResponseCode.SYSTEM_ERROR,
        remark: str = "refused by the test",
    ) -> None:
        """Answer the next requests of a kind with an error of the broker. Clients repeat what may be repeated."""

        def act(accepted: _Accepted, request: RemotingCommand, frame: bytes) -> None:
            answer = RemotingCommand.response(request, code, remark=remark)
            accepted.write(encode_command(answer))

        self._order(kind, times, act)

    def ignore(self, kind: RequestKind, *, times: int = 1) -> None:
        """Lose the next requests of a kind: they time out."""
        self._order(kind, times, lambda accepted, request, frame: None)

    def cut(self, kind: RequestKind, *, times: int = 1) -> None:
        """Close the connection at the next requests of a kind, which are lost."""
        self._order(kind, times, lambda accepted, request, frame: accepted.abortConnection())

    def store_twice(self, *, times: int = 1) -> None:
        """Store the messages of the next sends twice, as where an answer was lost and the send repeated: consumers get
        both."""

        def act(accepted: _Accepted, request: RemotingCommand, frame: bytes) -> None:
            again = attrs.evolve(request, flag=request.flag | ONEWAY_FLAG)
            accepted.protocol.dataReceived(encode_command(again))
            accepted.protocol.dataReceived(frame)

        self._order(RequestKind.SEND, times, act)

    # --- what it has

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Make a topic, or give it another number of queues. Raises Refused."""
        check_number("queues", queues, 1, 10_000)
        header = h.CreateTopicRequestHeader(
            topic=check_topic(topic),
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            order=False,
        )
        self._ask(RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """All messages of a topic, by queue and offset; none where there is no such topic. Dead letters are those of
        "%DLQ%GROUP", what waits for its retry those of "%RETRY%GROUP"."""
        found: list[ReceivedMessage] = []
        for each in self._queues(topic):
            offset = 0
            while True:
                header = h.PullMessageRequestHeader(
                    consumer_group="in-memory-test",
                    topic=topic,
                    queue_id=each.queue_id,
                    queue_offset=offset,
                    max_msg_nums=_PULL_MAX,
                    sys_flag=4,
                    commit_offset=0,
                    suspend_timeout_millis=0,
                    subscription="*",
                    sub_version=0,
                    expression_type="TAG",
                )
                answer = self._ask(RemotingCommand.request(RequestCode.PULL_MESSAGE, header), may_fail=True)
                records = decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
                if not records:
                    break
                found += [ReceivedMessage.of_record(record, NAME) for record in records]
                offset += len(records)
        return found

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """The offsets that a group has committed in the queues of a topic."""
        offsets: dict[MessageQueue, int] = {}
        for each in self._queues(topic):
            header = h.QueryConsumerOffsetRequestHeader(
                consumer_group=check_group(group), topic=topic, queue_id=each.queue_id
            )
            request = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
            answer = self._ask(request, may_fail=True)
            if answer.code == ResponseCode.SUCCESS:
                offsets[each] = h.decode_header(h.QueryConsumerOffsetResponseHeader, answer.ext_fields).offset
        return offsets

    # --- on its thread, and towards it

    def connect(self, connection: Connection, call_soon: Callable[[Callable[[], object]], object]) -> None:
        """Open a client's connection; `call_soon` has the client's loop call something. As clients do."""
        connection.opened(_Dialled(self, connection.addr, connection, call_soon))

    def call(self, act: Callable[[], object]) -> None:
        """Have something done on the broker's thread."""
        self._acts.put(act)

    def soon(self, act: Callable[[], object]) -> None:
        """Have something done after what is being done, on the broker's thread."""
        self._soon.append(act)

    def accept(self, addr: str, accepted: _Accepted) -> bool:
        """Take a connection; False, and it is closed, if nobody listens."""
        port = 9876 if addr == self.name_servers else 10911
        factory = self._reactor.factories.get(port)
        protocol = None if factory is None else factory.buildProtocol(accepted.getPeer())
        if protocol is None:
            accepted.turn_away()
            return False
        accepted.opened(protocol)
        return True

    @property
    def has_faults(self) -> bool:
        """Whether something is to be done to requests of some kind."""
        return bool(self._faults)

    def next_fault(self, code: int) -> _Fault | None:
        """What is to be done to a request."""
        for fault in self._faults:
            if code in fault.codes:
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                return fault
        return None

    def _order(self, kind: RequestKind, times: int, act: Callable[[_Accepted, RemotingCommand, bytes], None]) -> None:
        if not isinstance(kind, RequestKind):
            raise BadArgument("kind", "one of RequestKind", kind)
        check_number("times", times, 1)
        self._do(lambda: self._faults.append(_Fault(kind.value, times, act)))

    def _run(self) -> None:
        while not self._has_ended:
            due = min((call.getTime() for call in self._reactor.calls), default=None)
            wait_s = None if due is None else max(0.0, due - self._ahead_s - time.monotonic())
            try:
                act = self._acts.get(timeout=wait_s)
            except queue.Empty:
                self._safely(self._keep_time)
                continue
            self._safely(self._keep_time)
            self._safely(act)

    def _keep_time(self) -> None:
        self._reactor.move_to(max(self._reactor.rightNow, self._ahead_s + time.monotonic()))

    def _safely(self, act: Callable[[], object]) -> None:
        """Do it, and what comes of it."""
        acts = [act]
        while acts:
            for each in acts:
                try:
                    each()
                except Exception:
                    log.exception("the broker in memory has failed in something")
            acts, self._soon = self._soon, []
            if not acts and any(call.getTime() <= self._reactor.rightNow for call in self._reactor.calls):
                acts = [lambda: self._reactor.move_to(self._reactor.rightNow)]

    def _do(self, act: Callable[[], T]) -> T:
        """Have it done on the broker's thread, and wait. Raises what it raises, and MQError if the broker has ended."""
        if self._thread is None or self._has_ended:
            raise MQError("this broker in memory is not started, or was closed: use it within its `with`")
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(error)

        self.call(run)
        return done.result(_TIMEOUT_S)

    def _queues(self, topic: str) -> list[MessageQueue]:
        header = h.GetTopicStatsInfoRequestHeader(topic=topic)
        request = RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, header)
        answer = self._ask(request, may_fail=True)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return []
        self._check(answer)
        return sorted(TopicStatsTable.from_json(answer.body).offset_table)

    def _ask(self, request: RemotingCommand, *, may_fail: bool = False) -> RemotingCommand:
        """The answer of the broker. Raises Refused on an error, unless it `may_fail`."""
        answered: Future[RemotingCommand] = Future()
        decoder = FrameDecoder()

        def take(data: bytes) -> None:
            for frame in decoder.feed(data):
                if not answered.done():
                    answered.set_result(decode_command(*frame))

        def send() -> None:
            accepted = _Accepted(self, take, lambda: answered.cancel())
            self.accept(self._addr, accepted)
            accepted.protocol.dataReceived(encode_command(request))
            answered.add_done_callback(lambda _: self.call(accepted.ended))

        self._do(send)
        answer = answered.result(_TIMEOUT_S)
        return answer if may_fail else self._check(answer)

    def _check(self, answer: RemotingCommand) -> RemotingCommand:
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer.code, answer.remark or "")
        return answer
