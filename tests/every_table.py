"""The tables that brokers, name servers and clients keep on the disk: how each is made from its file, and all that
changes it.

`test_every_table.py` compares them with what their files say after each change.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, cast

import attrs
from twisted.internet.task import Clock

from mqbroker.access.acl_files import AclFiles, acl_places
from mqbroker.access.acl_yaml import AccountChange
from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.client_registry import CLIENT_EXPIRY_SECONDS, ConsumerRegistry
from mqbroker.broker.delay import DelayOffsets, DelayService
from mqbroker.broker.filter_table import FilterTable
from mqbroker.broker.group_table import _SYSTEM_GROUPS as SYSTEM_GROUPS
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.members_file import MembersFile
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.topic_repair import FILE as TOPICS_COPIED_FILE
from mqbroker.broker.topic_repair import CopiedTopics, MasterRun
from mqbroker.broker.topic_table import TopicTable, system_topics
from mqbroker.client.offset_stores import LocalOffsets
from mqbroker.filter.bloom import BloomFilter
from mqbroker.ha.epochs import Epoch, EpochHistory
from mqbroker.namesrv.config_requests import KvConfig, KvWrapper
from mqbroker.store.checkpoint import Checkpoint, CheckpointFile, decode_checkpoint
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeues import ConsumeQueues, Removed
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.topic_removal import RemovedQueues
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import (
    ConsumerData,
    DataVersion,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from tests.access.acl import write_acl
from tests.broker.bench import START, FakeConnection, make_settings

#: A change of a table: its method, and what calls it.
Change = tuple[str, Callable[[Any], object]]


@attrs.frozen
class Kept:
    """A table: `make` reads it from its file below a directory, as a start does; `content` is all that must be the same
    afterwards, derived counts, too; `prepared` are changes after which each of `changes` has an effect."""

    kind: type
    make: Callable[[Path, Clock], Any]
    content: Callable[[Any], Any]
    persist: Callable[[Any], object]
    prepared: list[Callable[[Any], object]]
    changes: list[Change]
    #: Public methods that leave the table as it is.
    readers: frozenset[str]
    #: The class that writes the file, where it is another.
    writer: type | None = None


class QuietStore:
    """A store in which all is settled, and nothing delayed."""

    settled = 2**62

    def replicated(self) -> int:
        return self.settled


class Queue:
    """A consume queue, as the table of removed ones looks at it."""

    has_files = True

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        self.topic, self.queue_id, self.next_offset = topic, queue_id, next_offset


def _file(root: Path, name: str) -> JsonFile:
    return JsonFile(str(root / "config" / name), InlineWorker(), OsDisk())


def _live(root: Path, **changes: Any) -> LiveSettings:
    return LiveSettings(make_settings(root, **changes), lambda: START)


def _topics(root: Path, clock: Clock) -> TopicTable:
    return TopicTable(_file(root, "topics.json"), clock.seconds, _live(root))


def _groups(root: Path, clock: Clock) -> GroupTable:
    return GroupTable(_file(root, "subscriptionGroup.json"), clock.seconds, _live(root))


def _offsets(root: Path, clock: Clock) -> OffsetTable:
    return OffsetTable(_file(root, "consumerOffset.json"), _live(root))


def _lmq_offsets(root: Path, clock: Clock) -> OffsetTable:
    live = _live(root, store={"enable_lmq": True})
    return OffsetTable(_file(root, "consumerOffset.json"), live, _file(root, "lmqConsumerOffset.json"))


def _delay(root: Path, clock: Clock) -> DelayService:
    store = cast(MessageStore, QuietStore())
    stats = BrokerStats(store, _live(root), clock.seconds)
    files = _file(root, "delayOffset.json"), _file(root, "delayDelivered.json")
    return DelayService(store, files, clock, [1000] * 18, stats, _topics(root, clock).readable_queue)


def _filters(root: Path, clock: Clock) -> FilterTable:
    return FilterTable(
        _file(root, "consumerFilter.json"), clock.seconds, BloomFilter.for_consumers(32, 20), clean_after_ms=60_000
    )


def _accounts(root: Path, clock: Clock) -> AclFiles:
    if not (root / "conf").exists():
        write_acl(root)
    return AclFiles(acl_places(str(root), "conf/plain_acl.yml"), InlineWorker(), clock)


def _removed(root: Path, clock: Clock) -> RemovedQueues:
    table = RemovedQueues(OsDisk(), str(root / "removed"), ConsumeQueues(OsDisk(), str(root / "queues"), 2000))
    table.load()
    return table


def _checkpoint(root: Path, clock: Clock) -> CheckpointFile:
    path = root / "checkpoint"
    return CheckpointFile(OsDisk(), str(path), decode_checkpoint(path.read_bytes()) if path.exists() else Checkpoint())


class Versions:
    """A name server's table, or a group's epochs, with their file as those have it who own them."""

    def __init__(self, path: Path, table: Any) -> None:
        self.path, self.table = path, table

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(self.table.to_json())


def _kv(root: Path, clock: Clock) -> Versions:
    path = root / "kvConfig.json"
    return Versions(path, KvConfig(KvWrapper.from_json(path.read_bytes()) if path.exists() else None))


def _epochs(root: Path, clock: Clock) -> Versions:
    path = root / "epochs.json"
    return Versions(path, EpochHistory.from_json(path.read_bytes()) if path.exists() else EpochHistory())


class Members:
    """The members of a broker's groups, with their file and the connections they come by."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.clock = clock
        self.consumers = ConsumerRegistry(clock, _live(root), lambda group: None)
        self.file = MembersFile(_file(root, "consumerMembers.json"), self.consumers, clock.seconds, clock.seconds)
        self.connections = {client_id: FakeConnection(client_id) for client_id in "abcd"}


