"""Real Spark on our own broker: which messages options choose, compared with a plain consumer's view."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from mqbroker.client import Message
from mqbroker.client.blocking import Producer, PullConsumer
from mqbroker.client.errors import TopicNotFound
from mqbroker.client.options import ProducerOptions
from mqbroker.spark import api
from mqbroker.spark.listener import ProgressListener
from mqbroker.wire.bodies import MessageQueue
from tests.daemons.processes import PATIENCE_SECONDS, wait_for
from tests.spark.test_spark import QUEUES, Cluster, Row, publish, reader, rows_of, stream
from tests.spark.test_spark import cluster as cluster
from tests.spark.test_spark import spark as spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.daemons,
    pytest.mark.skipif(not api.HAS_SOURCES, reason="PySpark 3.5 has no data sources in Python"),
]


def chosen(spark: Any, cluster: Cluster, /, **options: str) -> Any:
    return spark.read.format("rocketmq").options(**{"nameServer": cluster.name_server} | options)


def test_a_pattern_an_assignment_and_a_path_choose_what_is_read(spark: Any, cluster: Cluster) -> None:
    one, two = publish(cluster, "Choice-1", 12), publish(cluster, "Choice-2", 8)
    assert rows_of(chosen(spark, cluster, subscribePattern="Choice-.").load()) == sorted(one + two)
    queues = json.dumps({"Choice-1": {"broker-a": [1, 3]}})
    assert rows_of(chosen(spark, cluster, assign=queues).load()) == sorted(row for row in one if row[0] in (1, 3))
    assert rows_of(chosen(spark, cluster).load("Choice-2")) == sorted(two)


def stored(cluster: Cluster, topic: str) -> list[tuple[int, Row]]:
    """The time of storing, and the row, of each message: a plain consumer's view."""
    found = []
    with PullConsumer(cluster.name_server, "checker") as consumer:
        for n in range(QUEUES):
            queue = MessageQueue(topic, "broker-a", n)
            for each in consumer.pull(queue, 0).messages:
                found.append((each.store_timestamp_ms, (n, each.queue_offset, each.body.decode())))
    return found


