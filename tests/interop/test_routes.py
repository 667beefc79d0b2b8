"""The routes of a name server follow the topics of a broker, of either kind: created, changed, deleted, drained."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from mqbroker.wire import fastjson
from mqbroker.wire.bodies import DataVersion, TopicConfigSerializeWrapper
from mqbroker.wire.codes import Perm, RequestCode
from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.processes import eventually
from tests.interop.raw import Line, create_topic, request

PAIRS: list[tuple[Kind, Kind]] = [("java", "java"), ("java", "ours"), ("ours", "java"), ("ours", "ours")]
#: The shortest that a Java broker accepts.
PERIOD_MS = "10000"
#: Two periods, and some.
PATIENCE_S = 25


class Pair:
    """A broker and its name server, spoken to without a client between."""

    def __init__(self, lines: ExitStack, namesrv: Namesrv, broker: Broker) -> None:
        self._lines = lines
        self.broker = broker
        self.namesrv = lines.enter_context(closing(Line(namesrv.addr)))
        self.line = lines.enter_context(closing(Line(broker.addr)))

    def create(self, *topics: str, perm: int = 6) -> None:
        for topic in topics:
            command = create_topic(topic, 4)
            command.ext_fields["perm"] = str(perm)
            self.line.ask_well([command])

    def delete(self, topic: str) -> None:
        self.line.ask_well([request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)])

    def perm(self, topic: str) -> int | None:
        """The permission in the topic's route; None if there is none."""
        answer = self.namesrv.one(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        if answer.code:
            return None
        (queues,) = fastjson.loads(answer.body)["queueDatas"]
        return int(queues["perm"])

    def is_known(self) -> bool:
        """Whether the name server has registered the broker's version of its topics."""
        (body,) = self.line.ask_well([request(RequestCode.GET_ALL_TOPIC_CONFIG)])
        version = TopicConfigSerializeWrapper.from_json(body.body, dialect_bytes_max=None).data_version
        query = request(RequestCode.QUERY_DATA_VERSION, brokerAddr=self.broker.addr, brokerName=self.broker.name,
                        clusterName="Interop", brokerId=0)  # fmt: skip
        query.body = version.to_json()
        (answer,) = self.namesrv.ask_well([query])
        return bool(answer.body) and DataVersion.from_value(fastjson.loads(answer.body)) == version

    def restart(self, fleet: Fleet) -> None:
        self.broker.process.kill()
        fleet.restart(self.broker)
        self.line = self._lines.enter_context(closing(Line(self.broker.addr)))


@pytest.fixture
def lines() -> Iterator[ExitStack]:
    with ExitStack() as lines:
        yield lines


@pytest.mark.parametrize(("namesrv_kind", "broker_kind"), PAIRS)
def test_routes_follow_the_topics_of_a_broker(
    fleet: Fleet, lines: ExitStack, namesrv_kind: Kind, broker_kind: Kind
) -> None:
    namesrv = fleet.namesrv(namesrv_kind)
    broker = fleet.broker(broker_kind, namesrv, registerNameServerPeriod=PERIOD_MS)
    pair, is_ours = Pair(lines, namesrv, broker), namesrv_kind == "ours"
    # A created or changed topic is registered at once and alone, and the others stay.
    pair.create("A", "B")
    pair.create("C", perm=4)
    for topic, perm in {"A": 6, "B": 6, "C": 4, "SELF_TEST_TOPIC": 6, "BenchmarkTest": 6, broker.name: 7}.items():
        eventually(f"{topic} has a route", lambda topic=topic, perm=perm: pair.perm(topic) == perm)  # type: ignore[misc]
    # A deleted one goes with the next whole table. A Java name server keeps it until it is deleted there, too.
    pair.delete("A")
    eventually("the change is registered", pair.is_known, patience_s=PATIENCE_S)
    assert (pair.perm("A"), pair.perm("B")) == (None if is_ours else 6, 6)
    # One that is deleted at the name server alone comes back, with a Java name server with the next other change.
    pair.namesrv.ask_well([request(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="B")])
    assert pair.perm("B") is None
    if not is_ours:
        pair.delete("C")
    eventually("B has a route again", lambda: pair.perm("B") == 6, patience_s=PATIENCE_S)
    assert pair.perm(broker.name) == 7


@pytest.mark.parametrize("broker_kind", ["java", "ours"])
def test_a_drain_lasts_until_the_broker_starts_anew(fleet: Fleet, lines: ExitStack, broker_kind: Kind) -> None:
    namesrv = fleet.namesrv("ours")
    pair = Pair(lines, namesrv, fleet.broker(broker_kind, namesrv, registerNameServerPeriod=PERIOD_MS))
    pair.create("A", "B")
    eventually("A has a route", lambda: pair.perm("A") == 6)

    def wipe() -> None:
        pair.namesrv.ask_well([request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName=pair.broker.name)])
        assert pair.perm("A") == Perm.READ

    wipe()
    pair.create("C")
    eventually("C has a route", lambda: pair.perm("C") == Perm.READ)
    pair.delete("B")
    eventually("the whole table is registered", lambda: pair.perm("B") is None, patience_s=PATIENCE_S)
    assert pair.perm("A") == pair.perm("C") == Perm.READ
    # Killed, so that it does not unregister.
    for _ in range(2):
        pair.restart(fleet)
        eventually("A may be written", lambda: pair.perm("A") == 6, patience_s=PATIENCE_S)
        wipe()
    pair.namesrv.ask_well([request(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName=pair.broker.name)])
    assert pair.perm("A") == 6
