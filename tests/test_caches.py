"""Every table and cache of the daemons and the clients whose keys have texts in them, and what bounds it.

A cache, whose entries can be had again, has a bound in bytes. A table keeps what was asked of it: its keys have lengths
that were checked (255 characters, but where it says so), and a setting or a constant says how many there are. What only
the program itself names, or what ends with its request, is the third kind. A new one is found by its source, and must
be entered here. `tests/broker/test_long_texts.py`, and that of the name server, look into the running programs.
"""

from __future__ import annotations

from typing import Final

import pytest

from mqbroker.access import guard
from mqbroker.broker import filter_table
from mqbroker.broker.requests import pull_plans
from mqbroker.broker.transactions import half_message
from mqbroker.filter import sql92
from mqbroker.namesrv import route_requests
from mqbroker.store import index, message_reader, tags_codes
from mqbroker.wire.bounded_cache import ENTRY_BYTES_MAX, ENTRY_COST_BYTES, BoundedCache
from tests.kept_tables import tables

MB = 1024 * 1024
#: Bytes of an entry with a name of 255 characters, and a small value.
NAMED = 600

#: Caches, with their bounds in bytes.
CACHES: Final = {
    "access/addresses.py: matches()": 1024 * NAMED,
    "access/addresses.py: lru_cache(maxsize=1024)": 1024 * NAMED,
    "access/guard.py: Guard._told": guard._PEERS_MAX * NAMED,
    "broker/filter_table.py: FilterTable._told": filter_table.FILTERS_MAX * NAMED,
    "access/guard.py: Guard._plain_rights": guard._RIGHTS_BYTES_MAX,
    "broker/requests/pull_plans.py: PullPlans.by_key": pull_plans.PLANS_MAX * (pull_plans.KEY_BYTES_MAX + 700),
    # Tags of 256 characters together, each of one and its hash.
    "broker/subscription_resolver.py: lru_cache(maxsize=1024)": 1024 * (256 + 86 * 200),
    "broker/system_topics.py: lru_cache(1024)": 1024 * NAMED,
    "broker/transactions/half_message.py: PlainHalfMessages._endings": half_message._KEPT_BYTES_MAX,
    "client/messages.py: _check_topic()": 1024 * NAMED,
    "client/messages.py: lru_cache(1024)": 2 * 1024 * NAMED,
    "filter/sql92.py: _kept": 300 * sql92.KEPT_CHARACTERS_MAX,
    "namesrv/route_requests.py: RouteRequests._long": route_requests.LONG_BODIES_MAX * 16 * MB,
    "namesrv/route_requests.py: RouteBodies._kept": route_requests.KEPT_BYTES_MAX,
    "store/index.py: KeyHasher.heads": index._HEADS_BYTES_MAX,
    "store/index.py: KeyHasher.pairs": index._PAIRS_MAX * 150,
    "store/index.py: topic_hash()": 1024 * NAMED,
    "store/logscan.py: _is_topic()": 1024 * NAMED,
    "store/message_reader.py: Reader.resident_ranges": message_reader._RANGES_MAX * NAMED,
    "store/tags_codes.py: TagsCodes._of_tag": tags_codes._OF_TAG_BYTES_MAX,
    "wire/record.py: encode_tail()": 4096 * NAMED,
}