def test_times_choose_exactly_the_messages_between_them(spark: Any, cluster: Cluster) -> None:
    with Producer(cluster.name_server, "publisher") as producer:
        for n in range(30):  # several messages of a queue have the same time
            producer.send_batch([Message("Times", f"message {n}-{k}") for k in range(3)])
    messages = stored(cluster, "Times")
    times = sorted({time for time, _ in messages})
    for low, high in ((times[len(times) // 3], times[2 * len(times) // 3]), (times[1] - 1, times[-2] + 1)):
        wanted = sorted(row for time, row in messages if low <= time < high)
        options = {
            "startingTimestamp": datetime.fromtimestamp(low / 1000, UTC).isoformat(timespec="milliseconds"),
            "endingTimestamp": str(high),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        assert rows_of(reader(spark, cluster, "Times", **options).load()) == wanted


def test_a_batch_begins_where_a_group_stands(spark: Any, cluster: Cluster) -> None:
    sent = publish(cluster, "Group", 20)
    with PullConsumer(cluster.name_server, "spark-readers") as consumer:
        consumer.commit(MessageQueue("Group", "broker-a", 0), 3)
    options = {"startingOffsets": "group", "consumerGroup": "spark-readers"}
    wanted = [row for row in sent if row[0] != 0 or row[1] >= 3]
    assert rows_of(reader(spark, cluster, "Group", **options).load()) == sorted(wanted)


def test_a_namespace_is_in_no_column(spark: Any, cluster: Cluster) -> None:
    with Producer(cluster.name_server, "publisher", options=ProducerOptions(namespace="shop")) as producer:
        producer.send(Message("Inside", "message"))
    options = {"namespace": "shop"}
    (row,) = reader(spark, cluster, "Inside", **options).load().select("topic", "body").collect()
    assert (row.topic, bytes(row.body)) == ("Inside", b"message")
    (row,) = chosen(spark, cluster, subscribePattern="Ins.*", **options).load().select("topic", "body").collect()
    assert (row.topic, bytes(row.body)) == ("Inside", b"message")
    messages = stream(spark, cluster, "Inside", startingOffsets="earliest", **options).load().select("topic", "body")
    query = messages.writeStream.format("memory").queryName("inside").trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    (row,) = spark.table("inside").collect()
    assert (row.topic, bytes(row.body)) == ("Inside", b"message")


def test_brokers_filter_by_tags_and_by_sql92(spark: Any, cluster: Cluster) -> None:
    # The hashes of Aa and BB are the same.
    tags = ["Aa", "BB", "paid"]
    rows = {tag: publish(cluster, "Filters", 15, 100 * n, tags=tag) for n, tag in enumerate(tags)}
    assert rows_of(reader(spark, cluster, "Filters", tags="Aa").load()) == sorted(rows["Aa"])
    assert rows_of(reader(spark, cluster, "Filters", tags="BB || paid").load()) == sorted(rows["BB"] + rows["paid"])
    messages = stream(spark, cluster, "Filters", tags="paid", startingOffsets="earliest").load()
    query = messages.writeStream.format("memory").queryName("filters").trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert rows_of(spark.table("filters")) == sorted(rows["paid"])
    with pytest.raises(Exception, match=r"option sql92: broker broker-a refuses it.*enablePropertyFilter=true"):
        reader(spark, cluster, "Filters", sql92="TAGS = 'paid'").load().collect()


def test_a_job_for_kafka_needs_the_format_and_the_address_changed(spark: Any, cluster: Cluster) -> None:
    sent = publish(cluster, "Moved", 10, keys="k1", properties={"shop": "7"})
    frame = reader(spark, cluster, "Moved", schema="kafka").load()
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    found = frame.selectExpr("partition", "offset", "CAST(value AS STRING) AS text", "CAST(key AS STRING) AS key",
                             "headers", "timestampType")  # fmt: skip
    rows = found.collect()
    assert sorted((row.partition, row.offset, row.text) for row in rows) == sorted(sent)
    assert {(row.key, row.timestampType, row.headers[0].key, bytes(row.headers[0].value)) for row in rows} == {
        ("k1", 1, "shop", b"7")
    }


def test_sql_reads_and_writes_topics(spark: Any, cluster: Cluster) -> None:
    sent = publish(cluster, "Sql", 10)
    options = f"(nameServer '{cluster.name_server}', topic 'Sql')"
    spark.sql(f"CREATE TEMPORARY VIEW sql_reads USING rocketmq OPTIONS {options}")
    assert rows_of(spark.sql("SELECT * FROM sql_reads WHERE queueId = 1")) == sorted(row for row in sent if row[0] == 1)
    assert spark.table("sql_reads").count() == 10
    # What has the columns of a write can be written to.
    spark.sql(f"CREATE TEMPORARY VIEW sql_writes (body BINARY) USING rocketmq OPTIONS {options}")
    spark.sql("INSERT INTO sql_writes SELECT CAST('by SQL' AS BINARY)")
    assert reader(spark, cluster, "Sql").load().where("body = CAST('by SQL' AS BINARY)").count() == 1
    # The view was planned before, but in 4.0; made again, it has what is there now.
    assert spark.table("sql_reads").count() == (10 if api.HAS_ARROW_STREAMS else 11)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sql_reads USING rocketmq OPTIONS {options}")
    assert spark.table("sql_reads").count() == 11


def test_a_table_in_a_catalog_takes_options_in_the_query_only(spark: Any, cluster: Cluster) -> None:
    publish(cluster, "Tables", 10)
    given = {"nameServer": cluster.name_server, "topic": "Tables"}
    options = f"(nameServer '{cluster.name_server}', topic 'Tables')"
    in_query = f"WITH (nameServer = '{cluster.name_server}', topic = 'Tables')"
    row = "SELECT CAST('a row' AS BINARY) AS body"
    spark.sql("CREATE TABLE columns (body BINARY) USING rocketmq")
    spark.sql(f"INSERT INTO columns {in_query} {row}")
    spark.sql(row).writeTo("columns").options(**given).append()
    assert spark.sql(f"SELECT * FROM columns {in_query}").count() == 12
    assert spark.read.options(**given).table("columns").count() == 12
    spark.sql(row).write.format("rocketmq").mode("append").options(**given).saveAsTable("saved")
    spark.sql(f"CREATE TABLE with_options (body BINARY) USING rocketmq OPTIONS {options}")
    view = r"write CREATE TEMPORARY VIEW \.\.\. USING rocketmq OPTIONS \(\.\.\.\) instead"
    for query, why in (
        ("SELECT * FROM columns", f"is required: .*{view}"),
        (f"INSERT INTO columns {row}", f"is required: .*{view}"),
        ("SELECT * FROM saved", f"is required: .*{view}"),
        ("SELECT * FROM with_options", f"is required: .*{view}"),
        (f"CREATE TABLE lost USING rocketmq OPTIONS {options}", f"is lost.*{view}"),
        (f"CREATE TABLE selected USING rocketmq OPTIONS {options} AS {row}", f"is (lost|required).*{view}"),
    ):
        with pytest.raises(Exception, match=f"option nameServer: {why}"):
            spark.sql(query).collect()
    # Neither can anything of Spark's be read so that has no files.
    with pytest.raises(Exception, match="UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"):
        spark.sql("SELECT * FROM rocketmq.`Tables`").collect()


def test_brokers_and_the_listener_know_how_far_a_stream_is(spark: Any, cluster: Cluster) -> None:
    publish(cluster, "Seen", 20)
    listener = ProgressListener()
    spark.streams.addListener(listener)
    options = {"consumerGroup": "spark-seen", "commitOffsetsToBroker": "true", "startingOffsets": "earliest"}
    query = stream(spark, cluster, "Seen", **options).load().writeStream.format("noop").start()
    queues = [MessageQueue("Seen", "broker-a", n) for n in range(QUEUES)]
    try:
        with PullConsumer(cluster.name_server, "spark-seen") as consumer:
            ends = [consumer.max_offset(queue) for queue in queues]
            wait_for(lambda: [consumer.committed(queue) for queue in queues] == ends, "the commits", PATIENCE_SECONDS)
            # The retry topic makes mqadmin's consumerProgress find the group.
            wait_for(lambda: has_queues(consumer, "%RETRY%spark-seen"), "the retry topic", PATIENCE_SECONDS)
        wait_for(lambda: any(lag.queues.keys() == set(queues) for lag in listener.lags()), "lag", PATIENCE_SECONDS)
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def has_queues(consumer: PullConsumer, topic: str) -> bool:
    try:
        return bool(consumer.queues(topic))
    except TopicNotFound:
        return False


@pytest.mark.skipif(not api.HAS_ARROW_STREAMS, reason="PySpark 4.0 pushes nothing down")
def test_pushed_filters_change_no_row_of_a_query(
    spark: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for n, (tag, keys) in enumerate((("Aa", ["k3"]), ("BB", ["k4", "k5"]), ("paid", ["k1", "k2"]))):
        publish(cluster, "Pushed", 12, 100 * n, tags=tag, keys=keys, properties={"shop": str(n)})
    moment = stored(cluster, "Pushed")[10][0]
    queries = [
        "queueOffset < 3",
        "queueId IN (1, 3) AND queueOffset BETWEEN 2 AND 5",
        "topic = 'Pushed' AND brokerName = 'broker-a' AND queueId = 2",
        "tags = 'Aa'",
        "tags IN ('BB', 'paid') AND queueOffset >= 4",
        f"storeTimestamp >= timestamp_millis({moment})",
        f"storeTimestamp < timestamp_millis({moment}) OR queueOffset = 1",
    ]
    frame = reader(spark, cluster, "Pushed", propertyColumns="shop").load()
    key = frame.where("queueId = 2 AND queueOffset = 4").collect()[0].uniqKey
    queries += ["keys = array('k3') AND queueId < 3", "keys IN (array('k1'), array('k4', 'k5'))", "keys = array('k')"]
    # This broker does not filter by properties, so that Spark does.
    queries += ["prop_shop IN ('1', '2') AND queueOffset > 1", f"uniqKey = '{key}'"]
    without = [rows_of(frame.where(query)) for query in queries]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = reader(spark, cluster, "Pushed", propertyColumns="shop").load()
        for options in ({}, {"indexLookup": "true"}):
            given = {"propertyColumns": "shop"} | options
            frames = [reader(spark, cluster, "Pushed", **given).load().where(query) for query in queries]
            assert [rows_of(frame) for frame in frames] == without
        assert frames[-1].rdd.getNumPartitions() == 1
        # One relation, several queries.
        assert [rows_of(pushed.where(query)) for query in queries] == without
        assert pushed.count() == 36
        capsys.readouterr()
        pushed.where("tags = 'Aa' AND flag = 0").explain("formatted")
        plan = capsys.readouterr().out
        assert re.search(r"PushedFilters: \[.*tags.*Aa", plan), plan
        assert "flag" in plan[plan.index("Filter") :]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
