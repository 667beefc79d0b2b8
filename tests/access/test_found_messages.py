"""What only a message in the store tells: whether its topic, and not that which a request names, is its sender's."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand
from mqbroker.wire.headers import encode_header
from mqbroker.wire.record import decode_record
from mqbroker.wire.signature import Credentials
from tests.access.acl import ADMIN, signed, write_acl
from tests.access.test_guard import PREFIX
from tests.broker.bench import START, Bench, send_command
from tests.broker.every_request import send_fields, short
from tests.broker.transacting import COMMIT, HALF, ROLLBACK, UNKNOWN, Half, bodies, end_header, round_of_checks

OWNER = Credentials("owner-key", "secret-of-owner")
READER = Credentials("reader-key", "secret-of-reader")
OTHER = Credentials("other-key", "secret-of-other")
NONE = Credentials("empty-key", "secret-of-empty")
SHUT = Credentials("shut-key", "secret-of-shut")
#: Who may read whatever it likes, and write nothing.
CURIOUS = Credentials("curious-key", "secret-of-curious")

ACL = """\
accounts:
- {accessKey: the-admin, secretKey: secret-of-admin, admin: true}
- {accessKey: owner-key, secretKey: secret-of-owner, topicPerms: [T=PUB|SUB], groupPerms: [CG=SUB]}
- {accessKey: reader-key, secretKey: secret-of-reader, topicPerms: [T=SUB], groupPerms: [CG=SUB]}
- {accessKey: other-key, secretKey: secret-of-other, topicPerms: [Other=PUB|SUB], groupPerms: [OtherCG=SUB]}
- {accessKey: empty-key, secretKey: secret-of-empty}
- {accessKey: shut-key, secretKey: secret-of-shut, topicPerms: [T=PUB], groupPerms: [PG=DENY]}
- {accessKey: curious-key, secretKey: secret-of-curious, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    write_acl(tmp_path / "home", ACL)
    made = []

    def make(**changes: Any) -> Bench:
        made.append(Bench(tmp_path / "store", acl_enable=True, rocketmq_home=str(tmp_path / "home"), **changes))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


class Peer:
    """A client on a connection of its own, with an account."""

    def __init__(self, bench: Bench, account: Credentials, host: str = "10.0.0.2") -> None:
        self.account = account
        self.client = bench.client(IPv4Address("TCP", host, 40000))
        self._told: list[Any] = []

    def ask_all(self, *commands: RemotingCommand) -> list[RemotingCommand]:
        for command in commands:
            self.account.sign(command.ext_fields, command.body)
        return self._answers(self.client.ask_all(*commands))

    def _answers(self, heard: list[RemotingCommand]) -> list[RemotingCommand]:
        self._told += [each for each in heard if not each.is_response]
        return [each for each in heard if each.is_response]

    def ask(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", **more: Any) -> RemotingCommand:
        (answer,) = self.ask_all(signed(self.account, code, fields, body, **more))
        return answer

    def why(self, *args: Any, **more: Any) -> str | None:
        """Why a request is refused for what its sender is; None where it is not."""
        remark = self.ask(*args, **more).remark or ""
        return remark.removeprefix(PREFIX) if remark.startswith(PREFIX) else None

    def send(self, topic: str = "T", body: bytes = b"body", properties: str = "UNIQ_KEY\x01u", **fields: int) -> Half:
        command = send_command(topic, body, properties=properties, **fields)
        (answer,) = self.ask_all(command)
        assert answer.code == 0, answer.remark
        msg_id = answer.ext_fields["msgId"]
        return Half(int(answer.ext_fields["queueOffset"]), int(msg_id[-16:], 16), msg_id)

    def half(self, topic: str = "T", body: bytes = b"half") -> Half:
        properties = f"UNIQ_KEY\x01{body.decode()}\x02TRAN_MSG\x01true\x02PGROUP\x01PG"
        return self.send(topic, body, properties, queue_id=1, born_timestamp=START * 1000)

    def end(self, half: Half, outcome: int = COMMIT, **fields: Any) -> str | None:
        return self.why(Code.END_TRANSACTION, encode_header(end_header(half, outcome, **fields)))

    def beat(self, producers: Sequence[str] = (), client_id: str = "c") -> RemotingCommand:
        data = {"clientID": client_id, "producerDataSet": [{"groupName": name} for name in producers]}
        return self.ask(Code.HEART_BEAT, body=json.dumps(data).encode())

    def asked(self) -> list[bytes]:
        """The bodies of the half messages it is asked about."""
        self._answers(self.client.heard())
        return [decode_record(each.body).body for each in self._told if each.code == Code.CHECK_TRANSACTION_STATE]


# --- sends, by either header


def batch(**changes: Any) -> tuple[dict[str, str], bytes]:
    """A batch with both headers' fields for the topics "T" and "Other"."""
    fields = {**send_fields("T", ""), **short(send_fields("Other", "", batch="true"))}
    for name, value in changes.items():
        if value is None:
            del fields[name]
        else:
            fields[name] = value
    return fields, encode_batch([BatchEntry(0, b"one", b"")])


@pytest.mark.parametrize("account", [OWNER, OTHER])
def test_a_batch_with_both_headers_is_judged_by_the_one_that_counts(bench: Bench, account: Credentials) -> None:
    """The long one counts where it is there; the other is nothing."""
    Peer(bench, ADMIN).send("T")
    why = Peer(bench, account).why(Code.SEND_BATCH_MESSAGE, *batch())
    assert why == (None if account is OWNER else "No default permission for topic:T")
    assert bodies(bench, "T") == [b"body", *([b"one"] if account is OWNER else [])]
    assert bodies(bench, "Other") == []


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"b": None}, f"{PREFIX}No default permission for topic:T"),
        ({"b": None, "producerGroup": None}, "the custom field <b> is null"),
        ({"producerGroup": None}, f"{PREFIX}No default permission for topic:Other"),
        ({"topic": None}, "the custom field <topic> is null"),
        ({"a": None}, f"{PREFIX}No default permission for topic:T"),
    ],
)
def test_no_mixture_of_headers_lets_an_account_without_rights_write(
    bench: Bench, changes: dict[str, None], remark: str
) -> None:
    Peer(bench, ADMIN).send("T")
    log_end = bench.store.log_end
    assert Peer(bench, NONE).ask(Code.SEND_BATCH_MESSAGE, *batch(**changes)).remark == remark
    assert bench.store.log_end == log_end


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2])
@pytest.mark.parametrize("account", [OWNER, OTHER])
def test_a_single_send_with_both_headers_is_judged_by_that_of_its_code(
    bench: Bench, code: int, account: Credentials
) -> None:
    Peer(bench, ADMIN).send("T")
    Peer(bench, ADMIN).send("Other")
    fields = {**send_fields("T", ""), **short(send_fields("Other", ""))}
    goes_to = "T" if code == Code.SEND_MESSAGE else "Other"
    why = Peer(bench, account).why(code, fields, b"sent")
    is_its_own = goes_to == ("T" if account is OWNER else "Other")
    assert why == (None if is_its_own else f"No default permission for topic:{goes_to}")
    assert bodies(bench, goes_to) == [b"body", *([b"sent"] if is_its_own else [])]


