"""How a slave's log is compared by its master: the record that must end it, and whom to ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqbroker.errors import MQError, Unreachable
from mqbroker.ha.link import BadPeer
from mqbroker.ha.link_secret import Last
from mqbroker.ha.slave_check import Ending, NotCompared, SlaveCheck, find_ending, registered_slaves
from mqbroker.wire.bodies import BrokerData, ClusterInfo, KVTable
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import MAGIC_BYTES, Record, encode_blank, encode_record

SEGMENT = 256 * 1024


@attrs.define
class Log:
    data: bytes
    start: int = 0
    segment_bytes: int = SEGMENT
    is_cold: bool = False

    def read(self, offset: int, size: int) -> Deferred[bytes] | memoryview:
        assert offset // SEGMENT == (offset + size - 1) // SEGMENT
        found = self.data[offset : offset + size]
        return succeed(found) if self.is_cold else memoryview(found)


def record_bytes(body: bytes, offset: int) -> bytes:
    host = "127.0.0.1", 10911
    record = Record(
        topic="T", queue_id=0, flag=0, queue_offset=0, physical_offset=offset, sys_flag=0,
        born_timestamp=1_795_255_600_000, born_host=host, store_timestamp=1_795_255_600_000, store_host=host,
        reconsume_times=0, prepared_offset=0, store_size=0, body_crc=0, body=body, properties={},
    )  # fmt: skip
    return bytes(encode_record(record))


def make_log(bodies: Sequence[bytes], start: int = 0) -> tuple[Log, list[int]]:
    """A log, and where its records begin."""
    data, offsets = bytes(start), []
    for body in bodies:
        record = record_bytes(body, len(data))
        room = SEGMENT - len(data) % SEGMENT
        if len(record) + 8 > room:
            data += encode_blank(room).ljust(room, b"\0")
            record = record_bytes(body, len(data))
        offsets.append(len(data))
        data += record
    return Log(data, start), offsets


def now(deferred: Deferred[Any], clock: Clock | None = None) -> Any:
    found: list[Any] = []
    deferred.addBoth(found.append)
    while clock is not None and not found:
        clock.advance(0)
    if hasattr(found[0], "raiseException"):
        found[0].raiseException()
    return found[0]


def ending(log: Log, end: int) -> Ending | None:
    clock = Clock()
    found: Ending | None = now(Deferred.fromCoroutine(find_ending(log, end, clock)), clock)
    return found


@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("bodies", [[b"a", b"bb", b""], [b"x" * 90_000] * 9, [b"x" * 200_000, b"y" * 100_000]])
def test_the_record_that_ends_at_each_offset(bodies: list[bytes], is_cold: bool) -> None:
    log, offsets = make_log(bodies)
    log.is_cold = is_cold
    for offset, following in zip(offsets, [*offsets[1:], len(log.data)], strict=True):
        found = ending(log, following)
        assert found is not None
        assert (found.offset, found.is_at_end) == (offset, True)
        assert ending(log, following - 1) != found
        within = ending(log, offset + 1)
        assert within is None or not within.is_at_end


def test_an_offset_within_a_record_or_a_filler_is_no_end() -> None:
    log, offsets = make_log([b"x" * 200_000, b"y" * 100_000])
    first = ending(log, offsets[1])
    assert first is not None
    for end in (SEGMENT - 1, SEGMENT + 1, offsets[1] + 90, len(log.data) - 1):
        assert ending(log, end) == first._replace(is_at_end=False)


def test_a_log_that_begins_there_has_no_record_to_compare() -> None:
    log, _ = make_log([b"a"], SEGMENT)
    assert ending(log, SEGMENT) is None
    assert ending(log, 0) is None


def test_bodies_that_pretend_to_be_records_are_passed_over() -> None:
    log, offsets = make_log([b"a", MAGIC_BYTES * 20_000, record_bytes(b"inner", 77) + b"tail"])
    assert [found.offset for end in (*offsets[1:], len(log.data)) if (found := ending(log, end))] == offsets


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.data())
def test_it_is_the_last_one_that_is_whole(bodies: list[bytes], data: st.DataObject) -> None:
    log, offsets = make_log(bodies)
    end = data.draw(st.integers(1, len(log.data)))
    whole = [n for n, stop in enumerate([*offsets[1:], len(log.data)]) if stop <= end]
    found = ending(log, end)
    assert (found and found.offset) == (offsets[whole[-1]] if whole else None)


# --- asking


@attrs.define
class Brokers:
    """The client: what each broker says, by its address; an error, or where its log begins and ends, and a record."""

    by_address: dict[str, Any]
    asked: list[tuple[str, int]] = attrs.field(factory=list)

    def invoke_sync(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        self.asked.append((address, command.code))
        said = self.by_address[address]
        if isinstance(said, Exception):
            raise said
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {"commitLogMinOffset": str(said[0]), "commitLogMaxOffset": str(said[1])}
            return succeed(RemotingCommand(0, body=KVTable(table).to_json()))
        if isinstance(said[2], int):
            return succeed(RemotingCommand(said[2], remark="refused"))
        return succeed(RemotingCommand(0, body=said[2]))


LOG, (_, AT) = make_log([b"a", b"b"])
END = len(LOG.data)
RECORD = LOG.data[AT:]
ENDING = Ending(AT, RECORD, True)
A, B, FAR = "10.0.0.2:10911", "10.0.0.2:10915", "10.0.0.3:10911"


def check(by_address: dict[str, Any], registered: Sequence[str] | None = None) -> tuple[SlaveCheck, Brokers]:
    brokers = Brokers(by_address)
    addresses = registered if registered is not None else list(by_address)

    async def asked() -> Sequence[str] | None:
        return addresses

    return SlaveCheck(LOG, cast(Any, brokers), Clock(), asked), brokers


def ask(by_address: dict[str, Any], sent: int = END, host: str = "10.0.0.2") -> None:
    made, _ = check(by_address)
    now(Deferred.fromCoroutine(made.ask(host, ENDING, END, lambda: sent, lambda: END)))


@pytest.mark.parametrize(
    "by_address",
    [
        {A: (0, END, RECORD)},
        {A: (0, END, RECORD), FAR: Unreachable("not asked")},
        {A: (0, END + 1, b"of another slave there"), B: (0, END, RECORD)},
        {"slave.example:10911": (0, END, RECORD)},
    ],
)
def test_a_slave_with_the_same_last_record_counts(by_address: dict[str, Any]) -> None:
    ask(by_address)


def test_a_slave_that_was_sent_more_meanwhile_counts() -> None:
    ask({A: (0, END + 500, RECORD)}, END + 500)


@pytest.mark.parametrize("found", [b"", RECORD[:-1], RECORD + b"x", b"other", ResponseCode.SYSTEM_ERROR])
def test_a_slave_with_another_record_there_is_refused(found: Any) -> None:
    with pytest.raises(BadPeer, match=f"differ at {AT}"):
        ask({A: (0, END, found)})


def test_of_two_slaves_at_an_address_neither_may_have_another_record() -> None:
    with pytest.raises(BadPeer):
        ask({A: (0, END, RECORD), B: (0, END, b"other")})


@pytest.mark.parametrize(
    ("by_address", "says"),
    [
        ({}, "the name servers know no slave of this broker at its address"),
        ({FAR: (0, END, RECORD)}, "know no slave of this broker at its address"),
        ({A: Unreachable("nobody there")}, f"its broker at {A} cannot be asked: nobody there"),
        ({A: (0, END - 1, RECORD)}, f"it reports {END}, and {A} says that its log ends at {END - 1}"),
        ({A: (0, END + 1, RECORD)}, f"says that its log ends at {END + 1}"),
        ({A: (0, 2**63, RECORD)}, f"says that its log ends at {2**63}"),
        ({A: ("x", "", RECORD)}, "does not say where its commit log begins and ends"),
        ({A: (AT + 1, END, RECORD)}, f"has no message below {AT + 1}"),
        ({A: (0, END, ResponseCode.NO_PERMISSION)}, "cannot be asked: .*refused"),
        ({A: (0, END, ResponseCode.SYSTEM_BUSY)}, "cannot be asked: .*refused"),
    ],
)
def test_one_that_cannot_be_compared_is_told(by_address: dict[str, Any], says: str) -> None:
    with pytest.raises(NotCompared, match=says):
        ask(by_address)


def test_an_address_that_is_none_is_no_more_than_an_error() -> None:
    with pytest.raises(MQError, match="is not an address"):
        ask({"nonsense": None})


def test_without_name_servers_it_never_can_be() -> None:
    made = SlaveCheck(LOG, cast(Any, None), Clock(), lambda: registered_slaves(cast(Any, None), (), "B"))
    with pytest.raises(NotCompared, match="there is no name server") as caught:
        now(Deferred.fromCoroutine(made.ask("10.0.0.2", ENDING, END, lambda: END, lambda: END)))
    assert caught.value.goes_on


@attrs.define
class NameServers:
    by_address: dict[str, Any]

    def invoke_sync(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        said = self.by_address[address]
        if isinstance(said, Exception):
            raise said
        return succeed(RemotingCommand(0, body=said))


def registered(*said: Any) -> Sequence[str] | None:
    by_address = {f"10.0.0.{n}:9876": each for n, each in enumerate(said, 1)}
    asked = registered_slaves(cast(Any, NameServers(by_address)), list(by_address), "B")
    found: Sequence[str] | None = now(Deferred.fromCoroutine(asked))
    return found


def test_the_first_name_server_that_answers_says_which_slaves_there_are() -> None:
    known = {"B": BrokerData("B", "C", {0: "10.0.0.1:1", 1: A, 2: FAR}), "other": BrokerData("other", "C", {1: B})}
    body = ClusterInfo(known).to_json()
    assert registered(Unreachable("gone"), body, Unreachable("not asked")) == [A, FAR]
    assert registered(ClusterInfo({}).to_json()) == []
    many = {f"broker-{number}": BrokerData(f"broker-{number}", "C", {0: "10.0.0.1:1", 1: B}) for number in range(2_000)}
    assert registered(ClusterInfo(known | many).to_json()) == [A, FAR]


@pytest.mark.parametrize("said", [Unreachable("gone"), b"", b"[]", b'{"brokerAddrTable": 7}', b"\xff"])
def test_a_name_server_that_says_nothing_of_use_is_told(said: Any) -> None:
    with pytest.raises(NotCompared, match="does not say where its broker can be asked"):
        registered(said)


# --- a slave that ends within a record, as those of the Java system may


@attrs.define
class Slave:
    """A slave's broker with a part of a log, and what it was sent behind that."""

    data: bytes

    def invoke_sync(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(len(self.data))}
            return succeed(RemotingCommand(0, body=KVTable(table).to_json()))
        at = int(command.ext_fields["offset"])
        size = int.from_bytes(self.data[at : at + 4], "big")
        if at + size > len(self.data) or not size:
            return succeed(RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="can not find message by the offset"))
        return succeed(RemotingCommand(0, body=self.data[at : at + size]))


