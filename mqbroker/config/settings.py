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

    #: Whether the server accepts TLS connections, plain ones, or both (permissive).
    mode: TlsMode = text(TlsMode.PERMISSIVE, one_of(TlsMode, str.lower), key="tls.server.mode")
    #: A file of further TLS settings, which override those given otherwise.
    config_file: str = text(DEFAULT_FILE, parse_optional_path, key="tls.config.file")
    #: Generate a certificate at the start, for trials; clients then accept any server. Set it to false with files of
    #: your own.
    test_mode: bool = boolean(True, key="tls.test.mode.enable")
    #: Whether clients present a certificate.
    server_need_client_auth: ClientAuth = text(
        ClientAuth.NONE, one_of(ClientAuth, str.lower), key="tls.server.need.client.auth"
    )
    #: The server's private key (PEM).
    server_key_path: str = text("", parse_optional_path, key="tls.server.keyPath")
    #: The password of that key; shown as ***.
    server_key_password: str = text("", shown=_hidden, key="tls.server.keyPassword")
    #: The server's certificate chain (PEM).
    server_cert_path: str = text("", parse_optional_path, key="tls.server.certPath")
    #: Verify the certificates that clients present.
    server_auth_client: bool = boolean(False, key="tls.server.authClient")
    #: The authorities that clients' certificates are verified by (PEM); empty for the system's.
    server_trust_cert_path: str = text("", parse_optional_path, key="tls.server.trustCertPath")
    #: The private key for this daemon's own connections (PEM).
    client_key_path: str = text("", parse_optional_path, key="tls.client.keyPath")
    #: The password of that key; shown as ***.
    client_key_password: str = text("", shown=_hidden, key="tls.client.keyPassword")
    #: The certificate that this daemon presents on its own connections (PEM).
    client_cert_path: str = text("", parse_optional_path, key="tls.client.certPath")
    #: Verify the certificates of the servers that this daemon connects to.
    client_auth_server: bool = boolean(False, key="tls.client.authServer")
    #: The authorities that those certificates are verified by (PEM); empty for the system's.
    client_trust_cert_path: str = text("", parse_optional_path, key="tls.client.trustCertPath")
    #: Encrypt this daemon's own connections. Without it they are encrypted if the server's mode is enforcing.
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

    #: The TCP port for clients; 0 takes a free one. 10911 for a broker, 9876 for a name server.
    listen_port: int = whole(8888, 0, 65535, important=True)
    #: The address of this machine to listen on; empty for all of them.
    bind_address: str = text("", parse_bind_address, important=True)
    #: Bytes of a frame. A longer one closes its connection.
    frame_max_length: int = whole(16 * MIB, 1024, 1024 * MIB)
    #: Seconds without a byte from a client after which its connection is closed.
    server_channel_max_idle_time_seconds: int = whole(120, 1)
    #: Connections at a time. Beyond it, the one that was silent for longest is closed.
    connections_max: int = whole(20_000, 1)
    #: Connections from one address at a time.
    connections_per_address_max: int = whole(12_000, 1)
    #: Bytes of responses that a client has not read, after which its connection is closed.
    unsent_bytes_max: int = whole(64 * MIB, 64 * 1024)
    server_oneway_semaphore_value: int = whole(256, 1)
    server_async_semaphore_value: int = whole(64, 1)
    #: Bytes of a socket's send buffer; 0 for the system's default.
    server_socket_snd_buf_size: int = whole(0)
    #: Bytes of a socket's receive buffer; 0 for the system's default.
    server_socket_rcv_buf_size: int = whole(0)
    #: Connections that wait to be accepted.
    server_socket_backlog: int = whole(1024, 1)


@attrs.frozen(kw_only=True)
class ClientSettings:
    """Client side: a broker's connections to its name servers."""

    #: Encrypt the broker's connections to its name servers. Default: as tls.enable, or true with the mode enforcing.
    use_tls: bool = boolean(False, key="useTLS")
    client_oneway_semaphore_value: int = whole(65535, 1)
    #: Requests of the broker to a name server that wait for their responses at a time.
    client_async_semaphore_value: int = whole(65535, 1)
    #: Milliseconds for a connection to a name server.
    connect_timeout_ms: int = whole(3000, 1, key="connectTimeoutMillis")
    #: Seconds without traffic after which such a connection is closed.
    client_channel_max_idle_time_seconds: int = whole(120, 1)


