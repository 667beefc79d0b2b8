"""The settings of each component, as frozen values; loading them is in `mqbroker.config.load`.

Keys and defaults are those of the Java system 4.9.7. A unit ends a field's name where Java's key has none; sizes are
bytes, ratios are percent. Those of TLS are system properties in Java, and here keys like all others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum

import attrs

from mqbroker.config.conf_file import read_conf
from mqbroker.config.fields import (
    boolean,
    choice,
    long,
    one_of,
    parse_addresses,
    parse_bind_address,
    parse_delays,
    parse_hours,
    parse_log_path,
    parse_name,
    parse_optional_address,
    parse_optional_path,
    parse_own_host,
    parse_path,
    parse_relative_path,
    parse_urls,
    settings_of,
    show_hours,
    text,
    whole,
)
from mqbroker.config.sources import Sources
from mqbroker.wire.names import join_address

DEFAULT_FILE = "/etc/rocketmq/tls.properties"

#: Not taken from that file.
_NOT_IN_FILE = ("tls.server.mode", "tls.enable", "tls.config.file")


class TlsMode(StrEnum):
    """Whether a server accepts TLS connections, and plain ones."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """Whether a client must show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


def _hidden(secret: str) -> str:
    return "***" if secret else ""


@attrs.frozen(kw_only=True)
class TlsSettings:
    """TLS of servers and of a daemon's own connections; files are PEM."""

    mode: TlsMode = text(TlsMode.PERMISSIVE, one_of(TlsMode, str.lower), key="tls.server.mode")
    config_file: str = text(DEFAULT_FILE, parse_optional_path, key="tls.config.file")
    #: A certificate generated at the start, for trials; clients then accept any server.
    test_mode: bool = boolean(True, key="tls.test.mode.enable")
    server_need_client_auth: ClientAuth = text(
        ClientAuth.NONE, one_of(ClientAuth, str.lower), key="tls.server.need.client.auth"
    )
    server_key_path: str = text("", parse_optional_path, key="tls.server.keyPath")
    server_key_password: str = text("", shown=_hidden, key="tls.server.keyPassword")
    server_cert_path: str = text("", parse_optional_path, key="tls.server.certPath")
    server_auth_client: bool = boolean(False, key="tls.server.authClient")
    server_trust_cert_path: str = text("", parse_optional_path, key="tls.server.trustCertPath")
    client_key_path: str = text("", parse_optional_path, key="tls.client.keyPath")
    client_key_password: str = text("", shown=_hidden, key="tls.client.keyPassword")
    client_cert_path: str = text("", parse_optional_path, key="tls.client.certPath")
    client_auth_server: bool = boolean(False, key="tls.client.authServer")
    client_trust_cert_path: str = text("", parse_optional_path, key="tls.client.trustCertPath")
    #: Whether this daemon's own connections are encrypted; by default, if the server enforces it.
    enable: bool = boolean(False, key="tls.enable")

    @property
    def has_server_files(self) -> bool:
        """Whether the server's certificate is read from files."""
        return not self.test_mode and self.mode is not TlsMode.DISABLED


def add_tls_file(sources: Sources, warn: Callable[[str], None]) -> None:
    """Add the settings of tls.config.file, if it exists. Raises BadSetting."""
    named = sources.last("tls.config.file")
    path = named.value if named is not None else DEFAULT_FILE
    if not path or (path == DEFAULT_FILE and not os.path.isfile(path)):
        return
    if named is not None and not os.path.isfile(path):
        raise named.bad(f"there is no file {path}")
    known = {setting.key for setting in settings_of(TlsSettings)} - set(_NOT_IN_FILE)
    for item in read_conf(path):
        if item.key in known:
            sources.add(item)
        else:
            warn(f"{item.where}: {item.key} changes nothing in this file")


MIB = 1024 * 1024
NAMESRV_PORT = 9876
BROKER_PORT = 10911
#: Offset from the listen port of the port that Java clients use with `vipChannelEnabled`.
VIP_PORT_OFFSET = -2


