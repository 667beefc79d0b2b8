"""Every code of a broker that controls access, asked by every kind of account: who is let through, and who is not.

What is expected stands here in full, and is not read from the table that is enforced.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address

from mqbroker.remoting.handlers import HandlerTable, IGuard
from mqbroker.wire.access import Access
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.requests import REQUESTS
from mqbroker.wire.signature import ACCESS_KEY, Credentials
from tests.access.acl import write_acl
from tests.broker.bench import Bench, Client
from tests.broker.every_request import good_request, heartbeat, prepare
from tests.broker.test_every_code import CODES

GROUPS = ["CG", "OnlineGroup", "Committing", "GoneCG"]
TRUSTED, OWN, ELSEWHERE = "10.10.103.9", "172.16.0.1", "10.0.0.2"

PUBLISH = {Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.END_TRANSACTION}
REPLY = {Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2}
READ = {
    Code.QUERY_MESSAGE, Code.VIEW_MESSAGE_BY_ID, Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET,
    Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME,
}  # fmt: skip
OF_GROUP = {Code.GET_CONSUMER_LIST_BY_GROUP, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.UNREGISTER_CLIENT}
CONSUME = {
    Code.PULL_MESSAGE, Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET, Code.QUERY_CONSUME_QUEUE,
    Code.CONSUMER_SEND_MSG_BACK,
}  # fmt: skip
#: Of a client that consumes and produces.
BEAT = {Code.HEART_BEAT}
ANYONE = {
    Code.CHECK_CLIENT_CONFIG, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.GET_BROKER_RUNTIME_INFO,
    Code.GET_TOPIC_STATS_INFO, Code.GET_CONSUME_STATS, Code.GET_BROKER_CONSUME_STATS, Code.VIEW_BROKER_STATS_DATA,
    Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_CONSUME_TIME_SPAN, Code.QUERY_CORRECTION_OFFSET,
    Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_ALL_PRODUCER_INFO,
    Code.GET_CONSUMER_RUNNING_INFO, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
}  # fmt: skip
PEERS = {
    Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}  # fmt: skip
OPERATE = {
    Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_CONFIG,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.DELETE_TOPIC_IN_BROKER, Code.INVOKE_BROKER_TO_RESET_OFFSET,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CONSUME_MESSAGE_DIRECTLY, Code.CLONE_GROUP_OFFSET, Code.CLEAN_UNUSED_TOPIC,
    Code.DELETE_EXPIRED_COMMITLOG, Code.DELETE_SUBSCRIPTIONGROUP, Code.RESUME_CHECK_HALF_MESSAGE,
    Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, Code.GET_BROKER_CLUSTER_ACL_CONFIG,
    Code.SWITCH_GROUP_MASTER, Code.REMOVE_GROUP_MEMBER,
}  # fmt: skip

#: Permissions of topics and of groups, and what each account may ask then.
KINDS = {
    "without any right": ([], [], ANYONE),
    "publisher": (["T=PUB"], [], ANYONE | PUBLISH),
    "replier": (["DefaultCluster_REPLY_TOPIC=PUB"], [], ANYONE | REPLY),
    "reader": (["T=SUB"], [], ANYONE | READ),
    "group member": ([], GROUPS, ANYONE | OF_GROUP),
    "consumer": (["T=SUB"], GROUPS, ANYONE | READ | OF_GROUP | CONSUME),
    "client": (["T=PUB|SUB"], GROUPS, ANYONE | PUBLISH | READ | OF_GROUP | CONSUME | BEAT),
    "foreign client": (["Other=PUB|SUB", "RMQ_SYS_TRANS_HALF_TOPIC=PUB|SUB"], ["Others"], ANYONE),
    "admin": ([], [], CODES),
    "admin of another topic": (["Other=PUB|SUB"], [], ANYONE | PEERS | OPERATE),
}
NOBODY = Credentials("nobody-key", "secret-of-nobody")


def key(kind: str) -> Credentials:
    return Credentials(f"{kind.replace(' ', '-')}-key", f"secret-of-{kind}")


def account(kind: str, topics: list[str], groups: list[str]) -> str:
    lists = [("topicPerms", topics), ("groupPerms", [f"{group}=SUB" for group in groups])]
    return "\n".join(
        [
            f"- accessKey: {key(kind).access_key}",
            f"  secretKey: {key(kind).secret_key}",
            f"  admin: {str(kind.startswith('admin')).lower()}",
            f"  whiteRemoteAddress: {OWN}",
            *(f"  {name}:\n" + "\n".join(f"  - {entry}" for entry in entries) for name, entries in lists if entries),
        ]
    )


ACL = "\n".join(
    [
        "globalWhiteRemoteAddresses:",
        "- 10.10.103.*",
        "accounts:",
        *(account(kind, topics, groups) for kind, (topics, groups, _) in KINDS.items()),
    ]
)


class Asker:
    """A broker with something in it, and one of the kinds of peers."""

    def __init__(self, root: Path) -> None:
        write_acl(root / "home", ACL)
        self.bench = Bench(root / "store", acl_enable=True, rocketmq_home=str(root / "home"))
        self.operator = self.client(TRUSTED)
        self.prepared = prepare(self.asked)

    def asked(self, command: RemotingCommand) -> RemotingCommand:
        (answer,) = [each for each in self.operator.ask_all(command) if each.is_response]
        self.bench.store.dispatch_now()
        return answer

    def client(self, host: str) -> Client:
        return self.bench.client(IPv4Address("TCP", host, 40000))

    def request(self, code: int) -> RemotingCommand:
        command = good_request(code, self.prepared)
        if code == Code.HEART_BEAT:
            command.body = heartbeat("client-2")
        return command

    def taken(self, prove: Callable[..., Any], host: str = ELSEWHERE) -> set[RequestCode]:
        """The codes that are let through of who proves by `prove` who it is. What is refused does nothing."""
        client = self.client(host)
        taken = set()
        # The white list is changed last: who is trusted goes by it.
        for code in sorted(CODES, key=lambda code: (code == Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, code)):
            command = self.request(code)
            prove(command)
            log_end = self.bench.store.log_end
            answers = [answer for answer in client.ask_all(command) if answer.is_response]
            if answers and "AclException" in (answers[0].remark or ""):
                assert self.bench.store.log_end == log_end, code
            else:
                taken.add(code)
        return taken


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    asker = Asker(tmp_path)
    yield asker
    asker.bench.close()


def names(codes: set[RequestCode]) -> list[str]:
    return sorted(Code(code).name for code in codes)


def signing(credentials: Credentials) -> Callable[..., Any]:
    return lambda command: credentials.sign(command.ext_fields, command.body)


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_kind_of_account_may_ask(asker: Asker, kind: str) -> None:
    assert names(asker.taken(signing(key(kind)))) == names(KINDS[kind][2])


def wrongly_signed(command: RemotingCommand) -> None:
    key("admin").sign(command.ext_fields, command.body)
    command.ext_fields["extra"] = "1"


@pytest.mark.parametrize("prove", [lambda command: None, signing(NOBODY), wrongly_signed])
def test_who_is_not_known_may_ask_nothing(asker: Asker, prove: Callable[..., Any]) -> None:
    assert names(asker.taken(prove)) == []


def test_who_asks_from_a_trusted_address_may_ask_everything(asker: Asker) -> None:
    assert names(asker.taken(lambda command: None, TRUSTED)) == names(CODES)


def test_who_names_an_account_from_the_address_that_is_its_own_may_ask_everything(asker: Asker) -> None:
    def name_account(command: RemotingCommand) -> None:
        command.ext_fields[ACCESS_KEY] = key("without any right").access_key

    assert names(asker.taken(name_account, OWN)) == names(CODES)


def test_the_kinds_are_about_all_codes() -> None:
    parts = [PUBLISH, REPLY, READ, OF_GROUP, CONSUME, BEAT, ANYONE, PEERS, OPERATE]
    assert set().union(*parts) == CODES
    assert sum(map(len, parts)) == len(CODES)


def test_only_what_tells_nobody_a_message_is_open_to_any_account() -> None:
    demands = {code: request.demand for code, request in REQUESTS.items() if request.demand}
    assert {code for code, demand in demands.items() if demand.access is Access.PUBLIC} & CODES == ANYONE
    assert all(demand.words for demand in demands.values())


@pytest.mark.parametrize("code", [Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.CHECK_TRANSACTION_STATE])
def test_a_code_whose_need_nothing_says_gets_no_handler_behind_a_guard(asker: Asker, code: int) -> None:
    table = HandlerTable()
    table.protect(cast(IGuard, asker.bench.parts.rights))
    with pytest.raises(ValueError, match="so its permission is unknown"):
        table.register(code, lambda request, connection: None)
    with pytest.raises(ValueError, match="so its permission is unknown"):
        table.register_batch(code, lambda requests, connection: b"")
    assert table.codes == frozenset()


def test_a_handler_that_asks_about_a_message_has_a_code_that_says_what_is_needed(asker: Asker) -> None:
    rights = asker.bench.parts.rights
    with pytest.raises(ValueError, match="of a message"):
        rights.check_topics(
            Code.GET_MAX_OFFSET, RemotingCommand(0).ext_fields, b"", asker.client(TRUSTED).connection, ["T"]
        )
