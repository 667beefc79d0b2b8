"""Settings shown and changed while the broker runs: codes 25 and 26, and who follows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.subscription_resolver import MessageFilter
from mqbroker.broker.transactions.transaction_checks import TransactionCheckRules
from mqbroker.config.load import _DEFAULTS, java_properties
from mqbroker.errors import BadSetting
from mqbroker.wire.bodies import CheckClientRequestBody, SubscriptionData
from mqbroker.wire.codes import Perm, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import ConsumerSendMsgBackRequestHeader
from mqbroker.wire.record import decode_records
from tests.broker.bench import START, Bench, Client, FakeConnection, make_settings, pull_header
from tests.broker.sending import one, put_topic
from tests.broker.test_client_requests import OTHER, beat, consumer, pushed
from tests.remoting.logs import Logged

JAVA = json.loads((Path(__file__).parent.parent / "data" / "settings-4.9.7.json").read_text())
JAVA_PARTS = ("BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig")


def change(client: Client, text: str) -> RemotingCommand | None:
    return client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


def shown(client: Client) -> dict[str, str]:
    answer = client.ask(RequestCode.GET_BROKER_CONFIG)
    assert answer.code == 0
    return dict(line.split("=", 1) for line in answer.body.decode().splitlines())


def version(client: Client) -> dict[str, int]:
    return json.loads(client.ask(RequestCode.GET_BROKER_CONFIG).ext_fields["version"])


class Saved:
    """Takes the place of the file."""

    def __init__(self, result: bool = True) -> None:
        self.changes: list[Any] = []
        self.result = result

    def __call__(self, changes: dict[str, str]) -> Deferred[Any]:
        self.changes.append(dict(changes))
        return succeed(self.result)


# --- shown


def test_all_that_java_shows_is_shown(client: Client) -> None:
    table = shown(client)
    wanted = {
        key: setting["default"]
        for part in JAVA_PARTS
        for key, setting in JAVA[part].items()
        if setting["default"] is not None
    }
    assert wanted.keys() - table.keys() == set()
    assert (table["brokerName"], table["listenPort"], table["fileReservedTime"]) == ("broker-a", "10911", "72")
    # What has no effect is shown as Java has it from the start.
    assert (table["sendMessageThreadPoolNums"], table["useReentrantLockWhenPutMessage"]) == ("2", "true")
    assert list(table) == sorted(table)


def test_what_has_no_effect_has_the_default_of_java() -> None:
    for key, value in _DEFAULTS.items():
        setting, *_ = [JAVA[part][key] for part in JAVA_PARTS if key in JAVA[part]]
        default = setting["default"]
        assert value == (str(default).lower() if isinstance(default, bool) else str(default)), key


def test_no_secret_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["tlsServerKeyPassword=geheim", "aSecretKey=geheim", "listenPort=1"]
    monkeypatch.setattr("mqbroker.config.load.show_settings", lambda settings: lines)
    text = java_properties(make_settings(tmp_path))
    assert "geheim" not in text
    assert "\nlistenPort=1\n" in text


def test_the_masters_address_is_shown_where_it_is_set_as_java_does(tmp_path: Path) -> None:
    assert "haMasterAddress" not in java_properties(make_settings(tmp_path))
    assert "haMasterAddress=a:1\n" in java_properties(make_settings(tmp_path, ha_master_address="a:1"))


# --- changed


def test_a_change_counts_is_kept_and_is_shown(make_bench: Callable[..., Bench]) -> None:
    saved = Saved()
    client = make_bench(save_settings=saved).client()
    before = version(client)
    answer = change(client, "fileReservedTime=49\nbrokerPermission = 4\n")
    assert (answer.code, answer.remark) == (0, None)
    assert saved.changes == [{"fileReservedTime": "49", "brokerPermission": "4"}]
    table = shown(client)
    assert (table["fileReservedTime"], table["brokerPermission"]) == ("49", "4")
    assert version(client)["counter"] == before["counter"] + 1
    assert before["timestamp"] == START * 1000


@pytest.mark.parametrize("text", ["", "\n", "sendMessageThreadPoolNums=4\nmessageStorePlugIn=x"])
def test_nothing_to_change(make_bench: Callable[..., Bench], text: str) -> None:
    saved = Saved()
    client = make_bench(save_settings=saved).client()
    assert change(client, text).code == 0
    assert saved.changes == []


@pytest.mark.parametrize(
    "key",
    ["brokerName", "brokerClusterName", "storePathRootDir", "storePathCommitLog", "listenPort", "bindAddress",
     "brokerIP1", "brokerIP2", "haListenPort", "aclEnable", "flushDiskType",
     "messageStorePlugIns", "nonsense", "config_path", "configPath", ""],
)  # fmt: skip
def test_paths_addresses_and_names_are_not_changed(make_bench: Callable[..., Bench], key: str) -> None:
    saved = Saved()
    client = make_bench(save_settings=saved).client()
    before = shown(client)
    answer = change(client, f"fileReservedTime=49\n{key}=1")
    assert answer.code == ResponseCode.NO_PERMISSION
    how = "change it in the daemon's settings file and start it again"
    assert f"{key}: it cannot be changed while the daemon runs; {how}" in (answer.remark or "")
    assert "fileReservedTime" in (answer.remark or "")  # which can be
    assert (shown(client), saved.changes) == (before, [])


def test_nothing_that_may_be_changed_is_a_path_an_address_or_a_credential(bench: Bench) -> None:
    words = {"path", "addr", "dir", "ip1", "ip2", "port", "name", "command", "home", "key", "secret", "acl", "tls"}
    assert [
        key
        for key in bench.parts.live.changeable
        if words & {word.lower() for word in re.findall("[A-Z]{2,}[0-9]*|[A-Z]?[a-z0-9]+", key)}
    ] == []


@pytest.mark.parametrize(
    "text",
    ["brokerPermission=8", "brokerPermission=x", "fileReservedTime=-1", "deleteWhen=25", "diskMaxUsedSpaceRatio=96",
     "filterServerNums=x$(id)", "transferMsgByHeap=1",
     "longPollingEnable=maybe", "fileReservedTime=99999999999999999999", "a=\\u12"],
)  # fmt: skip
def test_wrong_values_change_nothing(make_bench: Callable[..., Bench], logged: Logged, text: str) -> None:
    saved = Saved()
    client = make_bench(save_settings=saved).client()
    before = shown(client)
    answer = change(client, f"slaveReadEnable=true\n{text}")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert text.partition("=")[0].replace("a", "") in answer.remark.replace("a", "")
    assert (shown(client), saved.changes) == (before, [])
    assert logged.failures == []
    assert not [line for line in logged.lines if "changed settings" in line]


def test_who_changed_what_is_logged(make_bench: Callable[..., Bench], logged: Logged) -> None:
    client = make_bench(save_settings=Saved()).client()
    change(client, "fileReservedTime=49\nsendMessageThreadPoolNums=7")
    change(client, "sendMessageThreadPoolNums=7")
    assert [line for line in logged.lines if "settings" in line] == [
        "10.0.0.2:40000 changed settings: fileReservedTime"
    ]


def test_a_file_that_cannot_be_written(make_bench: Callable[..., Bench]) -> None:
    client = make_bench(save_settings=Saved(False)).client()
    answer = change(client, "fileReservedTime=49")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("changed until the next start only: ")
    assert shown(client)["fileReservedTime"] == "49"


def test_a_broker_without_a_file(client: Client) -> None:
    answer = change(client, "fileReservedTime=49")
    assert answer.code == 0
    assert answer.remark.startswith("changed until the next start: ")


def test_one_change_is_written_after_the_other(make_bench: Callable[..., Bench]) -> None:
    writing: list[Any] = []

    def save(changes: dict[str, str]) -> Deferred[Any]:
        writing.append((changes, Deferred()))
        return writing[-1][1]

    bench = make_bench(save_settings=save)
    client, other = bench.client(), bench.client(OTHER)
    assert change(client, "fileReservedTime=49") is None
    assert change(other, "fileReservedTime=50") is None
    assert [changes for changes, _ in writing] == [{"fileReservedTime": "49"}]
    writing[0][1].callback(True)
    assert [changes for changes, _ in writing] == [{"fileReservedTime": "49"}, {"fileReservedTime": "50"}]
    writing[1][1].callback(True)
    assert [one(each.heard()).code for each in (client, other)] == [0, 0]


# --- who follows


def test_the_brokers_permission(bench: Bench, client: Client) -> None:
    put_topic(client, "T")
    client.send("T")
    before = bench.topics.data_version.counter
    change(client, f"brokerPermission={Perm.WRITE}")
    assert client.pull("T").code == ResponseCode.NO_PERMISSION
    assert bench.topics.data_version.counter == before + 1
    change(client, f"brokerPermission={Perm.WRITE}")
    assert bench.topics.data_version.counter == before + 1  # it is so already
    change(client, f"brokerPermission={Perm.READ}")
    assert client.pull("T").code == 0
    send_back = ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=0)
    assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, send_back).code == ResponseCode.NO_PERMISSION


def test_topics_by_sending(bench: Bench, client: Client) -> None:
    assert one(client.send("before")).code == 0
    change(client, "autoCreateTopicEnable=false")
    assert one(client.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
    assert one(client.send("before")).code == 0
    change(client, "autoCreateTopicEnable=true\ndefaultTopicQueueNums=2")
    assert one(client.send("T")).code == 0
    assert bench.topics.get("T").write_queue_nums == 2


def test_topics_by_sending_where_they_were_not_from_the_start(make_bench: Callable[..., Bench]) -> None:
    client = make_bench(auto_create_topic_enable=False).client()
    assert one(client.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
    change(client, "defaultTopicQueueNums=3")
    assert one(client.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
    change(client, "autoCreateTopicEnable=true")
    assert one(client.send("T")).code == 0


def test_groups_notices_and_traces(bench: Bench, client: Client) -> None:
    change(client, "autoCreateSubscriptionGroup=false\nnotifyConsumerIdsChangedEnable=false\ntraceOn=false")
    assert bench.groups.find("NEW") is None
    beat(client, consumers=[consumer("CG", "T")])
    beat(bench.client(OTHER), client_id="c2", consumers=[consumer("CG", "T")])
    assert pushed(client) == []
    assert one(client.send("T")).ext_fields["TRACE_ON"] == "false"


def test_when_messages_are_taken(bench: Bench, client: Client) -> None:
    change(client, f"startAcceptSendRequestTimeStamp={(START + 3600) * 1000}")
    answer = one(client.send("T"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("broker unable to service, until ")
    change(client, "startAcceptSendRequestTimeStamp=0")
    assert one(client.send("T")).code == 0


def test_transactions(bench: Bench, client: Client) -> None:
    change(client, "transactionCheckMax=3\ntransactionTimeOut=7000\nrejectTransactionMessage=true")
    assert TransactionCheckRules.of(bench.parts.checks._live.current).checks_max == 3
    answer = one(client.send("T", sys_flag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01PG"))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark.endswith("sending transaction message is forbidden")


def test_how_long_pulls_are_held(bench: Bench, client: Client) -> None:
    client.send("T")
    bench.turn(1)
    change(client, "longPollingEnable=false\nshortPollingTimeMills=2000")
    assert client.pull("T", queue_offset=1, sys_flag=6) is None
    bench.turn(3)
    assert one(client.heard()).code == ResponseCode.PULL_NOT_FOUND


def test_expressions_are_taken_from_now_on(bench: Bench, client: Client) -> None:
    client.send("T")
    bench.turn(1)
    brought = {"sys_flag": 4, "subscription": "TRUE", "expression_type": "SQL92"}
    check = CheckClientRequestBody("c", "CG", SubscriptionData("T", "a > 5", expression_type="SQL92")).to_json()
    refused = "The broker does not support consumer to filter message by SQL92"
    for enabled in (False, True, False):
        change(client, f"enablePropertyFilter={str(enabled).lower()}")
        answers = [client.pull("T", **brought), client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=check)]
        assert [answer.code == 0 for answer in answers] == [enabled] * 2
        assert [answer.remark == refused for answer in answers] == [not enabled] * 2


def test_retries_are_filtered_from_now_on(bench: Bench) -> None:
    def resolved() -> MessageFilter:
        return bench.parts.subscriptions.resolve(pull_header("%RETRY%CG"), bench.groups.find("CG"), FakeConnection())

    assert resolved().property_filter is None
    change(bench.client(), "filterSupportRetry=true")
    assert resolved().property_filter is not None


def test_how_much_is_given_at_a_time(bench: Bench, client: Client) -> None:
    for _ in range(40):
        client.send("T", queue_id=0)
    bench.turn(1)

    def count() -> int:
        return len(decode_records(client.pull("T", max_msg_nums=100).body))

    assert count() == 32
    change(client, "maxTransferCountOnMessageInMemory=5")
    assert count() == 5
    change(client, "maxTransferCountOnMessageInMemory=100\nmaxTransferBytesOnMessageInMemory=1")
    assert count() == 1
    limits = bench.store._reader._limits
    change(client, "maxTransferCountOnMessageInDisk=3\nmaxTransferBytesOnMessageInDisk=4")
    assert limits.far == (3, 4)
    assert limits.near == (100, 1)


def test_how_long_messages_are_kept(bench: Bench, client: Client) -> None:
    retention = bench.store._retention
    # No disk on which the tests may run has so much room.
    change(client, f"fileReservedTime=1\ndeleteWhen=05;06\ndiskFreeBytesMin={2**62}\ncleanFileForciblyEnable=false")
    assert retention._rules.reserved_ms == 3_600_000
    assert retention._rules.hours == {5, 6}
    bench.turn(11)
    assert "diskFreeBytesMin" in bench.store._commit_log.why_refused
    change(client, "diskFreeBytesMin=0")
    bench.turn(11)
    assert bench.store._commit_log.why_refused == ""


def test_settings_read_anew(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    live = LiveSettings(settings, lambda: 1.0)
    told: list[Any] = []
    live.follow(told.append, "brokerPermission", "fileReservedTime")
    live.follow(lambda _: told.append("no"), "slaveReadEnable")
    anew = attrs.evolve(
        settings,
        broker_name="other",
        broker_permission=4,
        trace_on=False,
        store=attrs.evolve(settings.store, file_reserved_time_hours=9),
    )
    assert sorted(live.adopt(anew)) == ["brokerName", "traceOn"]
    assert (live.current.broker_permission, live.current.store.file_reserved_time_hours) == (4, 9)
    assert (live.current.broker_name, live.current.trace_on) == ("broker-a", True)
    assert told == [live.current]
    assert live.adopt(live.current) == []
    with pytest.raises(BadSetting, match="traceOn"):
        live.change({"traceOn": "false"})