def _join(client_id: str, group: str, *subscriptions: SubscriptionData, **fields: Any) -> Callable[[Members], object]:
    data = ConsumerData(group, subscription_data_set=list(subscriptions), **fields)
    return lambda owner: owner.consumers.register(owner.connections[client_id], client_id, 0, 407, data, True)


def _members_content(owner: Members) -> Any:
    consumers = owner.consumers
    return list(consumers.members()), consumers._subscriptions, consumers._text_bytes


def _later(seconds: float, change: Callable[[Members], object]) -> Callable[[Members], object]:
    def changed(owner: Members) -> None:
        owner.clock.advance(seconds)
        change(owner)

    return changed


def _done(asking: Coroutine[Any, Any, Any]) -> None:
    """Run what waits for nothing."""
    try:
        asking.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def _local_offsets(root: Path, clock: Clock) -> LocalOffsets:
    table = LocalOffsets(root / "offsets.json")
    _done(table.open("CG", ()))
    return table


_T0, _T1, _NEW = (MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("%RETRY%CG", "b", 2**31 - 1))


def _begin(number: int, start: int, log_min: int = 0) -> Callable[[Versions], object]:
    def begin(owner: Versions) -> None:
        owner.table = owner.table.begin(Epoch(number, start, 7), log_min)

    return begin


def _sql(topic: str, text: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, expression_type="SQL92")


def _filter_content(table: FilterTable) -> Any:
    rows = []
    for of_topic in table._filters.values():
        for one in of_topic.values():
            # A start takes one that lived for dead: no client is connected yet.
            dead_ms = one.dead_ms or max(one.born_ms, table._now_ms() - 30_000)
            rows.append(
                (one.topic, one.group, one.expression.text, one.client_version, one.born_ms, dead_ms, one.bloom)
            )
    return sorted(rows, key=lambda row: row[:2]), table._count, table._characters, table._topics


def _checkpoint_content(table: CheckpointFile) -> Checkpoint:
    """Without an offset of the log the others are not kept: a start then reads more than it must."""
    known = table.known
    return known if known.log_offset is not None else Checkpoint(known.log_ms, known.queues_ms, known.index_ms)


def _topics_of_master(version: int, *names: str) -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper(
        {name: TopicConfig(name, 3, 3) for name in names}, DataVersion(START * 1000 + version, version)
    )