class BrokerRole(StrEnum):
    """Master or slave, and whether acknowledgements wait for a slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(StrEnum):
    """Whether acknowledgements wait for the disk."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class BelowInSync(StrEnum):
    """What is done with messages for which too few brokers are in sync: AUTO refuses them in a group that elects its
    master, and stores them in a pair."""

    AUTO = "AUTO"
    REFUSE = "REFUSE"
    APPEND = "APPEND"


class LogLevel(StrEnum):
    """Minimum level of log lines."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@attrs.frozen(kw_only=True)
class NettySettings:
    """Server side of the protocol. Buffer sizes of 0 mean the operating system's default."""

    listen_port: int = whole(8888, 0, 65535, important=True)
    bind_address: str = text("", parse_bind_address, important=True)
    frame_max_length: int = whole(16 * MIB, 1024, 1024 * MIB)
    server_channel_max_idle_time_seconds: int = whole(120, 1)
    connections_max: int = whole(20_000, 1)
    connections_per_address_max: int = whole(12_000, 1)
    unsent_bytes_max: int = whole(64 * MIB, 64 * 1024)
    server_oneway_semaphore_value: int = whole(256, 1)
    server_async_semaphore_value: int = whole(64, 1)
    server_socket_snd_buf_size: int = whole(0)
    server_socket_rcv_buf_size: int = whole(0)
    server_socket_backlog: int = whole(1024, 1)


@attrs.frozen(kw_only=True)
class ClientSettings:
    """Client side: a broker's connections to its name servers."""

    use_tls: bool = boolean(False, key="useTLS")
    client_oneway_semaphore_value: int = whole(65535, 1)
    client_async_semaphore_value: int = whole(65535, 1)
    connect_timeout_ms: int = whole(3000, 1, key="connectTimeoutMillis")
    client_channel_max_idle_time_seconds: int = whole(120, 1)


@attrs.frozen(kw_only=True)
class NamesrvSettings:
    """The name server. `namesrv_addr` is another environment's, see `cluster_test`."""

    kv_config_path: str = text(parse=parse_path, important=True)
    config_store_path: str = text(parse=parse_path)
    order_message_enable: bool = boolean(False)
    cluster_test: bool = boolean(False)
    product_env_name: str = text("center", parse_name)
    namesrv_addr: tuple[str, ...] = text((), parse_addresses)
    log_level: LogLevel = text(LogLevel.INFO, one_of(LogLevel, str.lower))
    server: NettySettings = attrs.field(factory=lambda: NettySettings(listen_port=NAMESRV_PORT))
    tls: TlsSettings = attrs.field(factory=TlsSettings)


def _commit_log_in_root(store: StoreSettings) -> str:
    return os.path.join(store.store_path_root_dir, "commitlog")


