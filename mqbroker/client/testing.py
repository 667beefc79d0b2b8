"""A broker in memory, for the tests of applications: it starts in about 30 ms, without a socket or a file::

    def test_orders_are_stored() -> None:
        with InMemoryBroker() as broker:
            with Producer(broker.name_servers, "orders-app") as producer:
                producer.send(Message("orders", b"paid"))
            (message,) = broker.messages("orders")
            assert message.body == b"paid"

It is this package's broker and name server, on a disk in memory and a thread of their own: queues, offsets, groups,
retries, delays and transactions are as in production. Any number of clients of this process, of all three APIs, can use
it; other processes, including forks, cannot. It needs Twisted. There is no access control and no TLS.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from enum import Enum
from random import Random
from types import TracebackType
from typing import Final, Self, TypeVar

import attrs
from twisted.internet.defer import Deferred

from mqbroker.broker.broker_service import BrokerService
from mqbroker.client.connection import Connection
from mqbroker.client.errors import BadArgument
from mqbroker.client.loop_net import IN_MEMORY
from mqbroker.client.memory_links import Accepted, Act, Dialled, Endpoint, Reactor
from mqbroker.client.memory_waits import Waits, wait_on_asyncio, wait_on_thread, wait_on_twisted
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.names import check_group, check_topic
from mqbroker.client.net import checked
from mqbroker.client.options import check_number
from mqbroker.client.queue_requests import pull_request
from mqbroker.client.subscription import ALL, subscribe_to
from mqbroker.config import BrokerSettings, NamesrvSettings, NettySettings, StoreSettings, TlsMode, TlsSettings
from mqbroker.errors import MQError
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.store.memory_disk import MemoryDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire import headers as h
from mqbroker.wire.admin_bodies import TopicStatsTable
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, FrameDecoder, RemotingCommand, decode_command, encode_command
from mqbroker.wire.record import decode_records

__all__ = ["InMemoryBroker", "RequestKind", "Waits"]

log = logging.getLogger(__name__)

T = TypeVar("T")

NAME: Final = "in-memory"
_TIMEOUT_S = 30.0
_PULL_MAX = 1024
_SEGMENT_BYTES = 16 * 1024 * 1024
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
    """The effect on the next `times` requests with one of the `codes`."""

    codes: tuple[RequestCode, ...]
    times: int
    act: Act


class InMemoryBroker(Waits[None]):
    """A name server and a broker, which run while the program is in this context. Give `name_servers` to clients.

    The first send to a topic creates it, with 4 queues, as with autoCreateTopicEnable=true; consumers may filter by
    SQL92, as with enablePropertyFilter=true. Methods may be called on any thread. They return when the broker has
    finished; only those of `Waits` wait for clients.
    """

    def __init__(self) -> None:
        super().__init__(self, wait_on_thread)
        host = f"127.77.{next(_numbers) % 256}.{next(_numbers) % 254 + 1}"
        self.name_servers = f"{host}:9876"
        self._addr = f"{host}:10911"
        self._reactor = Reactor(time.time())
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
            enable_property_filter=True,
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
            connector=lambda host, port: Endpoint(self, f"{host}:{port}"),
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
        """End it. Clients that are still open lose their connections, and cannot connect again."""
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

    @property
    def aio(self) -> Waits[Awaitable[None]]:
        """The methods that wait, as coroutines of asyncio: ``await broker.aio.wait_for_messages("orders", 3)``."""
        return Waits(self, wait_on_asyncio)

    @property
    def deferred(self) -> Waits[Deferred[None]]:
        """The methods that wait, with Deferreds of the global reactor."""
        return Waits(self, wait_on_twisted)

    # --- time

    def advance(self, seconds: float) -> None:
        """Set the broker's clock forward; otherwise it runs with real time. Whatever becomes due is done at once, such
        as the delivery of delayed messages and retries. The clients' clocks do not change."""
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
        """Answer the next `times` requests of a kind with an error. Clients repeat requests that may be repeated."""

        def act(accepted: Accepted, request: RemotingCommand, frame: bytes) -> None:
            answer = RemotingCommand.response(request, code, remark=remark)
            accepted.write(encode_command(answer))

        self._order(kind, times, act)

    def ignore(self, kind: RequestKind, *, times: int = 1) -> None:
        """Lose the next `times` requests of a kind: they time out."""
        self._order(kind, times, lambda accepted, request, frame: None)

    def cut(self, kind: RequestKind, *, times: int = 1) -> None:
        """Close the connection at each of the next `times` requests of a kind; the request is lost."""
        self._order(kind, times, lambda accepted, request, frame: accepted.abortConnection())

    def store_twice(self, *, times: int = 1) -> None:
        """Store the messages of the next `times` sends twice, as if a response was lost and the send repeated:
        consumers get both."""

        def act(accepted: Accepted, request: RemotingCommand, frame: bytes) -> None:
            again = attrs.evolve(request, flag=request.flag | ONEWAY_FLAG)
            accepted.protocol.dataReceived(encode_command(again))
            accepted.protocol.dataReceived(frame)

        self._order(RequestKind.SEND, times, act)

    # --- content

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic, or set its number of queues. Raises Refused."""
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
        """All messages of a topic, by queue and offset; empty without such a topic. Dead letters are in "%DLQ%GROUP",
        messages that wait for a retry in "%RETRY%GROUP"."""
        found: list[ReceivedMessage] = []
        everything = subscribe_to(topic, ALL, 0)
        for each in self._queues(topic):
            offset = 0
            while True:
                request = pull_request(
                    each, offset, _PULL_MAX, group="in-memory-test", subscription=everything, carry_subscription=True
                )
                answer = self._ask(request, may_fail=True)
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
        connection.opened(Dialled(self, connection.addr, connection, call_soon))

    def call(self, act: Callable[[], object]) -> None:
        """Run `act` on the broker's thread."""
        self._acts.put(act)

    def soon(self, act: Callable[[], object]) -> None:
        """Run `act` on the broker's thread, after the calls that wait there."""
        self._soon.append(act)

    def accept(self, addr: str, accepted: Accepted) -> bool:
        """Accept a connection; if no server listens, close it and return False."""
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

    def next_fault(self, code: int) -> Act | None:
        """The effect ordered for a request."""
        for fault in self._faults:
            if code in fault.codes:
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                return fault.act
        return None

    def _order(self, kind: RequestKind, times: int, act: Act) -> None:
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
        """Apply it, and its consequences."""
        acts = [act]
        while acts:
            for each in acts:
                try:
                    each()
                except Exception:
                    log.exception("unexpected error in the broker in memory")
            acts, self._soon = self._soon, []
            if not acts and any(call.getTime() <= self._reactor.rightNow for call in self._reactor.calls):
                acts = [lambda: self._reactor.move_to(self._reactor.rightNow)]

    def _do(self, act: Callable[[], T]) -> T:
        """Run it on the broker's thread, and wait. Raises its exceptions, and MQError if the broker has ended."""
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
        checked(answer)
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
            accepted = Accepted(self, take, lambda: answered.cancel())
            self.accept(self._addr, accepted)
            accepted.protocol.dataReceived(encode_command(request))
            answered.add_done_callback(lambda _: self.call(accepted.ended))

        self._do(send)
        answer = answered.result(_TIMEOUT_S)
        return answer if may_fail else checked(answer)
