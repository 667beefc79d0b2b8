from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.errors import MQError
from mqbroker.wire.ids import UniqIdSource, offset_message_id, parse_offset_message_id
from tests.numbers import numbers

# MessageDecoder.createMessageId of 4.9.7.
FROM_JAVA = [
    ("C000020700002A9F00000016FEE0E52D", ("192.0.2.7", 10911), 98765432109),
    ("20010DB800000000000000000000000100002A9F00000016FEE0E52D", ("2001:db8::1", 10911), 98765432109),
]


def seconds(year: int, month: int, day: int) -> float:
    return datetime(year, month, day, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(("message_id", "host", "offset"), FROM_JAVA)
def test_message_ids_of_java(message_id: str, host: tuple[str, int], offset: int) -> None:
    assert offset_message_id(host, offset) == message_id
    assert parse_offset_message_id(message_id) == (host, offset)
    assert parse_offset_message_id(message_id.lower()) == (host, offset)


def test_message_ids_of_the_golden_store(golden_listing: list[dict[str, Any]]) -> None:
    for line in golden_listing:
        address, port = line["store_host"].rsplit(":", 1)
        assert offset_message_id((address, int(port)), line["offset"]) == line["msg_id"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "C000020700002A9F00000016FEE0E52",
        "C000020700002A9F00000016FEE0E52D0",
        "C000020700002A9F00000016FEE0E52D00",
        "G000020700002A9F00000016FEE0E52D",
        "C0 00 02 07 00 00 2A 9F 00 00 00 16 FE E0 E5 2D",
        " C000020700002A9F00000016FEE0E52D",
        "C000020700002A9F00000016FEE0E52D\n",
        "0x00020700002A9F00000016FEE0E52D",
        "\uff10" * 32,
        "\u0661" * 32,
        "\ud800" * 32,
        "\0" * 32,
        "0" * 24,
        "0" * 54,
        "0" * 58,
        "A" * 1_000_000,
    ],
)
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(MQError, match="not a message id") as caught:
        parse_offset_message_id(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("host", [("", 1), ("localhost", 1), ("1.2.3", 1), ("1.2.3.4\0", 1), ("1.2.3.4", -1)])
def test_a_host_without_an_address_has_no_message_id(host: tuple[str, int]) -> None:
    with pytest.raises(MQError):
        offset_message_id(host, 0)


hosts = st.tuples(st.ip_addresses().map(str), numbers(0, 2**32 - 1))


@given(hosts, numbers(-(2**63), 2**63 - 1))
def test_any_message_id_survives(host: tuple[str, int], offset: int) -> None:
    message_id = offset_message_id(host, offset)
    (address, port), back = parse_offset_message_id(message_id)
    assert (port, back) == (host[1], offset)
    assert offset_message_id((address, port), back) == message_id


@given(st.text(st.sampled_from("0123456789abcdefABCDEF \nxg-"), min_size=30, max_size=58) | st.text(max_size=60))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    try:
        host, offset = parse_offset_message_id(text)
    except MQError:
        return
    assert offset_message_id(host, offset) == text.upper()


def test_a_unique_id_as_java_takes_it_apart() -> None:
    source = UniqIdSource("192.0.2.7", 42, 0x0BADCAFE, lambda: seconds(2026, 11, 1) + 123.456)
    assert source() == "C0000207" + "002A" + "0BADCAFE" + "0001E240" + "0001"
    assert source() == "C0000207" + "002A" + "0BADCAFE" + "0001E240" + "0002"


def test_a_unique_id_of_an_ipv6_host_has_56_digits() -> None:
    source = UniqIdSource("2001:db8::1", 42, 0, lambda: seconds(2026, 11, 1))
    assert source() == "20010DB8000000000000000000000001" + "002A" + "00000000" + "00000000" + "0001"


def test_pid_and_salt_are_cut_to_their_width() -> None:
    source = UniqIdSource("192.0.2.7", 0x12345, 0x1_0000_0002, lambda: seconds(2026, 11, 1))
    assert source().startswith("C0000207" + "2345" + "00000002")


def test_the_counter_goes_round() -> None:
    source = UniqIdSource("192.0.2.7", 1, 1, lambda: seconds(2026, 11, 1))
    counters = [int(source()[-4:], 16) for _ in range(65537)]
    assert counters == [*range(1, 65536), 0, 1]


@pytest.mark.parametrize(
    ("month", "following"),
    [((2026, 11, 1), (2026, 12, 1)), ((2026, 12, 1), (2027, 1, 1)), ((2028, 2, 1), (2028, 3, 1))],
)
def test_time_is_counted_from_the_start_of_the_month(
    month: tuple[int, int, int], following: tuple[int, int, int]
) -> None:
    now = [seconds(*month)]
    source = UniqIdSource("192.0.2.7", 1, 1, lambda: now[0])

    def ms() -> int:
        return int(source()[20:28], 16)

    assert ms() == 0
    now[0] = seconds(*following) - 0.001
    assert ms() == round((seconds(*following) - seconds(*month)) * 1000) - 1
    now[0] = seconds(*following)
    assert ms() == 0
    now[0] = seconds(*month) + 5  # the clock went back
    assert ms() == 5000


def test_ids_differ_within_a_millisecond_and_between_processes() -> None:
    def now() -> float:
        return seconds(2026, 11, 1)

    sources = [UniqIdSource("192.0.2.7", pid, salt, now) for pid in (1, 2) for salt in (1, 2)]
    ids = [source() for source in sources for _ in range(1000)]
    assert len(set(ids)) == len(ids)
