"""INNER_MULTI_DISPATCH: a message is put into the queues that it names only if its sender may write to each."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import ONEWAY_FLAG, encode_command
from mqbroker.wire.headers import encode_header
from mqbroker.wire.signature import Credentials
from tests.access.acl import ADMIN, signed, write_acl
from tests.access.test_found_messages import ACL, Peer
from tests.broker.bench import START, Bench
from tests.broker.every_request import send_fields, short
from tests.broker.transacting import COMMIT, Half, bodies, end_header, round_of_checks

LAMP = Credentials("lamp-key", "secret-of-lamp")
OTHER = Credentials("other-key", "secret-of-other")
OWN, FOREIGN = "%LMQ%lamp", "%LMQ%other"
REFUSED = f"No default permission for topic:{FOREIGN}"
LAMP_ACL = """\
- accessKey: lamp-key
  secretKey: secret-of-lamp
  topicPerms:
  - T=PUB|SUB
  - "%LMQ%lamp=PUB|SUB"
  groupPerms:
  - CG=SUB
- accessKey: both-key
  secretKey: secret-of-both
  topicPerms:
  - T=PUB
  - "%LMQ%lamp=PUB"
  - "%LMQ%other=PUB"
"""
BOTH = Credentials("both-key", "secret-of-both")
FOREIGN_NAMES = [FOREIGN, f"{OWN},{FOREIGN}", f"{FOREIGN},{OWN}", f"{OWN},,{FOREIGN},", "Other"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_acl(tmp_path / "home", ACL + LAMP_ACL)
    return tmp_path / "home"


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    bench = make_bench(store={"enable_lmq": True, "enable_multi_dispatch": True}, store_reply_message_enable=True)
    Peer(bench, ADMIN).send("T")
    Peer(bench, ADMIN).send("Other")
    return bench


def naming(names: str, **more: str) -> str:
    pairs = {"UNIQ_KEY": "u", "INNER_MULTI_DISPATCH": names, **more}
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())


def refusal(names: str) -> str:
    first = next(name for name in names.split(",") if name != OWN)
    return f"No default permission for topic:{first}"


SENDS = [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2]


def fields_of(code: int, properties: str, topic: str = "T", **more: object) -> dict[str, str]:
    fields = send_fields(topic, properties, **more)
    return short(fields) if code in (Code.SEND_MESSAGE_V2, Code.SEND_REPLY_MESSAGE_V2) else fields


@pytest.mark.parametrize("names", FOREIGN_NAMES)
@pytest.mark.parametrize("code", SENDS)
def test_no_send_puts_a_message_into_a_queue_that_its_sender_may_not_write_to(
    bench: Bench, code: int, names: str
) -> None:
    log_end = bench.store.log_end
    for more in ({}, {"DELAY": "1"}, {"TRAN_MSG": "true", "PGROUP": "PG"}):
        fields = fields_of(code, naming(names, **more))
        assert Peer(bench, LAMP).why(code, fields, b"x") == refusal(names)
        assert Peer(bench, LAMP).ask_all(signed(LAMP, code, fields, b"x", flag=ONEWAY_FLAG)) == []
    assert bench.store.log_end == log_end
    assert bodies(bench, FOREIGN) == []


@pytest.mark.parametrize("code", SENDS)
def test_a_send_into_own_queues_is_stored_in_them(bench: Bench, code: int) -> None:
    assert Peer(bench, LAMP).why(code, fields_of(code, naming(OWN)), b"x") is None
    assert bodies(bench, OWN) == [b"x"]


def test_traces_are_no_way_into_queues(bench: Bench) -> None:
    fields = fields_of(Code.SEND_MESSAGE, naming(FOREIGN), "RMQ_SYS_TRACE_TOPIC")
    assert Peer(bench, LAMP).why(Code.SEND_MESSAGE, fields, b"x") == REFUSED
    assert bodies(bench, FOREIGN) == []


def test_neither_is_a_retry(bench: Bench) -> None:
    fields = fields_of(Code.SEND_MESSAGE, naming(FOREIGN), "%RETRY%CG")
    assert Peer(bench, LAMP).why(Code.SEND_MESSAGE, fields, b"x") == REFUSED


def test_names_in_one_header_are_not_hidden_by_the_other(bench: Bench) -> None:
    """Of two headers in one request the code's counts."""
    for code in (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2):
        bad, good = send_fields("T", naming(FOREIGN)), send_fields("T", naming(OWN))
        long, brief = (bad, good) if code == Code.SEND_MESSAGE else (good, bad)
        assert Peer(bench, LAMP).why(code, {**long, **short(brief)}, b"x") == REFUSED


@pytest.mark.parametrize(
    "properties",
    [f"INNER_MULTI_DISPATCH\x01{OWN}\x02INNER_MULTI_DISPATCH\x01{FOREIGN}",
     f"INNER_MULTI_DISPATCH\x01{FOREIGN}\x02INNER_MULTI_DISPATCH\x01",
     f"\x02\x02INNER_MULTI_DISPATCH\x01{FOREIGN}\x02K\x01INNER_MULTI_DISPATCH\x01{OWN}",
     f"INNER_MULTI_DISPATCH\x01{FOREIGN}\x02XINNER_MULTI_DISPATCH\x01{OWN}"],
)  # fmt: skip
def test_nor_by_other_properties(bench: Bench, properties: str) -> None:
    fields = fields_of(Code.SEND_MESSAGE, properties)
    assert Peer(bench, LAMP).why(Code.SEND_MESSAGE, fields, b"x") == REFUSED
    assert bodies(bench, FOREIGN) == []


