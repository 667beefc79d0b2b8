"""Sends, over connections and by the bytes: what is stored, what is answered."""

from collections.abc import Callable

import pytest
from twisted.internet.address import IPv6Address

from mqbroker.broker.system_topics import COPY_ROOM
from mqbroker.store import dispatch
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import VERSION, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, ROCKETMQ, RemotingCommand, encode_command
from mqbroker.wire.ids import parse_offset_message_id
from tests.broker.bench import (
    BODY_MAX,
    CLIENT_HOST,
    HOST,
    START,
    Bench,
    Client,
    FakeConnection,
    send_command,
)
from tests.broker.sending import BATCH, V1, V2, one, raw
from tests.remoting.logs import Logged


@pytest.mark.parametrize("code", [V1, V2])
def test_a_message_is_stored_as_it_was_sent(bench: Bench, client: Client, code: int) -> None:
    for i in range(2):  # the second goes the fast way
        answer = one(
            client.send(body=b"hello %d" % i, code=code, queue_id=3, flag=7, sys_flag=1, reconsume_times=2,
                        properties="UNIQ_KEY\x01U\x02WAIT\x01true\x02TAGS\x01A")
        )  # fmt: skip
        assert answer.code == ResponseCode.SUCCESS
        assert answer.remark is None
        record = bench.records("T", 3)[i]
        assert record.body == b"hello %d" % i
        assert (record.topic, record.queue_id, record.queue_offset) == ("T", 3, i)
        assert (record.flag, record.sys_flag, record.reconsume_times) == (7, 1, 2)
        assert (record.born_timestamp, record.store_timestamp) == (1_600_000_000_000, START * 1000)
        assert (record.born_host, record.store_host) == (("10.0.0.2", 40000), (HOST, 10911))
        assert record.properties == {"UNIQ_KEY": "U", "TAGS": "A", "CLUSTER": "DefaultCluster"}
        assert answer.ext_fields["queueId"] == "3"
        assert answer.ext_fields["queueOffset"] == str(i)
        host, offset = parse_offset_message_id(answer.ext_fields["msgId"])
        assert (host, offset) == ((HOST, 10911), record.physical_offset)
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
        assert answer.ext_fields["TRACE_ON"] == "true"
        assert answer.version == VERSION


def test_many_sends_of_one_read_are_answered_in_order(bench: Bench, client: Client) -> None:
    client.send()
    commands = [send_command(body=b"%d" % i, queue_id=i % 4) for i in range(40)]
    answers = client.ask_all(*commands)
    assert [answer.opaque for answer in answers] == [command.opaque for command in commands]
    assert {answer.code for answer in answers} == {0}
    for i in range(4):
        stored = [record.body for record in bench.records("T", i)][i == 0 :]
        assert stored == [b"%d" % n for n in range(i, 40, 4)]


def test_an_ipv6_producer(bench: Bench) -> None:
    client = bench.client(IPv6Address("TCP", "2001:db8::7", 5))
    for i in range(2):
        assert one(client.send()).code == 0
        assert bench.records("T")[i].born_host == ("2001:db8::7", 5)


