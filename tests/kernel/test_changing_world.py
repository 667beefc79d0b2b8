"""Sends and pulls by the compiled module, and by a broker that remembers nothing of the requests before, in a world
that changes between any two of them: the same bytes.

Both brokers run the same generated history. What a request leaves for the next ones like it - topics of plain sends,
plans of pulls - must be dropped by all that makes the answer another. MQBROKER_TWIN_SEEDS chooses how many histories.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address

from mqbroker.errors import Refused
from mqbroker.kernel import compiled
from mqbroker.store import message_reader
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import encode_frame
from mqbroker.wire.headers import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    UnregisterClientRequestHeader,
)
from mqbroker.wire.names import java_hash
from tests.access.acl import ADMIN, ALICE, PLAIN, STRANGER, write_acl
from tests.broker.bench import START, Bench, Client
from tests.commands import said
from tests.kernel.test_pulls import ReadEnd
from tests.kernel.test_records import files_of
from tests.remoting.link import CLIENT, SERVER, take_together
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60")) // 3
TOPICS = ["T", "T", "T", "U", "V", "%RETRY%CG", "TBW102", "broker-a"]
GROUPS = ["CG", "CG", "DG"]
#: An address that needs no account.
ADMINISTRATOR = IPv4Address("TCP", "10.10.103.9", 1)
#: Of an account other permissions, or another key, or none.
ACCOUNTS = [
    PLAIN,
    PLAIN,
    PLAIN.replace("- T=PUB|SUB", "- T=SUB"),
    PLAIN.replace("- T=PUB|SUB", "- T=PUB"),
    PLAIN.replace("- CG=SUB", "- CG=DENY"),
    PLAIN.replace("secret-of-alice", "another-secret"),
    PLAIN.replace("alice-key", "somebody-else"),
    PLAIN.replace("10.10.103.*", "10.10.103.*\n- 10.0.0.2"),
]
#: Of each setting that sends or pulls depend on some values.
SETTINGS = {
    "brokerPermission": "2466",
    "autoCreateTopicEnable": ("true", "false"),
    "autoCreateSubscriptionGroup": ("true", "false"),
    "slaveReadEnable": ("true", "false"),
    "filterSupportRetry": ("true", "false"),
    "enablePropertyFilter": ("true", "false"),
    "rejectTransactionMessage": ("true", "false"),
    "longPollingEnable": ("true", "false"),
    "traceOn": ("true", "false"),
    "topicsMax": ("1", "10000"),
    "groupsMax": ("1", "10000"),
    "offsetsMax": ("1", "10000"),
    "defaultTopicQueueNums": "148",
    "startAcceptSendRequestTimeStamp": ("0", "0", str((START + 3) * 1000)),
    "maxTransferCountOnMessageInMemory": ("1", "32"),
    "maxTransferBytesOnMessageInMemory": ("1", "262144"),
}


BATCH = encode_batch([BatchEntry(0, b"1", b"TAGS\x01a"), BatchEntry(1, b"2", b"WAIT\x01true")])


class Forgetful(dict[Any, Any]):
    """Keeps nothing, so that each request is looked at by all rules."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


@attrs.define
class Twin:
    """One of the two brokers, and three connections to it."""

    bench: Bench
    admin: Client
    ends: list[ReadEnd]
    protocols: list[Any]
    is_compiled: bool
    taken: int = 0
    #: How often the file of accounts was written.
    accounts: int = 0
    #: What was answered to locks.
    locks: list[Any] = attrs.Factory(list)

    @classmethod
    def start(cls, root: Path, *, is_compiled: bool, has_accounts: bool) -> Twin:
        home = root.with_name(f"{root.name}-home")
        if has_accounts:
            write_acl(home)
        bench = Bench(root, acl_enable=has_accounts, rocketmq_home=str(home))
        if not is_compiled:
            bench.table.plain.clear()
            bench.rules.plain_targets = Forgetful()
        ends = [ReadEnd(CLIENT, SERVER) for _ in range(3)]
        protocols: list[Any] = [bench.factory.buildProtocol(CLIENT) for _ in ends]
        for protocol, end in zip(protocols, ends, strict=True):
            protocol.makeConnection(end)
        return cls(bench, bench.client(ADMINISTRATOR), ends, protocols, is_compiled)

    def request(self, number: int, data: bytes) -> None:
        rest = data
        if self.is_compiled:
            [rest] = take_together(self.bench.factory, [self.protocols[number]], [data])
            self.taken += len(rest) < len(data)
        if rest:
            self.protocols[number].dataReceived(rest)

    def change_accounts(self, text: str) -> None:
        acl, home = self.bench.acl, self.bench.settings.rocketmq_home
        if acl is not None:
            self.accounts += 1
            os.utime(write_acl(Path(home), text), (self.accounts, self.accounts))
            assert acl.look().called

    def heard(self) -> list[bytes]:
        return [bytes(end.written) for end in self.ends]


