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
    parse_extensions,
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

    #: Which connections the server accepts: only plain ones (disabled), only TLS (enforcing), or both (permissive).
    mode: TlsMode = text(TlsMode.PERMISSIVE, one_of(TlsMode, str.lower), key="tls.server.mode")
    #: A file of further TLS settings, which override those given otherwise.
    config_file: str = text(DEFAULT_FILE, parse_optional_path, key="tls.config.file")
    #: Generate a certificate at the start, for tests only: clients cannot verify it. Set it to false to use your own
    #: files.
    test_mode: bool = boolean(True, key="tls.test.mode.enable")
    #: Whether clients must present a certificate (require), may (optional), or are not asked for one (none).
    server_need_client_auth: ClientAuth = text(
        ClientAuth.NONE, one_of(ClientAuth, str.lower), key="tls.server.need.client.auth"
    )
    #: The server's private key (PEM).
    server_key_path: str = text("", parse_optional_path, key="tls.server.keyPath")
    #: The password of the server's private key; shown as ***.
    server_key_password: str = text("", shown=_hidden, key="tls.server.keyPassword")
    #: The server's certificate chain (PEM).
    server_cert_path: str = text("", parse_optional_path, key="tls.server.certPath")
    #: Verify the certificates that clients present.
    server_auth_client: bool = boolean(False, key="tls.server.authClient")
    #: CA certificates to verify clients with (PEM); empty for the system's.
    server_trust_cert_path: str = text("", parse_optional_path, key="tls.server.trustCertPath")
    #: The private key for this daemon's own connections (PEM).
    client_key_path: str = text("", parse_optional_path, key="tls.client.keyPath")
    #: The password of the key in tls.client.keyPath; shown as ***.
    client_key_password: str = text("", shown=_hidden, key="tls.client.keyPassword")
    #: The certificate that this daemon presents on its own connections (PEM).
    client_cert_path: str = text("", parse_optional_path, key="tls.client.certPath")
    #: Verify the certificates of the servers that this daemon connects to.
    client_auth_server: bool = boolean(False, key="tls.client.authServer")
    #: CA certificates to verify with tls.client.authServer (PEM); empty for the system's.
    client_trust_cert_path: str = text("", parse_optional_path, key="tls.client.trustCertPath")
    #: Encrypt the connections that this daemon opens itself. If not set, they are encrypted where tls.server.mode is
    #: enforcing.
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
            warn(f"{item.where}: {item.key} has no effect in this file")


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

    #: The TCP port for clients; 0 picks a free one.
    listen_port: int = whole(8888, 0, 65535, important=True)
    #: The address of this machine to listen on; empty for all of them.
    bind_address: str = text("", parse_bind_address, important=True)
    #: Extensions to load, separated by commas: names of entry points of the group mqbroker.extensions.
    extensions: tuple[str, ...] = text((), parse_extensions)
    #: Maximum size of a frame in bytes. A connection that sends a longer one is closed.
    frame_max_length: int = whole(16 * MIB, 1024, 1024 * MIB)
    #: Seconds without a byte from a client after which its connection is closed.
    server_channel_max_idle_time_seconds: int = whole(120, 1)
    #: Maximum number of connections. When it is reached, the connection that was idle for longest is closed.
    connections_max: int = whole(20_000, 1)
    #: Maximum number of connections from one address.
    connections_per_address_max: int = whole(12_000, 1)
    #: Bytes of responses that a client may leave unread; beyond it, its connection is closed.
    unsent_bytes_max: int = whole(64 * MIB, 64 * 1024)
    server_oneway_semaphore_value: int = whole(256, 1)
    server_async_semaphore_value: int = whole(64, 1)
    #: Size of a socket's send buffer in bytes; 0 for the system's default.
    server_socket_snd_buf_size: int = whole(0)
    #: Size of a socket's receive buffer in bytes; 0 for the system's default.
    server_socket_rcv_buf_size: int = whole(0)
    #: Maximum number of connections that wait to be accepted.
    server_socket_backlog: int = whole(1024, 1)


@attrs.frozen(kw_only=True)
class ClientSettings:
    """Client side: a broker's connections to its name servers."""

    #: Encrypt the broker's connections to its name servers.
    use_tls: bool = boolean(False, key="useTLS")
    client_oneway_semaphore_value: int = whole(65535, 1)
    #: Maximum number of requests to a name server that wait for a response.
    client_async_semaphore_value: int = whole(65535, 1)
    #: Timeout of connecting to a name server, in milliseconds.
    connect_timeout_ms: int = whole(3000, 1, key="connectTimeoutMillis")
    #: Seconds without traffic after which a connection to a name server is closed.
    client_channel_max_idle_time_seconds: int = whole(120, 1)