def _groups_of_master(version: int, *names: str) -> SubscriptionGroupWrapper:
    return SubscriptionGroupWrapper(
        {name: SubscriptionGroupConfig(name, retry_queue_nums=2) for name in names},
        DataVersion(START * 1000 + version, version),
    )


def _home(files: AclFiles) -> Path:
    return Path(files.places.folder).parent.parent


def _queue(topic: str, queue_id: int, next_offset: int) -> ConsumeQueue:
    return cast(ConsumeQueue, Queue(topic, queue_id, next_offset))


def _own(values: Iterable[Any], name: str) -> dict[str, Any]:
    """Those of every broker, which a start adds where they are missing."""
    return {getattr(value, name): value for value in values}


def _without_template(table: TopicTable) -> Any:
    return table.settings_changed(attrs.evolve(table._live.current, default_topic_queue_nums=3))


#: What two classes have in common.
_VERSIONED = frozenset(("snapshot", "names", "saved", "when_saved", "persist"))
_OFFSET_READERS = frozenset(
    (
        *("query", "has_group", "topics_of", "topics_by_group", "groups_of", "by_queue", "snapshot", "persist"),
        *("when_saved",),
    )
)


def _offset_content(table: OffsetTable) -> Any:
    groups = {group: set(topics) for group, topics in table.topics_by_group().items()}
    return table.snapshot(), table._count, +table._topics_of, groups


def _offset_changes(group: str, other: str) -> list[Change]:
    return [
        ("commit", lambda table: table.commit(group, "T", 0, 6)),
        ("commit", lambda table: table.commit(group, "T", 0, 0)),
        ("commit", lambda table: table.commit(group, "New", 0, 0)),
        ("commit", lambda table: table.commit("new", "T", 2**31 - 1, 2**63 - 1)),
        ("commit", lambda table: table.commit(group, "Own", 0, 1, is_own=True)),
        ("follow", lambda table: table.follow({f"T@{group}": {0: 9, 7: 1}, "M@m": {0: 0}}, {})),
        ("follow", lambda table: table.follow({f"T@{group}": {0: 2}}, {f"T@{group}": {0: 5}})),
        ("lower_to", lambda table: table.lower_to(lambda topic, queue_id: 1)),
        ("lower_to", lambda table: table.lower_to(lambda topic, queue_id: 0)),
        ("clone", lambda table: table.clone(group, other, "T")),
        ("clone", lambda table: table.clone(group, "cloned", "T")),
        ("remove_group", lambda table: table.remove_group(group)),
        ("remove_group", lambda table: table.remove_group(other)),
    ]


def _offset_preparation(group: str, other: str) -> list[Callable[[Any], object]]:
    return [
        lambda table: table.commit(group, "T", 0, 5),
        lambda table: table.commit(group, "T", 1, 7),
        lambda table: table.commit(group, "U", 0, 2),
        lambda table: table.commit(other, "T", 3, 3),
    ]