@attrs.frozen
class Scope:
    """What a history is about: of few things each is met often."""

    topics: list[str]
    groups: list[str]
    queues: str
    is_calm: bool
    has_accounts: bool

    @classmethod
    def of(cls, seed: int) -> Scope:
        if seed % 4:
            return cls(["T"], ["CG"], "0", is_calm=True, has_accounts=seed % 4 == 1)
        return cls(TOPICS, GROUPS, "00001235", is_calm=False, has_accounts=seed % 8 == 0)


def request(rng: Random, opaque: int, scope: Scope) -> bytes:
    send = {
        "a": "PG", "c": "TBW102", "d": "4", "b": rng.choice(scope.topics), "e": rng.choice(scope.queues),
        "f": "0", "g": "1700000000000", "h": "0", "j": "0", "k": "false", "m": "false",
        "i": rng.choice(["TAGS\x01a", "TAGS\x01b\x02x\x011", "DELAY\x012", "TRAN_MSG\x01true\x02PGROUP\x01PG"]),
    }  # fmt: skip
    pull = {
        "consumerGroup": rng.choice(scope.groups), "topic": rng.choice(scope.topics),
        "queueId": rng.choice(scope.queues), "queueOffset": "0", "maxMsgNums": "32", "sysFlag": rng.choice("015"),
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": rng.choice("*a"),
        "subVersion": rng.choice("01"), "expressionType": "TAG",
    }  # fmt: skip
    if not scope.is_calm:
        send |= {
            "c": rng.choice(["TBW102", "broker-a", "T"]), "d": rng.choice("048"), "j": rng.choice(["0", "0", "20"])
        }  # fmt: skip
        pull |= {
            "queueOffset": rng.choice("0001"), "maxMsgNums": rng.choice(["1", "32"]), "sysFlag": rng.choice("014455"),
            "commitOffset": rng.choice("012"), "suspendTimeoutMillis": rng.choice(["0", "0", "1000"]),
            "subVersion": rng.choice("0012"),
        }  # fmt: skip
        if rng.random() < 0.25:
            pull |= {"subscription": "x = 1", "expressionType": "SQL92"}
    batch = send | {"m": "true", "i": rng.choice(["", "WAIT\x01true", "DELAY\x012"])}
    code, ext, body = rng.choice([(310, send, b"body"), (11, pull, b""), (320, batch, BATCH)])
    if scope.has_accounts:
        rng.choice([ALICE, ALICE, ALICE, ADMIN, STRANGER]).sign(ext, body)
    header = {"code": code, "extFields": ext, "flag": rng.choice([0, 0, 0, 2]), "opaque": opaque}
    return encode_frame(0, json.dumps(header, separators=(",", ":")).encode(), body)


