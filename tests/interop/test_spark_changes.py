"""What changes under a stream of Spark, on brokers of both kinds: queues, topics, messages, name servers and rights."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.interop.encrypted import encrypted_fleet
from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.java import JavaSystem
from tests.interop.peers import PeerHost
from tests.interop.processes import eventually
from tests.interop.spark_rows import Place, kept, options_for, place_of, run_available, running
from tests.interop.test_deleted_segments import DELETING, SETTINGS, first_offset
from tests.interop.traffic import Event, produce, pull
from tests.spark.test_spark import spark  # noqa: F401 - a fixture

pytestmark = pytest.mark.spark

KINDS: tuple[Kind, ...] = ("ours", "java")


@attrs.frozen
class Pair:
    """A name server and a broker of one kind."""

    kind: Kind
    fleet: Fleet
    namesrv: Namesrv
    broker: Broker

    def options(self, topic: str, **options: str) -> dict[str, str]:
        return options_for(self.namesrv.addr, topic=topic, startingOffsets="earliest", **options)

    def admin(self, command: str, *args: str) -> None:
        self.fleet.mqadmin(command, "-n", self.namesrv.addr, *args)

    def set_queues(self, topic: str, count: int) -> None:
        self.admin("updateTopic", "-b", self.broker.addr, "-t", topic, "-r", str(count), "-w", str(count))

    def send(self, topic: str, count: int, prefix: str) -> list[Event]:
        return produce(self.fleet, self.namesrv, topic, count=count, prefix=prefix)

    def view(self, topic: str) -> list[Event]:
        return pull(self.fleet, self.namesrv, topic)


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, java: JavaSystem, host: PeerHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    kind: Kind = request.param
    fleet = Fleet(tmp_path_factory.mktemp(f"changes-{kind}"), java, host)
    try:
        namesrv = fleet.namesrv(kind)
        settings = DELETING | {"fileReservedTime": "72"}
        yield Pair(kind, fleet, namesrv, fleet.broker(kind, namesrv, **SETTINGS | settings))
    finally:
        fleet.stop_all()


def losses(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def sum_of(places: list[Place], rows: list[dict[str, Any]]) -> list[Place]:
    """The places that were read, and those of the ranges that were recorded as lost."""
    gone = [(row["brokerName"], row["queueId"], n) for row in rows for n in range(row["fromOffset"], row["toOffset"])]
    return sorted([*places, *gone])


def test_queues_that_are_added_and_taken_away(pair: Pair, topic: str, tmp_path: Path, spark: Any) -> None:  # noqa: F811
    pair.set_queues(topic, 4)
    options = pair.options(topic)
    sent = [place_of(event) for event in pair.send(topic, 40, "four")]
    with running(spark, options, tmp_path) as query:
        wait_for_rows(spark, query, tmp_path, sent, "the first messages")
        pair.set_queues(topic, 8)
        eventually("eight queues", lambda: len({event["queueId"] for event in send(pair, topic, sent)}) == 8)
        wait_for_rows(spark, query, tmp_path, sent, "their messages")
        pair.set_queues(topic, 4)
        eventually("the loss of queues", query.exception)
        assert re.search(r"DataLoss: ROCKETMQ_DATA_LOSS.QUEUE_GONE: topic .*, queue [4-7]", str(query.exception()))
    lost = tmp_path / "lost"
    going_on = options | {"failOnDataLoss": "false", "dataLossTo": str(lost)}
    sent += [place_of(event) for event in pair.send(topic, 40, "four again")]
    run_available(spark, going_on, tmp_path)
    assert read(spark, tmp_path) == sorted(sent)
    assert {row["queueId"] for row in losses(lost)} == {4, 5, 6, 7}
    # With eight queues again those four go on where they were.
    pair.set_queues(topic, 8)
    eventually("eight queues", lambda: len({event["queueId"] for event in send(pair, topic, sent)}) == 8)
    run_available(spark, options, tmp_path)
    assert read(spark, tmp_path) == sorted(sent)


def test_a_broker_that_is_added_and_removed(pair: Pair, topic: str, tmp_path: Path, spark: Any) -> None:  # noqa: F811
    pair.set_queues(topic, 4)
    sent = [place_of(event) for event in pair.send(topic, 40, "one")]
    one, both = {pair.broker.name}, {pair.broker.name}
    other = None
    try:
        with running(spark, pair.options(topic), tmp_path) as query:
            wait_for_rows(spark, query, tmp_path, sent, "the messages of one broker")
            other = pair.fleet.broker(pair.kind, pair.namesrv, brokerName="added")
            both.add(other.name)
            pair.admin("updateTopic", "-b", other.addr, "-t", topic, "-r", "4", "-w", "4")
            eventually("messages on both", lambda: {event["broker"] for event in send(pair, topic, sent)} == both)
            wait_for_rows(spark, query, tmp_path, sent, "those of both")
            # It says good-bye, so that the name server does not list it any more.
            other.process.stop()
            eventually("messages on one", lambda: {event["broker"] for event in send(pair, topic, sent)} == one)
            wait_for_rows(spark, query, tmp_path, sent, "those of the one that is left")
            pair.fleet.restart(other)
            eventually("messages on both", lambda: {event["broker"] for event in send(pair, topic, sent)} == both)
            wait_for_rows(spark, query, tmp_path, sent, "those of both again")
            assert query.exception() is None
    finally:
        if other is not None and other.process.running:
            other.process.stop()


def read(spark: Any, folder: Path) -> list[Place]:  # noqa: F811
    return kept(spark, folder) if any((folder / "rows").glob("*.parquet")) else []


def wait_for_rows(spark: Any, query: Any, folder: Path, places: list[Place], what: str) -> None:  # noqa: F811
    """Raises what has ended the query."""

    def are_there() -> bool:
        if (error := query.exception()) is not None:
            raise error
        return read(spark, folder) == sorted(places)

    # A busy machine starts a stream slowly.
    eventually(what, are_there, 180)


def send(pair: Pair, topic: str, sent: list[Place]) -> list[Event]:
    """Send more, and add their places to `sent`."""
    events = pair.send(topic, 24, "more")
    sent += [place_of(event) for event in events]
    return events


@pytest.mark.parametrize(("queues", "count"), [(4, 8), (4, 400), (2, 40)])
def test_a_topic_that_is_deleted_and_made_again(
    pair: Pair,
    topic: str,
    queues: int,
    count: int,
    tmp_path: Path,
    spark: Any,  # noqa: F811
) -> None:
    """Shorter, longer, and with fewer queues."""
    pair.set_queues(topic, 4)
    options = pair.options(topic)
    before = [place_of(event) for event in pair.send(topic, 40, "before")]
    run_available(spark, options, tmp_path)
    pair.admin("deleteTopic", "-c", "Interop", "-t", topic)
    pair.set_queues(topic, queues)
    pair.send(topic, count, "after")
    after = [place_of(event) for event in pair.view(topic)]
    assert len(after) == count
    lost = tmp_path / "lost"
    kinds = {4: {8: "CUT_SHORT", 400: "RECREATED"}[count] if queues == 4 else "", 2: "QUEUE_GONE|RECREATED"}[queues]
    if pair.kind == "java" or queues == 2:
        with pytest.raises(Exception, match=rf"ROCKETMQ_DATA_LOSS\.({kinds}): topic {re.escape(topic)}"):
            run_available(spark, options, tmp_path)
    # Queues of ours continue the old offsets: where there are as many, nothing is lost.
    given = {} if pair.kind == "ours" and queues == 4 else {"failOnDataLoss": "false", "dataLossTo": str(lost)}
    run_available(spark, options | given, tmp_path)
    assert read(spark, tmp_path) == sorted([*before, *after])
    assert bool(losses(lost)) == bool(given)


def test_retention_that_deletes_under_a_reader(pair: Pair, topic: str, tmp_path: Path, spark: Any) -> None:  # noqa: F811
    pair.set_queues(topic, 4)
    produce(pair.fleet, pair.namesrv, topic, count=900, size=1000)
    every = [place_of(event) for event in pair.view(topic)]
    assert len(every) == 900
    reached, deleted = threading.Event(), threading.Event()
    folder = tmp_path / "rows"

    def keep(frame: Any, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{folder}/batch={batch}")
        if batch == 1:
            reached.set()
            deleted.wait(180)

    def delete() -> None:
        reached.wait(60)
        pair.admin("updateBrokerConfig", "-b", pair.broker.addr, "-k", "fileReservedTime", "-v", "0")
        pair.admin("deleteExpiredCommitLog", "-b", pair.broker.addr)
        try:
            # Java's broker looks a minute after its start for the first time.
            eventually("segments are deleted", lambda: first_offset(pair.broker) > 0, 120)
            eventually("queues follow", lambda: len(pair.view(topic)) < 800, 120)
        finally:
            pair.admin("updateBrokerConfig", "-b", pair.broker.addr, "-k", "fileReservedTime", "-v", "72")
            deleted.set()

    deleting = threading.Thread(target=delete)
    deleting.start()
    options = pair.options(topic, maxOffsetsPerTrigger="40")
    try:
        with pytest.raises(Exception, match=r"ROCKETMQ_DATA_LOSS\.AGED_OUT: topic"):
            run_available(spark, options, tmp_path, keep)
    finally:
        deleted.set()
        deleting.join()
    left = [place_of(event) for event in pair.view(topic)]
    lost = tmp_path / "lost"
    given = {"failOnDataLoss": "false", "dataLossTo": str(lost), "maxOffsetsPerTrigger": "1000"}
    run_available(spark, options | given, tmp_path, keep)
    found = kept(spark, tmp_path)
    assert set(found) >= set(left)
    assert 0 < len(found) < 900
    assert {row["kind"] for row in losses(lost)} == {"AGED_OUT"}
    assert sum_of(found, losses(lost)) == sorted(every)


def test_a_name_server_that_is_restarted(pair: Pair, topic: str, tmp_path: Path, spark: Any) -> None:  # noqa: F811
    pair.set_queues(topic, 4)
    sent = [place_of(event) for event in pair.send(topic, 20, "before")]
    with running(spark, pair.options(topic), tmp_path) as query:
        wait_for_rows(spark, query, tmp_path, sent, "the first messages")
        pair.namesrv.process.kill()
        # The stream goes on at the brokers that it knows.
        batches = query.lastProgress["batchId"]
        pair.fleet.restart_namesrv(pair.namesrv)
        eventually("the broker is registered", lambda: is_registered(pair, topic))
        sent += [place_of(event) for event in pair.send(topic, 20, "after")]
        wait_for_rows(spark, query, tmp_path, sent, "the next messages")
        assert query.exception() is None
        assert query.lastProgress["batchId"] > batches


def is_registered(pair: Pair, topic: str) -> bool:
    return pair.broker.name in pair.fleet.mqadmin("topicRoute", "-n", pair.namesrv.addr, "-t", topic)


ACCOUNTS = """\
accounts:
- accessKey: reader-key
  secretKey: secret-of-reader
  defaultTopicPerm: {topics}
  defaultGroupPerm: {groups}