@attrs.frozen(kw_only=True)
class NamesrvSettings:
    """The name server. `namesrv_addr` is another environment's, see `cluster_test`."""

    #: The file of keys and values that mqadmin updateKvConfig stores.
    kv_config_path: str = text(parse=parse_path, important=True)
    #: The file that settings changed by a request are written to.
    config_store_path: str = text(parse=parse_path)
    #: Give clients the queues of ordered topics with their routes.
    order_message_enable: bool = boolean(False)
    #: Ask other name servers about topics that no broker here has, for tests; see the name server's page.
    cluster_test: bool = boolean(False)
    #: The name of those other name servers' environment in the log.
    product_env_name: str = text("center", parse_name)
    #: Addresses of name servers, separated by semicolons. A broker registers with all of them; a name server asks
    #: them with clusterTest.
    namesrv_addr: tuple[str, ...] = text((), parse_addresses)
    #: The minimum level of log lines.
    log_level: LogLevel = text(LogLevel.INFO, one_of(LogLevel, str.lower))
    server: NettySettings = attrs.field(factory=lambda: NettySettings(listen_port=NAMESRV_PORT))
    tls: TlsSettings = attrs.field(factory=TlsSettings)


def _commit_log_in_root(store: StoreSettings) -> str:
    return os.path.join(store.store_path_root_dir, "commitlog")


