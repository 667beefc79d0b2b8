"""A name server and brokers in memory, which the clients' core reaches over a fake remoting client and a fake clock."""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
from collections import defaultdict

import attrs
import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from mqbroker.client.deferred_net import DeferredNet
from mqbroker.errors import BadFrame, ConnectionClosed, RequestTimedOut, Unreachable
from mqbroker.remoting.response_table import Timeout
from mqbroker.wire import headers as h
from mqbroker.wire.batch import decode_batch
from mqbroker.wire.bodies import (
    BrokerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    MessageQueue,
    QueueData,
    TopicRouteData,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, encode_command
from mqbroker.wire.properties import decode_properties
from mqbroker.wire.record import encode_record
from tests.client.records import a_record
from tests.commands import decode_commands, decode_frame

NAME_SERVER = "10.0.0.1:9876"
SILENT = object()


class Cluster:
    """What name servers and brokers know. `refuse` maps (address, code) to (response code, remark) or SILENT."""

    def __init__(self, clock):
        self.clock = clock
        self.topics = {}
        self.brokers = {}
        self.down = set()
        self.refuse = {}
        self.logs = defaultdict(list)
        self.offsets = {}
        self.members = defaultdict(list)
        self.requests = []
        self.held = []
        self.sent_back = []

    def add_broker(self, name, addr, broker_id=0):
        self.brokers.setdefault(name, {})[broker_id] = addr

    def add_topic(self, topic, queues=2, perm=6, brokers=None):
        for name in brokers or self.brokers:
            self.topics.setdefault(topic, []).append(QueueData(name, queues, queues, perm))

    def store(self, queue, body=b"x", *, sys_flag=0, reconsume_times=0, **properties):
        record = a_record(
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=len(self.logs[queue]),
            physical_offset=1000 * len(self.logs[queue]),
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            body=body,
            properties=properties,
        )
        self.logs[queue].append(encode_record(record))
        self.wake()

    def wake(self):
        held, self.held = self.held, []
        for waiter, request in held:
            if not waiter.called:
                self.answer(waiter, self.pull(request, may_hold=False))

    def answer(self, waiter, response):
        waiter.callback(decode_frame(encode_command(response)))

    def asked(self, code):
        return [request for _, request in self.requests if request.code == code]

    def asked_of(self, code):
        return [addr for addr, request in self.requests if request.code == code]

    def handle(self, addr, request):
        self.requests.append((addr, request))
        if addr in self.down:
            return fail(Unreachable(f"connect to {addr} failed"))
        refusal = self.refuse.get((addr, request.code))
        if refusal is SILENT:
            return Deferred()
        if refusal is not None:
            return succeed(RemotingCommand.response(request, *refusal))
        method = getattr(self, "on_" + RequestCode(request.code).name.lower())
        result = method(request)
        return result if isinstance(result, Deferred) else succeed(decode_frame(encode_command(result)))

    def on_get_routeinfo_by_topic(self, request):
        topic = request.ext_fields["topic"]
        if topic not in self.topics:
            return RemotingCommand.response(request, ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        names = {data.broker_name for data in self.topics[topic]}
        brokers = [BrokerData(name, "c", addrs) for name, addrs in self.brokers.items() if name in names]
        body = TopicRouteData(None, self.topics[topic], brokers).to_json()
        return RemotingCommand.response(request, body=body)

    def on_heart_beat(self, request):
        data = HeartbeatData.from_json(request.body)
        for consumer in data.consumer_data_set:
            if data.client_id not in self.members[consumer.group_name]:
                self.members[consumer.group_name].append(data.client_id)
        return RemotingCommand.response(request)

    def on_unregister_client(self, request):
        for ids in self.members.values():
            if request.ext_fields["clientID"] in ids:
                ids.remove(request.ext_fields["clientID"])
        return RemotingCommand.response(request)

    def on_get_consumer_list_by_group(self, request):
        ids = self.members.get(request.ext_fields["consumerGroup"])
        if not ids:
            return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return RemotingCommand.response(request, body=GetConsumerListByGroupResponseBody(list(ids)).to_json())

    def on_send_message_v2(self, request):
        header = h.decode_header(h.SendMessageRequestHeaderV2, request.ext_fields)
        queue = MessageQueue(header.topic, header.bname, header.queue_id)
        self.store(
            queue, request.body, sys_flag=header.sys_flag, **decode_properties((header.properties or "").encode())
        )
        offset = len(self.logs[queue]) - 1
        answer = h.SendMessageResponseHeader(msg_id=f"ID{offset}", queue_id=header.queue_id, queue_offset=offset)
        return RemotingCommand.response(request, header=answer)

    def on_send_batch_message(self, request):
        header = h.decode_header(h.SendMessageRequestHeaderV2, request.ext_fields)
        queue = MessageQueue(header.topic, header.bname, header.queue_id)
        first = len(self.logs[queue])
        for entry in decode_batch(request.body):
            self.store(queue, entry.body, **decode_properties(entry.properties))
        ids = ",".join(f"ID{n}" for n in range(first, len(self.logs[queue])))
        answer = h.SendMessageResponseHeader(msg_id=ids, queue_id=header.queue_id, queue_offset=first)
        return RemotingCommand.response(request, header=answer)

    def on_query_consumer_offset(self, request):
        key = self.offset_key(request)
        if key not in self.offsets:
            return RemotingCommand.response(request, ResponseCode.QUERY_NOT_FOUND, "Not found")
        return RemotingCommand.response(request, header=h.QueryConsumerOffsetResponseHeader(offset=self.offsets[key]))

    def on_update_consumer_offset(self, request):
        self.offsets[self.offset_key(request)] = int(request.ext_fields["commitOffset"])
        return RemotingCommand.response(request)

    def on_get_max_offset(self, request):
        return RemotingCommand.response(
            request, header=h.GetMaxOffsetResponseHeader(offset=len(self.logs[self.queue_of(request)]))
        )

    def on_get_min_offset(self, request):
        return RemotingCommand.response(request, header=h.GetMinOffsetResponseHeader(offset=0))

    def on_search_offset_by_timestamp(self, request):
        return RemotingCommand.response(request, header=h.SearchOffsetResponseHeader(offset=7))

    def on_consumer_send_msg_back(self, request):
        self.sent_back.append(h.decode_header(h.ConsumerSendMsgBackRequestHeader, request.ext_fields))
        return RemotingCommand.response(request)

    def on_pull_message(self, request):
        return self.pull(request, may_hold=True)

    def pull(self, request, may_hold):
        header = h.decode_header(h.PullMessageRequestHeader, request.ext_fields)
        log = self.logs[self.queue_of(request)]
        offset = header.queue_offset
        if offset > len(log):
            return self.pull_answer(request, ResponseCode.PULL_OFFSET_MOVED, len(log), len(log))
        if offset == len(log):
            if may_hold and header.sys_flag & 2:
                waiter = Deferred()
                self.held.append((waiter, request))
                delay_s = header.suspend_timeout_millis / 1000
                self.clock.callLater(delay_s, self.give_up, waiter, request)
                return waiter
            return self.pull_answer(request, ResponseCode.PULL_NOT_FOUND, offset, len(log))
        found = log[offset : offset + header.max_msg_nums]
        return self.pull_answer(request, ResponseCode.SUCCESS, offset + len(found), len(log), b"".join(found))

    def give_up(self, waiter, request):
        if (waiter, request) in self.held:
            self.held.remove((waiter, request))
            if not waiter.called:
                self.answer(waiter, self.pull(request, may_hold=False))

    def pull_answer(self, request, code, next_offset, max_offset, body=b""):
        header = h.PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=next_offset, min_offset=0, max_offset=max_offset
        )
        return RemotingCommand.response(request, code, header=header, body=body)

    def queue_of(self, request):
        fields = request.ext_fields
        return MessageQueue(fields["topic"], fields["bname"], int(fields["queueId"]))

    def offset_key(self, request):
        return request.ext_fields["consumerGroup"], self.queue_of(request)


class FakeRemoting:
    """What DeferredNet uses of RemotingClient, straight into a Cluster. Time-outs are the clock's."""

    def __init__(self, clock, cluster):
        self.clock = clock
        self.cluster = cluster
        self.closed = False

    @property
    def is_closed(self):
        return self.closed

    def invoke_sync(self, addr, command, timeout_ms):
        if self.closed:
            return fail(ConnectionClosed("the client is closed"))
        sent = decode_frame(encode_command(attrs.evolve(command, opaque=1)))
        waiter = self.cluster.handle(addr, sent)

        timeout = Timeout(self.clock.seconds, self.clock.callLater, timeout_ms / 1000, waiter.cancel)

        def ended(result):
            timeout.cancel()
            if timeout.is_over:
                raise RequestTimedOut(f"{command.describe()}: no answer from {addr} in {timeout_ms} ms")
            return result

        return waiter.addBoth(ended)

    def invoke_oneway(self, addr, command, timeout_ms):
        done = self.cluster.handle(addr, decode_frame(encode_command(command)))
        return done.addCallback(lambda _: None)

    def close(self):
        self.closed = True
        return succeed(None)


@attrs.define
class World:
    clock: Clock
    cluster: Cluster

    def net(self, seed=1):
        return DeferredNet(self.clock, FakeRemoting(self.clock, self.cluster), random.Random(seed))

    def run(self, coroutine):
        """Start a coroutine; the Deferred of its result."""
        return Deferred.fromCoroutine(coroutine)

    def result(self, coroutine):
        """The result of a coroutine that needs no time to pass."""
        found = []
        self.run(coroutine).addBoth(found.append)
        assert found, "the coroutine waits for something"
        if hasattr(found[0], "raiseException"):
            found[0].raiseException()
        return found[0]


@pytest.fixture
def world():
    """One name server and two brokers, each with a master."""
    clock = Clock()
    clock.advance(1_700_000_000)
    cluster = Cluster(clock)
    cluster.add_broker("a", "10.0.0.2:10911")
    cluster.add_broker("b", "10.0.0.3:10911")
    return World(clock, cluster)


@pytest.fixture
def one_queue(world):
    """Topic T with one queue on broker a, and the group's retry topic."""
    world.cluster.add_topic("T", queues=1, brokers=["a"])
    world.cluster.add_topic("%RETRY%g", queues=1, brokers=["a"])
    return world


@pytest.fixture
def name_server():
    return NAME_SERVER


@pytest.fixture
def silent():
    return SILENT


class LoopbackServer:
    """The cluster behind one real socket on loopback; a thread serves each connection."""

    def __init__(self, tls=None):
        self.cluster = Cluster(Clock())
        self.connections = []
        self._tls = tls
        self._accepted = threading.Condition()
        self.before_answer = lambda request, connection: None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.addr = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.cluster.add_broker("a", self.addr)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self._lock = threading.Lock()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._accepted:
                self.connections.append(connection)
                self._accepted.notify_all()
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait_for_connections(self, count):
        """A client's connection may be used and closed before it is accepted here."""
        with self._accepted:
            assert self._accepted.wait_for(lambda: len(self.connections) >= count, 30)

    def _serve(self, connection):
        decoder = FrameDecoder()
        if self._tls is not None:
            encrypted = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            try:
                encrypted.do_handshake()
            except OSError:
                self._part(socket.socket(fileno=encrypted.detach()))
                return
            self.connections[self.connections.index(connection)] = encrypted
            connection = encrypted
        with connection:
            while True:
                try:
                    data = connection.recv(65536)
                    if not data:
                        return
                    for request in decode_commands(decoder.feed(data)):
                        self._answer(request, connection)
                except (OSError, BadFrame):
                    return

    @staticmethod
    def _part(connection):
        """Let the other side read what it was told."""
        with connection, contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    def _answer(self, request, connection):
        with self._lock:
            if self.before_answer(request, connection) is SILENT:
                return
            result = self.cluster.handle(self.addr, request).result
        if not request.is_oneway:
            connection.sendall(encode_command(attrs.evolve(result, opaque=request.opaque)))

    def ask_client(self, requests):
        """Send requests over the newest connection; a queue that their answers come into."""
        answers = queue.SimpleQueue()

        def keep(command, connection):
            if command.is_response:
                answers.put(command)
            return SILENT if command.is_response else None

        self.before_answer = keep
        asked = [attrs.evolve(request, opaque=1000 + n) for n, request in enumerate(requests)]
        self.connections[-1].sendall(b"".join(map(encode_command, asked)))
        return answers

    def close(self):
        if self._listener.fileno() == -1:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)


@pytest.fixture
def server():
    """A cluster of one broker on a real port, which is its own name server."""
    server = LoopbackServer()
    yield server
    server.close()