def follow_within(had: bytes, log: Log = LOG, more: int = 0) -> None:
    """A slave that ended with `had` has `more` bytes of the log, too."""
    now_has = had + log.data[len(had) : len(had) + more]

    async def registered() -> Sequence[str]:
        return [A]

    made = SlaveCheck(log, cast(Any, Slave(now_has)), Clock(), registered)
    found = now(Deferred.fromCoroutine(made.check_ending(len(had), None, is_proven=False)))
    asking = made.ask("10.0.0.2", found, len(had), lambda: len(now_has), lambda: len(now_has))
    now(Deferred.fromCoroutine(asking))


@pytest.mark.parametrize("cut", [AT + 1, AT + 9, END - 1, AT - 1, 3])
def test_one_that_ends_within_a_record_counts_once_it_has_the_rest(cut: int) -> None:
    stop = AT if cut < AT else END
    for more in (0, stop - cut - 1):
        with pytest.raises(NotCompared, match="it ends within the message at") as caught:
            follow_within(LOG.data[:cut], more=more)
        assert caught.value.goes_on
    follow_within(LOG.data[:cut], more=END - cut)


def test_one_that_ends_within_a_filler_counts_once_it_has_the_rest() -> None:
    log, offsets = make_log([b"x" * 200_000, b"y" * 100_000])
    assert offsets[1] == SEGMENT
    with pytest.raises(NotCompared, match="it ends within"):
        follow_within(log.data[: SEGMENT - 7], log)
    follow_within(log.data[: SEGMENT - 7], log, more=20)


