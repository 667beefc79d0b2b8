"""Our own name server and brokers in memory, on one clock that stands still unless a test moves it.

Clients reach them through `Faults`, over links in memory whose bytes move at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import attrs
from twisted.internet.defer import maybeDeferred

from mqbroker.broker.broker_service import BrokerService
from mqbroker.config import NamesrvSettings, NettySettings, TlsMode, TlsSettings
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.store.message_store import MessageStore
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import ConsumerData, HeartbeatData, MessageQueue, RegisterBrokerBody, TopicConfig
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.names import split_address
from mqbroker.wire.properties import encode_properties
from mqbroker.wire.record import Record, decode_records
from tests.broker.bench import CLIENT_HOST, make_settings
from tests.broker.service.running import Reactor
from tests.client.faults import Faults, TappedFactory
from tests.remoting.link import CLIENT, Link, Network, Peer
from tests.store.harness import now

NAME_SERVER = "10.0.0.1:9876"
_NO_TLS = TlsSettings(mode=TlsMode.DISABLED)


class QuickNetwork(Network):
    """Its bytes move by `settle`. Where it is `eager` they move as soon as they are written too: whoever writes first
    moves all, until nothing moves any more."""

    def __init__(self, reactor: Reactor, lock: threading.RLock, *, eager: bool = True) -> None:
        super().__init__()
        self._eager = eager
        self._reactor, self._lock = reactor, lock
        self._is_moving = False

    def let_through(self) -> None:
        super().let_through()
        for link in self.links if self._eager else ():
            self._watch(link)
        if self._eager:
            self.settle()

    def adopt(self, link: Link) -> None:
        """Move the bytes of a link that was made elsewhere."""
        self.links.append(link)
        self._watch(link)

    def _watch(self, link: Link) -> None:
        for end in link.ends:
            end.on_change = self.settle

    def settle(self) -> None:
        """Move bytes, and let what is due now be done, until all is quiet."""
        with self._lock:
            if self._is_moving:
                return
            self._is_moving = True
            try:
                while self._move() | self._call_due():
                    pass
            finally:
                self._is_moving = False

    def _move(self) -> bool:
        moved = False
        for link in list(self.links):
            moved |= link.can_move
            link.pump()
            if link.lost:
                self.links.remove(link)
        return moved

    def _call_due(self) -> bool:
        # A reactor never makes a call within another one: what that one has still to do could be waited for, for ever.
        if not self._reactor.is_due or self._reactor.is_calling:
            return False
        self._reactor.advance(0)
        return True


class OwnCluster:
    """A name server, and a broker for each of `brokers`, by name: addresses that clients reach through `faults`."""

    def __init__(
        self,
        root: Path,
        name_server: str = NAME_SERVER,
        brokers: dict[str, str] | None = None,
        *,
        is_eager: bool = True,
    ) -> None:
        self.reactor, self.faults = Reactor(), Faults()
        #: Held by whatever thread has the servers do something.
        self.lock = threading.RLock()
        self.network = QuickNetwork(self.reactor, self.lock, eager=is_eager)
        self._inner = QuickNetwork(self.reactor, self.lock)
        self.name_server = name_server
        self.brokers: dict[str, BrokerService] = {}
        self.addresses: dict[str, str] = {}
        self._root = root
        self._namesrv = make_namesrv(
            NamesrvSettings(
                config_store_path=str(root / "x"),
                kv_config_path=str(root / "kv.json"),
                server=NettySettings(listen_port=split_address(name_server)[1]),
                tls=_NO_TLS,
            ),
            self.reactor,
            InlineWorker(),
        )
        self._namesrv.startService()
        self._serve_at(name_server)
        for name, addr in (brokers or {"a": "10.0.0.2:10911"}).items():
            self._start_broker(name, addr)

    def _serve_at(self, addr: str) -> None:
        factory = [made[1] for made in self.reactor.tcpServers if isinstance(made[1], RemotingServerFactory)][-1]
        self._inner.servers[addr] = factory
        self.network.servers[addr] = TappedFactory(factory, addr, self.faults)

    def serve_also_at(self, addr: str, other: str) -> None:
        """Have a server of `other` at another address too."""
        self.network.servers[addr] = TappedFactory(self._inner.servers[other], addr, self.faults)

    def _start_broker(self, name: str, addr: str, folder: str = "") -> None:
        host, port = split_address(addr)
        settings = attrs.evolve(
            make_settings(
                self._root / (folder or name),
                store={"mapped_file_size_commit_log": 16 * 1024 * 1024, "max_message_size": 4 * 1024 * 1024},
                vip_port_enable=False,
            ),
            broker_name=name,
            broker_ip1=host,
            server=NettySettings(listen_port=port),
            tls=_NO_TLS,
            namesrv_addr=(self.name_server,),
        )
        broker = self.brokers[name] = BrokerService(
            settings,
            self.reactor,
            disk=OsDisk(),
            rng=Random(1),
            worker=InlineWorker(),
            connector=self._inner.connector,
        )
        broker.startService()
        self._serve_at(addr)
        self.addresses[name] = addr
        self.settle()

    def parts(self, name: str = "a") -> Any:
        """The parts of a broker (`Assembly`)."""
        return self.brokers[name]._assembly

    def settle(self) -> None:
        """Have all that waits for nothing but its turn done."""
        with self.lock:
            self._inner.settle()
            self.network.settle()

    def advance(self, seconds: float) -> None:
        with self.lock:
            self.reactor.advance(seconds)
            self.settle()

    def close(self) -> None:
        done = [maybeDeferred(broker.stopService) for broker in self.brokers.values()]
        for _ in range(20):
            self.advance(0.5)
        assert all(each.called for each in done)
        self._namesrv.stopService()

    # --- what brokers and name servers know

    def add_topic(
        self,
        topic: str,
        queues: int = 2,
        perm: int = 6,
        brokers: Iterable[str] | None = None,
        *,
        write_queues: int | None = None,
    ) -> None:
        with self.lock:
            for name in brokers or self.brokers:
                self.parts(name).topics.put(TopicConfig(topic, queues, write_queues or queues, perm))
            self.settle()

    def delete_topic(self, topic: str, brokers: Iterable[str] | None = None) -> None:
        """At brokers; name servers hear of it as of any change."""
        for name in brokers or self.brokers:
            self.parts(name).topics.remove(topic)
        self.settle()

    def remove_topic(self, topic: str, name: str) -> None:
        """With its queues, as an administrator does."""
        header = h.DeleteTopicRequestHeader(topic=topic)
        self._tell(RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, header), self.addresses[name])

    def register(self, name: str, addr: str, broker_id: int, topics: Iterable[TopicConfig] = ()) -> None:
        """Tell the name server of a broker that is not there, as another one would."""
        header = h.RegisterBrokerRequestHeader(
            broker_name=name, broker_addr=addr, cluster_name="DefaultCluster", ha_server_addr=addr, broker_id=broker_id
        )
        body = RegisterBrokerBody()
        body.topic_config_serialize_wrapper.topic_config_table.update({topic.topic_name: topic for topic in topics})
        self._tell(RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body.to_json()))

    def unregister(self, name: str, addr: str | None = None, broker_id: int = 0) -> None:
        """Have the name server forget a broker, which goes on; until `register_again`."""
        header = h.UnRegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=addr or self.addresses[name],
            cluster_name="DefaultCluster",
            broker_id=broker_id,
        )
        self._tell(RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header))

    def register_again(self, name: str, topic: str) -> None:
        """Have a broker tell the name server of a topic, and so of itself."""
        topics = self.parts(name).topics
        topics.put(topics.get(topic))
        self.settle()

    def create_no_topics(self) -> None:
        """As with autoCreateTopicEnable=false."""
        self.delete_topic("TBW102")
        self.forget_topic("TBW102")

    def forget_topic(self, topic: str) -> None:
        """Have the name server forget a topic that brokers have."""
        header = h.DeleteTopicFromNamesrvRequestHeader(topic=topic)
        self._tell(RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header))

    def _tell(self, request: RemotingCommand, addr: str | None = None) -> None:
        peer = Peer()
        link = Link(peer, self._inner.servers[addr or self.name_server].buildProtocol(CLIENT))
        self._inner.adopt(link)
        peer.transport.write(encode_command(request))
        self.settle()
        (answer,) = peer.answers
        assert answer.code == 0, answer.remark

    # --- messages and offsets

    def store(
        self,
        queue: MessageQueue,
        body: bytes = b"x",
        *,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        **properties: str,
    ) -> None:
        now_ms = int(self.reactor.seconds() * 1000)
        message = (
            queue.topic.encode(),
            queue.queue_id,
            0,
            sys_flag,
            now_ms,
            CLIENT_HOST,
            reconsume_times,
            0,
            body,
            encode_properties(properties),
        )
        with self.lock:
            self._store_of(queue).append([message])
            self.settle()

    def stored(self, queue: MessageQueue) -> list[Record]:
        """All messages of a queue."""
        return stored(self._store_of(queue), queue)

    def _store_of(self, queue: MessageQueue) -> MessageStore:
        store: MessageStore = self.parts(queue.broker_name)._store
        return store

    @property
    def offsets(self) -> Offsets:
        return Offsets(self)

    def members(self, group: str, name: str = "a") -> list[str]:
        """Who consumes, by what a broker knows."""
        found = self.parts(name).consumers.group(group)
        return [] if found is None else found.client_ids()

    def join(self, group: str, client_id: str, name: str = "a") -> None:
        """Have a broker hear of another member of a group, over a connection of its own."""
        data = HeartbeatData(client_id)
        data.consumer_data_set.append(
            ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [], False)
        )
        request = RemotingCommand(RequestCode.HEART_BEAT, body=data.to_json())
        self._tell(request, self.addresses[name])

    @property
    def sent_back(self) -> list[h.ConsumerSendMsgBackRequestHeader]:
        """What consumers sent back to brokers, who got it."""
        return sent_back(self.faults)


def sent_back(faults: Faults) -> list[h.ConsumerSendMsgBackRequestHeader]:
    """What consumers sent back to brokers, who got it."""
    return [
        h.decode_header(h.ConsumerSendMsgBackRequestHeader, request.ext_fields)
        for request in faults.passed(RequestCode.CONSUMER_SEND_MSG_BACK)
    ]


def stored(store: MessageStore, queue: MessageQueue) -> list[Record]:
    """All messages of a queue."""
    records: list[Record] = []
    while len(records) < store.max_offset(queue.topic, queue.queue_id):
        found = now(store).get(queue.topic, queue.queue_id, len(records), 1000)
        records += decode_records(b"".join(bytes(piece) for piece in found.pieces))
    return records


class Offsets:
    """What groups have committed at brokers: by group and queue."""

    def __init__(self, cluster: OwnCluster) -> None:
        self._cluster = cluster

    def get(self, key: tuple[str, MessageQueue], default: int | None = None) -> int | None:
        found = self._table(key[1]).query(key[0], key[1].topic, key[1].queue_id)
        return default if found is None else int(found)

    def __getitem__(self, key: tuple[str, MessageQueue]) -> int:
        found = self.get(key)
        assert found is not None, f"{key} was not committed"
        return found

    def __setitem__(self, key: tuple[str, MessageQueue], offset: int) -> None:
        self._table(key[1]).commit(key[0], key[1].topic, key[1].queue_id, offset)

    def _table(self, queue: MessageQueue) -> Any:
        return self._cluster.parts(queue.broker_name).offsets