def change(rng: Random, twin: Twin, scope: Scope) -> None:
    """Change the world as administrators, consumers, the name server or the time do."""
    bench, topic, group = twin.bench, rng.choice(scope.topics), rng.choice(scope.groups)
    # Of few things subscriptions and permissions change most: each other change hides what they leave.
    kind = rng.choice([0, 2, 3, 4, 5, 6, 6, 6, 7, 8, 8, 8, 9, 10]) if scope.is_calm else rng.randrange(11)
    if scope.has_accounts and rng.random() < 0.3:
        twin.change_accounts(rng.choice(ACCOUNTS))
    elif kind < 2:
        perm, kept_as = rng.choice([0, 2, 4, 6, 6, 6]), rng.choice(["SINGLE_TAG", "MULTI_TAG"])
        numbers = rng.choice([(0, 1), (1, 1), (1, 4), (4, 4), (6, 2)])
        bench.topics.put(TopicConfig(topic, *numbers, perm, kept_as, order=rng.random() < 0.3))
    elif kind == 2:
        if rng.random() < 0.5:
            twin.admin.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))
        else:
            bench.topics.remove(topic)
    elif kind == 3:
        bench.topics.set_order_topics(frozenset(rng.sample(TOPICS, rng.randrange(4))))
    elif kind == 4:
        new = SubscriptionGroupConfig(group, rng.random() < 0.7, consume_broadcast_enable=rng.random() < 0.7)
        bench.groups.put(attrs.evolve(new, broker_id=rng.randrange(3), retry_max_times=rng.choice([0, 16])))
    elif kind == 5:
        gone = DeleteSubscriptionGroupRequestHeader(group_name=group, remove_offset=rng.random() < 0.5)
        twin.admin.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)
    elif kind == 6:
        beat(rng, twin, group)
    elif kind == 7:
        twin.admin.ask(
            RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader(client_id="c1", consumer_group=group)
        )
    elif kind == 8:
        key = "brokerPermission" if rng.random() < 0.4 else rng.choice([*SETTINGS])
        bench.parts.live.change({key: rng.choice(SETTINGS[key])})
    elif kind == 10:
        code = rng.choice([RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
        queues = frozenset(MessageQueue(topic, "broker-a", n) for n in range(rng.randrange(3)))
        twin.locks.append(twin.admin.ask(code, body=LockBatchRequestBody(group, rng.choice("cd"), queues).to_json()))
    else:
        bench.turn(rng.choice([0.5, 1, 3] if scope.is_calm else [1, 3, 150]))
        twin.admin = bench.client(ADMINISTRATOR)  # the former may have been idle for too long


def beat(rng: Random, twin: Twin, group: str) -> None:
    """A consumer says, in one of the ways, to what its group has subscribed."""
    tag, is_sql = rng.choice("ab*"), rng.random() < 0.2
    text, kind = ("x = 1", "SQL92") if is_sql else (tag, "TAG")
    codes = frozenset(() if is_sql or tag == "*" else (java_hash(tag),))
    subscriptions = [
        SubscriptionData(name, text, frozenset(), codes, rng.randrange(4), expression_type=kind)
        for name in rng.sample(["T", "T", "U", "%RETRY%CG"], rng.randrange(4))
    ]
    model = rng.choice(["CLUSTERING", "BROADCASTING"])
    consumer = ConsumerData(group, message_model=model, subscription_data_set=subscriptions)
    twin.admin.ask(RequestCode.HEART_BEAT, body=HeartbeatData("c1", [], [consumer]).to_json())


def history(root: Path, seed: int, monkeypatch: pytest.MonkeyPatch, *, is_compiled: bool) -> tuple[list[Any], int]:
    """What was heard after each step, and in the end what is on the disk; and the number of requests that the compiled
    module took."""
    rng, scope = Random(seed), Scope.of(seed)
    steps: list[Any] = []
    with monkeypatch.context() as patch:
        if not is_compiled:
            patch.setattr(message_reader, "compiled", None)
        twin = Twin.start(root, is_compiled=is_compiled, has_accounts=scope.has_accounts)
        for topic in ("T", "T", "U"):
            twin.admin.send(topic, properties="TAGS\x01a")
        requests = [request(rng, number, scope) for number in range(rng.choice([1, 2, 5]))]
        for _ in range(40):
            for data in rng.sample(requests, rng.randrange(1, 1 + min(4, len(requests)))):
                # The first may leave something to the second.
                for _ in range(rng.choice([1, 2])):
                    twin.request(rng.randrange(3), data)
            twin.bench.turn()
            steps.append(twin.heard())
            for _ in range(rng.choice([0, 1, 1, 2])):
                with contextlib.suppress(Refused):  # a limit that was lowered
                    change(rng, twin, scope)
            if rng.random() < 0.3:
                requests[rng.randrange(len(requests))] = request(rng, 1000 + len(steps), scope)
        twin.bench.turn(20)
        steps += [twin.heard(), said(twin.locks), twin.bench.offsets.snapshot()]
        steps.append([end.closing is not None for end in twin.ends])
        twin.bench.close()
    return [*steps, files_of(root)], twin.taken


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_both_ways_have_the_same_outcome_while_the_world_changes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = history(tmp_path / "compiled", seed, monkeypatch, is_compiled=True)
    general, _ = history(tmp_path / "general", seed, monkeypatch, is_compiled=False)
    for number, (one, other) in enumerate(zip(found, general, strict=True)):
        assert one == other, f"after step {number}"
