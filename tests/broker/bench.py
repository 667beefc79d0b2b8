"""A broker's parts over a real store, on a clock, with clients on in-memory connections."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from twisted.internet.task import Clock
from zope.interface import implementer

from mqbroker.access.acl_files import AclFiles, acl_places
from mqbroker.broker.assembly import Assembly
from mqbroker.broker.fast_failure import FastFailure
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.config import BrokerSettings, NettySettings, StoreSettings
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.steady_clock import SteadyClock
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import open_store
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker, IWorker
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, encode_command
from mqbroker.wire.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    encode_header,
)
from mqbroker.wire.headers.coding import Header
from mqbroker.wire.record import Record, decode_records, encode_host
from tests.commands import decode_commands
from tests.fakes import SteppedWorker
from tests.remoting.link import CLIENT, Link, Peer, serve
from tests.store.harness import now

if TYPE_CHECKING:
    from tests.broker.service.running import Running

START = 1_700_000_000
HOST = "10.0.0.1"
STORE_HOST = encode_host((HOST, 10911))
CLIENT_HOST = encode_host(("10.0.0.2", 40000))
BODY_MAX = 64 * 1024


def make_settings(root: str | Path, *, store: dict[str, Any] | None = None, **changes: Any) -> BrokerSettings:
    """Settings with small files. `store` holds changes of the store's."""
    store = {
        "mapped_file_size_commit_log": 512 * 1024,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
        "max_message_size": BODY_MAX,
        # However full the disk is on which the tests run.
        "disk_space_warning_level_ratio": 100,
        "disk_free_bytes_min": 0,
        "clean_file_forcibly_enable": False,
        **(store or {}),
    }
    return BrokerSettings(
        broker_name="broker-a",
        broker_ip1=HOST,
        broker_ip2=HOST,
        store=StoreSettings(store_path_root_dir=str(root), **store),
        server=NettySettings(listen_port=10911),
        **changes,
    )


def live_settings(root: str | Path = "store", **changes: Any) -> LiveSettings:
    """Settings as parts of a broker read them, with changes."""
    return LiveSettings(make_settings(root, **changes), lambda: START)


@implementer(IConnection)
class FakeConnection:
    """Keeps what is sent over it."""

    def __init__(self, name: str = "10.0.0.2:40000", host: bytes = CLIENT_HOST) -> None:
        self.remote_addr = name
        self.remote_host = host
        self.closed = False
        self.last_active = 0.0
        self.sent: list[Any] = []
        self.data = b""
        self.why_closed: str | None = None
        self.has_room = True
        self.peer_version = 0
        self._on_room: list[Any] = []

    def send(self, command: RemotingCommand) -> None:
        self.sent.append(command)

    def write(self, data: bytes) -> None:
        self.data += data

    def invoke(self, command: RemotingCommand, timeout_ms: int) -> None:
        raise NotImplementedError

    def invoke_oneway(self, command: RemotingCommand) -> None:
        self.sent.append(command)

    def notify_closed(self, callback: Callable[..., Any]) -> None:
        raise NotImplementedError

    def notify_room(self, callback: Callable[..., Any]) -> None:
        self._on_room.append(callback)
        self.read()

    def read(self) -> None:
        """Its peer reads as long as it has room."""
        while self._on_room and self.has_room:
            self._on_room.pop(0)()

    def close(self, why: str) -> None:
        self.closed = True
        self.why_closed = why

    @property
    def answers(self) -> Any:
        return decode_commands(FrameDecoder().feed(self.data))


class NoTurns:
    """Nothing has waited, unless a test says so."""

    turn_began = float("inf")