@attrs.frozen(kw_only=True)
class StoreSettings:
    """The store on disk."""

    store_path_root_dir: str = text(parse=parse_path, important=True)
    store_path_commit_log: str = text(
        attrs.Factory(_commit_log_in_root, takes_self=True), parse_log_path, important=True
    )
    mapped_file_size_commit_log: int = whole(1024 * MIB, 4096)
    mapped_file_size_consume_queue: int = whole(6_000_000, 20)
    enable_consume_queue_ext: bool = boolean(False)
    mapped_file_size_consume_queue_ext: int = whole(48 * MIB, 1024)
    enable_lmq: bool = boolean(False)
    enable_multi_dispatch: bool = boolean(False)
    max_lmq_consume_queue_num: int = whole(20_000)
    max_message_size: int = whole(4 * MIB, 1)
    flush_disk_type: FlushDiskType = choice(FlushDiskType.ASYNC_FLUSH)
    flush_interval_commit_log_ms: int = whole(500, 1, unit="ms", important=True)
    flush_commit_log_timed: bool = boolean(True, important=True)
    flush_commit_log_least_pages: int = whole(4)
    flush_commit_log_thorough_interval_ms: int = whole(10_000, unit="ms")
    flush_interval_consume_queue_ms: int = whole(1000, 1, unit="ms")
    flush_consume_queue_least_pages: int = whole(2)
    flush_consume_queue_thorough_interval_ms: int = whole(60_000, unit="ms")
    transient_store_pool_enable: bool = boolean(False, important=True)
    transient_store_pool_size: int = whole(5, 1, 1000)
    fast_fail_if_no_buffer_in_store_pool: bool = boolean(False)
    commit_interval_commit_log_ms: int = whole(200, 1, unit="ms", important=True)
    commit_commit_log_least_pages: int = whole(4)
    commit_commit_log_thorough_interval_ms: int = whole(200, unit="ms")
    warm_maped_file_enable: bool = boolean(False)
    sync_flush_timeout_ms: int = whole(5000, 1, unit="ms")
    kernel_sync_enable: bool = boolean(True)
    unsynced_age_max_ms: int = whole(10_000, 1000, unit="ms")
    check_crc_on_recover: bool = boolean(True, key="checkCRCOnRecover")
    message_index_enable: bool = boolean(True, important=True)
    max_hash_slot_num: int = whole(5_000_000, 1, 100_000_000)
    max_index_num: int = whole(20_000_000, 2, 100_000_000)
    max_msgs_num_batch: int = whole(64, 1)
    default_query_max_num: int = whole(32, 1)
    max_transfer_bytes_on_message_in_memory: int = whole(256 * 1024, 1, important=True)
    max_transfer_count_on_message_in_memory: int = whole(32, 1, important=True)
    max_transfer_bytes_on_message_in_disk: int = whole(64 * 1024, 1, important=True)
    max_transfer_count_on_message_in_disk: int = whole(8, 1, important=True)
    access_message_in_memory_max_ratio: int = whole(40, 0, 100, important=True)
    file_reserved_time_hours: int = whole(72, 0, 24 * 366 * 100, unit="hours", important=True)
    delete_when_hours: tuple[int, ...] = text((4,), parse_hours, shown=show_hours, unit="hours", important=True)
    disk_max_used_space_ratio: int = whole(75, clamp=(10, 95))
    disk_space_clean_forcibly_ratio: int = whole(85, 1, 100)
    disk_space_warning_level_ratio: int = whole(90, 1, 100)
    disk_free_bytes_min: int = long(64 * MIB)
    clean_resource_interval_ms: int = whole(10_000, 1, unit="ms")
    delete_commit_log_files_interval_ms: int = whole(100, unit="ms")
    delete_consume_queue_files_interval_ms: int = whole(100, unit="ms")
    redelete_hanged_file_interval_ms: int = whole(120_000, unit="ms")
    clean_file_forcibly_enable: bool = boolean(True, important=True)
    message_delay_level: str = text("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", parse_delays)
    #: Java's is 10,000: delivered messages of that time come again after a crash.
    flush_delay_offset_interval_ms: int = long(1000, 1, unit="ms")
    enable_schedule_message_stats: bool = boolean(True)
    broker_role: BrokerRole = choice(BrokerRole.ASYNC_MASTER)
    duplication_enable: bool = boolean(False)
    #: How many stores have the machine's memory in common.
    memory_shares: int = 1

    @property
    def delay_level_count(self) -> int:
        """How many levels `messageDelayLevel` has."""
        return len(self.message_delay_level.split())


