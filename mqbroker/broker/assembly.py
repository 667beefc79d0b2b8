"""Wiring of a broker's parts over an open store, and registration of their request handlers.

`broker_service` starts and stops the parts. This module knows no sockets, ports or reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import attrs
from twisted.internet.interfaces import IReactorTime

from mqbroker.access.accounts import IAccessControl, NoAccessControl
from mqbroker.access.acl_files import WATCH_SECONDS, AclFiles
from mqbroker.access.guard import Guard
from mqbroker.broker.broker_slave import refuse_changes, serve_only_while
from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.client_registry import ConsumerRegistry, ProducerRegistry
from mqbroker.broker.delay import DelayService
from mqbroker.broker.filter_table import CompileRateLimit, FilterTable
from mqbroker.broker.group_table import GroupTable, UnusedGroupEviction
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.long_polling import HeldPulls
from mqbroker.broker.members_file import SAVE_SECONDS, MembersFile
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.queue_locks import QueueLocks
from mqbroker.broker.queue_stats import QueueStats
from mqbroker.broker.requests.acl_requests import AclRequests
from mqbroker.broker.requests.broker_admin import Save, SettingsRequests, StatsRequests
from mqbroker.broker.requests.client_requests import (
    ClientCalls,
    ClientRequests,
    ConnectionRequests,
    ForwardedRequests,
    LockRequests,
)
from mqbroker.broker.requests.end_transaction import EndTransactionRequests
from mqbroker.broker.requests.group_requests import ConsumeStatsRequests, GroupRequests
from mqbroker.broker.requests.long_requests import LongRequests
from mqbroker.broker.requests.offset_requests import OffsetAdminRequests, OffsetRequests
from mqbroker.broker.requests.plain_pulls import serve_plain_pulls
from mqbroker.broker.requests.plain_sends import serve_plain_sends
from mqbroker.broker.requests.pull_message import PULLS_AT_ONCE_MAX, OffsetMovedEvents, PullRequests
from mqbroker.broker.requests.pull_plans import PullPlans
from mqbroker.broker.requests.query_message import MessageRequests, QueueEntryRequests
from mqbroker.broker.requests.replica_requests import IMembers, ReplicaRequests
from mqbroker.broker.requests.reply_message import ReplyRequests
from mqbroker.broker.requests.send_back import SendBackRequests
from mqbroker.broker.requests.send_message import SendRequests
from mqbroker.broker.requests.send_rules import SendRules
from mqbroker.broker.requests.topic_requests import TopicRequests
from mqbroker.broker.runtime_info import RuntimeInfo
from mqbroker.broker.sends_to_master import SendsToMaster
from mqbroker.broker.slow_consumers import CHECK_SECONDS, SlowConsumers
from mqbroker.broker.subscription_resolver import SubscriptionResolver
from mqbroker.broker.topic_repair import FILE as TOPICS_COPIED_FILE
from mqbroker.broker.topic_repair import CopiedTopics, TopicRepair
from mqbroker.broker.topic_table import TopicTable
from mqbroker.broker.transactions.half_queue import HalfQueue
from mqbroker.broker.transactions.transaction_checks import TransactionChecks
from mqbroker.config import BelowInSync, BrokerRole, BrokerSettings
from mqbroker.filter.bloom import BloomFilter
from mqbroker.ha.acknowledgements import Acknowledgements, ConfirmedEnd, CountQuorum, IQuorum
from mqbroker.ha.master import Slaves
from mqbroker.ha.slave import SlaveService
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.server import ConnectionEvent
from mqbroker.remoting.steady_clock import SteadyClock
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.store.tags_codes import parse_delay_levels
from mqbroker.wire.codes import TRANS_HALF_TOPIC, RequestCode
from mqbroker.wire.names import join_address
from mqbroker.wire.record import decode_host

EXPIRY_CHECK_SECONDS = 10.0
FILTERS_PERSIST_SECONDS = 10.0
HALVES_PROGRESS_SECONDS = 1.0
STATS_SECONDS = 1.0


@attrs.frozen(kw_only=True)
class Replication:
    """What a broker does beside others. `follower`: a slave's link to its master; None on a master. `make_quorum`: says
    which slaves a SYNC_MASTER waits for; None for as many as inSyncReplicas says. `group_info`: what the runtime
    information says of the broker's group. `is_certain`: whether the master of a group is it for certain; None of other
    brokers. `may_serve`: whether a broker of a group may serve consumers now; None without a group. `sends`: what a
    replica of a group does with sends. `members`: the group, if there is one."""

    follower: SlaveService | None = None
    make_quorum: Callable[[Slaves], IQuorum] | None = None
    group_info: Callable[[], dict[str, str]] = dict
    is_certain: Callable[[], bool] | None = None
    may_serve: Callable[[], bool] | None = None
    sends: SendsToMaster | None = None
    members: IMembers | None = None


class Assembly:
    """The parts of one broker.

    :param open_file: opens the table file of the given name in `config/`.
    :param steady: a clock that is never set, for heartbeats and locks; its timers have the time of day.
    :param store_host: the broker's address, encoded as in records.
    :param acl: access control; without it, everything is permitted.
    :param save_settings: writes changed settings to the broker's settings file; None if there is no file.
    """

    def __init__(
        self,
        table: HandlerTable,
        store: MessageStore,
        settings: BrokerSettings,
        *,
        open_file: Callable[[str], JsonFile],
        steady: SteadyClock,
        rng: Random,
        store_host: bytes,
        acl: AclFiles | None = None,
        save_settings: Save | None = None,
        replication: Replication | None = None,
    ) -> None:
        """Load the tables. Raises StoreDamaged if one cannot be read."""
        self._steady, clock, now = steady, steady.timers, steady.timers.seconds
        self.settings, self._store, self._acl = settings, store, acl
        self._replication = replication = replication or Replication()
        self.live = live = LiveSettings(settings, now)
        self.stats = BrokerStats(store, live, now)
        self.topics = TopicTable(open_file("topics.json"), now, live)
        self.groups = GroupTable(open_file("subscriptionGroup.json"), now, live)
        lmq_offsets = open_file("lmqConsumerOffset.json") if settings.store.enable_lmq else None
        self.offsets = OffsetTable(open_file("consumerOffset.json"), live, lmq_offsets)
        self.filters = self._make_filters(open_file("consumerFilter.json"), now)
        self.consumers = ConsumerRegistry(self._steady, live, self.filters.group_gone)
        members = open_file("consumerMembers.json")
        self.members = MembersFile(members, self.consumers, now, self._steady.seconds)
        self.producers = ProducerRegistry(self._steady.seconds, live)
        UnusedGroupEviction(self.groups, self.topics, self.offsets, self.consumers, store)
        self.copied_topics = CopiedTopics(open_file(TOPICS_COPIED_FILE))
        self.topic_repair = TopicRepair(self.topics, self.groups, self.offsets, store, self.copied_topics, settings)
        self.slow_consumers = SlowConsumers(
            store, self.topics, self.groups, self.offsets, self.consumers, live, CooperativeTasks(clock)
        )
        self.held = HeldPulls(clock, live, store.dispatch_soon)
        self.slaves = Slaves(store.raw_log)
        self.acknowledgements: Acknowledgements | None = None
        if settings.store.broker_role is BrokerRole.SYNC_MASTER:
            self.acknowledgements = self._make_acknowledgements(replication)
        delays_ms = parse_delay_levels(settings.store.message_delay_level)
        files = open_file("delayOffset.json"), open_file("delayDelivered.json")
        self.delay = DelayService(store, files, clock, delays_ms, self.stats, self.topics.readable_queue)
        self.half_queue = HalfQueue(store, self.offsets, clock, store_host, self.stats)
        store.on_dispatch.append(self._arrived)
        store.is_awaited_by(*self.held.waiting)
        self._follow_settings()

        self.rights: IAccessControl = NoAccessControl()
        if acl is not None:
            self.rights = guard = Guard(acl.content.accounts())
            acl.on_change.append(guard.set_accounts)
            table.protect(guard)
        choose, make_topic = self._choose_producer, self._make_topic_of_checks
        self.checks = TransactionChecks(store, self.half_queue, live, clock, choose=choose, make_topic=make_topic)
        self._serve_messages(table, clock, rng, store_host)
        self._serve_others(table, clock, store_host, save_settings)
        if replication.follower is not None:
            refuse_changes(table)
        if replication.sends is not None:
            replication.sends.serve(table)
        if replication.is_certain is not None:
            serve_only_while(table, replication.is_certain, is_master=True)
        elif replication.may_serve is not None:
            serve_only_while(table, replication.may_serve, is_master=False)

    def _make_acknowledgements(self, replication: Replication) -> Acknowledgements:
        settings, slaves, store = self.settings, self.slaves, self._store
        behind_max, count = settings.ha_slave_fallbehind_max, settings.in_sync_replicas - 1
        make_quorum = replication.make_quorum or (lambda slaves: CountQuorum(slaves, behind_max, count))
        quorum = make_quorum(slaves)
        if settings.confirmed_reads_enable and replication.make_quorum is None:
            confirmed = ConfirmedEnd(slaves, quorum, store.limit_moved)
            store.show_below(lambda: confirmed.end)
        timeout_s, below = settings.store.sync_flush_timeout_ms / 1000, settings.sends_below_in_sync
        refuses = below is BelowInSync.REFUSE or (below is BelowInSync.AUTO and bool(settings.etcd_endpoints))
        return Acknowledgements(slaves, quorum, self._steady, timeout_s, refuses=refuses)

    def _serve_messages(self, table: HandlerTable, clock: IReactorTime, rng: Random, store_host: bytes) -> None:
        """Register the handlers of requests that carry messages."""
        store, live, rights = self._store, self.live, self.rights
        rate_limit = self._rate_limit = CompileRateLimit(clock.seconds)
        self.rules = SendRules(self.topics, self.groups, live, rng, clock.seconds)
        self.send = SendRequests(store, self.rules, live, store_host, self.stats, self.acknowledgements)
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            table.register_batch(code, self.send.handler(code))
        serve_plain_sends(table, store, self.rules, self.send, live, store_host)
        table.charge = store.charge
        self.subscriptions = SubscriptionResolver(self.consumers, self.filters, rate_limit, live)
        moved = OffsetMovedEvents(store, self.settings.broker_name, store_host, clock)
        pull = PullRequests(
            store,
            self.topics,
            self.groups,
            self.offsets,
            self.subscriptions,
            self.held,
            live,
            clock,
            self.stats.gets,
            moved,
            self._replication.follower is not None,
            self._replication.may_serve,
        )
        table.register_batch(RequestCode.PULL_MESSAGE, pull.pull, PULLS_AT_ONCE_MAX)
        plans = PullPlans(self.topics, self.groups, self.consumers, live)
        serve_plain_pulls(table, store, pull, plans, self.stats.gets)
        transactions = EndTransactionRequests(
            store, self.half_queue, self.settings.store, rights, self.topics.readable_queue
        )
        table.register_batch(RequestCode.END_TRANSACTION, transactions.end)
        for family in (
            transactions,
            SendBackRequests(store, self.topics, self.groups, live, rng, self.stats, rights, self.send.why_refused),
            ReplyRequests(store, self.rules, self.producers, live, clock, decode_host(store_host)),
            MessageRequests(store, live, rights),
        ):
            table.serve(family)

    def _serve_others(
        self, table: HandlerTable, clock: IReactorTime, store_host: bytes, save_settings: Save | None
    ) -> None:
        """Register the handlers of heartbeats, queries and administration."""
        store, topics, groups, offsets = self._store, self.topics, self.groups, self.offsets
        consumers, producers, live, stats = self.consumers, self.producers, self.live, self.stats
        settings = self.settings
        tasks, calls = CooperativeTasks(clock), ClientCalls()
        queues = QueueStats(store, offsets, settings.broker_name, clock.seconds)
        own_addr = join_address(*decode_host(store_host))
        own = self._replication
        info = RuntimeInfo(store, stats, self.delay, live, clock.seconds, self.slaves, own.follower, own.group_info)
        long = LongRequests(clock)
        for family in (
            ClientRequests(
                consumers, producers, groups, topics, self.filters, self._rate_limit, live, self.rights, long
            ),
            ConnectionRequests(consumers, producers, tasks, clock.seconds),
            LockRequests(QueueLocks(self._steady.seconds), long),
            ForwardedRequests(consumers, calls, store, settings.broker_name),
            TopicRequests(topics, store, queues, stats, tasks),
            GroupRequests(groups, offsets, consumers, stats, tasks),
            ConsumeStatsRequests(groups, topics, offsets, consumers, queues, stats, tasks, settings.broker_addr),
            OffsetRequests(store, topics, offsets, self.delay, self.slaves, tasks),
            OffsetAdminRequests(store, topics, offsets, consumers, queues, calls, tasks),
            QueueEntryRequests(store, consumers, self.filters, tasks),
            SettingsRequests(live, save_settings),
            StatsRequests(store, stats, info),
            AclRequests(self._acl, settings, own_addr),
            ReplicaRequests(own.members),
        ):
            table.serve(family, tasks.bounded)

    def _make_filters(self, file: JsonFile, now: Callable[[], float]) -> FilterTable:
        settings = self.settings
        bloom = BloomFilter.for_consumers(
            settings.expect_consumer_num_use_filter, settings.max_error_rate_of_bloom_filter
        )
        filters = FilterTable(file, now, bloom, settings.filter_data_clean_time_span_ms)
        if settings.enable_calc_filter_bit_map:
            self._store.make_bit_maps(filters.bit_maps_of)
        return filters

    def _follow_settings(self) -> None:
        """Follow the settings whose changes need action at once; other changeable ones are read at each use."""
        live = self.live
        live.follow(self.topics.settings_changed, "autoCreateTopicEnable", "defaultTopicQueueNums")
        live.follow(lambda _: self.topics.mark_changed(), "brokerPermission")
        live.follow(
            lambda changed: self._store.settings_changed(changed.store),
            *("fileReservedTime", "deleteWhen", "cleanFileForciblyEnable", "cleanResourceInterval"),
            *("deleteCommitLogFilesInterval", "deleteConsumeQueueFilesInterval"),
            *("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"),
            "diskFreeBytesMin",
            *("maxTransferBytesOnMessageInMemory", "maxTransferCountOnMessageInMemory"),
            *("maxTransferBytesOnMessageInDisk", "maxTransferCountOnMessageInDisk"),
        )

    def _make_topic_of_checks(self, name: str) -> None:
        """Create the topic of half messages, which each shard has for itself, or of those that were given up, which
        all shards need when one does."""
        self.topics.create_internal(name, 1, has_message=name != TRANS_HALF_TOPIC)

    def _choose_producer(self, group: str, topics: Sequence[str]) -> IConnection | None:
        """Return a producer of the group that may write to `topics`, to check a half message with."""
        return self.producers.choose(group, lambda account: self.rights.may_write(account, topics))

    def _arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int | None, timestamp: int) -> None:
        self.held.arrived(topic, queue_id, next_offset)
        self.delay.arrived(topic, queue_id)

    def adopt(self, settings: BrokerSettings) -> list[str]:
        """Apply re-read settings that may change; returns the other keys that differ."""
        if self._acl is not None:
            self._acl.look()
        return self.live.adopt(settings)

    def connection_event(self, event: ConnectionEvent, connection: RemotingProtocol) -> None:
        """Called when a connection opens or closes."""
        if event is ConnectionEvent.CLOSE:
            self.consumers.connection_closed(connection)
            self.producers.connection_closed(connection)

    def saves(self) -> list[Callable[[], object]]:
        """What writes the tables when the broker stops."""
        return [
            self.topics.persist, self.groups.persist, self.offsets.persist, self.filters.persist, self.members.save,
            self.copied_topics.saved,
        ]  # fmt: skip

    def stop_pulls(self) -> None:
        """Answer the held pulls; from now on connections close because the broker stops."""
        self.members.freeze()
        self.held.stop()

    def periodic(self) -> list[tuple[float, Callable[[], object]]]:
        """Return the periodic tasks of a running broker, as (interval in seconds, function)."""
        watch = [(WATCH_SECONDS, self._acl.look)] if self._acl is not None else []
        return [
            *watch,
            (EXPIRY_CHECK_SECONDS, self.consumers.expire),
            (SAVE_SECONDS, self.members.look),
            (EXPIRY_CHECK_SECONDS, self.producers.expire),
            (FILTERS_PERSIST_SECONDS, self.filters.persist),
            (self.settings.store.flush_delay_offset_interval_ms / 1000, self.delay.persist),
            (HALVES_PROGRESS_SECONDS, self.half_queue.save_progress),
            (STATS_SECONDS, self.stats.tick),
            (CHECK_SECONDS, self.slow_consumers.check),
        ]
