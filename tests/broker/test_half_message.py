"""What is made of most half messages at once is what the longer way makes of them; and what is left to that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.broker.transactions.half_message import PlainHalfMessages, committed
from mqbroker.wire.properties import decode_properties, find_property
from mqbroker.wire.record import NewMessage, Record, decode_raw, encode_record
from tests.broker.transacting import HALF

OFFSET, PHYSICAL = 7, 12_345
PROPERTIES = {
    "UNIQ_KEY": "0A", "TRAN_MSG": "true", "PGROUP": "PG", "TAGS": "a", "CLUSTER": "c", "WAIT": "true",
    "REAL_TOPIC": "T", "REAL_QID": "3",
}  # fmt: skip


def half(
    body: bytes = b"body",
    properties: dict[str, str] = PROPERTIES,
    born_host: tuple[str, int] = ("10.0.0.2", 40000),
    **more: Any,
) -> bytes:
    fields = {
        "topic": HALF, "queue_id": 0, "queue_offset": OFFSET, "physical_offset": PHYSICAL, "store_size": 0, "flag": 5,
        "sys_flag": 1, "born_timestamp": 1_600_000_000_000, "store_timestamp": 1_600_000_000_001,
        "store_host": ("10.0.0.1", 10911), "reconsume_times": 2, "prepared_offset": 0, "body_crc": 0, **more,
    }  # fmt: skip
    return encode_record(Record(body=body, properties=properties, born_host=born_host, **fields))


def text_of(data: bytes) -> bytes:
    """A record whose properties are these bytes."""
    start = half(properties={})
    size = len(start) + len(data)
    return size.to_bytes(4, "big") + start[4:-2] + len(data).to_bytes(2, "big") + data


def plainly(record: bytes, group: str = "PG", halves: PlainHalfMessages | None = None) -> NewMessage:
    return (halves or PlainHalfMessages()).committed(record, OFFSET, PHYSICAL, group)


def the_longer_way(record: bytes) -> NewMessage:
    return committed(decode_raw(memoryview(record), 0), 18)


@pytest.mark.parametrize("body", [b"", b"b", b"body" * 1000])
@pytest.mark.parametrize(
    "properties",
    [
        PROPERTIES,
        PROPERTIES | {"PGROUP": "other", "UNIQ_KEY": "0B"},
        PROPERTIES | {"REAL_TOPIC": "%RETRY%a-b|c_d", "REAL_QID": "65535"},
        {name: PROPERTIES[name] for name in ("TAGS", "PGROUP", "REAL_TOPIC", "REAL_QID", "UNIQ_KEY")},
        PROPERTIES | {"after": "x" * 600},
    ],
)
def test_a_usual_one_is_committed_as_by_the_longer_way(body: bytes, properties: dict[str, str]) -> None:
    record = half(body, properties)
    assert plainly(record, properties["PGROUP"]) == the_longer_way(record)


def test_it_is_one_of_its_topic_committed() -> None:
    topic, queue_id, flag, sys_flag, born, born_host, reconsume, prepared, body, properties = plainly(half())
    assert (topic, queue_id, flag, sys_flag, reconsume, prepared) == (b"T", 3, 5, 9, 2, PHYSICAL)
    assert (born, born_host, body) == (1_600_000_000_000, b"\x0a\0\0\x02\0\0\x9c\x40", b"body")
    assert decode_properties(properties) == PROPERTIES


def without(*names: str, **more: str) -> dict[str, str]:
    return {name: PROPERTIES[name] for name in PROPERTIES if name not in names} | more


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(half(queue_offset=OFFSET + 1), id="another half message"),
        pytest.param(half(physical_offset=PHYSICAL + 1), id="another place"),
        pytest.param(half(topic="T"), id="no half message"),
        pytest.param(half(topic="RMQ_SYS_TRANS_HALF_TOPIX"), id="a topic as long"),
        pytest.param(half(born_host=("::1", 9)), id="IPv6"),
        pytest.param(half(store_host=("::1", 9)), id="a broker on IPv6"),
        pytest.param(half(b"good").replace(b"good", b"evil"), id="a body that is not as it was"),
        pytest.param(half(properties=PROPERTIES | {"PGROUP": "PGX"}), id="a group that goes on"),
        pytest.param(half(properties=PROPERTIES | {"PGROUP": "P"}), id="a group that ends before"),
        pytest.param(half(properties=without("PGROUP")), id="no group"),
        pytest.param(half(properties=without("PGROUP", XPGROUP="PG")), id="a name that ends so"),
        pytest.param(half(properties=without("PGROUP") | {"PGROUP": "PG"}), id="the group last"),
        pytest.param(half(properties={"PGROUP": "PG"} | without("PGROUP")), id="the group first"),
        pytest.param(text_of(b"A\1b\2PGROUP\1PG\2PGROUP\1no\2REAL_TOPIC\1T\2REAL_QID\x013"), id="two groups"),
        pytest.param(half(properties=PROPERTIES | {"DELAY": "3"}), id="a delay"),
        pytest.param(half(properties=PROPERTIES | {"INNER_MULTI_QUEUE_OFFSET": "3"}), id="of light queues"),
        pytest.param(half(properties=without("REAL_TOPIC", "REAL_QID")), id="no place"),
        pytest.param(half(properties=without("REAL_TOPIC")), id="no topic"),
        pytest.param(half(properties=without("REAL_QID")), id="no queue"),
        pytest.param(half(properties=without("REAL_TOPIC") | {"REAL_TOPIC": "T"}), id="the queue before the topic"),
        pytest.param(half(properties=PROPERTIES | {"REAL_QID": "65536"}), id="a queue too far"),
        pytest.param(half(properties=PROPERTIES | {"REAL_QID": "-1"}), id="a queue below"),
        pytest.param(half(properties=PROPERTIES | {"REAL_TOPIC": "a b"}), id="no topic's name"),
        pytest.param(half(properties=PROPERTIES | {"REAL_TOPIC": HALF}), id="its own topic"),
    ],
)  # fmt: skip
def test_what_takes_a_closer_look(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        plainly(record)


def test_a_group_that_is_no_text_is_of_nobody() -> None:
    with pytest.raises(ValueError, match=r"^$"):
        plainly(half(properties=PROPERTIES | {"PGROUP": "?"}), "\ud800")
    with pytest.raises(ValueError, match="can't decode"):
        plainly(text_of(b"A\1b\2PGROUP\1\xff\2REAL_TOPIC\1T\2REAL_QID\x013"), "\udcff")


def test_a_second_one_alike_is_of_its_own_group() -> None:
    halves = PlainHalfMessages()
    assert plainly(half(), halves=halves)[:2] == (b"T", 3)
    with pytest.raises(ValueError, match=r"^$"):
        plainly(half(), "another", halves)
    with pytest.raises(ValueError, match=r"^$"):
        plainly(half(properties={"DELAY": "3"} | PROPERTIES), halves=halves)
    with pytest.raises(ValueError, match=r"^$"):
        plainly(half(properties={"INNER_MULTI_QUEUE_OFFSET": "3"} | PROPERTIES), halves=halves)


@pytest.mark.parametrize("count", [1, 3000])
def test_what_is_kept_is_bounded(count: int) -> None:
    halves = PlainHalfMessages()
    for n in range(count):
        properties = PROPERTIES | {"PGROUP": f"g{n}", "REAL_TOPIC": f"t{n}"}
        assert plainly(half(properties=properties), f"g{n}", halves)[0] == b"t%d" % n
    assert plainly(half(), halves=halves)[:2] == (b"T", 3)
    assert len(halves._endings) <= min(count + 1, 2000)
    kept = len(halves._endings)
    long = "g" * 1100
    assert plainly(half(properties=PROPERTIES | {"PGROUP": long}), long, halves)[0] == b"T"
    assert len(halves._endings) == kept


names = st.sampled_from(["PGROUP", "REAL_TOPIC", "REAL_QID", "A", "XPGROUP", "REAL_TOPI", ""])
values = st.sampled_from(["PG", "T", "U", "3", "4", "", "x\x01y", "REAL_TOPIC", "PGROUP"])


@given(st.lists(st.tuples(names, values), max_size=8), st.booleans())
@settings(derandomize=True, database=None, deadline=None, max_examples=500)
def test_whatever_the_properties_are_the_longer_way_agrees(pairs: list[tuple[str, str]], is_ended: bool) -> None:
    """Of two properties of one name the later counts, and none is seen inside of another."""
    usual = [("A", "b"), ("PGROUP", "PG"), ("REAL_TOPIC", "T"), ("REAL_QID", "3")]
    for given_pairs in (pairs, pairs + usual, usual + pairs):
        data = b"\x02".join(f"{name}\x01{value}".encode() for name, value in given_pairs) + b"\x02" * is_ended
        record = text_of(data)
        try:
            message = plainly(record)
        except ValueError:
            continue
        assert message == the_longer_way(record)
        assert find_property(data, b"PGROUP\x01") == b"PG"