@attrs.frozen(kw_only=True)
class NamesrvSettings:
    """The name server. `namesrv_addr` is another environment's, see `cluster_test`."""

    #: The file with the keys and values that mqadmin updateKvConfig sets.
    kv_config_path: str = text(parse=parse_path, important=True)
    #: The file to which settings that a request has changed are written.
    config_store_path: str = text(parse=parse_path)
    #: Include the queues of ordered topics in the routes that clients get.
    order_message_enable: bool = boolean(False)
    #: For tests: forward requests for the routes of unknown topics to the name servers in namesrvAddr.
    cluster_test: bool = boolean(False)
    #: With clusterTest, the name of the other environment in the log.
    product_env_name: str = text("center", parse_name)
    #: Addresses of name servers, separated by semicolons. A broker registers with all of them; a name server uses
    #: them only with clusterTest.
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
    #: Size of a commit log file in bytes. Do not change it once the store exists.
    mapped_file_size_commit_log: int = whole(1024 * MIB, 4096)
    #: Size of a consume queue file in bytes; rounded up to whole entries of 20 bytes.
    mapped_file_size_consume_queue: int = whole(6_000_000, 20)
    #: Store the hash of the tag, the store time and the filter bits of each message in consumequeue_ext.
    enable_consume_queue_ext: bool = boolean(False)
    #: Size of a file of consumequeue_ext in bytes.
    mapped_file_size_consume_queue_ext: int = whole(48 * MIB, 1024)
    #: Serve light message queues, whose names begin with %LMQ%.
    enable_lmq: bool = boolean(False)
    #: Also put messages into the queues that their property INNER_MULTI_DISPATCH names.
    enable_multi_dispatch: bool = boolean(False)
    #: Maximum number of light message queues. A message that would create more is refused.
    max_lmq_consume_queue_num: int = whole(20_000)
    #: Maximum size of a message's body in bytes. A larger message is refused with MESSAGE_ILLEGAL.
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
    #: Append to a pool of buffers in memory first, and write to the log's files later. A killed broker loses what was
    #: not written yet. Only for a master with ASYNC_FLUSH.
    transient_store_pool_enable: bool = boolean(False, important=True)
    #: Number of buffers of the transient store pool (transientStorePoolEnable), each of the size of a commit log file.
    transient_store_pool_size: int = whole(5, 1, 1000)
    #: With transientStorePoolEnable: refuse messages while no buffer is free, instead of appending to the file.
    fast_fail_if_no_buffer_in_store_pool: bool = boolean(False)
    #: With transientStorePoolEnable: how often the buffers are written to the log's files.
    commit_interval_commit_log_ms: int = whole(200, 1, unit="ms", important=True)
    #: With transientStorePoolEnable: write before commitIntervalCommitLog has passed once this many pages of 4 KiB are
    #: waiting.
    commit_commit_log_least_pages: int = whole(4)
    #: With transientStorePoolEnable: the time after which fewer pages than commitCommitLogLeastPages are written, too.
    commit_commit_log_thorough_interval_ms: int = whole(200, unit="ms")
    #: Lock the newest file of the log in memory, if the limit (ulimit -l) allows it.
    warm_maped_file_enable: bool = boolean(False)
    #: How long a send waits for its sync and for slaves. Then the response is FLUSH_DISK_TIMEOUT or
    #: FLUSH_SLAVE_TIMEOUT.
    sync_flush_timeout_ms: int = whole(5000, 1, unit="ms")
    #: Sync the log through the kernel (Linux AIO) instead of a thread.
    kernel_sync_enable: bool = boolean(True)
    #: Refuse messages while a message has waited for its sync for this much longer than flushIntervalCommitLog, because
    #: the disk hangs.
    unsynced_age_max_ms: int = whole(10_000, 1000, unit="ms")
    check_crc_on_recover: bool = boolean(True, key="checkCRCOnRecover")
    #: Index messages by their keys. If false, a query by key finds nothing.
    message_index_enable: bool = boolean(True, important=True)
    #: Number of hash slots in an index file.
    max_hash_slot_num: int = whole(5_000_000, 1, 100_000_000)
    #: Maximum number of entries in an index file.
    max_index_num: int = whole(20_000_000, 2, 100_000_000)
    #: Maximum number of messages that a query by key returns.
    max_msgs_num_batch: int = whole(64, 1)
    #: Number of messages that a query by key returns if the client does not set a maximum.
    default_query_max_num: int = whole(32, 1)
    #: Maximum bytes of messages that a pull returns, of messages in memory.
    max_transfer_bytes_on_message_in_memory: int = whole(256 * 1024, 1, important=True)
    #: Maximum number of messages that a pull returns, of messages in memory.
    max_transfer_count_on_message_in_memory: int = whole(32, 1, important=True)
    #: Maximum bytes of messages that a pull returns, of messages that count as on disk
    #: (accessMessageInMemoryMaxRatio).
    max_transfer_bytes_on_message_in_disk: int = whole(64 * 1024, 1, important=True)
    #: Maximum number of messages that a pull returns, of messages that count as on disk
    #: (accessMessageInMemoryMaxRatio).
    max_transfer_count_on_message_in_disk: int = whole(8, 1, important=True)
    #: Percentage of the machine's memory. Messages further than that from the end of the log count as on disk.
    access_message_in_memory_max_ratio: int = whole(40, 0, 100, important=True)
    #: Hours that messages are kept, counted from the last write to their commit log file.
    file_reserved_time_hours: int = whole(72, 0, 24 * 366 * 100, unit="hours", important=True)
    #: Hours of the day, in local time, at which expired files are deleted, such as 04 or 04;16.
    delete_when_hours: tuple[int, ...] = text((4,), parse_hours, shown=show_hours, unit="hours", important=True)
    #: Percentage of disk use above which expired files are deleted at any hour.
    disk_max_used_space_ratio: int = whole(75, clamp=(10, 95))
    #: Percentage of disk use above which the oldest files are deleted, whatever their age. 100 turns it off.
    disk_space_clean_forcibly_ratio: int = whole(85, 1, 100)
    #: Percentage of disk use above which messages are refused as well. 100 turns it off.
    disk_space_warning_level_ratio: int = whole(90, 1, 100)
    #: Free disk space in bytes below which messages are refused and the oldest files are deleted. 0 turns it off.
    disk_free_bytes_min: int = long(64 * MIB)
    #: How often disks and expired files are checked.
    clean_resource_interval_ms: int = whole(10_000, 1, unit="ms")
    #: Pause between deletions of commit log files.
    delete_commit_log_files_interval_ms: int = whole(100, unit="ms")
    #: Pause between deletions of consume queue files.
    delete_consume_queue_files_interval_ms: int = whole(100, unit="ms")
    #: How long to wait before trying again to delete a file.
    redelete_hanged_file_interval_ms: int = whole(120_000, unit="ms")
    #: Delete files that have not expired, too, when disk use is above diskSpaceCleanForciblyRatio.
    clean_file_forcibly_enable: bool = boolean(True, important=True)
    #: The delays of the levels, starting with level 1.
    message_delay_level: str = text("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", parse_delays)
    #: How often the progress of delayed messages is saved. After a crash, the start looks up what was delivered since.
    flush_delay_offset_interval_ms: int = long(1000, 1, unit="ms")
    #: Include delayed messages in the statistics of queues.
    enable_schedule_message_stats: bool = boolean(True)
    #: ASYNC_MASTER; SYNC_MASTER, where sends wait until a slave has the message; or SLAVE. It is changed together with
    #: brokerId.
    broker_role: BrokerRole = choice(BrokerRole.ASYNC_MASTER)
    #: Must be false. With true the Java broker gives consumers no new messages.
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

    #: The name of the broker in routes. A master and its slaves share it. Default: the host name.
    broker_name: str = text(parse=parse_name, important=True)
    #: The address or host name given to clients. Default: the address by which this machine reaches others.
    broker_ip1: str = text(parse=parse_own_host, key="brokerIP1", important=True)
    #: The address or host name given to slaves. Default: as brokerIP1.
    broker_ip2: str = text(parse=parse_own_host, key="brokerIP2")
    store: StoreSettings
    #: Addresses of name servers, separated by semicolons. A broker registers with all of them; a name server uses
    #: them only with clusterTest.
    namesrv_addr: tuple[str, ...] = text((), parse_addresses, important=True)
    #: The cluster that the broker belongs to.
    broker_cluster_name: str = text("DefaultCluster", parse_name, important=True)
    #: 0 for a master. Slaves, and all brokers of a group that elects its master, each have a different id above 0. It
    #: is changed together with brokerRole.
    broker_id: int = long(0, important=True)
    #: Number of processes that the broker consists of, usually one per core. Each has its own name, ports and store.
    shards: int = whole(1, 1, 64, important=True)
    #: Start even if the store has messages of more shards than there are now. These are not served.
    unserved_shards_enable: bool = boolean(False)
    #: The sum of 4 (read) and 2 (write). 4 drains the broker: it accepts no more sends.
    broker_permission: int = whole(6, 0, 7)
    #: The directory that contains conf/plain_acl.yml.
    rocketmq_home: str = text("", parse_optional_path)
    #: Serve only requests that are signed by an account with the permission for them.
    acl_enable: bool = boolean(False, important=True)
    #: The file of accounts, relative to rocketmqHome.
    acl_plain_file: str = text("conf/plain_acl.yml", parse_relative_path, key="rocketmq.acl.plain.file")
    #: Also listen on the port listenPort - 2, for Java clients with vipChannelEnabled.
    vip_port_enable: bool = boolean(True)
    #: The port for slaves. Default: listenPort + 1. In a group that elects its master it must not be 0.
    ha_listen_port: int = whole(BROKER_PORT + 1, 0, 65535)
    #: How often master and slave send a heartbeat on an idle connection.
    ha_send_heartbeat_interval_ms: int = long(5000, 1, unit="ms")
    #: Time without traffic after which a connection between master and slave is closed.
    ha_housekeeping_interval_ms: int = long(20_000, 1, unit="ms")
    #: Maximum bytes of the log that are sent to a slave at once.
    ha_transfer_batch_size: int = whole(32 * 1024, 1, 16 * MIB)
    #: Bytes that a slave may be behind and still count as available for sends.
    ha_slave_fallbehind_max: int = whole(256 * MIB, 1, 2**31 - 1)
    #: Addresses of slaves that do not need the secret, in the syntax of globalWhiteRemoteAddresses.
    ha_white_remote_addresses: str = text("")
    #: The file whose first line is the secret that master and slaves share; at least 16 bytes.
    ha_secret_file: str = text("", parse_optional_path)
    #: The address of the master's replication port, for a slave. Empty: found through the name servers.
    ha_master_address: str = text("", parse_optional_address, important=True)
    #: On a slave whose log differs from its master's: move its store aside and copy the master's again.
    ha_resync_enable: bool = boolean(False)
    #: With SYNC_MASTER, the number of brokers that must have a message, including the master.
    in_sync_replicas: int = whole(2, 2, 64)
    #: URLs of etcd's members, separated by semicolons. If set, the brokers of one name elect their master.
    etcd_endpoints: tuple[str, ...] = text((), parse_urls, important=True)
    #: Seconds without contact to etcd after which a master is replaced.
    etcd_lease_ttl_seconds: int = whole(3, 2, 60)
    #: The user name at etcd, where etcd has accounts.
    etcd_username: str = text("")
    #: The file whose first line is the password of etcdUsername.
    etcd_password_file: str = text("", parse_optional_path)
    #: CA certificates to verify etcd with (PEM); empty for the system's.
    etcd_ca_file: str = text("", parse_optional_path)
    #: The certificate that the broker presents to etcd (PEM).
    etcd_cert_file: str = text("", parse_optional_path)
    #: The private key of the certificate in etcdCertFile (PEM, without a password).
    etcd_key_file: str = text("", parse_optional_path)
    #: In a group, the minimum number of brokers in sync, including the master. With fewer, messages are refused and not
    #: stored.
    min_in_sync_replicas: int = whole(2, 1, 64)
    #: What to do with messages while too few brokers are in sync: REFUSE them, or APPEND them and respond with
    #: SLAVE_NOT_AVAILABLE. AUTO refuses in a group that elects its master, and appends otherwise.
    sends_below_in_sync: BelowInSync = text(BelowInSync.AUTO, one_of(BelowInSync))
    #: Return to consumers only messages that enough brokers have. A group's master always does so.
    confirmed_reads_enable: bool = boolean(False)
    #: In a group, the maximum number of brokers in sync.
    replication_factor: int = whole(3, 1, 64)
    #: How long a replica may be behind before it is removed from the in-sync set.
    ha_max_time_slave_not_catchup_ms: int = long(2000, 500, unit="ms")
    #: In a group, how many bytes of the log are read each second to find what the disk has damaged. 0 turns it off.
    scrub_bytes_per_second: int = long(4 * 1024 * 1024, 0)
    #: After 10 seconds without a master, elect a replica that is not in sync or whose store is incomplete. The messages
    #: that it lacks are lost.
    unclean_election_enable: bool = boolean(False)
    #: On a slave, correct pull offsets that it does not have. If false, consumers wait for the master.
    offset_check_in_slave: bool = boolean(False)
    #: Number of queues of a topic that is created by a send, unless the producer asks for fewer.
    default_topic_queue_nums: int = whole(8, 1, 10_000)
    #: Create an unknown topic at the first send to it. In production, set it to false.
    auto_create_topic_enable: bool = boolean(True, important=True)
    #: Maximum number of topics. Creating more is refused.
    topics_max: int = whole(200_000, 1)
    #: Maximum number of consumer groups. Creating more is refused.
    groups_max: int = whole(100_000, 1)
    #: Maximum number of committed offsets of queues, over all groups. Offsets of further queues are not stored.
    offsets_max: int = whole(2_000_000, 1)
    #: Maximum number of consumers, and of producers. A client counts once for each of its groups.
    clients_max: int = whole(100_000, 1)
    #: Maximum number of pulls that wait for messages. The response to others is PULL_NOT_FOUND at once.
    held_pulls_max: int = whole(200_000)
    #: Create a topic with the cluster's name.
    cluster_topic_enable: bool = boolean(True)
    #: Create a topic with the broker's name.
    broker_topic_enable: bool = boolean(True)
    #: Create an unknown consumer group when a consumer uses it.
    auto_create_subscription_group: bool = boolean(True, important=True)
    #: The topic for message traces.
    msg_trace_topic_name: str = text("RMQ_SYS_TRACE_TOPIC", parse_name, important=True)
    #: Create the topic of msgTraceTopicName at the start.
    trace_topic_enable: bool = boolean(False, important=True)
    #: Allow clients to trace their messages; each response to a send says whether they may.
    trace_on: bool = boolean(True)
    #: The region that is stored with each message, for message traces.
    region_id: str = text("DefaultRegion")
    #: Also store replies in <cluster>_REPLY_TOPIC.
    store_reply_message_enable: bool = boolean(True)
    #: Refuse half messages of transactions.
    reject_transaction_message: bool = boolean(False, important=True)
    #: Age of a half message after which its producers are first asked about it.
    transaction_time_out_ms: int = long(6000, unit="ms", important=True)
    #: Number of checks after which a half message is moved to TRANS_CHECK_MAX_TIME_TOPIC.
    transaction_check_max: int = whole(15, important=True)
    #: How often half messages are checked.
    transaction_check_interval_ms: int = long(60_000, 1, unit="ms", important=True)
    #: Refuse requests that waited for longer than waitTimeMillsInSendQueue, waitTimeMillsInPullQueue,
    #: waitTimeMillsInHeartbeatQueue or waitTimeMillsInTransactionQueue.
    broker_fast_failure_enable: bool = boolean(True)
    #: Milliseconds that a send may wait before it is handled. After that it is refused with SYSTEM_BUSY.
    wait_time_ms_in_send_queue: int = long(200, 1, key="waitTimeMillsInSendQueue")
    #: Milliseconds that a pull may wait before it is handled. After that it is refused with SYSTEM_BUSY.
    wait_time_ms_in_pull_queue: int = long(5000, 1, key="waitTimeMillsInPullQueue")
    #: Milliseconds that a heartbeat may wait before it is handled. After that it is refused with SYSTEM_BUSY.
    wait_time_ms_in_heartbeat_queue: int = long(31_000, 1, key="waitTimeMillsInHeartbeatQueue")
    #: Milliseconds that the end of a transaction may wait before it is handled. After that it is refused with
    #: SYSTEM_BUSY.
    wait_time_ms_in_transaction_queue: int = long(3000, 1, key="waitTimeMillsInTransactionQueue")
    #: Milliseconds that an append may take before sends are refused with SYSTEM_BUSY.
    os_page_cache_busy_time_out_ms: int = long(1000, 1, key="osPageCacheBusyTimeOutMills")
    #: Disable consumption for groups that are further behind than consumerFallbehindThreshold.
    disable_consume_if_consumer_read_slowly: bool = boolean(False)
    #: Bytes of the log that a group may be behind with disableConsumeIfConsumerReadSlowly.
    consumer_fallbehind_threshold: int = long(16 * 1024 * MIB)
    #: Hold pulls that find no message for as long as the consumer asks for. If false, they are held for
    #: shortPollingTimeMills.
    long_polling_enable: bool = boolean(True)
    #: Milliseconds that a pull that finds no message is held with longPollingEnable=false.
    short_polling_time_ms: int = long(1000, 1, key="shortPollingTimeMills")
    #: Tell consumers that are far behind to pull from a slave.
    slave_read_enable: bool = boolean(False)
    #: Allow consumers to filter by SQL92 expressions on properties.
    enable_property_filter: bool = boolean(False)
    #: Filter retries again, by the group's expression for their original topic.
    filter_support_retry: bool = boolean(False)
    #: Compute which groups' SQL92 expressions match when a message is stored. Needs enableConsumeQueueExt.
    enable_calc_filter_bit_map: bool = boolean(False)
    #: How long a group's SQL92 expressions are kept after its last consumer has left.
    filter_data_clean_time_span_ms: int = long(24 * 3600 * 1000, unit="ms")
    #: With enableCalcFilterBitMap: the expected number of groups with an expression per topic. It determines the size
    #: of bit maps.
    expect_consumer_num_use_filter: int = whole(32, 1, 10_000)
    #: With enableCalcFilterBitMap: the maximum percentage of false positives of a bit map.
    max_error_rate_of_bloom_filter: int = whole(20, 1, 99)
    #: Tell the members of a group when one joins or leaves, so that they rebalance at once.
    notify_consumer_ids_changed_enable: bool = boolean(True)
    #: How often committed offsets are written to disk. After a crash, consumers get the messages of that time again.
    flush_consumer_offset_interval_ms: int = whole(5000, 1, unit="ms")
    #: Record latencies per queue instead of per topic.
    enable_detail_stat: bool = boolean(True)
    #: Delete the statistics of a topic or group when it is deleted.
    auto_delete_unused_stats: bool = boolean(False)
    #: The time before which sends are refused, in milliseconds since 1970.
    start_accept_send_request_timestamp_ms: int = long(0, key="startAcceptSendRequestTimeStamp")
    #: How often the broker registers with its name servers. Other values are clamped to the range.
    register_name_server_period_ms: int = whole(30_000, unit="ms", clamp=(10_000, 60_000))
    #: Timeout of a registration, in milliseconds.
    register_broker_timeout_ms: int = whole(6000, 1, key="registerBrokerTimeoutMills")
    #: Compress registrations at name servers.
    compressed_register: bool = boolean(False)
    #: Register every registerNameServerPeriod. If false, ask the name server first whether it is needed.
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
            return "each broker of a group needs its own brokerId above 0; set brokerId=1, for example"
        if self.ha_master_address:
            return "etcd determines the master; leave out haMasterAddress"
        if not self.ha_listen_port:
            return "the other brokers need a fixed port for replication; set haListenPort"
        if self.min_in_sync_replicas > self.replication_factor:
            return "minInSyncReplicas must not be more than replicationFactor"
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
            return f"etcdCaFile and etcdCertFile need https endpoints, and {plain[0]} is not one"
        return ""

    @property
    def why_no_slave(self) -> str:
        """Why a broker with these settings cannot be a slave; empty if it can, or is a master."""
        if self.store.broker_role is not BrokerRole.SLAVE:
            return ""
        if self.broker_id <= 0:
            return "each slave of a master needs its own brokerId above 0; set brokerId=1, for example"
        if not (self.namesrv_addr or self.ha_master_address):
            return "a slave must find its master; set namesrvAddr to the master's, or haMasterAddress"
        return ""

    @property
    def shard_of(self) -> str:
        """The name that the broker has in common with its other shards."""
        return self.broker_name.removesuffix(f"-{self.shard}") if self.shard else self.broker_name

    @property
    def vip_port(self) -> int | None:
        """The second port, which serves the same requests; None without one."""
        port = self.server.listen_port + VIP_PORT_OFFSET
        return port if self.vip_port_enable and port > 0 else None

    @property
    def broker_addr(self) -> str:
        """The address this broker gives to name servers and clients."""
        return join_address(self.broker_ip1, self.server.listen_port)
