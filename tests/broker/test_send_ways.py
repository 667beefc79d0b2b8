"""Sends go a fast way or a slow one: both store and answer the same."""

import json
from typing import Any, cast

import pytest
from hypothesis import assume, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mqbroker.remoting.handlers import failure_response
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand
from mqbroker.wire.ids import parse_offset_message_id
from mqbroker.wire.record import decode_record
from tests.broker.bench import (
    Bench,
    Client,
    FakeConnection,
    send_command,
)
from tests.broker.sending import V2, one, raw
from tests.store.harness import now


def both_ways(bench: Bench, command: RemotingCommand) -> list[tuple[Any, dict[str, Any] | None]]:
    """(answer, record or None) by way of the hot path and by way of the rules, with what must differ taken out."""
    found = []
    for slow in (False, True):
        bench.rules.forget_plain_topics()
        if not slow:
            # What any plain send before has left.
            bench.send.send_v2([raw(send_command("Known"))], FakeConnection())
        take = (lambda run, c: bench.send._send_by_rules(V2, run, c)) if slow else bench.send.send_v2
        try:
            data = cast(bytes, take([raw(command)], FakeConnection()))
        except Exception as error:
            answer: Any = failure_response(command, error)
            record = None
        else:
            (frame,) = FrameDecoder().feed(data)
            fields = json.loads(frame[1])
            answer = {"code": fields["code"], "remark": fields.get("remark"), "ext": fields.get("extFields", {})}
            record = None
            if answer["code"] == 0:
                _, offset = parse_offset_message_id(answer["ext"].pop("msgId"))
                answer["ext"].pop("queueOffset")
                stored = decode_record(now(bench.store).record(offset))
                record = {name: getattr(stored, name) for name in
                          ("topic", "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "reconsume_times",
                           "body", "properties")}  # fmt: skip
        found.append((answer, record))
    return found


_numbers = st.one_of(
    st.integers(-3, 12).map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(
        ["", " 1", "1 ", "1_0", "+1", "-0", "007", "1.0", "0x1", "\u0661", "true", "2147483648", "-2147483648"]
    ),
)
_words = st.text(st.sampled_from("aXé\x01\x02=,|中"), max_size=4)
_pairs = st.lists(
    st.tuples(
        st.sampled_from(["WAIT", "XWAIT", "WAITX", "TAGS", "KEYS", "CLUSTER", "TRAN_MSG", "DELAY", "a", ""]),
        st.sampled_from(["true", "false", "False", "0", "1", "99", "", "é"]) | _words,
    ),
    max_size=5,
)
_properties = st.builds(
    lambda pairs, end: "\x02".join(f"{name}\x01{value}" for name, value in pairs) + end,
    _pairs,
    st.sampled_from(["", "\x02", "\x02\x02", "\x02x", "\x01"]),
) | st.sampled_from(["", "\x02", "\x01", "WAIT", "WAIT\x01"])  # fmt: skip


@hypothesis_settings(max_examples=400)
@given(
    usual=st.dictionaries(st.sampled_from("efghjl"), st.integers(0, 3).map(str), max_size=3),
    odd=st.dictionaries(st.sampled_from("efghj"), _numbers, max_size=1),
    properties=_properties | st.none(),
    missing=st.sets(st.sampled_from("efghijkln"), max_size=1),
    batch=st.sampled_from(["false", "true", "True", "", "x", None]),
    body=st.binary(max_size=20),
)
@example({}, {"e": "1_0"}, "", set(), None, b"")
@example({}, {"g": str(2**63)}, "", set(), None, b"")
@example({}, {"h": str(2**31)}, "", set(), None, b"")
@example({}, {}, "XWAIT\x01a\x02WAIT\x01false", set(), None, b"")
@example({}, {}, "WAIT\x01true\x02WAIT\x01false", set(), None, b"")
@example({}, {}, "a\x01b\x01c", set(), None, b"")
@example({}, {}, "a\x01b", {"i"}, None, b"")
def test_both_ways_store_and_answer_the_same(
    module_bench: Bench,
    usual: dict[str, str],
    odd: dict[str, str],
    properties: str | None,
    missing: set[str],
    batch: str | None,
    body: bytes,
) -> None:
    command = send_command("Known", body)
    command.ext_fields |= usual | odd
    command.ext_fields["m"] = batch
    command.ext_fields["i"] = properties
    command.ext_fields = {k: v for k, v in command.ext_fields.items() if k not in missing and v is not None}
    (fast, fast_record), (slow, slow_record) = both_ways(module_bench, command)
    if command.ext_fields.get("e", "").startswith("-") and isinstance(fast, dict) and fast["code"] == 0:
        # the queue is random
        assume(False)
    assert fast == slow
    assert fast_record == slow_record


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"e": "003"},  # as some producers pad it
        {"h": "2147483647"},
        {"f": "1"},
        {"j": "16"},
        {"i": "WAIT\x01true\x02TAGS\x01A\x02"},
    ],
)
def test_a_plain_send_does_not_go_by_the_rules(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]
) -> None:
    client.send()

    def check(*_: Any) -> None:
        raise AssertionError("a plain send took the long way")

    monkeypatch.setattr(bench.rules, "check", check)
    command = send_command()
    command.ext_fields.update(changed)
    assert one(client.ask_all(command)).code == 0


@given(_properties)
def test_both_ways_agree_on_waiting_for_the_disk(properties: str) -> None:
    from mqbroker.broker.system_topics import without_wait
    from mqbroker.wire.properties import decode_properties

    try:
        _, wait = without_wait(properties)
    except ValueError:
        return  # left to the slow way
    found = decode_properties(properties.encode())
    assert wait == (found.get("WAIT", "true").lower() != "false")


def test_one_bad_send_does_not_fail_its_neighbours(bench: Bench, client: Client) -> None:
    client.send()
    good = [send_command(body=b"%d" % i) for i in range(4)]
    bad = send_command()
    bad.ext_fields["h"] = str(2**31)
    answers = client.ask_all(good[0], good[1], bad, good[2], good[3])
    assert [answer.code for answer in answers] == [0, 0, ResponseCode.SYSTEM_ERROR, 0, 0]
    assert "<h>" in (answers[2].remark or "")
    assert [record.body for record in bench.records("T")][1:] == [b"0", b"1", b"2", b"3"]