@attrs.frozen(kw_only=True)
class BrokerSettings:
    """The broker, with the settings of its components."""

    broker_name: str = text(parse=parse_name, important=True)
    broker_ip1: str = text(parse=parse_own_host, key="brokerIP1", important=True)
    broker_ip2: str = text(parse=parse_own_host, key="brokerIP2")
    store: StoreSettings
    namesrv_addr: tuple[str, ...] = text((), parse_addresses, important=True)
    broker_cluster_name: str = text("DefaultCluster", parse_name, important=True)
    broker_id: int = long(0, important=True)
    shards: int = whole(1, 1, 64, important=True)
    #: Start though there are messages of shards beyond `shards`, which nobody serves then.
    unserved_shards_enable: bool = boolean(False)
    broker_permission: int = whole(6, 0, 7)
    rocketmq_home: str = text("", parse_optional_path)
    acl_enable: bool = boolean(False, important=True)
    acl_plain_file: str = text("conf/plain_acl.yml", parse_relative_path, key="rocketmq.acl.plain.file")
    vip_port_enable: bool = boolean(True)
    ha_listen_port: int = whole(BROKER_PORT + 1, 0, 65535)
    ha_send_heartbeat_interval_ms: int = long(5000, 1, unit="ms")
    ha_housekeeping_interval_ms: int = long(20_000, 1, unit="ms")
    ha_transfer_batch_size: int = whole(32 * 1024, 1, 16 * MIB)
    ha_slave_fallbehind_max: int = whole(256 * MIB, 1, 2**31 - 1)
    ha_white_remote_addresses: str = text("")
    ha_secret_file: str = text("", parse_optional_path)
    ha_master_address: str = text("", parse_optional_address, important=True)
    ha_resync_enable: bool = boolean(False)
    in_sync_replicas: int = whole(2, 2, 64)
    #: With them the brokers of one name elect their master.
    etcd_endpoints: tuple[str, ...] = text((), parse_urls, important=True)
    etcd_lease_ttl_seconds: int = whole(3, 2, 60)
    etcd_username: str = text("")
    etcd_password_file: str = text("", parse_optional_path)
    etcd_ca_file: str = text("", parse_optional_path)
    etcd_cert_file: str = text("", parse_optional_path)
    etcd_key_file: str = text("", parse_optional_path)
    min_in_sync_replicas: int = whole(2, 1, 64)
    #: Whether messages are stored for which too few brokers are in sync.
    sends_below_in_sync: BelowInSync = text(BelowInSync.AUTO, one_of(BelowInSync))
    #: Whether consumers get what enough brokers have alone; those of a group's master always do.
    confirmed_reads_enable: bool = boolean(False)
    replication_factor: int = whole(3, 1, 64)
    ha_max_time_slave_not_catchup_ms: int = long(2000, 500, unit="ms")
    unclean_election_enable: bool = boolean(False)
    offset_check_in_slave: bool = boolean(False)
    default_topic_queue_nums: int = whole(8, 1, 10_000)
    auto_create_topic_enable: bool = boolean(True, important=True)
    topics_max: int = whole(200_000, 1)
    groups_max: int = whole(100_000, 1)
    offsets_max: int = whole(2_000_000, 1)
    clients_max: int = whole(100_000, 1)
    held_pulls_max: int = whole(200_000)
    cluster_topic_enable: bool = boolean(True)
    broker_topic_enable: bool = boolean(True)
    auto_create_subscription_group: bool = boolean(True, important=True)
    msg_trace_topic_name: str = text("RMQ_SYS_TRACE_TOPIC", parse_name, important=True)
    trace_topic_enable: bool = boolean(False, important=True)
    trace_on: bool = boolean(True)
    region_id: str = text("DefaultRegion")
    store_reply_message_enable: bool = boolean(True)
    reject_transaction_message: bool = boolean(False, important=True)
    transaction_time_out_ms: int = long(6000, unit="ms", important=True)
    transaction_check_max: int = whole(15, important=True)
    transaction_check_interval_ms: int = long(60_000, 1, unit="ms", important=True)
    broker_fast_failure_enable: bool = boolean(True)
    wait_time_ms_in_send_queue: int = long(200, 1, key="waitTimeMillsInSendQueue")
    wait_time_ms_in_pull_queue: int = long(5000, 1, key="waitTimeMillsInPullQueue")
    wait_time_ms_in_heartbeat_queue: int = long(31_000, 1, key="waitTimeMillsInHeartbeatQueue")
    wait_time_ms_in_transaction_queue: int = long(3000, 1, key="waitTimeMillsInTransactionQueue")
    os_page_cache_busy_time_out_ms: int = long(1000, 1, key="osPageCacheBusyTimeOutMills")
    disable_consume_if_consumer_read_slowly: bool = boolean(False)
    consumer_fallbehind_threshold: int = long(16 * 1024 * MIB)
    long_polling_enable: bool = boolean(True)
    short_polling_time_ms: int = long(1000, 1, key="shortPollingTimeMills")
    slave_read_enable: bool = boolean(False)
    enable_property_filter: bool = boolean(False)
    filter_support_retry: bool = boolean(False)
    enable_calc_filter_bit_map: bool = boolean(False)
    filter_data_clean_time_span_ms: int = long(24 * 3600 * 1000, unit="ms")
    expect_consumer_num_use_filter: int = whole(32, 1, 10_000)
    max_error_rate_of_bloom_filter: int = whole(20, 1, 99)
    notify_consumer_ids_changed_enable: bool = boolean(True)
    flush_consumer_offset_interval_ms: int = whole(5000, 1, unit="ms")
    enable_detail_stat: bool = boolean(True)
    auto_delete_unused_stats: bool = boolean(False)
    start_accept_send_request_timestamp_ms: int = long(0, key="startAcceptSendRequestTimeStamp")
    register_name_server_period_ms: int = whole(30_000, unit="ms", clamp=(10_000, 60_000))
    register_broker_timeout_ms: int = whole(6000, 1, key="registerBrokerTimeoutMills")
    compressed_register: bool = boolean(False)
    force_register: bool = boolean(True)
    log_level: LogLevel = text(LogLevel.INFO, one_of(LogLevel, str.lower))
    #: The file they were read from.
    config_path: str | None = None
    #: Which of the shards they are for.
    shard: int = 0
    server: NettySettings = attrs.field(factory=lambda: NettySettings(listen_port=BROKER_PORT))
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    client: ClientSettings = attrs.field(factory=ClientSettings)

    @property
    def why_no_group(self) -> str:
        """Why a broker with these settings cannot be of a group that elects its master; empty if it can, or is not."""
        if not self.etcd_endpoints:
            return ""
        if self.store.broker_role is not BrokerRole.SYNC_MASTER:
            return "a group elects its master, which waits for its replicas; set brokerRole=SYNC_MASTER on each broker"
        if self.broker_id <= 0:
            return "a broker of a group needs a brokerId above 0, which none of the others has; set brokerId=1"
        if self.ha_master_address:
            return "etcd says who the master is; leave haMasterAddress out"
        if not self.ha_listen_port:
            return "the others must know the port for replication; set haListenPort"
        if self.min_in_sync_replicas > self.replication_factor:
            return "minInSyncReplicas is more than replicationFactor"
        if (self.acl_enable or self.tls.mode is TlsMode.ENFORCING) and not (
            self.ha_white_remote_addresses or self.ha_secret_file
        ):
            return (
                "with aclEnable and tls.server.mode=enforcing no replica can connect; set haSecretFile, or "
                "haWhiteRemoteAddresses"
            )
        return self._why_no_etcd

    @property
    def _why_no_etcd(self) -> str:
        if bool(self.etcd_username) != bool(self.etcd_password_file):
            return "etcdUsername and etcdPasswordFile go together; set both, or none"
        if bool(self.etcd_cert_file) != bool(self.etcd_key_file):
            return "etcdCertFile and etcdKeyFile go together; set both, or none"
        plain = [url for url in self.etcd_endpoints if not url.startswith("https:")]
        if plain and (self.etcd_ca_file or self.etcd_cert_file):
            return f"etcdCaFile and etcdCertFile are of https endpoints, and {plain[0]} is none"
        return ""

    @property
    def why_no_slave(self) -> str:
        """Why a broker with these settings cannot be a slave; empty if it can, or is a master."""
        if self.store.broker_role is not BrokerRole.SLAVE:
            return ""
        if self.broker_id <= 0:
            return "a slave needs a brokerId above 0, which none of its master's other slaves has; set brokerId=1"
        if not (self.namesrv_addr or self.ha_master_address):
            return "a slave must find its master; set namesrvAddr to the master's, or haMasterAddress"
        return ""

    @property
    def shard_of(self) -> str:
        """The name that the broker has in common with its other shards."""
        return self.broker_name.removesuffix(f"-{self.shard}") if self.shard else self.broker_name

    @property
    def vip_port(self) -> int | None:
        """The second port, which serves the same requests; None if there is none."""
        port = self.server.listen_port + VIP_PORT_OFFSET
        return port if self.vip_port_enable and port > 0 else None

    @property
    def broker_addr(self) -> str:
        """The address this broker gives to name servers and clients."""
        return join_address(self.broker_ip1, self.server.listen_port)