- accessKey: writer-key
  secretKey: secret-of-writer
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
READER = {"accessKey": "reader-key", "secretKey": "secret-of-reader"}
WRITER = {"accessKey": "writer-key", "secretKey": "secret-of-writer"}


@attrs.frozen
class Guarded:
    """Daemons of one kind that take encrypted connections of accounts only."""

    pair: Pair
    accounts: Path
    encrypted: dict[str, str]

    def permit(self, *, topics: str, groups: str) -> None:
        """Change what the reader may do; returns when the broker has read that."""
        self.accounts.write_text(ACCOUNTS.format(topics=topics, groups=groups))

    def options(self, topic: str, account: dict[str, str]) -> dict[str, str]:
        return options_for(self.pair.namesrv.addr, topic=topic, **account, **self.encrypted)


@pytest.fixture(scope="module", params=KINDS)
def guarded(
    request: pytest.FixtureRequest, java: JavaSystem, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    kind: Kind = request.param
    with encrypted_fleet(java, tmp_path_factory.mktemp(f"guarded-{kind}")) as encrypted:
        fleet, tls = encrypted.fleet, encrypted.client
        namesrv = fleet.namesrv(kind)
        home = fleet.home(ACCOUNTS.format(topics="SUB", groups="SUB"))
        broker = fleet.broker(kind, namesrv, home=home, aclEnable="true")
        options = {"tlsCa": str(tls.ca_file), "tlsCert": str(tls.cert_file), "tlsKey": str(tls.key_file)}
        yield Guarded(Pair(kind, fleet, namesrv, broker), home / "conf" / "plain_acl.yml", options)


def write(spark: Any, options: dict[str, str], first: int, count: int) -> None:  # noqa: F811
    frame = spark.range(first, first + count).selectExpr("CAST(id AS STRING) AS body")
    frame.write.format("rocketmq").mode("append").options(**options).save()


def bodies(frame: Any) -> list[int]:
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def test_accounts_over_encrypted_connections(guarded: Guarded, topic: str, tmp_path: Path, spark: Any) -> None:  # noqa: F811
    guarded.permit(topics="SUB", groups="SUB")
    write(spark, guarded.options(topic, WRITER) | {"guarantee": "effectively-once", "writeId": "one"}, 0, 50)
    write(spark, guarded.options(topic, WRITER) | {"guarantee": "effectively-once", "writeId": "one"}, 0, 50)
    readable = guarded.options(topic, READER)

    def rows(options: dict[str, str]) -> Any:
        return spark.read.format("rocketmq").options(**options).load()

    eventually("all can be read", lambda: rows(readable).count() >= 50)
    assert bodies(rows(readable)) == list(range(50))
    run_available(spark, readable | {"startingOffsets": "earliest"}, tmp_path)
    assert bodies(spark.read.parquet(f"{tmp_path}/rows")) == list(range(50))

    refused = r"NotAllowed: queue \d of topic .*, from offset 0 on: refused by the broker: .*AclException"
    wrong = {"accessKey": "reader-key", "secretKey": "another"}
    for account in ({}, wrong, {"accessKey": "nobody", "secretKey": "another"}):
        with pytest.raises(Exception, match=rf"{refused}|NotAllowed: queue \d of topic .*: refused by the broker"):
            rows(guarded.options(topic, account)).collect()
    # Java's broker lets an account without PUB send batches; a wrong secret it refuses.
    for account in (READER, wrong) if guarded.pair.kind == "ours" else (wrong,):
        with pytest.raises(
            Exception, match=r"NotAllowed: topic .*, rows \d to \d of partition \d: refused by the brok"
        ):
            write(spark, guarded.options(topic, account), 50, 5)
    for missing in (("tlsCert", "tlsKey"), ("tlsCa", "tlsCert", "tlsKey")):
        given = {name: text for name, text in readable.items() if name not in missing}
        with pytest.raises(Exception, match=r"certificate|encrypted"):
            rows(given).collect()


@pytest.mark.parametrize(("topics", "groups"), [("DENY", "SUB"), ("SUB", "DENY")])
def test_rights_that_are_taken_from_a_stream(
    guarded: Guarded,
    topic: str,
    topics: str,
    groups: str,
    tmp_path: Path,
    spark: Any,  # noqa: F811
) -> None:
    guarded.permit(topics="SUB", groups="SUB")
    write(spark, guarded.options(topic, WRITER), 0, 60)
    options = guarded.options(topic, READER) | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    batch = spark.read.format("rocketmq").options(**options_of_batch(options))
    eventually("all can be read", lambda: batch.load().count() == 60)

    def keep(frame: Any, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{tmp_path}/rows/batch={batch}")
        if batch == 1 and not (tmp_path / "taken").exists():
            guarded.permit(topics=topics, groups=groups)
            (tmp_path / "taken").touch()
            eventually("the broker refuses", lambda: is_refused(spark, options_of_batch(options)))

    with pytest.raises(Exception, match=r"NotAllowed: .*refused by the broker: .*AclException: No .*Check accessKey"):
        run_available(spark, options, tmp_path, keep)
    guarded.permit(topics="SUB", groups="SUB")
    eventually("the broker permits", lambda: not is_refused(spark, options_of_batch(options)))
    run_available(spark, options, tmp_path, keep)
    assert bodies(spark.read.parquet(f"{tmp_path}/rows")) == list(range(60))


def options_of_batch(options: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in options.items() if name != "maxOffsetsPerTrigger"}


def is_refused(spark: Any, options: dict[str, str]) -> bool:  # noqa: F811
    try:
        spark.read.format("rocketmq").options(**options).load().count()
    except Exception as error:
        if "NotAllowed" in str(error):
            return True
        raise
    return False