# --- batches


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE])
@pytest.mark.parametrize("place", ["the batch", "its second message"])
@pytest.mark.parametrize("names", [OWN, FOREIGN])
def test_each_message_of_a_batch_is_checked(bench: Bench, code: int, place: str, names: str) -> None:
    is_shared = place == "the batch"
    entries = [BatchEntry(0, b"0", b""), BatchEntry(0, b"1", b"" if is_shared else naming(names).encode())]
    fields = fields_of(code, naming(names) if is_shared else "K\x01v", batch="true")
    why = Peer(bench, LAMP).why(code, fields, encode_batch(entries))
    assert why == (REFUSED if names == FOREIGN else None)
    assert bodies(bench, FOREIGN) == []
    assert bodies(bench, OWN) == ([] if names == FOREIGN else [b"0", b"1"] if is_shared else [b"1"])


def test_a_batch_that_cannot_be_read_is_refused_and_a_body_that_is_none_is_not_looked_into(bench: Bench) -> None:
    body = b"INNER_MULTI_DISPATCH\x01" + FOREIGN.encode()
    assert Peer(bench, LAMP).why(Code.SEND_BATCH_MESSAGE, send_fields("T", ""), body) is not None
    assert Peer(bench, LAMP).why(Code.SEND_MESSAGE, send_fields("T", ""), body) is None
    assert bodies(bench, "T") == [b"body", body]


# --- transactions


def half(peer: Peer, names: str, **more: str) -> Half:
    properties = naming(names, TRAN_MSG="true", PGROUP="PG", **more)
    return peer.send("T", b"half", properties, queue_id=1, born_timestamp=START * 1000)


@pytest.mark.parametrize("more", [{}, {"DELAY": "1"}])
def test_a_half_message_is_committed_by_who_may_write_to_its_queues(bench: Bench, more: dict[str, str]) -> None:
    theirs = half(Peer(bench, BOTH), f"{OWN},{FOREIGN}", **more)
    bench.turn(1)  # from then on it is found at once
    assert Peer(bench, LAMP).end(theirs) == REFUSED
    assert bodies(bench, "RMQ_SYS_TRANS_OP_HALF_TOPIC") == bodies(bench, FOREIGN) == bodies(bench, OWN) == []
    assert Peer(bench, BOTH).end(theirs) is None
    assert (bodies(bench, "SCHEDULE_TOPIC_XXXX") if more else bodies(bench, "T", 1)) == [b"half"]
    assert set(bodies(bench, FOREIGN)) == set(bodies(bench, OWN)) == {b"half"}


def test_a_right_that_was_taken_away_between_the_halves_counts(bench: Bench, home: Path) -> None:
    peer = Peer(bench, BOTH)
    theirs = half(peer, FOREIGN)
    write_acl(home, ACL + LAMP_ACL.replace('  - "%LMQ%other=PUB"\n', ""))
    bench.turn(6)
    bench.acl.look()
    assert peer.end(theirs, COMMIT) == REFUSED
    end = signed(BOTH, Code.END_TRANSACTION, encode_header(end_header(theirs, COMMIT)), flag=ONEWAY_FLAG)
    assert peer.ask_all(end) == []
    assert bodies(bench, FOREIGN) == []


def test_only_a_producer_that_may_commit_a_half_message_is_asked_about_it(bench: Bench) -> None:
    bench.parts.checks.start()
    both, lamp = Peer(bench, BOTH), Peer(bench, LAMP, "10.0.0.3")
    half(both, FOREIGN)
    for _ in range(3):
        lamp.beat(["PG"], "lamp")
        both.beat()
        round_of_checks(bench)
    assert lamp.asked() == []
    both.beat(["PG"], "both")
    round_of_checks(bench)
    assert both.asked() == [b"half"]


# --- retries


@pytest.mark.parametrize("level", [-1, 1])
def test_a_retry_is_not_put_again_into_the_queues_that_its_message_named(bench: Bench, level: int) -> None:
    """Who sends it back need not be allowed to write to them."""
    sent = Peer(bench, BOTH).send("T", b"x", naming(f"{FOREIGN},{OWN}"))
    fields = {"offset": str(sent.physical_offset), "group": "CG", "delayLevel": str(level)}
    assert Peer(bench, LAMP).why(Code.CONSUMER_SEND_MSG_BACK, fields) is None
    (again,) = bench.records("%DLQ%CG" if level < 0 else "SCHEDULE_TOPIC_XXXX")
    assert again.body == b"x"
    assert not any(name.startswith("INNER_MULTI") for name in again.properties)
    assert bodies(bench, FOREIGN) == bodies(bench, OWN) == [b"x"]


def test_names_that_are_spelt_by_escapes_are_found_in_a_plain_send(bench: Bench) -> None:
    """By the compiled module, which takes sends to topics that it knows."""
    peer = Peer(bench, LAMP)
    for names, stored in ((OWN, [b"x"]), (FOREIGN, [])):
        for _ in range(2):
            command = signed(LAMP, Code.SEND_MESSAGE_V2, fields_of(Code.SEND_MESSAGE_V2, naming(names)), b"x")
            frame = bytearray(encode_command(command).replace(b"INNER_MULTI", b"\\u0049NNER_\\u004dULTI"))
            frame[:4] = struct.pack(">i", len(frame) - 4)
            header_bytes = len(frame) - 8 - len(b"x")
            frame[4:8] = struct.pack(">i", header_bytes)
            peer.client.peer.transport.write(bytes(frame))
            peer.client.link.pump()
            bench.turn()
        assert bodies(bench, names) == stored * 2
