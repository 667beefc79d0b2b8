"""What a broker is made of above its store: tables, registries and processors, and who of them knows whom.

The one place where a processor gets its collaborators and its codes. What is started and stopped, and when, is the
service's. Must never know of sockets, ports or the reactor.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from twisted.internet.interfaces import IReactorTime

from mqbroker.access.acl_files import WATCH_SECONDS, AclFiles
from mqbroker.access.guard import Guard
from mqbroker.access.rights import Everybody, IRights
from mqbroker.broker.allowance import ReadingAllowance
from mqbroker.broker.bit_maps import BitMaps
from mqbroker.broker.client_calls import ClientCalls
from mqbroker.broker.clients import ConsumerRegistry, ProducerRegistry
from mqbroker.broker.delay import DelayService
from mqbroker.broker.fall_behind import LOOK_SECONDS as FALL_BEHIND_SECONDS
from mqbroker.broker.fall_behind import FallBehind
from mqbroker.broker.fast_failure import KEYS as FAST_FAILURE_KEYS
from mqbroker.broker.fast_failure import FastFailure, Turns
from mqbroker.broker.filters import FilterTable
from mqbroker.broker.groups import GroupTable
from mqbroker.broker.hold import HeldPulls
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.locks import QueueLocks
from mqbroker.broker.offset_moved import OffsetMovedEvents
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.processors.acl import AclProcessor
from mqbroker.broker.processors.broker_consume_stats import BrokerConsumeStatsProcessor
from mqbroker.broker.processors.cleaning import CleaningProcessor
from mqbroker.broker.processors.client_calls import ClientCallProcessor
from mqbroker.broker.processors.client_manage import ClientManageProcessor
from mqbroker.broker.processors.configuration import ConfigurationProcessor, Save
from mqbroker.broker.processors.consumer_manage import ConsumerManageProcessor
from mqbroker.broker.processors.end_transaction import EndTransactionProcessor
from mqbroker.broker.processors.group_admin import GroupAdminProcessor
from mqbroker.broker.processors.group_offsets import GroupOffsetsProcessor
from mqbroker.broker.processors.offset_reset import OffsetResetProcessor
from mqbroker.broker.processors.pull import PULLS_AT_ONCE_MAX, PullProcessor
from mqbroker.broker.processors.query import QueryProcessor
from mqbroker.broker.processors.queue_entries import QueueEntriesProcessor
from mqbroker.broker.processors.reply import ReplyProcessor
from mqbroker.broker.processors.send import SendProcessor
from mqbroker.broker.processors.send_back import SendBackProcessor
from mqbroker.broker.processors.send_rules import SendRules
from mqbroker.broker.processors.stats import StatsProcessor
from mqbroker.broker.processors.tables import TablesProcessor
from mqbroker.broker.processors.topic_view import TopicViewProcessor
from mqbroker.broker.processors.topics import TopicsProcessor
from mqbroker.broker.queue_views import QueueViews
from mqbroker.broker.runtime_info import RuntimeInfo
from mqbroker.broker.stats import BrokerStats
from mqbroker.broker.topics import TopicTable, system_topics
from mqbroker.broker.transactions.checking import Checks
from mqbroker.broker.transactions.halves import HalfMessages
from mqbroker.broker.unused_groups import UnusedGroups
from mqbroker.broker.wanted import PullSubscriptions
from mqbroker.config import BrokerSettings
from mqbroker.filter.bloom import BloomFilter
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.server import ConnectionEvent
from mqbroker.remoting.walks import Walks
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.store.tags_codes import parse_delay_levels
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.record import decode_host

EXPIRY_CHECK_SECONDS = 10.0
FILTERS_PERSIST_SECONDS = 10.0
HALVES_PROGRESS_SECONDS = 1.0
STATS_SECONDS = 1.0


class Assembly:
    """The parts of one broker, built over an open store and put on the table of handlers.

    :param open_file: gives the table file of a name below `config/`.
    :param store_host: the broker's address as records keep it.
    :param acl: who may do what; without, everybody may do everything.
    :param save_settings: puts changed settings into the broker's file; None where it has none.
    :param turns: knows how long requests have waited; without, none is refused for that.
    """

    def __init__(
        self,
        table: HandlerTable,
        store: MessageStore,
        settings: BrokerSettings,
        *,
        open_file: Callable[[str], JsonFile],
        clock: IReactorTime,
        rng: Random,
        store_host: bytes,
        acl: AclFiles | None = None,
        save_settings: Save | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Read the tables. Raises StoreDamaged where one cannot be read."""
        self.table = table
        self.store = store
        self.settings = settings
        self._clock = clock
        self._rng = rng
        self._store_host = store_host
        self._acl = acl
        self.rights = self._register_access()
        self._save_settings = save_settings
        lmq = settings.store.enable_lmq
        lmq_offsets = open_file("lmqConsumerOffset.json") if lmq else None
        self.topics = TopicTable(
            open_file("topics.json"), clock.seconds, system_topics(settings), lmq, settings.topics_max
        )
        self.groups = GroupTable(
            open_file("subscriptionGroup.json"),
            clock.seconds,
            settings.auto_create_subscription_group,
            lmq,
            settings.groups_max,
        )
        self.offsets = OffsetTable(open_file("consumerOffset.json"), lmq_offsets, settings.offsets_max)
        self.consumers = ConsumerRegistry(clock, settings.notify_consumer_ids_changed_enable, settings.clients_max)
        self.producers = ProducerRegistry(clock.seconds, settings.clients_max)
        unused = UnusedGroups(self.groups, self.topics, self.offsets, self.consumers, store)
        self.groups.make_room, self.topics.make_room = unused.make_room_for_group, unused.make_room_for_topic
        self._allowance = ReadingAllowance(clock.seconds)
        self.filters = self._open_filters(open_file("consumerFilter.json"))
        self.held = HeldPulls(clock, settings.held_pulls_max)
        self.stats = BrokerStats(store, settings, clock.seconds)
        self.delay = DelayService(
            store, open_file("delayOffset.json"), clock, parse_delay_levels(settings.store.message_delay_level)
        )
        self.delay.on_delivered = self.stats.delivered
        self.live = LiveSettings(settings, clock.seconds)
        self._follow_settings()
        self._register_messages()
        self._register_clients()
        self._register_administration()
        self._register_transactions()
        self._register_stats()
        self.fall_behind = FallBehind(store, self.topics, self.groups, self.offsets, self.consumers, settings)
        if turns is not None:
            fast_failure = FastFailure(turns, settings)
            fast_failure.watch(table)
            self.live.follow(fast_failure.settings_changed, *FAST_FAILURE_KEYS)
        follow = self.fall_behind.settings_changed
        self.live.follow(follow, "disableConsumeIfConsumerReadSlowly", "consumerFallbehindThreshold")
        store.on_dispatch.append(self._arrived)

    def _register_access(self) -> IRights:
        """Who may ask: comes before all that may be asked."""
        rights: IRights = Everybody()
        if self._acl is not None:
            rights = guard = Guard(self._acl.content.accounts())
            self._acl.on_change = guard.take
            self.table.protect(guard)
        host, port = decode_host(self._store_host)
        AclProcessor(self._acl, self.settings, f"{host}:{port}").register_on(self.table)
        return rights

    def _open_filters(self, file: JsonFile) -> FilterTable:
        """What groups want by expressions, which their heartbeats tell."""
        settings = self.settings
        bloom = BloomFilter.for_consumers(
            settings.expect_consumer_num_use_filter, settings.max_error_rate_of_bloom_filter
        )
        filters = FilterTable(file, self._clock.seconds, bloom, settings.filter_data_clean_time_span_ms)
        self.consumers.on_subscriptions = lambda connection, group, wanted: filters.register_group(
            group, wanted, self._allowance.of(connection)
        )
        self.consumers.on_gone = filters.group_gone
        if settings.enable_calc_filter_bit_map:
            self.store.make_bit_maps(BitMaps(filters).of_topic)
        return filters

    def _follow_settings(self) -> None:
        """What of the settings counts at once when it is changed; see also where processors are made."""
        live, store = self.live, self.store
        live.follow(self.topics.settings_changed, "autoCreateTopicEnable", "defaultTopicQueueNums", "topicsMax")
        live.follow(lambda _: self.topics.mark_changed(), "brokerPermission")
        live.follow(self.stats.settings_changed, "autoDeleteUnusedStats", "enableScheduleMessageStats")
        live.follow(self.groups.settings_changed, "autoCreateSubscriptionGroup", "groupsMax")
        live.follow(self.offsets.settings_changed, "offsetsMax")
        live.follow(self.consumers.settings_changed, "notifyConsumerIdsChangedEnable", "clientsMax")
        live.follow(self.producers.settings_changed, "clientsMax")
        live.follow(self.held.settings_changed, "heldPullsMax")
        live.follow(
            lambda changed: store.settings_changed(changed.store),
            *("fileReservedTime", "deleteWhen", "cleanFileForciblyEnable", "cleanResourceInterval"),
            *("deleteCommitLogFilesInterval", "deleteConsumeQueueFilesInterval"),
            *("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"),
            "diskFreeBytesMin",
            *("maxTransferBytesOnMessageInMemory", "maxTransferCountOnMessageInMemory"),
            *("maxTransferBytesOnMessageInDisk", "maxTransferCountOnMessageInDisk"),
        )

    def _register_messages(self) -> None:
        """What carries messages."""
        table, store, settings = self.table, self.store, self.settings
        self.rules = SendRules(self.topics, self.groups, settings, self._rng, self._clock.seconds)
        self.send = SendProcessor(store, self.rules, settings, self._store_host)
        self.send.on_batch = self.stats.sent_together
        self.subscriptions = PullSubscriptions(self.consumers, self.filters, self._allowance, settings)
        pull = PullProcessor(
            store,
            self.topics,
            self.groups,
            self.offsets,
            self.subscriptions,
            self.held,
            settings,
            self._clock,
            self.stats.gets,
        )
        live = self.live
        live.follow(
            self.rules.settings_changed,
            *("brokerPermission", "rejectTransactionMessage", "startAcceptSendRequestTimeStamp"),
        )
        live.follow(self.send.settings_changed, "traceOn")
        live.follow(
            pull.settings_changed, "brokerPermission", "longPollingEnable", "shortPollingTimeMills", "slaveReadEnable"
        )
        live.follow(self.subscriptions.settings_changed, "enablePropertyFilter", "filterSupportRetry")
        pull.on_moved = OffsetMovedEvents(store, settings.broker_name, self._store_host, self._clock).tell
        table.register_batch(RequestCode.SEND_MESSAGE, self.send.take_v1)
        table.register_batch(RequestCode.SEND_MESSAGE_V2, self.send.take_v2)
        table.register_batch(RequestCode.SEND_BATCH_MESSAGE, self.send.take_batch)
        table.register_batch(RequestCode.PULL_MESSAGE, pull.take, PULLS_AT_ONCE_MAX)
        send_back = SendBackProcessor(
            store, self.topics, self.groups, settings, self._rng, self.stats.sent_back, self.rights
        )
        send_back.register_on(table)
        live.follow(send_back.settings_changed, "brokerPermission")
        reply = ReplyProcessor(store, self.rules, self.producers, settings, self._clock, self._store_host)
        reply.register_on(table)
        live.follow(reply.settings_changed, "storeReplyMessageEnable", "traceOn")
        query = QueryProcessor(store, settings.store, self.rights)
        query.register_on(table)
        live.follow(query.settings_changed, "defaultQueryMaxNum")

    def _register_clients(self) -> None:
        """What clients say of themselves, and what is asked about topics and groups."""
        table = self.table
        clients = ClientManageProcessor(
            self.consumers, self.producers, self.groups, self.topics, self._allowance, self.settings, self.rights
        )
        clients.register_on(table)
        self.live.follow(clients.settings_changed, "enablePropertyFilter")
        locks = QueueLocks(self._clock.seconds)
        ConsumerManageProcessor(self.consumers, self.offsets, locks, self.topics, self.store).register_on(table)
        TopicsProcessor(self.topics, self.groups, self.consumers, self.producers, self.store).register_on(table)

    def _register_administration(self) -> None:
        """What administrators ask and want done."""
        table, store = self.table, self.store
        walks = Walks(self._clock)
        views = QueueViews(store, self.offsets, self.settings.broker_name, self._clock.seconds)
        ConfigurationProcessor(self.live, self._save_settings).register_on(table)
        TopicViewProcessor(self.topics, self.offsets, self.consumers, views, walks).register_on(table)
        CleaningProcessor(self.topics, store, self.stats.topic_removed).register_on(table)
        GroupAdminProcessor(self.groups, self.offsets, self.producers, walks, self.stats.group_removed).register_on(
            table
        )
        TablesProcessor(self.topics, self.groups, self.offsets, self.delay, walks).register_on(table)
        GroupOffsetsProcessor(
            self.topics, self.offsets, self.consumers, views, walks, self.stats.group_get_tps
        ).register_on(table)
        BrokerConsumeStatsProcessor(
            self.topics, self.groups, self.offsets, self.consumers, views, walks,
            self.settings.broker_addr, self.stats.group_get_tps,
        ).register_on(table)  # fmt: skip
        QueueEntriesProcessor(self.consumers, self.filters, store, walks).register_on(table)
        calls = ClientCalls()
        ClientCallProcessor(self.consumers, calls, store, self.settings.broker_name).register_on(table)
        OffsetResetProcessor(self.topics, self.offsets, self.consumers, views, walks, calls).register_on(table)

    def _register_transactions(self) -> None:
        """What ends transactions, and asks about those that nobody ends."""
        store, settings = self.store, self.settings
        self.halves = HalfMessages(store, self.offsets, self._clock, self._store_host)
        self.halves.on_replaced = self.stats.stored_again
        self.checks = Checks(
            store,
            self.halves,
            settings,
            self._clock,
            choose=self._choose_producer,
            make_topic=lambda name: self.topics.create_internal(name, 1),
        )
        self.live.follow(
            self.checks.settings_changed, "transactionTimeOut", "transactionCheckMax", "transactionCheckInterval"
        )
        EndTransactionProcessor(store, self.halves, settings.store, self.rights).register_on(self.table)

    def _choose_producer(self, group: str, topic: str) -> IConnection | None:
        """Who of a group can be asked about a half message for `topic`, and be shown it."""
        return self.producers.choose(group, lambda account: self.rights.may_write(account, topic))

    def _register_stats(self) -> None:
        """What is counted, and how the broker is."""
        info = RuntimeInfo(self.store, self.stats, self.delay, lambda: self.live.current, self._clock.seconds)
        StatsProcessor(self.stats, info).register_on(self.table)

    def _arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int | None, timestamp: int) -> None:
        self.held.arrived(topic, queue_id, next_offset)
        self.delay.arrived(topic, queue_id)

    def adopt(self, settings: BrokerSettings) -> list[str]:
        """Take of settings that were read anew what may change; returns the keys of the others that differ."""
        if self._acl is not None:
            self._acl.look()
        return self.live.adopt(settings)

    def connection_event(self, event: ConnectionEvent, connection: RemotingProtocol) -> None:
        """What the server's factory tells of its connections."""
        if event is ConnectionEvent.CLOSE:
            self.consumers.connection_closed(connection)
            self.producers.connection_closed(connection)

    def periodic(self) -> list[tuple[float, Callable[[], object]]]:
        """What is to be done every so many seconds while the broker runs."""
        watch = [(WATCH_SECONDS, self._acl.look)] if self._acl is not None else []
        return [
            *watch,
            (EXPIRY_CHECK_SECONDS, self.consumers.expire),
            (EXPIRY_CHECK_SECONDS, self.producers.expire),
            (FILTERS_PERSIST_SECONDS, self.filters.persist),
            (self.settings.store.flush_delay_offset_interval_ms / 1000, self.delay.persist),
            (HALVES_PROGRESS_SECONDS, self.halves.save_progress),
            (STATS_SECONDS, self.stats.tick),
            (FALL_BEHIND_SECONDS, self.fall_behind.look),
        ]