def test_region_and_trace_are_the_settings(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(region_id="100%sure", trace_on=False)
    client = bench.client()
    for _ in range(2):
        fields = one(client.send()).ext_fields
        assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("100%sure", "false")


@pytest.mark.parametrize("region", ['cn "north"', "back\\slash", "华北", "\U0001f600"])
def test_a_region_of_any_characters_is_text_in_each_response(make_bench: Callable[..., Bench], region: str) -> None:
    client = make_bench(region_id=region).client()
    for _ in range(2):
        assert one(client.send()).ext_fields["MSG_REGION"] == region


# --- sizes


@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_a_body_over_the_limit_is_told_its_size_and_the_limit(bench: Bench, client: Client, code: int) -> None:
    client.send()
    answer = one(client.send(body=bytes(BODY_MAX + 1), code=code))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"{BODY_MAX + 1}B" in (answer.remark or "")
    assert f"limit {BODY_MAX}B" in (answer.remark or "")
    assert len(bench.records("T")) == 1


@pytest.mark.parametrize("code", [V1, V2])
def test_a_body_at_the_limit_is_stored(bench: Bench, client: Client, code: int) -> None:
    client.send()
    assert one(client.send(body=bytes(BODY_MAX), code=code)).code == 0
    assert len(bench.records("T")[1].body) == BODY_MAX
    assert one(client.send(body=b"", code=code)).code == 0


@pytest.mark.parametrize("code", [V1, V2])
def test_properties_that_fill_a_record_and_those_that_do_not_fit(bench: Bench, client: Client, code: int) -> None:
    client.send()
    ours = len(b"\x02CLUSTER\x01DefaultCluster")
    longest = "KEYS\x01" + "k" * (32767 - COPY_ROOM - ours - 5)
    assert one(client.send(code=code, properties=longest)).code == 0
    for more, found in [
        (1, "msg properties length 31744B, 1024B must stay free for delays and retries, "),
        (COPY_ROOM + 1, "msg properties length 32768B, "),
    ]:
        answer = one(client.send(code=code, properties=longest + "k" * more))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark == (
            f"the message is illegal, maybe msg body or properties length not matched. {found}"
            f"msg body length limit {BODY_MAX}B, msg properties length limit 32KB."
        )
    # Counted in bytes, not in characters.
    answer = one(client.send(code=code, properties="KEYS\x01" + "é" * 16400))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(bench.records("T")) == 2


# --- requests that are not as they must be


@pytest.mark.parametrize(("known", "field"), [(False, f) for f in "abcdefgh"] + [(True, f) for f in "befgh"])
def test_a_missing_field_is_named(bench: Bench, client: Client, field: str, known: bool) -> None:
    if known:
        client.send()
    command = send_command()
    del command.ext_fields[field]
    answer = one(client.ask_all(command))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the custom field <{field}> is null")


@pytest.mark.parametrize(("known", "field"), [(False, f) for f in "defghjl"] + [(True, f) for f in "efghj"])
@pytest.mark.parametrize("value", ["x", "", "1.5", "99999999999999999999"])
def test_a_badly_typed_field_is_named(bench: Bench, client: Client, field: str, value: str, known: bool) -> None:
    if known:
        client.send()
    command = send_command()
    command.ext_fields[field] = value
    answer = one(client.ask_all(command))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"<{field}>" in (answer.remark or "")


@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_oneway_is_stored_and_not_answered(bench: Bench, client: Client, code: int) -> None:
    body = encode_batch([BatchEntry(0, b"x", b"")]) if code == BATCH else b"x"
    for _ in range(2):
        command = send_command(body=body, code=code)
        command.flag = ONEWAY_FLAG
        assert client.ask_all(command) == []
    bad = send_command("../x", code=code)
    bad.flag = ONEWAY_FLAG
    assert client.ask_all(bad) == []
    assert [record.body for record in bench.records("T")] == [b"x", b"x"]


def test_oneway_among_others(bench: Bench, client: Client) -> None:
    commands = [send_command(body=b"%d" % i) for i in range(5)]
    commands[1].flag = commands[3].flag = ONEWAY_FLAG
    answers = client.ask_all(*commands)
    assert [answer.opaque for answer in answers] == [1, 3, 5]
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "2", "4"]


@pytest.mark.parametrize("code", [V1, V2])
def test_the_binary_header_is_as_good(bench: Bench, client: Client, code: int) -> None:
    for _ in range(2):
        command = send_command(code=code, body=b"x")
        command.serialize_type = ROCKETMQ
        assert one(client.ask_all(command)).code == 0
    assert len(bench.records("T")) == 2


def test_an_empty_request_is_answered(client: Client) -> None:
    for code in (V1, V2, BATCH):
        answer = one(client.ask_all(RemotingCommand(code)))
        assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_record_too_large_for_a_segment_is_refused_alone(make_bench: Callable[..., Bench], logged: Logged) -> None:
    """A limit of messages beyond the segment size is a strange setting, and yet no reason to fail others."""
    bench = make_bench(store={"mapped_file_size_commit_log": 16 * 1024, "max_message_size": 32 * 1024})
    client = bench.client()
    answers = client.ask_all(send_command(body=b"a"), send_command(body=bytes(20_000)), send_command(body=b"b"))
    assert [answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert [record.body for record in bench.records("T")] == [b"a", b"b"]
    assert logged.failures == []


def test_born_host_is_where_the_send_came_from(bench: Bench) -> None:
    connection = FakeConnection(host=CLIENT_HOST)
    bench.send.send(V2, [raw(send_command())], connection)
    assert bench.records("T")[0].born_host == ("10.0.0.2", 40000)


def test_one_bad_send_does_not_fail_its_neighbours(bench: Bench, client: Client) -> None:
    client.send()
    good = [send_command(body=b"%d" % i) for i in range(4)]
    bad = send_command()
    bad.ext_fields["h"] = str(2**31)
    answers = client.ask_all(good[0], good[1], bad, good[2], good[3])
    assert [answer.code for answer in answers] == [0, 0, ResponseCode.SYSTEM_ERROR, 0, 0]
    assert "<h>" in (answers[2].remark or "")
    assert [record.body for record in bench.records("T")][1:] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("plain", [False, True])
def test_who_sends_much_works_for_its_dispatch(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    monkeypatch.setattr(dispatch, "UNCHARGED_BYTES_MAX", 256 * 1024)
    bench = make_bench("much", store={"mapped_file_size_commit_log": 4 << 20})
    client = bench.client()
    client.send()
    if not plain:
        bench.table.plain.clear()
    dispatcher = bench.store._dispatcher
    bodies = [bytes(60_000)] * (dispatch.UNCHARGED_BYTES_MAX // 60_000 + 1)
    for body in bodies:
        client.peer.transport.write(encode_command(send_command(body=body, queue_id=0)))
        client.link.pump()  # the reactor does not turn
    assert dispatcher.offset == bench.store.log_end
