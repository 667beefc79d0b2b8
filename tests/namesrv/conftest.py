"""A name server on a fake clock and reactor, with peers in memory."""

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import MemoryReactorClock, StringTransport

from mqbroker.config import NamesrvSettings, NettySettings
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.command import FrameDecoder, RemotingCommand, encode_command
from tests.commands import decode_commands

DATA = Path(__file__).parent.parent / "data"


class Peer:
    """A connection to the name server."""

    def __init__(self, factory: Any) -> None:
        self._transport = StringTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", 40000))
        self._protocol = factory.buildProtocol(None)
        self._protocol.makeConnection(self._transport)
        self._decoder = FrameDecoder()

    def send(self, data: bytes) -> list[RemotingCommand]:
        """Send bytes; return the commands that came back."""
        self._transport.clear()
        self._protocol.dataReceived(data)
        return self.received()

    def received(self) -> list[RemotingCommand]:
        """What came since this was asked, or something was sent, last."""
        answers = decode_commands(self._decoder.feed(self._transport.value()))
        self._transport.clear()
        return answers

    def ask(self, code: int, body: bytes = b"", *, version: int = 407, **ext_fields: Any) -> RemotingCommand:
        request = RemotingCommand(code, {k: str(v) for k, v in ext_fields.items()}, body, opaque=7, version=version)
        (answer,) = self.send(encode_command(request))
        assert answer.is_response
        assert answer.opaque == 7
        return answer

    @property
    def aborted(self) -> bool:
        return self._transport.disconnecting or self._transport.disconnected

    def close(self) -> None:
        from twisted.internet.error import ConnectionDone
        from twisted.python.failure import Failure

        self._protocol.connectionLost(Failure(ConnectionDone()))


class System:
    """A started name server, and what it stands on."""

    def __init__(self, settings: NamesrvSettings, steady: Callable[[], float] | None) -> None:
        self.settings = settings
        self.reactor = MemoryReactorClock()
        self.service = make_namesrv(settings, self.reactor, InlineWorker(), steady=steady)
        assert self.service.startService().called
        _, self.factory, *_ = self.reactor.tcpServers[0]
        self.factory.doStart()

    def connect(self) -> Peer:
        return Peer(self.factory)


@pytest.fixture
def start_system(tmp_path: Path) -> Iterator[Callable[..., System]]:
    """Start a name server; settings may be given."""
    systems = []

    def start(steady: Callable[[], float] | None = None, **settings: Any) -> System:
        settings.setdefault("kv_config_path", str(tmp_path / "kv" / "kvConfig.json"))
        server = NettySettings(listen_port=9876, bind_address="127.0.0.1")
        made = NamesrvSettings(config_store_path=str(tmp_path / "x"), server=server, **settings)
        systems.append(System(made, steady))
        return systems[-1]

    yield start
    for system in systems:
        system.factory.doStop()
        system.service.stopService()


@pytest.fixture
def system(start_system: Callable[..., System]) -> System:
    return start_system()


@pytest.fixture
def peer(system: System) -> Peer:
    return system.connect()


@pytest.fixture(scope="session")
def recorded() -> list[tuple[str, bytes, bytes]]:
    """What the Java name server was asked and answered: (name, request, response or None), in order."""
    with gzip.open(DATA / "frames-4.9.7.jsonl.gz", "rt") as lines:
        pairs = [json.loads(line) for line in lines]
    return [
        (pair["name"], base64.b64decode(pair["request"]), pair["response"] and base64.b64decode(pair["response"]))
        for pair in pairs
        if pair["server"] == "namesrv"
    ]
