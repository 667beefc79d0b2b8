"""What settings become, from where, and how a wrong one is refused."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mqbroker.config import (
    BrokerRole,
    FlushDiskType,
    Host,
    LogLevel,
    load_broker_settings,
    load_namesrv_settings,
    show_settings,
)
from mqbroker.config.fields import settings_of
from mqbroker.config.settings import (
    BrokerSettings,
    ClientAuth,
    ClientSettings,
    NamesrvSettings,
    NettySettings,
    StoreSettings,
    TlsMode,
    TlsSettings,
)
from mqbroker.config.unused import REFUSED_KEYS, UNUSED
from mqbroker.errors import BadSetting, BadSettings

HOST = Host("/home/u", "box", "192.0.2.7")
JAVA = json.loads((Path(__file__).parent.parent / "data" / "settings-4.9.7.json").read_text())
PARTS = (BrokerSettings, StoreSettings, NettySettings, ClientSettings, NamesrvSettings, TlsSettings)
OWN = {
    *("topicsMax", "groupsMax", "offsetsMax", "clientsMax", "heldPullsMax"),
    *("bindAddress", "frameMaxLength", "logLevel", "diskFreeBytesMin"),
    # System properties of the Java broker.
    *("diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"),
    *("connectionsMax", "connectionsPerAddressMax", "unsentBytesMax", "vipPortEnable", "extensions"),
    *(
        "haWhiteRemoteAddresses",
        "haSecretFile",
        "haResyncEnable",
        "inSyncReplicas",
        "scrubBytesPerSecond",
        "sendsBelowInSync",
        "confirmedReadsEnable",
        "etcdEndpoints",
        "etcdLeaseTtlSeconds",
        "etcdUsername",
        "etcdPasswordFile",
        "etcdCaFile",
        "etcdCertFile",
        "etcdKeyFile",
        "minInSyncReplicas",
        "replicationFactor",
        "uncleanElectionEnable",
        "haMaxTimeSlaveNotCatchup",
        "kernelSyncEnable",
        "shards",
        "unservedShardsEnable",
        "unsyncedAgeMax",
        "rocketmq.acl.plain.file",
    ),
    *(setting.key for setting in settings_of(TlsSettings)),
}


class Loader:
    """Loads settings of text, and keeps the warnings."""

    def __init__(self, path: Path, load: Callable[..., Any]) -> None:
        self.path = path
        self.load = load
        self.warnings: list[Any] = []

    def __call__(
        self, text: str = "", overrides: Sequence[tuple[str, str]] = (), **environ: Any
    ) -> BrokerSettings | NamesrvSettings | None:
        self.path.write_text(text)
        return self.load(str(self.path), overrides, environ=environ, warn=self.warnings.append, host=HOST)


@pytest.fixture
def broker(tmp_path: Path) -> Loader:
    return Loader(tmp_path / "broker.conf", load_broker_settings)


@pytest.fixture
def namesrv(tmp_path: Path) -> Loader:
    return Loader(tmp_path / "namesrv.conf", load_namesrv_settings)


def test_every_key_of_java_is_known_once() -> None:
    keys = {setting.key for part in PARTS for setting in settings_of(part)}
    java = {key for part in JAVA.values() for key in part}
    assert keys - OWN <= java
    assert java - keys - UNUSED.keys() == {"enableDLegerCommitLog", "readOnlyCommitLogStorePaths"}
    # Not fields of Java's settings: one has a setter of another name, the others are system properties.
    assert UNUSED.keys() - java == {"enableBatchPush", "rmqAddressServerDomain", "rmqAddressServerSubGroup"}
    assert java >= REFUSED_KEYS


def of_our_own(key: str) -> bool:
    """Defaults of the host, and one that keeps more after a crash."""
    if key == "flushDelayOffsetInterval":
        return True
    return key in ("brokerIP1", "brokerIP2", "brokerName", "configStorePath", "storePathCommitLog")


@pytest.mark.parametrize(
    ("load", "classes", "port"),
    [
        (
            load_broker_settings,
            ("BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig"),
            "10911",
        ),
        (load_namesrv_settings, ("NamesrvConfig", "NettyServerConfig"), "9876"),
    ],
)
def test_defaults_are_javas(load: Callable[..., Any], classes: tuple[str, ...], port: str) -> None:
    shown = dict(line.split("=", 1) for line in show_settings(load(host=Host("~", "box", "192.0.2.7"))))
    for name, java in [item for cls in classes for item in JAVA[cls].items()]:
        if name in shown and not of_our_own(name):
            default = java["default"]
            expected = json.dumps(default) if not isinstance(default, str) else default
            assert shown[name] == {"null": ""}.get(expected, expected) or name == "listenPort", name
    assert shown["listenPort"] == port


def test_defaults_of_the_host() -> None:
    settings = load_broker_settings(host=HOST)
    assert settings.broker_name == "box"
    assert settings.broker_addr == "192.0.2.7:10911"
    assert settings.broker_ip2 == "192.0.2.7"
    assert settings.store.store_path_root_dir == "/home/u/store"
    assert settings.store.store_path_commit_log == "/home/u/store/commitlog"
    assert load_namesrv_settings(host=HOST).kv_config_path == "/home/u/namesrv/kvConfig.json"


def test_the_real_host_has_an_address() -> None:
    host = Host.this()
    assert host.name
    assert host.address.count(".") == 3
    assert host.home.startswith("/")


def test_what_follows_from_other_settings(broker: Loader) -> None:
    settings = broker("bindAddress=127.0.0.1\nlistenPort=20000\nstorePathRootDir=/d\n")
    assert (settings.broker_ip1, settings.ha_listen_port) == ("127.0.0.1", 20001)
    assert settings.store.store_path_commit_log == "/d/commitlog"
    assert broker("bindAddress=0.0.0.0").broker_ip1 == "192.0.2.7"
    assert broker("listenPort=0").ha_listen_port == 0
    assert broker("haListenPort=5\nbrokerIP1=a.example").broker_addr == "a.example:10911"


def test_a_masters_id_is_zero_as_in_java(broker: Loader) -> None:
    assert broker("brokerId=3").broker_id == 0


@pytest.mark.parametrize(
    ("line", "part", "field", "value"),
    [
        ("autoCreateTopicEnable=FALSE", "", "auto_create_topic_enable", False),
        ("brokerPermission=4", "", "broker_permission", 4),
        ("namesrvAddr=a:1; [::1]:2;", "", "namesrv_addr", ("a:1", "[::1]:2")),
        ("namesrvAddr=", "", "namesrv_addr", ()),
        ("registerNameServerPeriod=20000", "", "register_name_server_period_ms", 20000),
        ("shortPollingTimeMills=7", "", "short_polling_time_ms", 7),
        ("logLevel=Debug", "", "log_level", LogLevel.DEBUG),
        ("brokerIP1=::1", "", "broker_ip1", "::1"),
        ("brokerIP1=[::1]", "", "broker_ip1", "::1"),
        ("brokerIP1=[::1]", "", "broker_addr", "[::1]:10911"),
        ("brokerIP1=broker-0", "", "broker_addr", "broker-0:10911"),
        # Without an address only IPv4 would be served, and [::1]:10911 be in the routes.
        ("brokerIP1=::1", "server", "bind_address", "::"),
        ("brokerIP1=::1\nbindAddress=0.0.0.0", "server", "bind_address", "0.0.0.0"),
        ("brokerIP1=10.0.0.1", "server", "bind_address", ""),
        ("brokerIP2=[::1]", "", "broker_ip2", "::1"),
        ("flushDiskType=SYNC_FLUSH", "store", "flush_disk_type", FlushDiskType.SYNC_FLUSH),
        ("brokerRole=ASYNC_MASTER", "store", "broker_role", BrokerRole.ASYNC_MASTER),
        ("brokerRole=SYNC_MASTER", "store", "broker_role", BrokerRole.SYNC_MASTER),
        ("deleteWhen=04;16", "store", "delete_when_hours", (4, 16)),
        ("messageDelayLevel=1s  2h", "store", "message_delay_level", "1s 2h"),
        ("mappedFileSizeConsumeQueue=6000001", "store", "mapped_file_size_consume_queue", 6000020),
        ("checkCRCOnRecover=TRUE", "store", "check_crc_on_recover", True),
        ("serverChannelMaxIdleTimeSeconds=9", "server", "server_channel_max_idle_time_seconds", 9),
        ("connectTimeoutMillis=8", "client", "connect_timeout_ms", 8),
    ],
)
def test_values(broker: Loader, line: str, part: str, field: str, value: int | str | tuple[int | str, ...]) -> None:
    settings = broker(line)
    assert getattr(getattr(settings, part) if part else settings, field) == value
    assert broker.warnings == []


def test_a_home_directory_is_spelt_out(broker: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/other")
    assert broker("storePathRootDir=~/s").store.store_path_root_dir == "/home/other/s"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("listenPort=70000", "70000 is out of range: it goes from 0 to 65535"),
        ("listenPort=-1", "-1 is out of range: it goes from 0 to 65535"),
        ("listenPort=", "'' is not a whole number: it goes from 0 to 65535"),
        ("listenPort=1e3", "'1e3' is not a whole number: it goes from 0 to 65535"),
        ("listenPort=\\u0661", "'\u0661' is not a whole number: it goes from 0 to 65535"),
        ("maxMessageSize=2147483648", "2147483648 is out of range: it goes from 1 to 2147483647"),
        ("autoCreateTopicEnable=yes", "'yes' is neither true nor false"),
        ("flushDiskType=sync_flush", "'sync_flush' is not one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("logLevel=loud", "'loud' is not one of debug, info, warn, error"),
        ("brokerName=a b", "'a b' is not a name: 1 to 255 letters, digits and any of . _ - % |"),
        ("brokerName=", "'' is not a name: 1 to 255 letters, digits and any of . _ - % |"),
        ("brokerIP1=999.1.1.1", "'999.1.1.1' is neither an address such as 192.168.0.1 nor a host name"),
        ("brokerIP1=[10.0.0.1]", "'[10.0.0.1]' is neither an address such as 192.168.0.1 nor a host name"),
        ("brokerIP1=fe80::1%eth0", "'fe80::1%eth0' has a zone, which is of this machine alone"),
        ("brokerIP1=a b", "'a b' is neither an address such as 192.168.0.1 nor a host name"),
        ("bindAddress=localhost", "'localhost' is not an address: write one such as 127.0.0.1, or nothing for all"),
        ("namesrvAddr=a", "'a' is not host:port; write for example 127.0.0.1:9876;192.168.0.1:9876"),
        ("namesrvAddr=a:1;b:0", "'b:0' is not host:port; write for example 127.0.0.1:9876;192.168.0.1:9876"),
        (
            "namesrvAddr=[[::1]]:9876",
            "in '[[::1]]:9876', '[::1]' is neither an address such as 192.168.0.1 nor a host name",
        ),
        ("namesrvAddr=a:70000", "'a:70000' is not host:port; write for example 127.0.0.1:9876;192.168.0.1:9876"),
        ("namesrvAddr=a b:1", "in 'a b:1', 'a b' is neither an address such as 192.168.0.1 nor a host name"),
        ("deleteWhen=24", "'24' is not hours of the day; write for example 04 or 04;16"),
        ("messageDelayLevel=1s 5", "'1s 5' is not a list of delays; write for example 1s 10s 5m 2h"),
        ("messageDelayLevel=", "'' is not a list of delays; write for example 1s 10s 5m 2h"),
        ("storePathRootDir=", "it must name a file or a directory"),
        ("storePathCommitLog=/a,/b", "a log in several directories is not supported; move the segments"),
        ("readOnlyCommitLogStorePaths=/b", "a log in several directories is not supported; move the segments"),
        (
            "brokerRole=SLAVE",
            "each slave of a master needs its own brokerId above 0; set brokerId=1, for example",
        ),
        (
            "duplicationEnable=true",
            "with it the Java broker gives consumers no new messages; leave it out",
        ),
        ("aclEnable=TRUE", "set rocketmqHome too: the accounts are in its conf/plain_acl.yml"),
        ("tls.server.mode=on", "'on' is not one of disabled, permissive, enforcing"),
        ("tls.server.need.client.auth=x", "'x' is not one of none, optional, require"),
        ("tls.config.file=/not/there", "there is no file /not/there"),
        # Without effect here, they are a slip all the same.
        ("filterServerNums=x$(id)", "'x$(id)' is not a whole number"),
        ("sendMessageThreadPoolNums=", "'' is not a whole number"),
        ("useReentrantLockWhenPutMessage=on", "'on' is neither true nor false"),
        ("channelNotActiveInterval=9223372036854775808", "9223372036854775808 is out of range"),
        ("enableDLegerCommitLog=yes", "'yes' is neither true nor false"),
        ("haListenPort=10911", "10911 is the listenPort too; leave it out for 10912"),
        ("listenPort=65535", "65535 leaves no port above it for replication; set haListenPort too"),
    ],
)
def test_a_wrong_value_names_key_file_line_and_what_is_right(broker: Loader, line: str, why: str) -> None:
    with pytest.raises(BadSetting) as caught:
        broker(f"# a comment\n\n{line}\n")
    assert str(caught.value).startswith(f"{broker.path}:3: {line.partition('=')[0]}: {why}")


def test_tls_as_in_java(broker: Loader, namesrv: Loader) -> None:
    for load in (broker, namesrv):
        tls = load("tls.config.file=\n").tls
        assert (tls.mode, tls.test_mode, tls.server_need_client_auth) == (TlsMode.PERMISSIVE, True, ClientAuth.NONE)
        tls = load("tls.server.mode=enforcing\ntls.server.need.client.auth=REQUIRE\ntls.server.keyPath=/k\n").tls
        assert (tls.mode, tls.server_need_client_auth) == (TlsMode.ENFORCING, ClientAuth.REQUIRE)
        assert tls.server_key_path == "/k"


def test_a_file_of_tls_settings_counts_before_others(broker: Loader, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.test.mode.enable=false\ntls.server.keyPath=/in/file\ntls.server.mode=disabled\nx=1\n")
    tls = broker(f"tls.config.file={file}\ntls.server.keyPath=/given\ntls.server.certPath=/c\n").tls
    assert (tls.server_key_path, tls.server_cert_path, tls.test_mode) == ("/in/file", "/c", False)
    assert tls.mode is TlsMode.PERMISSIVE
    assert broker.warnings == [
        f"{file}:3: tls.server.mode has no effect in this file",
        f"{file}:4: x has no effect in this file",
        f"{file}:2 sets tls.server.keyPath=/in/file in place of '/given', {broker.path}:2",
    ]


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("", False),
        ("useTLS=true", True),
        ("tls.enable=true", True),
        ("tls.server.mode=enforcing", True),
        ("tls.server.mode=enforcing\ntls.enable=false", False),
        ("tls.enable=true\nuseTLS=false", False),
    ],
)
def test_a_brokers_own_connections_are_encrypted(broker: Loader, text: str, used: bool) -> None:
    assert broker(text).client.use_tls == used


def test_passwords_are_not_shown(broker: Loader) -> None:
    lines = show_settings(broker("tls.server.keyPassword=open-sesame\ntls.client.keyPassword=open-sesame\n"))
    assert "tls.server.keyPassword=***" in lines
    assert "tls.client.keyPassword=***" in lines
    assert "open-sesame" not in "".join(lines)


def test_where_accounts_are(broker: Loader) -> None:
    settings = broker("aclEnable=true\nrocketmqHome=/opt/mq\n")
    assert (settings.acl_enable, settings.rocketmq_home) == (True, "/opt/mq")
    assert settings.acl_plain_file == "conf/plain_acl.yml"
    assert broker("aclEnable=true", ROCKETMQ_HOME="/opt/other").rocketmq_home == "/opt/other"
    assert broker("rocketmq.acl.plain.file=a/../b.yml").acl_plain_file == "b.yml"
    assert broker("rocketmqHome=\n").rocketmq_home == ""


def test_unknown_keys_are_warned_of(broker: Loader) -> None:
    broker("listenPrt=1\nzzz=1\ntransferMsgByHeap=true\nkvConfigPath=/x\n")
    assert broker.warnings == [
        f"{broker.path}:1: listenPrt is not a setting and has no effect; did you mean listenPort?",
        f"{broker.path}:2: zzz is not a setting and has no effect",
    ]


def test_the_brokers_keys_in_a_file_of_the_name_server_are_passed_over(namesrv: Loader) -> None:
    settings = namesrv("brokerName=a\naclEnable=true\nlistenPort=5\norderMessageEnable=true\n")
    assert namesrv.warnings == []
    assert settings.server.listen_port == 5
    assert settings.order_message_enable
    assert settings.config_store_path == str(namesrv.path)


def test_the_last_of_a_repeated_key_counts(broker: Loader) -> None:
    assert broker("listenPort=1\nlistenPort=2\n").server.listen_port == 2
    assert broker.warnings == [f"{broker.path}:2: listenPort is given again; this one counts, not that of line 1"]


def test_the_environment_counts_more_than_the_file_and_options_more_than_both(broker: Loader) -> None:
    file = "namesrvAddr=a:1\nbrokerName=f\nlistenPort=1"
    environ = {"NAMESRV_ADDR": "b:2", "ROCKETMQ_BROKER_NAME": "e", "ROCKETMQ_LISTEN_PORT": "2", "ROCKETMQ_HOME": "/o"}
    settings = broker(file, [("listenPort", " 3 ")], **environ)
    assert (settings.namesrv_addr, settings.broker_name, settings.server.listen_port) == (("a:1",), "e", 3)
    assert broker.warnings == [
        f"{broker.path}:1 sets namesrvAddr=a:1 in place of 'b:2', environment variable NAMESRV_ADDR",
        f"environment variable ROCKETMQ_BROKER_NAME sets brokerName=e in place of 'f', {broker.path}:2",
        "command line sets listenPort=3 in place of '2', environment variable ROCKETMQ_LISTEN_PORT",
    ]


@pytest.mark.parametrize(
    ("name", "key", "field", "values"),
    [
        ("NAMESRV_ADDR", "namesrvAddr", "namesrv_addr", ("a:1", "b:2", "c:3", "d:4")),
        ("ROCKETMQ_HOME", "rocketmqHome", "rocketmq_home", ("/a", "/b", "/c", "/d")),
    ],
)
def test_a_variable_that_clients_have_too_counts_less_than_the_file_as_in_java(
    broker: Loader, name: str, key: str, field: str, values: tuple[str, ...]
) -> None:
    def value(*args: Any, **environ: Any) -> str:
        found = getattr(broker(*args, **environ), field)
        return found if isinstance(found, str) else ";".join(found)

    in_file, in_environment, ours, in_options = values
    both: dict[str, Any] = {
        name: in_environment,
        f"ROCKETMQ_{'NAMESRV_ADDR' if key == 'namesrvAddr' else 'ROCKETMQ_HOME'}": ours,
    }
    line = f"{key}={in_file}\n"
    assert value("", **{name: in_environment}) == in_environment
    assert value(line, **{name: in_environment}) == in_file
    assert value(line + line, **{name: in_environment}) == in_file
    assert value(line, **both) == ours
    assert value("", **both) == ours
    assert value(line, [(key, in_options)], **both) == in_options
    assert value("", [(key, in_options)], **{name: in_environment}) == in_options
    broker.warnings.clear()
    value(line, **{name: in_file})
    assert broker.warnings == []


def test_the_environments_name_servers_count_less_than_the_file_of_a_name_server_too(namesrv: Loader) -> None:
    settings = namesrv("clusterTest=true\nnamesrvAddr=a:1\n", NAMESRV_ADDR="b:2")
    assert settings.namesrv_addr == ("a:1",)
    assert namesrv("clusterTest=true\n", NAMESRV_ADDR="b:2").namesrv_addr == ("b:2",)


def test_keys_without_effect_are_checked_wherever_they_come_from(broker: Loader, namesrv: Loader) -> None:
    for loader in (broker, namesrv):
        with pytest.raises(BadSetting, match="environment variable ROCKETMQ_FILTER_SERVER_NUMS: filterServerNums: 'x'"):
            loader("", ROCKETMQ_FILTER_SERVER_NUMS="x")
        with pytest.raises(BadSetting, match="command line: filterServerNums: 'x' is not a whole number"):
            loader("", [("filterServerNums", "x")])
        loader("filterServerNums=-3\nmessageStorePlugIn=a.B\ndLegerGroup=x$(id)\ntransferMsgByHeap=FALSE\n")


def test_each_default_of_a_key_without_effect_is_a_value_of_it() -> None:
    for key, unused in UNUSED.items():
        unused.check(unused.default or "")
        assert key


# --- values that are probably not what was meant


@pytest.mark.parametrize(
    ("line", "is_doubtful"),
    [
        ("rocketmqHome=/etc/mqbroker   # or another", True),
        ("rocketmqHome=/etc/mqbroker\t# or another", True),
        ("rocketmqHome=/etc/mqbroker #", True),
        ("rocketmqHome=/etc/mqbroker#2", False),
        ("# rocketmqHome=/etc/mqbroker # x", False),
        ("brokerName=broker#1", False),
        ("transferMsgByHeap=true # has no effect", False),
        ("zzz=1 # unknown, which is told", False),
    ],
)
def test_a_comment_behind_a_value_is_told_as_part_of_it(broker: Loader, line: str, is_doubtful: bool) -> None:
    with contextlib.suppress(BadSetting):
        settings = broker(f"listenPort=1\n{line}\n")
        if is_doubtful:
            assert settings.rocketmq_home == line.partition("=")[2]
    told = f"{broker.path}:2: the value of rocketmqHome has ' #' in it, which is part of the value, as in Java; "
    assert [each for each in broker.warnings if "' #'" in each] == [
        f"{told}a comment needs a line of its own" for _ in range(is_doubtful)
    ]


@pytest.mark.parametrize(
    ("line", "java"),
    [
        ("brokerName=broker-a ", "takes it for part of the value"),
        ("namesrvAddr=a:1\t", "takes it for part of the value"),
        ("deleteWhen=04 ", "takes it for part of the value"),
        ("listenPort=10911 ", "ignores such a value and has its default"),
        ("fileReservedTime=48\x0c", "ignores such a value and has its default"),
        ("brokerRole=SYNC_MASTER ", "ignores such a value and has its default"),
        ("autoCreateTopicEnable=true ", "takes 'true ' for false"),
        ("autoCreateTopicEnable=TRUE\xa0", "takes 'true ' for false"),
        ("autoCreateTopicEnable=false ", None),
        ("brokerName=broker-a", None),
        ("brokerName= broker-a", None),
        ("brokerName = broker-a", None),
        ("brokerName=", None),
    ],
)
def test_a_blank_at_the_end_is_told_with_what_java_makes_of_it(broker: Loader, line: str, java: str | None) -> None:
    key = line.partition("=")[0].strip()
    path = broker.path
    path.write_text(line + "\n", encoding="iso-8859-1")
    with contextlib.suppress(BadSetting):
        load_broker_settings(str(path), warn=broker.warnings.append, host=HOST)
    told = f"{path}:1: the blank at the end of {key} is dropped; the Java system {java}; remove it"
    assert broker.warnings == ([told] if java else [])


def test_lines_that_end_in_carriage_returns_have_no_blanks(broker: Loader) -> None:
    broker.path.write_bytes(b"brokerName=a\r\nlistenPort=1\r\n")
    load_broker_settings(str(broker.path), warn=broker.warnings.append, host=HOST)
    assert broker.warnings == []


def test_what_looks_like_a_variable_is_told(broker: Loader) -> None:
    settings = broker("storePathRootDir=/data/${HOSTNAME}\n", [("brokerClusterName", "c")], ROCKETMQ_REGION_ID="${R}")
    assert settings.store.store_path_root_dir == "/data/${HOSTNAME}"
    stays = "has '${' in it, which is not replaced by a variable, as in Java; write the value"
    assert broker.warnings == [
        f"{broker.path}:1: the value of storePathRootDir {stays} itself",
        f"environment variable ROCKETMQ_REGION_ID: the value of regionId {stays} itself",
    ]


def test_doubts_about_a_password_do_not_repeat_it(broker: Loader) -> None:
    broker("tls.server.keyPassword=open ${sesame} # yes \n")
    assert len(broker.warnings) == 3
    assert "sesame" not in "".join(broker.warnings)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("listenPrt", "listenPort"),
        ("brokerNmae", "brokerName"),
        ("broker_name", "brokerName"),
        ("BROKER.NAME", "brokerName"),
        ("defaultTopicQueueNum", "defaultTopicQueueNums"),
        ("shard", "shards"),
        ("logLevl", "logLevel"),
        # Settings of other versions, and others' settings, which are near to nothing here.
        ("checkTransactionMessageEnable", None),
        ("waitTimeMillsInLitePullQueue", None),
        ("waitTimeMillsInAckQueue", None),
        ("accessMessageInMemoryHotRatio", None),
        ("brokerConfigPath", None),
        ("maxFilterMessageSize", None),
        ("recallMessageEnable", None),
        ("cards", None),
        ("x", None),
        ("x" * 100_000, None),
    ],
)
def test_only_a_near_spelling_is_a_hint(broker: Loader, key: str, hint: str | None) -> None:
    broker(f"{key}=1\n")
    told = f"; did you mean {hint}?" if hint else ""
    assert broker.warnings == [f"{broker.path}:1: {key} is not a setting and has no effect{told}"]


def test_a_file_of_tls_settings_counts_more_than_the_environment(broker: Loader, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.keyPath=/in/file\n")
    name = "ROCKETMQ_TLS.SERVER.KEYPATH"
    tls = broker(f"tls.config.file={file}\ntls.server.keyPath=/given\n", **dict[str, Any]({name: "/environment"})).tls
    assert tls.server_key_path == "/in/file"
    assert broker.warnings == [
        f"{file}:1 sets tls.server.keyPath=/in/file in place of '/environment', environment variable {name}"
    ]


def test_two_variables_for_one_setting(broker: Loader) -> None:
    assert broker("", NAMESRV_ADDR="a:1", ROCKETMQ_NAMESRV_ADDR="b:1").namesrv_addr == ("b:1",)
    assert broker.warnings == [
        "environment variable ROCKETMQ_NAMESRV_ADDR sets namesrvAddr=b:1 in place of 'a:1', "
        "environment variable NAMESRV_ADDR"
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ROCKETMQ_BROKER_NAM", "; did you mean ROCKETMQ_BROKER_NAME?"),
        ("ROCKETMQ_HOM", "; did you mean ROCKETMQ_HOME?"),
        ("ROCKETMQ_ZZZ", ""),
        ("NAMESRV_ADDRS", "; did you mean NAMESRV_ADDR?"),
        ("NAMESRVADDR", "; did you mean NAMESRV_ADDR?"),
        ("NAMESERV_ADDR", "; did you mean NAMESRV_ADDR?"),
    ],
)
def test_unknown_variables_are_warned_of(broker: Loader, name: str, hint: str) -> None:
    broker("", **dict[str, Any]({name: "x"}))
    assert broker.warnings == [f"environment variable {name} is not a setting and has no effect{hint}"]


def test_variables_that_are_for_others_are_not_warned_of(broker: Loader, namesrv: Loader) -> None:
    services: dict[str, Any] = {
        "ROCKETMQ_SERVICE_HOST": "10.0.0.1", "ROCKETMQ_NAMESRV_SERVICE_PORT_MAIN": "9876",
        "ROCKETMQ_NAMESRV_PORT": "tcp://10.0.0.1:9876", "ROCKETMQ_NAMESRV_PORT_9876_TCP_ADDR": "10.0.0.1",
        "NAMESRV_SERVICE_HOST": "10.0.0.1", "NAMESRV_XMX": "1g", "NAME": "x",
    }  # fmt: skip
    for load in (broker, namesrv):
        load("", **services, ROCKETMQ_BROKER_NAME="b", ROCKETMQ_KV_CONFIG_PATH="/k", ROCKETMQ_HOME="/h")
        assert load.warnings == []


def test_a_variable_is_refused_as_the_file_is(broker: Loader) -> None:
    with pytest.raises(
        BadSetting,
        match=r"^environment variable ROCKETMQ_BROKER_ROLE: brokerRole: a slave must find its master; set namesrvAddr",
    ):
        broker("brokerId=1", ROCKETMQ_BROKER_ROLE="SLAVE")
    with pytest.raises(BadSetting, match=r"^environment variable ROCKETMQ_ENABLE_DLEGER_COMMIT_LOG: enableDLegerCom"):
        broker("", ROCKETMQ_ENABLE_DLEGER_COMMIT_LOG="true")


def test_another_spelling_of_the_same_is_not_warned_of(broker: Loader) -> None:
    broker("namesrvAddr=a:1\nautoCreateTopicEnable=true", NAMESRV_ADDR="a:1;", ROCKETMQ_AUTO_CREATE_TOPIC_ENABLE="TRUE")
    assert broker.warnings == []


def test_all_that_is_wrong_is_told_at_once(broker: Loader) -> None:
    lines = "aclEnable=true\nlistenPort=x\nhaListenPort=70000\nbrokerRole=SLAVE\ntls.test.mode.enable=false\n"
    with pytest.raises(BadSettings) as caught:
        broker(lines, [("zzz", "1"), ("deleteWhen", "25")], ROCKETMQ_BROKER_NAME="a b")
    assert [(error.key, error.line) for error in caught.value.errors] == [
        ("zzz", None), ("aclEnable", 1), ("listenPort", 2), ("haListenPort", 3), ("brokerRole", 4),
        ("tls.test.mode.enable", 5), ("brokerName", None), ("deleteWhen", None),
    ]  # fmt: skip
    assert str(caught.value).splitlines() == [str(error) for error in caught.value.errors]


def test_what_follows_from_a_wrong_value_is_not_told(broker: Loader, namesrv: Loader) -> None:
    for load, text in [
        (broker, "aclEnable=true\nrocketmqHome=\0\n"),
        (broker, "listenPort=65536\nhaListenPort=10911\n"),
        (broker, "tls.test.mode.enable=false\ntls.server.mode=off\n"),
        (namesrv, "clusterTest=true\nnamesrvAddr=x\n"),
    ]:
        with pytest.raises(BadSetting) as caught:
            load(text)
        assert not isinstance(caught.value, BadSettings)


def test_a_byte_order_mark_is_no_part_of_the_first_key(broker: Loader, tmp_path: Path) -> None:
    path = tmp_path / "marked.conf"
    path.write_bytes(b"\xef\xbb\xbflistenPort=5\r\nbrokerName=x\r\n")
    settings = load_broker_settings(str(path), warn=broker.warnings.append, host=HOST)
    assert (settings.server.listen_port, settings.broker_name, broker.warnings) == (5, "x", [])
    for encoding in ("utf-16-le", "utf-16-be"):
        path.write_bytes("\ufefflistenPort=5\n".encode(encoding))
        with pytest.raises(
            BadSetting, match=r"marked\.conf:1: -c: the file is UTF-16 text; save it as UTF-8 or ASCII$"
        ):
            load_broker_settings(str(path), host=HOST)


@pytest.mark.parametrize(
    "others", ["", "tls.server.certPath=/c\n", "tls.server.mode=enforcing\ntls.server.keyPath=/k\n"]
)
def test_without_test_mode_a_server_has_certificate_and_key(broker: Loader, namesrv: Loader, others: str) -> None:
    for load in (broker, namesrv):
        with pytest.raises(
            BadSetting, match=r":1: tls\.test\.mode\.enable: set tls\.server\.certPath and tls\.server\.key"
        ):
            load(f"tls.test.mode.enable=false\n{others}")


@pytest.mark.parametrize("others", ["tls.server.mode=disabled\n", "tls.server.certPath=/c\ntls.server.keyPath=/k\n"])
def test_a_server_that_has_them_or_does_not_encrypt(broker: Loader, namesrv: Loader, others: str) -> None:
    for load in (broker, namesrv):
        assert not load(f"tls.test.mode.enable=false\n{others}").tls.test_mode


def test_no_secret_is_repeated(broker: Loader) -> None:
    key = "tls.server.keyPassword"
    settings = broker(
        f"{key}=of-the-file\n", **dict[str, Any]({"ROCKETMQ_TLS.SERVER.KEYPASSWORD": "of-the-environment"})
    )
    assert settings.tls.server_key_password == "of-the-environment"
    assert broker.warnings == [
        f"environment variable ROCKETMQ_TLS.SERVER.KEYPASSWORD sets {key} in place of another, {broker.path}:1"
    ]


def test_the_environment_that_says_the_same_is_not_warned_of(broker: Loader) -> None:
    broker("namesrvAddr=a:1", NAMESRV_ADDR="a:1")
    assert broker.warnings == []


def test_keys_with_digits_and_capitals_from_the_environment(broker: Loader) -> None:
    settings = broker("", ROCKETMQ_BROKERIP1="10.0.0.1", ROCKETMQ_CLUSTER_TOPIC_ENABLE="false", ROCKETMQ_BROKER_ID="")
    assert settings.broker_ip1 == "10.0.0.1"
    assert not settings.cluster_topic_enable
    assert broker.warnings == []


def test_a_wrong_value_in_the_environment_names_the_variable(broker: Loader) -> None:
    with pytest.raises(BadSetting, match=r"^environment variable ROCKETMQ_LISTEN_PORT: listenPort: 'x' is not a whole"):
        broker("listenPort=1", ROCKETMQ_LISTEN_PORT="x")


def test_what_has_no_effect_is_told_in_one_line(broker: Loader, namesrv: Loader) -> None:
    text = (
        "sendMessageThreadPoolNums=16\ndLegerGroup=a\npullMessageThreadPoolNums=20\nserverWorkerThreads=4\n"
        "transferMsgByHeap=TRUE\nhaListenPort=10912\nflushCommitLogTimed=false\n"
    )
    broker(text, [("slaveTimeout", "5")], ROCKETMQ_HEARTBEAT_THREAD_POOL_NUMS="4")
    assert broker.warnings == [
        "these settings have no effect: sendMessageThreadPoolNums, serverWorkerThreads, heartbeatThreadPoolNums (one "
        "thread handles all requests, in the order they arrive); dLegerGroup (DLedger replication is not supported); "
        "flushCommitLogTimed (records are always checked, and flushIntervalCommitLog and flushIntervalConsumeQueue are "
        "bounds by themselves); slaveTimeout (a send waits for slaves for syncFlushTimeout)"
    ]
    namesrv(text)
    [told] = namesrv.warnings
    assert told == (
        "these settings have no effect: serverWorkerThreads (one thread handles all requests, in the order they arrive)"
    )


def test_another_id_than_a_masters_is_told(broker: Loader) -> None:
    assert broker("brokerId=3").broker_id == 0
    why = "a slave has brokerRole=SLAVE"
    assert broker.warnings == [f"{broker.path}:1: brokerId=3 is taken as 0, a master's: {why}"]


def test_a_slave_keeps_its_id(broker: Loader) -> None:
    settings = broker("brokerId=3\nbrokerRole=SLAVE\nhaMasterAddress=10.0.0.1:10912")
    assert (settings.broker_id, settings.ha_master_address) == (3, "10.0.0.1:10912")
    assert broker("brokerId=1\nbrokerRole=SLAVE\nnamesrvAddr=a:1").broker_id == 1
    assert broker.warnings == []


def test_an_unknown_option_is_refused(broker: Loader) -> None:
    with pytest.raises(BadSetting, match=r"^command line: brokerNam: no such setting; did you mean brokerName\?$"):
        broker("", [("brokerNam", "x")])
    broker("", [("sendMessageThreadPoolNums", "8")])


def test_what_is_out_of_javas_range_is_moved_into_it(broker: Loader) -> None:
    settings = broker("registerNameServerPeriod=1000\ndiskMaxUsedSpaceRatio=99\n")
    assert settings.register_name_server_period_ms == 10_000
    assert settings.store.disk_max_used_space_ratio == 95
    assert sorted(broker.warnings) == [
        f"{broker.path}:1: registerNameServerPeriod=1000 is taken as 10000: it goes from 10000 to 60000",
        f"{broker.path}:2: diskMaxUsedSpaceRatio=99 is taken as 95: it goes from 10 to 95",
    ]


def test_what_is_shown_loads_as_the_same(broker: Loader) -> None:
    settings = broker("deleteWhen=04;16\nnamesrvAddr=a:1;b:2\nlogLevel=debug\nflushDiskType=SYNC_FLUSH\nlistenPort=7\n")
    assert broker("\n".join(show_settings(settings))) == settings


def test_a_name_server_for_cluster_tests_needs_somebody_to_ask(namesrv: Loader, broker: Loader) -> None:
    with pytest.raises(BadSetting, match=r":1: clusterTest: it needs namesrvAddr, or NAMESRV_ADDR"):
        namesrv("clusterTest=TRUE\nproductEnvName=center\n")
    settings = namesrv("clusterTest=true\nproductEnvName=pre\nnamesrvAddr=a:1;b:2\n")
    assert (settings.cluster_test, settings.product_env_name, settings.namesrv_addr) == (True, "pre", ("a:1", "b:2"))
    assert namesrv("clusterTest=true", NAMESRV_ADDR="c:3").namesrv_addr == ("c:3",)
    namesrv("clusterTest=false\nproductEnvName=center\n")
    broker("clusterTest=true\n")  # which is nothing of a broker's
    assert namesrv.warnings == broker.warnings == []


def test_a_broker_that_would_ask_an_address_server_needs_name_servers(broker: Loader) -> None:
    with pytest.raises(BadSetting, match=r":1: fetchNamesrvAddrByAddressServer: .* set namesrvAddr"):
        broker("fetchNamesrvAddrByAddressServer=true")
    # Java looks them up only where they are not given.
    assert broker("fetchNamesrvAddrByAddressServer=true\nnamesrvAddr=a:1").namesrv_addr == ("a:1",)
    broker("fetchNamesrvAddrByAddressServer=false")


#: What the Java broker prints with -m.
IMPORTANT = """
    namesrvAddr brokerIP1 brokerName brokerClusterName brokerId autoCreateTopicEnable autoCreateSubscriptionGroup
    msgTraceTopicName traceTopicEnable rejectTransactionMessage fetchNamesrvAddrByAddressServer transactionTimeOut
    transactionCheckMax transactionCheckInterval aclEnable storePathRootDir storePathCommitLog storePathDLedgerCommitLog
    flushIntervalCommitLog commitIntervalCommitLog flushCommitLogTimed deleteWhen fileReservedTime
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk
    maxTransferCountOnMessageInDisk accessMessageInMemoryMaxRatio messageIndexEnable messageIndexSafe haMasterAddress
    brokerRole flushDiskType cleanFileForciblyEnable transientStorePoolEnable
"""


def test_what_java_calls_important_is_important_here(broker: Loader) -> None:
    settings = broker("")
    shown = {line.partition("=")[0] for line in show_settings(settings)}
    important = {line.partition("=")[0] for line in show_settings(settings, important_only=True)}
    assert (
        important & {key for part in JAVA.values() for key in part} - {"listenPort"} == set(IMPORTANT.split()) & shown
    )


def test_important_settings_are_fewer(broker: Loader) -> None:
    settings = broker("")
    important = show_settings(settings, important_only=True)
    assert set(important) < set(show_settings(settings))
    assert "listenPort=10911" in important
