"""Options: what they become, and that each mistake is named with what would be right."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mqbroker.client import ClientTls, Credentials
from mqbroker.spark.errors import BadOption
from mqbroker.spark.offsets import EARLIEST, LATEST
from mqbroker.spark.options import NAMES, parse_options
from mqbroker.spark.sink_options import NAMES as SINK_NAMES
from mqbroker.spark.sink_options import choose_sink_columns, parse_sink_options
from mqbroker.wire.bodies import MessageQueue

GOOD = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


def test_defaults_of_a_batch() -> None:
    options = parse_options(GOOD, streaming=False)
    assert options.name_servers == ("127.0.0.1:9876",)
    assert options.topics == ("orders",)
    assert (options.starting.default, options.ending.default) == (EARLIEST, LATEST)
    assert (options.group, options.pull_batch, options.retry_timeout_ms) == ("spark-rocketmq", 32, 60_000)


def test_a_stream_starts_at_the_end_by_default() -> None:
    options = parse_options(GOOD, streaming=True)
    assert options.starting.default == LATEST
    assert options.max_offsets_per_trigger is None


def test_all_options_in_the_case_that_spark_gives_them() -> None:
    options = parse_options(
        {
            "nameserver": "a:1; b:2",
            "topic": " orders , %RETRY%g ",
            "startingoffsets": "EARLIEST",
            "maxoffsetspertrigger": "500",
            "consumergroup": "readers",
            "pullbatchsize": "64",
            "retrytimeoutms": "0",
        },
        streaming=True,
    )
    assert options.name_servers == ("a:1", "b:2")
    assert options.topics == ("orders", "%RETRY%g")
    assert options.starting.default == EARLIEST
    assert (options.max_offsets_per_trigger, options.group) == (500, "readers")
    assert (options.pull_batch, options.retry_timeout_ms) == (64, 0)


def test_an_end_may_be_at_the_start_and_not_before_it() -> None:
    given = GOOD | {"startingTimestamp": "1000"}
    assert parse_options(given | {"endingTimestamp": "1000"}, streaming=False).ending.time_ms == 1000
    with pytest.raises(BadOption, match="is before startingTimestamp"):
        parse_options(given | {"endingTimestamp": "999"}, streaming=False)


def test_a_batch_has_as_many_bytes_as_brokers_take() -> None:
    assert parse_sink_options(GOOD | {"batchBytes": str(512 * 1024)}).batch_bytes == 512 * 1024
    with pytest.raises(BadOption, match="is not a whole number from 1 to 524288"):
        parse_sink_options(GOOD | {"batchBytes": str(512 * 1024 + 1)})


def test_the_columns_of_ids_count_in_the_order_of_the_option() -> None:
    """Rows have the same keys however their columns stand."""
    options = parse_sink_options(GOOD | {"guarantee": "effectively-once", "idColumns": "b, A"})
    for names in (("a", "b", "body"), ("b", "body", "a"), ("BODY", "A", "B")):
        columns = choose_sink_columns([(name, "string") for name in names], options)
        assert [names[place].lower() for place in columns.ids] == ["b", "a"]


@pytest.mark.parametrize(
    ("names", "is_key"), [(("key", "value"), True), (("value", "key"), True), (("keys", "value"), False)]
)
def test_keys_of_a_column_key_are_one_key_each(names: tuple[str, ...], is_key: bool) -> None:
    columns = choose_sink_columns([(name, "string") for name in names], parse_sink_options(GOOD))
    assert columns.is_key is is_key
    assert names[columns.places["keys"]].startswith("key")


def test_without_more_there_is_neither_account_nor_encryption() -> None:
    options = parse_options(GOOD, streaming=False)
    assert (options.credentials, options.tls) == (None, None)


def test_a_topic_can_be_named_as_kafka_users_do() -> None:
    given = {"nameServer": "127.0.0.1:9876", "subscribe": "orders, bills"}
    assert parse_options(given, streaming=True).topics == ("orders", "bills")


def test_accounts(tmp_path: Path) -> None:
    given = {"accesskey": "alice", "secretkey": "a secret"}
    assert parse_options(GOOD | given, streaming=False).credentials == Credentials("alice", "a secret")
    token = parse_options(GOOD | given | {"securitytoken": "t"}, streaming=False).credentials
    assert token == Credentials("alice", "a secret", "t")
    path = tmp_path / "account.yml"
    path.write_text("accessKey: bob\nsecretKey: another\n")
    from_file = parse_options(GOOD | given | {"accountFile": str(path)}, streaming=False)
    assert from_file.credentials == Credentials("bob", "another")
    assert "another" not in repr(from_file)


def test_encryption() -> None:
    def tls(**given: str) -> ClientTls | None:
        return parse_options(GOOD | given, streaming=False).tls

    assert tls(tls="true") == tls(tls="True") == ClientTls()
    assert tls(tls="false") is None
    assert tls(tlsInsecure="true") == ClientTls(insecure=True)
    whole = tls(tlsCa="/ca", tlsServerName="mq", tlsCert="/cert", tlsKey="/key", tlsKeyPassword="p")
    assert whole == ClientTls(ca_file="/ca", server_name="mq", cert_file="/cert", key_file="/key", key_password="p")


def test_offsets_of_queues() -> None:
    options = parse_options(
        GOOD | {"startingOffsets": '{"orders":{"broker-a":{"0":5,"11":-2}}}', "endingOffsets": "latest"},
        streaming=False,
    )
    assert options.starting.given == {
        MessageQueue("orders", "broker-a", 0): 5,
        MessageQueue("orders", "broker-a", 11): EARLIEST,
    }
    assert options.starting.default == EARLIEST


@pytest.mark.parametrize(
    ("change", "streaming", "message"),
    [
        ({"nameServer": ""}, True, "option nameServer: is required: host:port"),
        ({"topic": " "}, True, "option topic: is required: a topic, or several"),
        ({"nameServer": "localhost"}, True, "each name server must be host:port, not 'localhost' of type str; use"),
        ({"topic": "a,,b"}, True, "option topic: 'a,,b' has an empty name"),
        ({"topic": "../etc"}, True, "option topic: '../etc': .*illegal characters"),
        ({"consumerGroup": "a b"}, True, "option consumerGroup: 'a b': .*illegal characters"),
        ({"startingOffset": "latest"}, True, "option startingOffset: .*did you mean startingOffsets"),
        ({"namesrv": "a:1"}, True, "option namesrv: there is no such option; did you mean nameServer"),
        ({"zzz": "1"}, True, "option zzz: there is no such option; All options: nameServer, topic"),
        ({"endingOffsets": "latest"}, True, "option endingOffsets: a stream has no end"),
        ({"maxOffsetsPerTrigger": "5"}, False, "option maxOffsetsPerTrigger: a batch has no triggers"),
        ({"maxOffsetsPerTrigger": "0"}, True, "'0' is not a whole number from 1 to"),
        ({"maxOffsetsPerTrigger": "many"}, True, "'many' is not a whole number"),
        ({"pullBatchSize": "1025"}, True, "option pullBatchSize: '1025' is not a whole number from 1 to 1024"),
        ({"retryTimeoutMs": "-1"}, True, "option retryTimeoutMs: '-1' is not a whole number"),
        ({"retryTimeoutMs": "9" * 5000}, True, "option retryTimeoutMs: .* is not a whole number"),
        ({"startingOffsets": "newest"}, True, "'newest' is not 'earliest' or 'latest', or JSON like"),
        ({"startingOffsets": "5"}, True, "the whole is not an object but 5"),
        ({"startingOffsets": '{"orders":5}'}, True, "topic 'orders' is not an object"),
        ({"startingOffsets": '{"orders":{"b":{"x":1}}}'}, True, "queue 'x' of broker 'b' is not a number"),
        (
            {"startingOffsets": '{"orders":{"b":{"0":"1"}}}'},
            True,
            "offset '1' of queue 0 of broker 'b' is not an integer",
        ),
        ({"startingOffsets": '{"orders":{"b":{"0":true}}}'}, True, "is not an integer"),
        ({"startingOffsets": '{"orders":{"b":{"0":1,"0":5}}}'}, True, "or JSON like .*: '0' is there twice"),
        ({"startingOffsets": '{"orders":{"b":{"0":1}},"orders":{}}'}, True, "'orders' is there twice"),
        ({"startingOffsets": '{"orders":{"b":{"0":1,"00":5}}}'}, True, "queue '00' of broker 'b' is not a number"),
        ({"startingOffsets": "[" * 100_000}, True, "it is nested too deeply"),
        ({"startingOffsetsByTimestamp": '{"orders":{"b":{"0":1,"0":2}}}'}, True, "'0' is there twice"),
        ({"assign": '{"orders":{"b":[0]},"orders":{"b":[1]}}', "topic": ""}, True, "'orders' is there twice"),
        ({"startingOffsets": '{"orders":{"b":{"0":-3}}}'}, True, "an offset is 0 or more, -2 for earliest or -1"),
        ({"startingOffsets": '{"bills":{"b":{"0":1}}}'}, True, "topic 'bills' is not among those read: orders"),
        ({"subscribe": "orders"}, True, "option topic: set one of topic and subscribe: each says what is read"),
        ({"kafka.bootstrap.servers": "a:1"}, True, "of Spark's Kafka source; the address is nameServer=host:port"),
        ({"kafka.max.poll.interval.ms": "5"}, True, "no settings of Kafka's client; leave it out"),
        ({"kafka.max.poll.records": "5"}, True, "Kafka source; the number of messages of a pull is pullBatchSize"),
        ({"kafka.auto.offset.reset": "latest"}, True, "Kafka source; where a query starts is startingOffsets"),
        (
            {"kafka.security.protocol": "SASL_SSL"},
            True,
            "encrypted by tls=true with tlsCa, the account is accountFile",
        ),
        ({"kafka.ssl.truststore.location": "/t"}, False, "connections are encrypted by tls=true with tlsCa"),
        ({"kafka.sasl.jaas.config": "x"}, True, "the account is accountFile, or accessKey and secretKey"),
        ({"indexLookup": "true"}, True, "option indexLookup: no filters are pushed down to streams"),
        ({"includeheaders": "true"}, False, "option includeHeaders: .*the column properties always has them"),
        ({"option.nameserver": "h:1"}, False, "option nameServer: is lost. Tables in a catalog lose their options"),
        ({"commitOffsetsToBroker": "true"}, True, "option commitOffsetsToBroker: needs consumerGroup"),
        ({"commitOffsetsToBroker": "true", "consumerGroup": "g"}, False, "a batch commits nothing"),
        ({"maxBytesPerTrigger": "5"}, False, "option maxBytesPerTrigger: a batch has no triggers"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, True, "5 is more than maxOffsetsPerTrigger, 4"),
        ({"maxTriggerDelay": "5m"}, True, "option maxTriggerDelay: is used with minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon", "minOffsetsPerTrigger": "2"}, True, "'soon' is not a duration"),
        ({"minPartitions": "0"}, True, "option minPartitions: '0' is not a whole number from 1 to 100000"),
        ({"maxRecordsPerPartition": "x"}, False, "option maxRecordsPerPartition: 'x' is not a whole number"),
        ({"failOnDataLoss": "no"}, True, "option failOnDataLoss: 'no' is neither true nor false"),
        ({"dataLossTo": "/lost"}, True, "option dataLossTo: it records what failOnDataLoss=false skips"),
        ({"dataLossTo": "s3://lost", "failOnDataLoss": "false"}, True, "'s3://lost' is not the whole path of a dir"),
        ({"dataLossTo": "lost", "failOnDataLoss": "false"}, True, "'lost' is not the whole path of a directory"),
        ({"accessKey": "a"}, False, "option secretKey: is required: an account has both"),
        ({"secretKey": "a"}, False, "option accessKey: is required: an account has both"),
        ({"accountFile": "/not/there"}, False, "option accountFile: /not/there: No such file"),
        ({"tls": "yes"}, False, "option tls: 'yes' is neither true nor false"),
        ({"tlsInsecure": "true", "tlsCa": "/ca"}, False, "option tls: insecure=True verifies nothing"),
        ({"tlsKey": "/key"}, False, "option tls: /key: a private key needs its certificate"),
        ({"endingOffsets": "earliest"}, False, "option endingOffsets: 'earliest' is not 'latest', or JSON"),
        ({"endingOffsets": '{"orders":{"b":{"0":-2}}}'}, False, "an offset is 0 or more, -1 for latest$"),
    ],
)
def test_a_mistake_is_named(change: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parse_options(GOOD | change, streaming=streaming)


#: Options with any text that a broker, a name server or the file system judges, or nobody.
_ANY_TEXT = {
    "accessKey",
    "secretKey",
    "securityToken",
    "tlsCa",
    "tlsServerName",
    "tlsCert",
    "tlsKeyPassword",
    "writeId",
}
_ANY_TEXT |= {"sql92", "tags", "subscribePattern", "idColumns", "expectBrokers"}


@pytest.mark.parametrize("name", sorted({*NAMES, *SINK_NAMES, "subscribe"} - _ANY_TEXT))
def test_an_error_spells_an_option_as_the_documentation_does_whatever_spark_made_of_it(name: str) -> None:
    needed = {"commitOffsetsToBroker": {"consumerGroup": "g"}, "dataLossTo": {"failOnDataLoss": "false"}}
    needed["maxTriggerDelay"] = {"minOffsetsPerTrigger": "2"}
    needed["startingOffsetsByTimestampStrategy"] = {"startingTimestamp": "1"}
    given = GOOD | needed.get(name, {})
    if name in ("subscribe", "assign"):
        del given["topic"]
    given = {key.lower(): text for key, text in given.items()} | {name.lower(): "{no / such}"}
    is_of_writes = name in SINK_NAMES and name not in NAMES
    with pytest.raises(BadOption) as caught:
        parse_sink_options(given) if is_of_writes else parse_options(given, streaming=None)
    assert str(caught.value).startswith("option tls: {no / such}" if name == "tlsKey" else f"option {name}: ")


DEEP = 100_000
HOSTILE = {
    "nothing": "",
    "negative": "-1",
    "more than Python reads": "9" * 5000,
    "beyond 64 bits": str(2**64),
    "other digits": "\u0663",
    "underscore": "1_000",
    "float": "1e9",
    "NaN": "NaN",
    "infinite": "-Infinity",
    "null": "null",
    "list": "[]",
    "text": '""',
    "lists in lists": "[" * DEEP,
    "objects in objects": '{"orders":' * DEEP,
    "offset of lists": f'{{"orders":{{"b":{{"0":{"[" * DEEP}{"]" * DEEP}}}}}}}',
    "offset NaN": '{"orders":{"b":{"0":NaN}}}',
    "long offset": f'{{"orders":{{"b":{{"0":{"9" * 5000}}}}}}}',
    "long text as offset": f'{{"orders":{{"b":{{"0":"{"9" * 5000}"}}}}}}',
    "long queue": f'{{"orders":{{"b":{{"{"9" * 5000}":1}}}}}}',
    "list of NaN": '{"orders":{"b":[NaN]}}',
    "list of a long number": f'{{"orders":{{"b":[{"9" * 5000}]}}}}',
    "brokers as list": '{"orders":[]}',
    "topic twice": '{"orders":{"b":{"0":1}},"orders":{"b":{"1":1}}}',
    "queue twice": '{"orders":{"b":{"0":1,"0":2}}}',
    "queue with a zero before it": '{"orders":{"b":{"0":1,"00":2}}}',
    "NUL": "\0",
    "half of a pair": "\ud800",
    "groups in groups": "(" * 5000 + ")" * 5000,
    "repeated often": "a{" + "9" * 30 + "}",
    "time before Christ": "0001-01-01T00:00:00+23:59",
    "time of leap second": "2016-12-31T23:59:60Z",
}


def refusal(parse: Callable[[Mapping[str, str]], object], given: Mapping[str, str]) -> str:
    """What BadOption says; empty if nothing is refused."""
    try:
        parse(given)
    except BadOption as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_of_an_option_is_more_than_refused_in_one_sentence(text: str) -> None:
    for name in sorted({*NAMES, *SINK_NAMES}):
        given = GOOD | {name: text}
        if name in ("subscribePattern", "assign"):
            del given["topic"]
        for streaming in (True, False):
            of_reads: Callable[..., object] = functools.partial(parse_options, streaming=streaming)
            parse = parse_sink_options if name in SINK_NAMES and name not in NAMES else of_reads
            assert len(refusal(parse, given)) < 1500, name


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp"])
@pytest.mark.parametrize("text", [text for what, text in HOSTILE.items() if "twice" in what])
def test_offsets_that_are_there_twice_are_refused(name: str, text: str) -> None:
    with pytest.raises(BadOption, match=f"option {name}: .*is there twice"):
        parse_options(GOOD | {name: text}, streaming=False)


def test_queues_that_are_assigned_twice_are_refused() -> None:
    text = '{"orders":{"b":[0],"b":[1]}}'
    with pytest.raises(BadOption, match=r"option assign: .*'b' is there twice"):
        parse_options({"nameServer": "h:1", "assign": text}, streaming=False)


def test_where_nobody_knows_yet_what_is_read_both_kinds_pass() -> None:
    parse_options(GOOD | {"endingOffsets": "latest"}, streaming=None)
    parse_options(GOOD | {"maxOffsetsPerTrigger": "5"}, streaming=None)