@pytest.mark.parametrize("code", [Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize("topic", ["T", "DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRACE_TOPIC"])
def test_a_reply_is_a_send(bench: Bench, code: int, topic: str) -> None:
    Peer(bench, ADMIN).send("T")
    fields = send_fields(topic, "REPLY_TO_CLIENT\x01nobody")
    if code == Code.SEND_REPLY_MESSAGE_V2:
        fields = short(fields)
    for account in (NONE, OTHER, CURIOUS):
        assert Peer(bench, account).why(code, fields, b"reply") == f"No default permission for topic:{topic}"
    assert bodies(bench, topic) == ([b"body"] if topic == "T" else [])
    if topic == "T":
        assert Peer(bench, OWNER).why(code, fields, b"reply") is None
        assert bodies(bench, topic) == [b"body", b"reply"]


# --- messages by their offset


def view(peer: Peer, offset: int) -> str | None:
    return peer.why(Code.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})


def test_a_message_is_shown_to_who_may_read_its_topic(bench: Bench) -> None:
    sent = Peer(bench, OWNER).send()
    assert view(Peer(bench, READER), sent.physical_offset) is None
    assert view(Peer(bench, ADMIN), sent.physical_offset) is None
    assert view(Peer(bench, SHUT), sent.physical_offset) == "No default permission for topic:T"
    answer = Peer(bench, NONE).ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(sent.physical_offset)})
    assert (answer.remark, answer.body) == (f"{PREFIX}No default permission for topic:T", b"")