class Bench:
    """Everything a BrokerService makes, within reach."""

    def __init__(
        self,
        root: Path,
        *,
        worker: IWorker | None = None,
        clock: Clock | None = None,
        store: dict[str, Any] | None = None,
        table_worker: SteppedWorker | None = None,
        disk: Any = None,
        reads_halves: bool = True,
        save_settings: Any = None,
        extensions: Any = None,
        **changes: Any,
    ) -> None:
        self.clock = clock or Clock()
        if clock is None:
            self.clock.advance(START)
        self.worker = worker or InlineWorker()
        self.table_worker = table_worker or InlineWorker()
        self.settings = settings = make_settings(root, store=store, **changes)
        self.store = open_store(
            settings.store, disk=disk or OsDisk(), clock=self.clock, worker=self.worker, store_host=STORE_HOST
        )
        self.table = HandlerTable(extensions=extensions)
        self.turns = NoTurns()
        places = acl_places(settings.rocketmq_home, settings.acl_plain_file)
        self.acl = AclFiles(places, self.table_worker, self.clock) if settings.acl_enable else None
        self.parts = parts = Assembly(
            self.table,
            self.store,
            settings,
            open_file=self.file,
            steady=SteadyClock(self.clock),
            rng=Random(1),
            store_host=STORE_HOST,
            acl=self.acl,
            save_settings=save_settings,
        )
        FastFailure(self.turns, parts.live).watch(self.table)
        self.topics, self.groups, self.offsets = parts.topics, parts.groups, parts.offsets
        self.consumers, self.producers, self.held = parts.consumers, parts.producers, parts.held
        self.rules, self.send = parts.rules, parts.send
        self.factory = serve(self.clock, self.table, None, parts.connection_event, extensions)
        self.store.start()
        parts.topic_repair.start()
        self.held.start()
        if reads_halves:
            parts.half_queue.start()

    def file(self, name: str) -> JsonFile:
        return JsonFile(
            os.path.join(self.settings.store.store_path_root_dir, "config", name), self.table_worker, OsDisk()
        )

    def client(self, address: Any = CLIENT) -> Client:
        return Client(self, address)

    def turn(self, seconds: float = 0.0) -> None:
        """Let the reactor go round, then `seconds` pass, half a second at a time."""
        self.clock.advance(0)
        while seconds > 0:
            self.clock.advance(min(0.5, seconds))
            seconds -= 0.5
        self.clock.advance(0)

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        """All messages of a queue."""
        self.store.dispatch_now()
        found, offset = list[Any](), 0
        while True:
            got = now(self.store).get(topic, queue_id, offset, 32)
            if not got.count:
                return found
            found += decode_records(b"".join(got.pieces))
            offset = got.next_offset

    def close(self) -> None:
        self.factory.doStop()
        self.parts.checks.stop()
        self.parts.half_queue.stop()
        self.held.stop()
        stopped = self.store.stop()
        if isinstance(self.worker, SteppedWorker):
            self.worker.work()
        assert stopped.called


class Client:
    """A raw peer: sends commands, gives back their answers."""

    def __init__(self, bench: Bench | Running, address: Any) -> None:
        self.bench = bench
        self.peer = Peer()
        self.link = Link(self.peer, bench.factory.buildProtocol(address), near_address=address)
        self._opaque = 0
        self._seen = 0

    @property
    def connection(self) -> RemotingProtocol:
        return self.link.protocols[1]

    def tell(self, *commands: RemotingCommand) -> None:
        """Send commands in one piece."""
        data = b""
        for command in commands:
            self._opaque += 1
            command.opaque = self._opaque
            data += encode_command(command)
        self.peer.transport.write(data)
        self.link.pump()
        self.bench.turn()
        self.link.pump()
        waiting = None
        while len(self.connection._waiting) != waiting:  # a part at a time, as the peer reads the answers
            waiting = len(self.connection._waiting)
            self.bench.turn()
            self.link.pump()

    def heard(self) -> list[RemotingCommand]:
        """What came since the last time this was asked."""
        self.link.pump()
        commands = self.peer.answers[self._seen :]
        self._seen += len(commands)
        return commands

    def ask_all(self, *commands: RemotingCommand) -> list[RemotingCommand]:
        self.tell(*commands)
        return self.heard()

    def ask(self, code: int, header: Header | None = None, body: bytes = b"", **more: Any) -> RemotingCommand | None:
        """The one answer to one request, None where there is none yet."""
        command = RemotingCommand.request(code, header, body)
        for name, value in more.items():
            setattr(command, name, value)
        answers = [answer for answer in self.ask_all(command) if answer.is_response]
        assert len(answers) <= 1
        if not answers:
            return None
        assert answers[0].opaque == command.opaque
        return answers[0]

    def send(
        self, topic: str = "T", body: bytes = b"body", code: int = RequestCode.SEND_MESSAGE_V2, **fields: Any
    ) -> list[RemotingCommand]:
        return self.ask_all(send_command(topic, body, code, **fields))

    def pull(self, topic: str = "T", **fields: Any) -> RemotingCommand | None:
        return self.ask(RequestCode.PULL_MESSAGE, pull_header(topic, **fields))


def send_fields(topic: str = "T", **fields: Any) -> dict[str, Any]:
    return {
        "producer_group": "PG",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_600_000_000_000,
        "flag": 0,
        "properties": "UNIQ_KEY\x01ABC\x02WAIT\x01true",
        **fields,
    }


def send_command(
    topic: str = "T", body: bytes = b"body", code: int = RequestCode.SEND_MESSAGE_V2, **fields: Any
) -> RemotingCommand:
    cls = SendMessageRequestHeader if code == RequestCode.SEND_MESSAGE else SendMessageRequestHeaderV2
    header = cls(**send_fields(topic, **fields))
    return RemotingCommand(code, encode_header(header), body)


def pull_header(topic: str = "T", **fields: Any) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        **{
            "consumer_group": "CG",
            "topic": topic,
            "queue_id": 0,
            "queue_offset": 0,
            "max_msg_nums": 32,
            "sys_flag": 4,
            "commit_offset": 0,
            "suspend_timeout_millis": 15_000,
            "subscription": "*",
            "sub_version": 1,
            **fields,
        }
    )
