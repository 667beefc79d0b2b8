"""All commands of the Java mqadmin on our daemons and on Java's, in the same situation, with the same outcome."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import attrs
import pytest

from tests.interop.admin_table import TABLE, Row
from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.java import JavaSystem
from tests.interop.peers import Peer, PeerHost
from tests.interop.processes import eventually
from tests.interop.traffic import consumer, produce, wait_committed

#: What waits for a request code that our daemons do not answer yet. A command that works must leave.
WAITING: dict[str, str] = {}

#: Who comes from here need not sign.
ACCESS = """
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: first-key
  secretKey: first-secret
  whiteRemoteAddress: ''
  admin: true
"""

TOPIC, GROUP, PRODUCERS = "Orders", "OnlineConsumers", "OnlineProducers"


@attrs.frozen
class Situation:
    """A name server and a broker of one kind, with messages, and a consumer and a producer online."""

    fleet: Fleet
    namesrv: Namesrv
    broker: Broker
    names: dict[str, str]

    def run(self, row: Row) -> str:
        """Run mqadmin; returns what it printed, and what it wrote to a file, with all masked that is of one run."""
        if row.committed is not None:
            wait_committed(self.broker, GROUP, TOPIC, queues=2, count=row.committed)
        args = [word.format(**self.names) for word in row.line.split()]
        peer = self.fleet.begin_mqadmin(args[0], "-n", self.namesrv.addr, *args[1:])
        if row.lines_until_interrupt is not None:
            peer.wait_events("stdout", row.lines_until_interrupt)
            peer.interrupt()
        peer.wait()
        text = self._plain(peer)
        if row.reads is not None:
            path = self.fleet.scratch / row.reads
            text += "\n" + (path.read_text() if path.exists() else f"no {row.reads}")
        return self._masked(text)

    @staticmethod
    def _plain(peer: Peer) -> str:
        """Standard output, and of exceptions what they say without where they came from."""
        stacks = peer.text("stderr").splitlines()
        said = [line for line in stacks if not re.match(r"\s+(at |\.\.\. )", line)]
        return "\n".join([peer.text(), *said])

    def _masked(self, text: str) -> str:
        port, namesrv_port = (int(addr.rpartition(":")[2]) for addr in (self.broker.addr, self.namesrv.addr))
        for name, value in sorted(self.names.items(), key=lambda item: -len(item[1])):
            if name in ("addr", "scratch", "client_id", "producer_id", "local"):
                text = text.replace(value, f"<{name}>")
        text = text.replace(self.namesrv.addr, "<namesrv>")
        for number, name in ((port, "port"), (port + 1, "ha port"), (namesrv_port, "namesrv port")):
            text = re.sub(rf"(?<![0-9A-Fa-f]){number}(?![0-9A-Fa-f])", f"<{name}>", text)
        for pattern, by in (
            (r"<local>:\d+|127\.0\.0\.1:\d+", "<client>"),
            (r"(?<![0-9A-F])[0-9A-F]{32,}(?![0-9A-F])", "<message id>"),
            (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:[:,.]\d{3})?", "<time>"),
            (r"\b1[0-9]{12}\b", "<ms>"),
            (r"\b\d+ ?ms\b", "<n>ms"),
            (r" {2,}", "  "),
            (r"[ \t]+$", ""),
        ):
            text = re.sub(pattern, by, text, flags=re.MULTILINE)
        return text.strip()


def prepare(fleet: Fleet, kind: Kind) -> Situation:
    namesrv = fleet.namesrv(kind)
    home = fleet.home(ACCESS)
    broker = fleet.broker(kind, namesrv, home=home, brokerName="broker-a", aclEnable="true", traceTopicEnable="true")
    # Clients look for new routes only every 30 s; the group of mqadmin's own consumers is known where one of them was
    # there long enough to say so.
    for topic, queues in ((TOPIC, 2), (f"%RETRY%{GROUP}", 1), ("%RETRY%TOOLS_CONSUMER", 1)):
        fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=queues).finish()
    sent = [
        *produce(fleet, namesrv, TOPIC, mode="selector", queue=0, count=6, keys=True, tags="A,B"),
        *produce(fleet, namesrv, TOPIC, mode="selector", queue=1, count=4, keys=True, prefix="more"),
    ]
    online = consumer(fleet, namesrv, TOPIC, GROUP, instance="consumer", persist_ms=100)
    online.wait_events("message", 10)
    options = {"mode": "selector", "prefix": "traced", "trace": True, "stay": True}
    producer = fleet.peer("produce", namesrv, topic=TOPIC, group=PRODUCERS, instance="producer", **options)
    [traced] = producer.wait_events("sent")
    online.wait_events("message", 11)
    wait_committed(broker, GROUP, TOPIC, queues=2, count=11)

    def shows(what: str, *args: str) -> None:
        eventually(
            f"mqadmin {args} shows {what}", lambda: what in fleet.mqadmin(args[0], "-n", namesrv.addr, *args[1:])
        )

    # It is known to the broker with its first heartbeat, and sends the trace a little later.
    producer_id = producer.events("started")[0]["clientId"]
    shows(producer_id, "producer", "-b", broker.addr)
    shows(f"%RETRY%{GROUP}", "consumerProgress", "-g", GROUP)
    shows("Pub", "queryMsgTraceById", "-i", traced["msgId"])
    names = {
        "topic": TOPIC,
        "group": GROUP,
        "producers": PRODUCERS,
        "addr": broker.addr,
        "scratch": str(fleet.scratch),
        "client_id": online.events("started")[0]["clientId"],
        "producer_id": producer_id,
        "local": online.events("started")[0]["clientId"].partition("@")[0],
        "offset_id": sent[0]["offsetMsgId"],
        "unique_id": sent[1]["msgId"],
        "traced_id": traced["msgId"],
    }
    return Situation(fleet, namesrv, broker, names)


@pytest.fixture(scope="module")
def outcomes(java: JavaSystem, tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, list[str]]:
    """What each row of the table came to, in order, for each kind of daemons."""

    def run(scratch: Path, kind: Kind) -> list[str]:
        host = PeerHost(f"mqadmin-{kind}", java, scratch)
        fleet = Fleet(scratch, java, host)
        try:
            situation = prepare(fleet, kind)
            return [situation.run(row) for row in TABLE]
        finally:
            fleet.stop_all()
            host.kill()

    kinds: tuple[Kind, ...] = get_args(Kind)
    with ThreadPoolExecutor() as pool:
        runs = {kind: pool.submit(run, tmp_path_factory.mktemp(f"mqadmin-{kind}"), kind) for kind in kinds}
    return {kind: run.result() for kind, run in runs.items()}


def case(command: str) -> object:
    waits = WAITING.get(command)
    marks = [pytest.mark.xfail(strict=True, reason=f"{waits} is not there yet")] if waits else []
    return pytest.param(command, marks=marks)


@pytest.mark.parametrize("command", [case(command) for command in dict.fromkeys(row.command for row in TABLE)])
def test_the_same_outcome(outcomes: dict[Kind, list[str]], command: str) -> None:
    ours, java = (
        {f"{index}: {row.line}": row.changed(text) for index, (row, text) in enumerate(zip(TABLE, texts, strict=True))}
        for texts in (outcomes["ours"], outcomes["java"])
    )
    rows = [name for name in java if name.split()[1] == command]
    for name in rows:
        assert ours[name] == java[name], name


def test_the_table_has_every_command(fleet: Fleet) -> None:
    listed = {line.split()[0] for line in fleet.mqadmin().splitlines() if line.startswith("   ")}
    assert len(listed) == 57
    assert {row.command for row in TABLE} == listed