def test_a_delayed_message_belongs_to_the_topic_that_it_is_for(bench: Bench) -> None:
    sent = Peer(bench, OWNER).send(properties="DELAY\x013")
    assert bench.records("SCHEDULE_TOPIC_XXXX", 2)[0].physical_offset == sent.physical_offset
    assert view(Peer(bench, READER), sent.physical_offset) is None
    assert view(Peer(bench, OTHER), sent.physical_offset) == "No default permission for topic:T"


def test_half_a_message_is_shown_to_no_consumer_of_its_topic(bench: Bench) -> None:
    half = Peer(bench, OWNER).half()
    assert view(Peer(bench, READER), half.physical_offset) == f"No default permission for topic:{HALF}"
    assert view(Peer(bench, ADMIN), half.physical_offset) is None


def test_a_message_whose_topic_a_sender_made_up_belongs_to_where_it_is(bench: Bench) -> None:
    sent = Peer(bench, OTHER).send("Other", properties="REAL_TOPIC\x01T")
    assert view(Peer(bench, READER), sent.physical_offset) == "No default permission for topic:Other"
    assert view(Peer(bench, OTHER), sent.physical_offset) is None


def send_back(peer: Peer, offset: int, group: str) -> str | None:
    return peer.why(Code.CONSUMER_SEND_MSG_BACK, {"offset": str(offset), "group": group, "delayLevel": "-1"})


def test_only_messages_of_topics_that_it_may_read_come_into_its_dead_letters(bench: Bench) -> None:
    sent = Peer(bench, OWNER).send()
    assert send_back(Peer(bench, OTHER), sent.physical_offset, "OtherCG") == "No default permission for topic:T"
    assert bodies(bench, "%DLQ%OtherCG") == []
    assert send_back(Peer(bench, OTHER), sent.physical_offset, "CG") == "No default permission for group:CG"
    assert send_back(Peer(bench, READER), sent.physical_offset, "CG") is None
    assert bodies(bench, "%DLQ%CG") == [b"body"]
    (dead,) = bench.records("%DLQ%CG")
    assert send_back(Peer(bench, OTHER), dead.physical_offset, "OtherCG") == "No default permission for group:CG"
    assert bodies(bench, "%DLQ%OtherCG") == []


# --- transactions


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("account", [NONE, OTHER, READER, CURIOUS])
def test_a_foreign_transaction_is_not_ended(bench: Bench, account: Credentials, outcome: int) -> None:
    half = Peer(bench, OWNER).half()
    assert Peer(bench, account).end(half, outcome) == "No default permission for topic:T"
    assert Peer(bench, account).end(half, UNKNOWN) is None  # nothing is done
    assert Peer(bench, OWNER).end(half, COMMIT) is None
    assert bodies(bench, "T", 1) == [b"half"]


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_nor_by_who_takes_a_closer_look(bench: Bench, outcome: int) -> None:
    """Where a message is to be delayed."""
    owner, other = Peer(bench, OWNER), Peer(bench, OTHER)
    plain = owner.half(body=b"plain")
    late = owner.send(body=b"late", properties="TRAN_MSG\x01true\x02PGROUP\x01PG\x02DELAY\x013")
    for half in (plain, late):
        assert other.end(half, outcome) == "No default permission for topic:T"
    assert bodies(bench, "RMQ_SYS_TRANS_OP_HALF_TOPIC") == []