TABLES = {
    "topics": Kept(
        TopicTable,
        _topics,
        lambda table: (_own(system_topics(table._live.current), "topic_name") | table._values, table.data_version),
        lambda table: None,  # each change does it
        [
            lambda table: table.put(TopicConfig("T", 4, 2)),
            lambda table: table.put(TopicConfig("U", order=True)),
            lambda table: table.create_internal("%RETRY%CG", 1),
        ],
        [
            ("put", lambda table: table.put(TopicConfig("New", 0, 1, perm=2, topic_filter_type="MULTI_TAG"))),
            ("put", lambda table: table.put(TopicConfig("T", 65535, 65535, perm=4, order=True, topic_sys_flag=3))),
            ("create", lambda table: table.create(TopicConfig("Created"))),
            ("remove", lambda table: table.remove("T")),
            ("remove", lambda table: table.remove("%RETRY%CG")),
            ("set_order_topics", lambda table: table.set_order_topics(frozenset({"T"}))),
            ("set_order_topics", lambda table: table.set_order_topics(frozenset())),
            ("create_internal", lambda table: table.create_internal("%DLQ%CG", 0, 1)),
            ("create_internal", lambda table: table.create_internal("%RETRY%CG", 5)),
            ("settings_changed", _without_template),
            ("follow", lambda table: table.follow(_topics_of_master(1, "T", "M"))),
            ("follow", lambda table: table.follow(_topics_of_master(2))),
            ("mark_changed", lambda table: table.mark_changed()),
        ],
        _VERSIONED | {"get", "is_system", "for_send", "internal", "readable_queue", "when_announced"},
    ),
    "groups": Kept(
        GroupTable,
        _groups,
        lambda table: (
            _own(map(SubscriptionGroupConfig, SYSTEM_GROUPS), "group_name") | table._values,
            table.data_version,
        ),
        lambda table: None,
        [lambda table: table.put(SubscriptionGroupConfig("G", retry_queue_nums=0)), lambda table: table.find("H")],
        [
            ("put", lambda table: table.put(SubscriptionGroupConfig("New", False, False, False, 0, -1, 0, 1, False))),
            ("put", lambda table: table.put(SubscriptionGroupConfig("G", retry_max_times=2**31 - 1))),
            ("find", lambda table: table.find("Found")),
            ("remove", lambda table: table.remove("G")),
            ("remove", lambda table: table.remove("TOOLS_CONSUMER") or table.remove("H")),
            ("follow", lambda table: table.follow(_groups_of_master(1, "G", "M"))),
            ("mark_changed", lambda table: table.mark_changed()),
        ],
        _VERSIONED | {"get", "may_be_made_again"},
    ),
    "offsets": Kept(
        OffsetTable,
        _offsets,
        _offset_content,
        lambda table: table.persist(),
        _offset_preparation("CG", "Other"),
        _offset_changes("CG", "Other"),
        _OFFSET_READERS,
    ),
    "offsets of light queues": Kept(
        OffsetTable,
        _lmq_offsets,
        _offset_content,
        lambda table: table.persist(),
        _offset_preparation("%LMQ%CG", "Other"),
        _offset_changes("%LMQ%CG", "Other"),
        _OFFSET_READERS,
    ),
    "offsets of a client": Kept(
        LocalOffsets,
        _local_offsets,
        lambda table: dict(table._offsets),
        lambda table: _done(table.flush()),
        [lambda table: _done(table.commit_many({_T0: 5, _T1: 7}))],
        [
            ("commit", lambda table: _done(table.commit(_T0, 0))),
            ("commit", lambda table: _done(table.commit(_NEW, 2**63 - 1))),
            ("commit_oneway", lambda table: _done(table.commit_oneway(_T1, 8))),
            ("commit_many", lambda table: _done(table.commit_many({_T0: 6, _NEW: 0}))),
        ],
        frozenset(("open", "committed", "flush")),
    ),
    "copied topics": Kept(
        CopiedTopics,
        lambda root, clock: CopiedTopics(_file(root, TOPICS_COPIED_FILE)),
        lambda table: (table.end, table.run),
        lambda table: None,  # each change does it
        [lambda table: table.copied(500)],
        [
            ("begin", lambda table: table.begin(100)),
            ("copied", lambda table: table.copied(900)),
            ("synchronized", lambda table: table.synchronized(MasterRun("10.0.0.1:10911", "1", True))),
            ("synchronized", lambda table: table.synchronized(MasterRun("10.0.0.1:10911", "1", False))),
            ("repaired", lambda table: table.repaired()),
        ],
        frozenset({"saved"}),
    ),
    "delays": Kept(
        DelayService,
        _delay,
        lambda table: (table.snapshot(), table._kept, table._delivered, table._kept_delivered),
        lambda table: table.persist(),
        [lambda table: table.follow(DelayOffsets({1: 1, 3: 30}))],
        [
            ("follow", lambda table: table.follow(DelayOffsets({1: 2, 2: 0, 18: 2**63 - 1}))),
            ("follow", lambda table: table.follow(DelayOffsets({1: 0}))),
            ("follow", lambda table: table.follow(DelayOffsets({1: 0}, {1: [[1, 2], [4, 2**62]], 2: [[3, 4]]}))),
            ("follow", lambda table: table.follow(DelayOffsets({1: 0}, {1: [[1, 2]], 2: [[4, 3]]}))),
            ("follow", lambda table: table.follow(DelayOffsets({}))),
        ],
        # Deliveries are in test_delay.py and test_delay_crashes.py, which restart after them.
        frozenset(("start", "stop", "snapshot", "progress", "persist", "arrived")),
    ),
    "filters": Kept(
        FilterTable,
        _filters,
        _filter_content,
        lambda table: table.persist(),
        [
            lambda table: table.register_group("CG", [_sql("T", "a > 5"), _sql("U", "b = 'x'")]),
            lambda table: table.register_group("Other", [_sql("T", "c IS NULL")]),
            lambda table: table.register_group("Gone", [_sql("T", "d > 1")]),
            lambda table: table.group_gone("Gone"),
            lambda table: table._now.__self__.advance(40),
        ],
        [
            ("register_group", lambda table: table.register_group("New", [_sql("T", "a > 5", 0)])),
            ("register_group", lambda table: table.register_group("CG", [_sql("T", "a > 6", 2)])),
            ("register_group", lambda table: table.register_group("CG", [_sql("T", "a >", 2), _sql("U", "b = 'x'")])),
            ("register_group", lambda table: table.register_group("Gone", [_sql("T", "d > 1")])),
            ("register_group", lambda table: table.register_group("Gone", [_sql("T", "d > 1", 2)])),
            ("group_gone", lambda table: (table.group_gone("CG"), table._now.__self__.advance(55))),
            ("clean", lambda table: (table._now.__self__.advance(20), table.clean())),
        ],
        frozenset(("get", "of_topic", "bit_maps_of", "persist", "snapshot")),
    ),
    "members": Kept(
        ConsumerRegistry,
        Members,
        _members_content,
        # Which writes it only if the change was noticed.
        lambda owner: owner.file.look(),
        [
            _join("a", "CG", SubscriptionData("T", "A", sub_version=1), SubscriptionData("U", sub_version=1)),
            _join("b", "CG", SubscriptionData("T", "A", sub_version=1), SubscriptionData("U", sub_version=1)),
            _join("c", "Single", message_model="BROADCASTING", consume_from_where="CONSUME_FROM_TIMESTAMP"),
        ],
        [
            ("register", _join("d", "New", _sql("T", "a > 5"))),
            ("register", _join("d", "CG", SubscriptionData("T", "A", sub_version=1))),
            (
                "register",
                _join("a", "CG", SubscriptionData("T", "A || B", frozenset("AB"), frozenset((65, 66)), sub_version=2)),
            ),
            ("register", _join("c", "Single", message_model="CLUSTERING")),
            ("register", _join("c", "Single", consume_type="CONSUME_ACTIVELY", message_model="BROADCASTING")),
            ("unregister", lambda owner: owner.consumers.unregister(owner.connections["b"], "CG")),
            ("unregister", lambda owner: owner.consumers.unregister(owner.connections["c"], "Single")),
            ("connection_closed", lambda owner: owner.consumers.connection_closed(owner.connections["a"])),
            ("expire", _later(CLIENT_EXPIRY_SECONDS, lambda owner: owner.consumers.expire())),
        ],
        frozenset(
            (
                *("group", "known", "members", "find", "names", "groups_subscribed", "has_left", "freeze", "stop"),
                # Of members that the file has, and those who come or stay away, see tests/broker/test_members_file.py.
                *("expect", "expect_no_more", "leave_before_joining"),
            )
        ),
        MembersFile,
    ),
    "KV configuration": Kept(
        KvConfig,
        _kv,
        lambda owner: (dict(owner.table), owner.table._size),
        lambda owner: owner.write(),
        [
            lambda owner: owner.table.put("N", "k", "v"),
            lambda owner: owner.table.put("N", "other", "v"),
            lambda owner: owner.table.put("Single", "k", "v"),
            lambda owner: owner.table.put("ORDER_TOPIC_CONFIG", "T", "a:4"),
        ],
        [
            ("put", lambda owner: owner.table.put("New", "", "")),
            ("put", lambda owner: owner.table.put("N", "k", "día\n\u2028")),
            ("delete", lambda owner: owner.table.delete("N", "k")),
            ("delete", lambda owner: owner.table.delete("Single", "k")),
            ("delete", lambda owner: owner.table.delete("ORDER_TOPIC_CONFIG", "T")),
        ],
        frozenset(("get", "namespace", "has_room_for", "to_json")),
    ),
    "epochs": Kept(
        EpochHistory,
        _epochs,
        lambda owner: owner.table,
        lambda owner: owner.write(),
        [_begin(1, 0), _begin(2, 100), _begin(4, 300)],
        [
            ("begin", _begin(5, 300)),
            ("begin", _begin(2**63 - 1, 2**63 - 1)),
            ("begin", _begin(6, 50)),
            ("begin", _begin(6, 0)),
            ("begin", _begin(6, 400, 200)),
            ("begin", _begin(6, 400, 400)),
        ],
        frozenset(("epoch_at", "has", "common_end", "to_json", "from_json", "last", "epochs")),
    ),
    "accounts": Kept(
        AclFiles,
        _accounts,
        lambda table: {path: file.raw for path, file in table.content.files.items()},
        lambda table: None,
        [],
        [
            ("put_account", lambda table: table.put_account(AccountChange("new-key", "new-secret"))),
            ("put_account", lambda table: table.put_account(AccountChange("alice-key", "another-secret", "*", True))),
            (
                "put_account",
                lambda table: table.put_account(AccountChange("alice-key", "secret-of-alice", topics=["T=DENY"])),
            ),
            ("delete_account", lambda table: table.delete_account("alice-key")),
            ("delete_account", lambda table: table.delete_account("the-admin")),
            ("put_white", lambda table: table.put_white(["10.0.0.*"], None)),
            ("put_white", lambda table: table.put_white([], None)),
            (
                "look",
                lambda table: (write_acl(Path(table.places.folder).parent.parent, "accounts: []\n"), table.look()),
            ),
        ],
        frozenset(),
    ),
    "removed queues": Kept(
        RemovedQueues,
        _removed,
        lambda table: (list(table.table.items()), table.removing),
        lambda table: table.write(table.encode()),
        [
            lambda table: table.put(_queue("T", 0, 5), 1000),
            lambda table: table.put(_queue("U", 1, 0), 0),
            lambda table: table.removing.add(("T", 0)),
        ],
        [
            ("put", lambda table: table.put(_queue("T", 2**31 - 1, 2**63 - 1), 2**63 - 1)),
            ("put", lambda table: table.put(_queue("T", 0, 6), 2000)),
            ("note", lambda table: table.note(("%RETRY%CG", 0), Removed(0, 0))),
            ("note", lambda table: table.note(("U", 1), Removed(1, 1))),
            ("forget_aged", lambda table: table.forget_aged(1000, [_queue("T", 0, 9), _queue("U", 9, 9)])),
            ("forget_aged", lambda table: table.forget_aged(0, [_queue("U", 1, 0)])),
        ],
        frozenset(("load", "encode", "write", "saved")),
    ),
    "checkpoint": Kept(
        CheckpointFile,
        _checkpoint,
        _checkpoint_content,
        lambda table: None,
        [lambda table: table.write(Checkpoint(10, 20, 30, 100, 200, 300, (3, 50)))],
        [
            ("write", lambda table: table.write(Checkpoint(1, 2, 3))),
            ("write", lambda table: table.write(Checkpoint(0, 0, 0, 0, 0, 0, (0, 0)))),
            ("advance", lambda table: table.advance(Checkpoint(11, 21, 31, 50, 201, None))),
            ("note_log", lambda table: table.note_log(2**63 - 1)),
            ("forget_log_above", lambda table: table.forget_log_above(0)),
            ("note_queues", lambda table: table.note_queues(0, 0, None)),
            ("note_cut", lambda table: table.note_cut(200, (0, 0))),
            ("forget_queues_above", lambda table: table.forget_queues_above(0, (1, 2))),
            ("forget_queues_above", lambda table: table.forget_queues_above(199)),
            ("forget_index_above", lambda table: table.forget_index_above(0, 0)),
            ("forget_queues", lambda table: table.forget_queues((1, 20))),
            ("forget_queues", lambda table: table.forget_queues(None)),
        ],
        frozenset(),
    ),
}