@attrs.frozen(kw_only=True)
class StoreSettings:
    """The store on disk."""

    #: The directory of the store. Default: store in the user's home directory.
    store_path_root_dir: str = text(parse=parse_path, important=True)
    #: The directory of the commit log. Default: commitlog in the store's directory.
    store_path_commit_log: str = text(
        attrs.Factory(_commit_log_in_root, takes_self=True), parse_log_path, important=True
    )
    #: Bytes of a file of the commit log. It must not change after the store was created.
    mapped_file_size_commit_log: int = whole(1024 * MIB, 4096)
    #: Bytes of a file of a consume queue; rounded up to whole entries of 20 bytes.
    mapped_file_size_consume_queue: int = whole(6_000_000, 20)
    #: Store tags code, store time and filter bits of each message in consumequeue_ext.
    enable_consume_queue_ext: bool = boolean(False)
    #: Bytes of a file of consumequeue_ext.
    mapped_file_size_consume_queue_ext: int = whole(48 * MIB, 1024)
    #: Serve light message queues, whose names begin with %LMQ%.
    enable_lmq: bool = boolean(False)
    #: Put messages into the queues that their property INNER_MULTI_DISPATCH names, too.
    enable_multi_dispatch: bool = boolean(False)
    #: Light message queues. A message that would create more is refused.
    max_lmq_consume_queue_num: int = whole(20_000)
    #: Bytes of a message's body. A larger message is refused with MESSAGE_ILLEGAL.
    max_message_size: int = whole(4 * MIB, 1)
    #: SYNC_FLUSH: a send is acknowledged when it is on the disk. ASYNC_FLUSH: when it is in the page cache, so that a
    #: power failure may lose the last flushIntervalCommitLog.
    flush_disk_type: FlushDiskType = choice(FlushDiskType.ASYNC_FLUSH)
    #: The longest time that an acknowledged message waits for its sync under ASYNC_FLUSH.
    flush_interval_commit_log_ms: int = whole(500, 1, unit="ms", important=True)
    flush_commit_log_timed: bool = boolean(True, important=True)
    flush_commit_log_least_pages: int = whole(4)
    flush_commit_log_thorough_interval_ms: int = whole(10_000, unit="ms")
    #: How often consume queues are synced.
    flush_interval_consume_queue_ms: int = whole(1000, 1, unit="ms")
    flush_consume_queue_least_pages: int = whole(2)
    flush_consume_queue_thorough_interval_ms: int = whole(60_000, unit="ms")
    #: Append to memory outside of the log's files first. A killed broker loses what is there. For ASYNC_FLUSH on a
    #: master.
    transient_store_pool_enable: bool = boolean(False, important=True)
    #: Buffers of that pool, each of the size of a file of the commit log.
    transient_store_pool_size: int = whole(5, 1, 1000)
    #: Refuse messages while no buffer is free, in place of appending to the file.
    fast_fail_if_no_buffer_in_store_pool: bool = boolean(False)
    #: How often the pool's buffers are written to the log's files.
    commit_interval_commit_log_ms: int = whole(200, 1, unit="ms", important=True)
    #: Pages of 4 KiB that must wait before they are written earlier than that.
    commit_commit_log_least_pages: int = whole(4)
    #: The time after which fewer pages are written, too.
    commit_commit_log_thorough_interval_ms: int = whole(200, unit="ms")
    #: Lock the newest file of the log in memory, if the limit (ulimit -l) allows it.
    warm_maped_file_enable: bool = boolean(False)
    #: How long a send waits for its sync, and for slaves; then it is answered with FLUSH_DISK_TIMEOUT or
    #: FLUSH_SLAVE_TIMEOUT.
    sync_flush_timeout_ms: int = whole(5000, 1, unit="ms")
    #: Sync the log by the kernel's own queue (Linux AIO) in place of a thread.
    kernel_sync_enable: bool = boolean(True)
    #: Refuse messages while one waits for its sync for so much longer than flushIntervalCommitLog: a disk that hangs.
    unsynced_age_max_ms: int = whole(10_000, 1000, unit="ms")
    check_crc_on_recover: bool = boolean(True, key="checkCRCOnRecover")
    #: Index messages by their keys. Without it a query by key finds nothing.
    message_index_enable: bool = boolean(True, important=True)
    #: Hash slots of an index file.
    max_hash_slot_num: int = whole(5_000_000, 1, 100_000_000)
    #: Entries of an index file.
    max_index_num: int = whole(20_000_000, 2, 100_000_000)
    #: Messages that a query by key returns at most.
    max_msgs_num_batch: int = whole(64, 1)
    #: Messages that a query by key returns where the client does not say how many.
    default_query_max_num: int = whole(32, 1)
    #: Bytes that a pull returns of messages in memory.
    max_transfer_bytes_on_message_in_memory: int = whole(256 * 1024, 1, important=True)
    #: Messages in memory that a pull returns.
    max_transfer_count_on_message_in_memory: int = whole(32, 1, important=True)
    #: Bytes that a pull returns of messages on disk.
    max_transfer_bytes_on_message_in_disk: int = whole(64 * 1024, 1, important=True)
    #: Messages on disk that a pull returns.
    max_transfer_count_on_message_in_disk: int = whole(8, 1, important=True)
    #: Percent of the machine's memory: messages further from the newest one count as on disk.
    access_message_in_memory_max_ratio: int = whole(40, 0, 100, important=True)
    #: Hours that messages are kept, counted from the last write of their log file.
    file_reserved_time_hours: int = whole(72, 0, 24 * 366 * 100, unit="hours", important=True)
    #: Hours of the day, in local time, at which expired files are deleted, such as 04 or 04;16.
    delete_when_hours: tuple[int, ...] = text((4,), parse_hours, shown=show_hours, unit="hours", important=True)
    #: Percent of a disk: if more is used, expired files are deleted at any hour.
    disk_max_used_space_ratio: int = whole(75, clamp=(10, 95))
    #: Percent of a disk: if more is used, the oldest files are deleted whatever their age. 100 turns it off.
    disk_space_clean_forcibly_ratio: int = whole(85, 1, 100)
    #: Percent of a disk: if more is used, messages are refused as well. 100 turns it off.
    disk_space_warning_level_ratio: int = whole(90, 1, 100)
    #: Free bytes of a disk below which messages are refused and the oldest files deleted; 0 turns it off.
    disk_free_bytes_min: int = long(64 * MIB)
    #: How often disks are checked and expired files looked for.
    clean_resource_interval_ms: int = whole(10_000, 1, unit="ms")
    #: Pause between the deletions of two files of the log.
    delete_commit_log_files_interval_ms: int = whole(100, unit="ms")
    #: Pause between the deletions of two files of consume queues.
    delete_consume_queue_files_interval_ms: int = whole(100, unit="ms")
    #: How long to wait before the deletion of a file is tried again.
    redelete_hanged_file_interval_ms: int = whole(120_000, unit="ms")
    #: Whether files that are not expired are deleted when a disk is full.
    clean_file_forcibly_enable: bool = boolean(True, important=True)
    #: The delay of each level, from level 1 on.
    message_delay_level: str = text("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", parse_delays)
    #: How often the progress of delayed messages is saved. What was delivered since then is looked up at the next
    #: start.
    flush_delay_offset_interval_ms: int = long(1000, 1, unit="ms")
    #: Count delayed messages in the statistics of queues.
    enable_schedule_message_stats: bool = boolean(True)
    #: ASYNC_MASTER; SYNC_MASTER, whose sends wait until a slave has their messages; or SLAVE.
    broker_role: BrokerRole = choice(BrokerRole.ASYNC_MASTER)
    #: Refused if true: consumers would wait for messages that a slave has.
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

    #: The name of the broker in routes. A master and its slaves have the same. Default: the host name.
    broker_name: str = text(parse=parse_name, important=True)
    #: The address or name that clients are told. Default: the address by which this machine reaches others.
    broker_ip1: str = text(parse=parse_own_host, key="brokerIP1", important=True)
    #: The address or name that slaves are told. Default: as brokerIP1.
    broker_ip2: str = text(parse=parse_own_host, key="brokerIP2")
    store: StoreSettings
    #: Addresses of name servers, separated by semicolons. A broker registers with all of them; a name server asks
    #: them with clusterTest.
    namesrv_addr: tuple[str, ...] = text((), parse_addresses, important=True)
    #: The cluster that the broker belongs to.
    broker_cluster_name: str = text("DefaultCluster", parse_name, important=True)
    #: 0 for a master; above 0, and different, for each slave and for each broker of a group that elects its master.
    broker_id: int = long(0, important=True)
    #: Processes that the broker consists of, one for a core. Each has its own name, ports and store.
    shards: int = whole(1, 1, 64, important=True)
    #: Start although there are messages of more shards, which nobody serves then.
    unserved_shards_enable: bool = boolean(False)
    #: The sum of 4 (read) and 2 (write). 4 drains a broker: it accepts no more sends.
    broker_permission: int = whole(6, 0, 7)
    #: The directory that has conf/plain_acl.yml.
    rocketmq_home: str = text("", parse_optional_path)
    #: Serve only requests that are signed by an account, and each account only what it may do.
    acl_enable: bool = boolean(False, important=True)
    #: The file of accounts, relative to rocketmqHome.
    acl_plain_file: str = text("conf/plain_acl.yml", parse_relative_path, key="rocketmq.acl.plain.file")
    #: Listen on the port two below listenPort as well, for Java clients with vipChannelEnabled.
    vip_port_enable: bool = boolean(True)
    #: The port for slaves. Default: listenPort + 1. On a group's member it must not be 0.
    ha_listen_port: int = whole(BROKER_PORT + 1, 0, 65535)
    #: How often master and slave send something on an idle connection.
    ha_send_heartbeat_interval_ms: int = long(5000, 1, unit="ms")
    #: Silence after which a connection between master and slave is closed.
    ha_housekeeping_interval_ms: int = long(20_000, 1, unit="ms")
    #: Bytes of the log that a slave is sent at once.
    ha_transfer_batch_size: int = whole(32 * 1024, 1, 16 * MIB)
    #: Bytes that a slave may be behind before it no longer counts as present for sends.
    ha_slave_fallbehind_max: int = whole(256 * MIB, 1, 2**31 - 1)
    #: Addresses of slaves that need no secret, in the syntax of globalWhiteRemoteAddresses.
    ha_white_remote_addresses: str = text("")
    #: The file whose first line, of 16 bytes at least, is the secret that master and slaves share.
    ha_secret_file: str = text("", parse_optional_path)
    #: Where a slave finds its master's replication port. Empty: by the name servers.
    ha_master_address: str = text("", parse_optional_address, important=True)
    #: On a slave whose log is not the beginning of its master's: put the store aside and copy the master's again.
    ha_resync_enable: bool = boolean(False)
    #: Brokers that must have a message under SYNC_MASTER, the master included.
    in_sync_replicas: int = whole(2, 2, 64)
    #: URLs of etcd's members, separated by semicolons. With them the brokers of one name elect their master.
    etcd_endpoints: tuple[str, ...] = text((), parse_urls, important=True)
    #: Seconds after which a master that etcd does not hear of is replaced.
    etcd_lease_ttl_seconds: int = whole(3, 2, 60)
    #: The account at etcd.
    etcd_username: str = text("")
    #: The file whose first line is that account's password.
    etcd_password_file: str = text("", parse_optional_path)
    #: The authorities that etcd's certificates are verified by (PEM).
    etcd_ca_file: str = text("", parse_optional_path)
    #: The certificate that the broker presents to etcd (PEM).
    etcd_cert_file: str = text("", parse_optional_path)
    #: The private key of that certificate (PEM).
    etcd_key_file: str = text("", parse_optional_path)
    #: In a group: brokers that must be in sync; with fewer, messages are refused and not stored.
    min_in_sync_replicas: int = whole(2, 1, 64)
    #: What happens to messages for which too few brokers are in sync: REFUSE them, or APPEND them and answer
    #: SLAVE_NOT_AVAILABLE. AUTO refuses in a group that elects its master, and appends otherwise.
    sends_below_in_sync: BelowInSync = text(BelowInSync.AUTO, one_of(BelowInSync))
    #: Show consumers only what enough brokers have. A group's master always does.
    confirmed_reads_enable: bool = boolean(False)
    #: Brokers of a group that elects its master.
    replication_factor: int = whole(3, 1, 64)
    #: How long a replica may be behind before it leaves the in-sync set.
    ha_max_time_slave_not_catchup_ms: int = long(2000, 500, unit="ms")
    #: After 10 seconds without a master, elect a replica that is not in sync or not whole. What it lacks is lost.
    unclean_election_enable: bool = boolean(False)
    #: On a slave, correct the offsets of pulls that it does not have. Without it consumers wait for the master.
    offset_check_in_slave: bool = boolean(False)
    #: Queues of a topic that a send creates, unless the producer asks for fewer.
    default_topic_queue_nums: int = whole(8, 1, 10_000)
    #: A send to an unknown topic creates it. In production set it to false.
    auto_create_topic_enable: bool = boolean(True, important=True)
    #: Topics. A new one beyond it is refused.
    topics_max: int = whole(200_000, 1)
    #: Consumer groups. A new one beyond it is refused.
    groups_max: int = whole(100_000, 1)
    #: Committed offsets of queues, over all groups. A new one beyond it is not stored.
    offsets_max: int = whole(2_000_000, 1)
    #: Consumers, and as many producers, counted once for each of their groups.
    clients_max: int = whole(100_000, 1)
    #: Pulls that wait for messages. Others are answered PULL_NOT_FOUND at once.
    held_pulls_max: int = whole(200_000)
    #: Have a topic of the cluster's name.
    cluster_topic_enable: bool = boolean(True)
    #: Have a topic of the broker's name.
    broker_topic_enable: bool = boolean(True)
    #: A consumer of an unknown group creates it.
    auto_create_subscription_group: bool = boolean(True, important=True)
    #: The topic of message traces.
    msg_trace_topic_name: str = text("RMQ_SYS_TRACE_TOPIC", parse_name, important=True)
    #: Create that topic at the start.
    trace_topic_enable: bool = boolean(False, important=True)
    #: Told to clients in send responses: whether they may trace messages.
    trace_on: bool = boolean(True)
    #: Stored with messages as their region, for message traces.
    region_id: str = text("DefaultRegion")
    #: Store replies in <cluster>_REPLY_TOPIC as well.
    store_reply_message_enable: bool = boolean(True)
    #: Refuse half messages of transactions.
    reject_transaction_message: bool = boolean(False, important=True)
    #: Age of a half message after which its producers are asked about it.
    transaction_time_out_ms: int = long(6000, unit="ms", important=True)
    #: Checks of a half message after which it is given up.
    transaction_check_max: int = whole(15, important=True)
    #: How often half messages are checked.
    transaction_check_interval_ms: int = long(60_000, 1, unit="ms", important=True)
    #: Refuse requests that waited for longer than waitTimeMillsIn... allow.
    broker_fast_failure_enable: bool = boolean(True)
    #: Milliseconds that a send may have waited before it is handled; then SYSTEM_BUSY.
    wait_time_ms_in_send_queue: int = long(200, 1, key="waitTimeMillsInSendQueue")
    #: The same for pulls.
    wait_time_ms_in_pull_queue: int = long(5000, 1, key="waitTimeMillsInPullQueue")
    #: The same for heartbeats.
    wait_time_ms_in_heartbeat_queue: int = long(31_000, 1, key="waitTimeMillsInHeartbeatQueue")
    #: The same for ends of transactions.
    wait_time_ms_in_transaction_queue: int = long(3000, 1, key="waitTimeMillsInTransactionQueue")
    #: Milliseconds that appends may take before sends are refused with SYSTEM_BUSY.
    os_page_cache_busy_time_out_ms: int = long(1000, 1, key="osPageCacheBusyTimeOutMills")
    #: Disable the consumption of groups that are too far behind.
    disable_consume_if_consumer_read_slowly: bool = boolean(False)
    #: Bytes of the log that count as too far behind.
    consumer_fallbehind_threshold: int = long(16 * 1024 * MIB)
    #: Hold pulls that find nothing for as long as their consumers ask for. Without it they are held for
    #: shortPollingTimeMills.
    long_polling_enable: bool = boolean(True)
    #: Milliseconds that such a pull is held without long polling.
    short_polling_time_ms: int = long(1000, 1, key="shortPollingTimeMills")
    #: Tell consumers that are far behind to pull from a slave.
    slave_read_enable: bool = boolean(False)
    #: Allow consumers to filter by SQL92 expressions on properties.
    enable_property_filter: bool = boolean(False)
    #: Filter retries again, by the group's subscription to their original topic.
    filter_support_retry: bool = boolean(False)
    #: Compute which groups' expressions match when a message is stored. Needs enableConsumeQueueExt.
    enable_calc_filter_bit_map: bool = boolean(False)
    #: How long the expressions of a group are kept after its last consumer has left.
    filter_data_clean_time_span_ms: int = long(24 * 3600 * 1000, unit="ms")
    #: Groups with an expression that are expected for each topic; the size of bit maps follows from it.
    expect_consumer_num_use_filter: int = whole(32, 1, 10_000)
    #: Percent of messages that such a bit map may let pass wrongly.
    max_error_rate_of_bloom_filter: int = whole(20, 1, 99)
    #: Tell the members of a group when one joins or leaves, so that they rebalance at once.
    notify_consumer_ids_changed_enable: bool = boolean(True)
    #: How often committed offsets are written to disk. After a crash consumers repeat as much.
    flush_consumer_offset_interval_ms: int = whole(5000, 1, unit="ms")
    #: Count latencies for each queue, in place of each topic.
    enable_detail_stat: bool = boolean(True)
    #: Delete the statistics of a topic or group with it.
    auto_delete_unused_stats: bool = boolean(False)
    #: Milliseconds since 1970 before which sends are refused.
    start_accept_send_request_timestamp_ms: int = long(0, key="startAcceptSendRequestTimeStamp")
    #: How often the broker registers with its name servers. Other values are clamped to the range.
    register_name_server_period_ms: int = whole(30_000, unit="ms", clamp=(10_000, 60_000))
    #: Milliseconds for a registration.
    register_broker_timeout_ms: int = whole(6000, 1, key="registerBrokerTimeoutMills")
    #: Compress registrations.
    compressed_register: bool = boolean(False)
    #: Register each period whatever the name server has; false asks first whether that is needed.
    force_register: bool = boolean(True)
    #: The minimum level of log lines.
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