def test_nor_while_what_is_settled_is_still_being_read(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(reads_halves=False)
    half = Peer(bench, OWNER).half()
    other = Peer(bench, OTHER)
    assert other.ask_all(signed(OTHER, Code.END_TRANSACTION, encode_header(end_header(half, COMMIT)))) == []
    bench.parts.half_queue.start()
    bench.turn()
    (answer,) = other.client.heard()
    assert answer.remark == f"{PREFIX}No default permission for topic:T"
    assert bodies(bench, "T", 1) == []


def test_nor_when_it_is_settled_already(bench: Bench) -> None:
    half = Peer(bench, OWNER).half()
    assert Peer(bench, OWNER).end(half) is None
    assert Peer(bench, OTHER).end(half) == "No default permission for topic:T"


def test_of_one_read_the_own_ones_are_ended(bench: Bench) -> None:
    owner, other = Peer(bench, OWNER), Peer(bench, OTHER)
    foreign, own = owner.half(), other.half("Other", b"own")
    ends = [RemotingCommand(Code.END_TRANSACTION, encode_header(end_header(half, COMMIT))) for half in (foreign, own)]
    assert sorted(answer.code for answer in other.ask_all(*ends)) == [0, 1]
    assert (bodies(bench, "T", 1), bodies(bench, "Other", 1)) == ([], [b"own"])


def test_a_oneway_end_is_looked_at_too(bench: Bench) -> None:
    half = Peer(bench, OWNER).half()
    end = signed(OTHER, Code.END_TRANSACTION, encode_header(end_header(half, COMMIT)), flag=ONEWAY_FLAG)
    assert Peer(bench, OTHER).ask_all(end) == []
    assert bodies(bench, "T", 1) == []
    end = signed(OWNER, Code.END_TRANSACTION, encode_header(end_header(half, COMMIT)), flag=ONEWAY_FLAG)
    assert Peer(bench, OWNER).ask_all(end) == []
    assert bodies(bench, "T", 1) == [b"half"]


# --- producers by their heartbeats


def test_who_may_write_to_a_topic_joins_groups_of_producers(bench: Bench) -> None:
    assert Peer(bench, OWNER).beat(["PG"], "owner").code == 0
    assert Peer(bench, OTHER).beat(["PG"], "other").code == 0
    for account in (NONE, READER, CURIOUS, SHUT):
        answer = Peer(bench, account).beat(["PG"], "c")
        assert answer.remark == f"{PREFIX}No default permission for group:PG"
    assert len(bench.producers.group("PG")) == 2


@pytest.mark.parametrize("group", ["CLIENT_INNER_PRODUCER", "_INNER_TRACE_PRODUCER-CG-CONSUME-1"])
def test_clients_that_only_consume_have_producers_of_their_own(bench: Bench, group: str) -> None:
    assert Peer(bench, READER).beat([group]).code == 0


def test_half_messages_are_shown_only_to_who_may_write_to_their_topic(bench: Bench) -> None:
    bench.parts.checks.start()
    owner, other = Peer(bench, OWNER), Peer(bench, OTHER, "10.0.0.3")
    owner.half(body=b"one")
    for _ in range(3):
        other.beat(["PG"], "other")
        owner.beat()
        round_of_checks(bench)
    assert other.asked() == []
    for _ in range(3):
        other.beat(["PG"], "other")
        owner.beat(["PG"], "owner")
        round_of_checks(bench)
    assert owner.asked() == [b"one"] * 3
    assert other.asked() == []


@pytest.mark.parametrize("change", [("[T=PUB|SUB]", "[T=SUB]"), ("accessKey: owner-key", "accessKey: another")])
def test_nor_to_who_may_not_any_more(bench: Bench, tmp_path: Path, change: tuple[str, str]) -> None:
    bench.parts.checks.start()
    owner = Peer(bench, OWNER)
    owner.half(body=b"one")
    owner.beat(["PG"], "owner")
    write_acl(tmp_path / "home", ACL.replace(*change))
    bench.turn(6)
    bench.acl.look()
    round_of_checks(bench)
    assert owner.asked() == []


def test_nobody_takes_the_client_id_of_another_accounts_client(bench: Bench) -> None:
    owner, other = Peer(bench, OWNER), Peer(bench, OTHER, "10.0.0.3")
    owner.beat(["PG"], "asker")
    answer = other.beat(["OtherPG"], "asker")
    assert (answer.code, answer.remark) == (1, "the client id asker is that of another account's client")
    assert bench.producers.find("asker") is owner.client.connection
    again = Peer(bench, OWNER, "10.0.0.4")  # as a client that comes back over a new connection
    assert again.beat(["PG"], "asker").code == 0
    assert bench.producers.find("asker") is again.client.connection
    owner.client.link.cut()
    again.client.link.cut()
    assert other.beat(["OtherPG"], "asker").code == 0