#: Tables, with what bounds the number of their entries.
TABLES: Final = {
    "broker/broker_slave.py: BrokerSlave._unknown": "UNKNOWN_MAX",
    "broker/broker_stats.py: CountTable._counts": "KEYS_MAX",
    "broker/broker_stats.py: PullCounts.found": "topics, groups and queues of a second",
    "broker/broker_stats.py: BrokerStats._sent_together": "topicsMax",
    "broker/client_registry.py: Notifications._changed": "clientsMax",
    "broker/client_registry.py: ConsumerGroup.expected": "clientsMax of the run before, BYTES_MAX of the file",
    "broker/client_registry.py: ConsumerGroup.subscriptions": "SUBSCRIPTIONS_PER_CLIENT, SUBSCRIPTION_BYTES_MAX",
    "broker/client_registry.py: ConsumerRegistry._groups": "clientsMax",
    "broker/client_registry.py: ProducerRegistry._groups": "clientsMax",
    "broker/client_registry.py: ProducerRegistry._holders": "clientsMax",
    "broker/filter_table.py: FilterTable._filters": "FILTERS_MAX, FILTER_CHARACTERS_MAX",
    "broker/filter_table.py: FilterTable._topics": "FILTERS_MAX",
    "broker/group_table.py: GroupTable._values": "groupsMax",
    "broker/long_polling.py: HeldPulls._held": "heldPullsMax",
    "broker/long_polling.py: HeldPulls._woken": "heldPullsMax",
    "broker/name_servers.py: NameServer._changes": "topicsMax",
    "broker/offset_table.py: OffsetTable._offsets": "offsetsMax",
    "broker/offset_table.py: OffsetTable._topics_of": "offsetsMax",
    "broker/queue_locks.py: QueueLocks._groups": "LOCKS_MAX",
    "broker/requests/send_rules.py: SendRules.plain_targets": "topicsMax",
    "broker/slave_synchronize.py: SlaveSynchronize._before": "the frame of the master's answer",
    "broker/slave_synchronize.py: SlaveSynchronize._left": "the frame of the master's answer",
    "broker/slave_synchronize.py: SlaveSynchronize._names": "the frame of the master's answer",
    "broker/slave_synchronize.py: SlaveSynchronize._removed": "queues on the disk",
    "broker/stored_copies.py: StoredCopies._by_queue": "QUEUES_MAX, COPIES_MAX",
    "broker/topic_table.py: TopicTable._values": "topicsMax",
    "broker/transactions/transaction_checks.py: TransactionChecks._given_up": "groups of a round of checks",
    "broker/transactions/transaction_checks.py: TransactionChecks._unasked": "groups of a round of checks",
    "broker/versioned_table.py: VersionedTable._values": "topicsMax, groupsMax",
    "namesrv/config_requests.py: KvConfig._table": "BYTES_MAX",
    "namesrv/route_table.py: RouteTable._brokers": "BROKERS_MAX; names of NAME_LENGTH_MAX",
    "namesrv/route_table.py: RouteTable._clusters": "BROKERS_MAX",
    "namesrv/route_table.py: RouteTable._live": "BROKERS_MAX",
    "namesrv/route_table.py: RouteTable._names_of": "BROKERS_MAX",
    "namesrv/route_table.py: RouteTable._clusters_of": "BROKERS_MAX",
    "namesrv/route_table.py: RouteTable._filter_servers": "BROKERS_MAX; FILTER_SERVERS_MAX each",
    "namesrv/route_table.py: RouteTable._wiped": "BROKERS_MAX",
    "namesrv/topic_queue_table.py: TopicQueueTable._topics": "TOPICS_MAX",
    "namesrv/topic_queue_table.py: TopicQueueTable._by_broker": "BROKERS_MAX",
    "remoting/limits.py: Shares._addresses": "connectionsMax; keys of 8 bytes",
    "remoting/limits.py: Shares._connections": "connectionsMax",
    "remoting/limits.py: AddressLoad.connections": "connectionsMax",
    "remoting/limits.py: Load._addresses": "connectionsMax; keys of 8 bytes",
    "remoting/cooperative_tasks.py: CooperativeTasks._waiting": "requests under way; keys of 8 bytes",
    "remoting/cooperative_tasks.py: CooperativeTasks._running": "TASKS_MAX",
    "store/consumequeues.py: ConsumeQueues.by_bytes": "queues on the disk",
    "store/consumequeues.py: ConsumeQueues.by_name": "queues on the disk",
    "store/consumequeues.py: ConsumeQueues._tallied": "queues on the disk",
    "store/consumequeues.py: ConsumeQueues.removed": "queues on the disk",
    "store/record_verifier.py: RecordVerifier._told": "_ROTTEN_MAX",
    "store/topic_removal.py: RemovedQueues.removing": "queues on the disk",
}