def test_one_that_has_another_record_there_is_refused() -> None:
    log, _ = make_log([b"a", b"longer than that"])
    with pytest.raises(BadPeer, match=f"differ at {AT}"):
        follow_within(LOG.data, log)
    broken = bytearray(log.data[: AT + 60])
    broken[AT + 20] ^= 1
    with pytest.raises(NotCompared):
        follow_within(bytes(broken), log)
    with pytest.raises(BadPeer, match=f"differ at {AT}"):
        follow_within(bytes(broken), log, more=len(log.data))


# --- by what a slave that knows the secret has told


def check_ending(offset: int, last: Last | None, *, is_proven: bool = True) -> Ending | None:
    made, brokers = check({})
    found: Ending | None = now(Deferred.fromCoroutine(made.check_ending(offset, last, is_proven=is_proven)))
    assert brokers.asked == []
    return found


def test_what_a_proven_slave_has_told_is_compared_at_once() -> None:
    assert check_ending(END, Last.of((AT, RECORD))) is None
    assert check_ending(END, None, is_proven=False) == ENDING
    for last in (None, Last.of((AT, RECORD + b"x")), Last.of((0, LOG.data[:AT])), Last(AT, bytes(32))):
        with pytest.raises(BadPeer, match=f"differ at {AT}"):
            check_ending(END, last)


def test_a_proven_slave_that_ends_where_no_record_does_is_refused() -> None:
    for offset in (1, AT - 1, AT + 1, END - 1):
        with pytest.raises(BadPeer, match="where no record of this one does"):
            check_ending(offset, Last.of((0, LOG.data[:AT])))