#: What only the program itself names, or what does not outlive a request or a registration.
OWN: Final = {
    "broker/fast_failure.py: FastFailure._limits": "kinds of requests",
    "client/plain_sends.py: _Targets.names": "queues of a route",
    "client/plain_sends.py: _Targets.numbers": "queues of a route",
    "client/attempts.py: Availability._until": "brokers of routes",
    "client/direct_sends.py: DirectSends._count": "addresses of routes",
    "client/direct_sends.py: DirectSends._idle": "addresses of routes, SOCKETS_MAX each",
    "client/direct_sends.py: DirectSends._sends": "addresses of routes",
    "client/heartbeats.py: SharedHeartbeats.failed_at": "addresses of routes",
    "client/heartbeats.py: SharedHeartbeats.lines": "addresses of routes",
    "client/heartbeats.py: SharedHeartbeats.producers": "groups of a program's clients",
    "client/heartbeats.py: SharedHeartbeats.sent": "addresses of routes",
    "client/instance.py: Instance._members": "groups of a program's clients, GROUPS_MAX",
    "client/loop_net.py: IN_MEMORY": "brokers in memory that the program has started",
    "store/memory_disk.py: MemoryDisk._files": "files of a broker in memory",
    "store/memory_disk.py: MemoryDisk._directories": "files of a broker in memory",
    "store/memory_disk.py: MemoryDisk._locks": "files of a broker in memory",
    "client/loop_net.py: LoopNet.connections": "addresses of routes",
    "client/loop_net.py: LoopNet._waiting": "addresses of routes",
    "client/plain_sends.py: PlainSends._targets": "topics that the program sends to",
    "client/plain_sends.py: _Targets.by_addr": "addresses of routes",
    "client/attempts.py: Trials.brokers": "brokers of a topic, for one send",
    "client/replies.py: Replies._expected": "requests_in_flight_max, by ids that are made here",
    "client/transactions.py: TransactionCore._checking": "CHECKS_MAX",
    "client/observers.py: Send.context": "an entry an observer, for one send",
    "client/observers.py: Consumption.context": "an entry an observer, for one call of a listener",
    "client/assigned_queues.py: PullFailures._failing": "assigned queues",
    "client/counters.py: Counters._lags": "consumers that are open",
    "client/assigned_queues.py: PullFailures._told": "brokers of routes",
    "client/listeners.py: ListenerFailures._kinds": "_KINDS_MAX",
    "client/membership.py: Membership.subscriptions": "topics that the program subscribes to",
    "client/offset_stores.py: MemoryOffsets._offsets": "queues that were ever assigned, ROUTE_QUEUES_MAX of a topic",
    "client/offset_stores.py: LocalOffsets._written": "as _offsets",
    "client/process_queue.py: Polled.paused": "assigned queues",
    "client/orderly.py: QueueLocks._until": "assigned queues",
    "client/push_consumer.py: PushConsumerCore._releasing": "queues that were assigned, until the listener ends",
    "client/membership.py: Membership.queues": "ROUTE_QUEUES_MAX of a topic",
    "client/routes.py: Routes._entries": "topics that the program uses",
    "client/routes.py: SharedRoutes.asked": "topics in use, _SHARED_MAX",
    "client/running_info.py: ConsumerStats._topics": "topics that the program subscribes to",
    "client/send.py: Rotation._turns": "topics that the program sends to",
    "broker/name_servers.py: Registration._leaving": "addresses of the settings",
    "daemons/logs.py: LogRateLimiter._levels": "lines in the source, for a minute",
    "daemons/supervisor.py: _Shard.untold": "UNTOLD_MAX",
    "namesrv/route_requests.py: ProductEnvironment._silent": "addresses of the settings",
    "daemons/logs.py: LogRateLimiter._counts": "lines in the source, for a minute",
    "filter/conditions.py: Writer.objects": "one expression, while it is compiled",
    "filter/conditions.py: Writer._variables": "one expression, while it is compiled",
    "filter/grammar.py: _parser()": "one",
    "ha/etcd_endpoints.py: Endpoints._silent_until": "addresses of the settings",
    "ha/etcd_endpoints.py: _Asking._open": "addresses of the settings",
    "ha/etcd_endpoints.py: _Asking._reasons": "addresses of the settings",
    "ha/master.py: Slaves._refused": "REFUSED_MAX addresses",
    "ha/master.py: Slaves._unserved": "LINKS_MAX addresses",
    "remoting/client.py: RemotingClient._connections": "addresses of the settings, and of members of the group",
    "remoting/client.py: RemotingClient._connecting": "the same",
    "remoting/handlers.py: HandlerTable.plain": "codes of requests",
    "store/consumequeue_entry.py: entries_struct()": "numbers of entries",
    "store/consumequeue_entry.py: places_struct()": "numbers of entries",
    "store/consumequeues.py: ConsumeQueues._new_names": "directories, until the next sync",
    "store/disk_watch.py: DiskWatch.spaces": "directories of the store",
    "store/log_scrub.py: LogScrub._damaged": "damaged places of the log",
    "store/log_scrub.py: LogScrub._marks": "MARKED_PART for each segment of the log",
    "store/page_loader.py: FailedReads._places": "files of the store, _PLACES_MAX",
    "store/page_loader.py: PageLoader._streams": "files of the store",
    "store/retention.py: Remover._due": "files of the store",
    "store/segment.py: SegmentSource._filled": "files of the store",
    "store/store_files.py: StoreFiles._new_names": "directories, until the next sync",
    "wire/command.py: RemotingCommand.ext_fields": "one command",
    "wire/compression.py: _decompressor()": "kinds of compression",
    "wire/registration.py: _Topics._queues": "one registration",
    "wire/registration.py: _Topics._known": "one registration",
    "wire/registration.py: _Topics._known_texts": "one registration",
}


def test_each_table_and_cache_has_a_bound() -> None:
    listed = [*CACHES, *TABLES, *OWN]
    assert len(listed) == len(set(listed))
    found = set(tables())
    # A new one: what bounds it, and where is the length of its keys checked? Enter it above.
    assert sorted(found - set(listed)) == []
    assert sorted(set(listed) - found) == []


def test_the_caches_of_a_process_take_little_together() -> None:
    names = ("namesrv/", "filter/", "wire/")
    of_namesrv = sum(size for name, size in CACHES.items() if name.startswith(names))
    of_broker = sum(size for name, size in CACHES.items() if not name.startswith(("namesrv/", "client/")))
    assert of_namesrv < 256 * MB
    assert of_broker < 160 * MB


@pytest.mark.parametrize("length", [0, 1, 300, ENTRY_BYTES_MAX])
def test_a_bounded_cache_stays_below_its_bound(length: int) -> None:
    cache: BoundedCache[str, int] = BoundedCache(10_000)
    for number in range(1000):
        cache.keep(f"{number}", number, length)
        assert cache[f"{number}"] == number
        assert len(cache) * (length + ENTRY_COST_BYTES) == cache.bytes <= 10_000
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


def test_a_bounded_cache_does_not_keep_what_is_large() -> None:
    cache: BoundedCache[str, int] = BoundedCache(MB)
    cache.keep("large", 1, ENTRY_BYTES_MAX + 1)
    assert not cache
