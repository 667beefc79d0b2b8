"""Both ends of the replication link, against each other, the recorded link of Java, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.ha.link import (
    COMMITTED,
    GREETING,
    HEADER,
    PIECE_BYTES_MAX,
    PROOF_BYTES,
    REPORT,
    Answer,
    BadPeer,
    Greeting,
    MasterLink,
    SlaveLink,
    encode_confirmation,
)
from tests.numbers import numbers

GOLDEN = Path(__file__).parents[3] / "shared/golden"
SEGMENT = 1024


def master(first_report: int = 0, log_min: int = 0, log_end: int = 0) -> MasterLink:
    link = MasterLink(SEGMENT, 100)
    link.receive(REPORT.pack(first_report), log_min, log_end)
    return link


def test_nothing_is_sent_before_the_first_report() -> None:
    link = MasterLink(SEGMENT, 100)
    assert link.next_piece(5000) is None
    assert link.receive(REPORT.pack(0)[:7], 0, 5000) is False
    assert link.next_piece(5000) is None
    assert link.receive(REPORT.pack(0)[7:], 0, 5000)
    assert link.next_piece(5000) == (4096, 100)


@pytest.mark.parametrize(
    ("reported", "log_min", "log_end", "start"),
    [
        (0, 0, 0, 0),
        (0, 0, 1023, 0),
        (0, 0, 1024, 1024),
        (0, 2048, 2100, 2048),
        (700, 0, 2100, 700),
        (2100, 0, 2100, 2100),
    ],
)
def test_where_a_slave_is_sent_the_log_from(reported: int, log_min: int, log_end: int, start: int) -> None:
    link = master(reported, log_min, log_end)
    assert (link.sent, link.acknowledged) == (start, reported)


@pytest.mark.parametrize(
    ("reported", "says"),
    [
        (-1, "the offset -1"),
        (5001, "it has what this master never had"),
        (2**63 - 1, "never had"),
        (999, "was deleted here: stop it, move its store's directory aside .keep it., and start it again"),
    ],
)
def test_a_slave_with_another_log_is_refused(reported: int, says: str) -> None:
    with pytest.raises(BadPeer, match=says):
        master(reported, 1024, 5000)


def test_pieces_end_at_the_segment_and_at_the_log() -> None:
    link = master(950, 0, 2000)
    sizes = []
    while (piece := link.next_piece(1100)) is not None:
        assert link.header(piece[1]) == HEADER.pack(*piece)
        sizes.append(piece[1])
    assert sizes == [74, 76]
    assert link.header(0) == HEADER.pack(1100, 0)
    assert link.sent == 1100


@pytest.mark.parametrize("reported", [-1, 999, 1101, 2**63 - 1])
def test_only_what_was_sent_can_be_acknowledged_and_nothing_taken_back(reported: int) -> None:
    link = master(1000, 0, 1200)
    link.header(100)
    with pytest.raises(BadPeer, match="it reports the offset"):
        link.receive(REPORT.pack(reported), 0, 1200)
    assert link.acknowledged == 1000


@pytest.mark.parametrize(
    ("begin", "end", "is_confirmed"), [(4000, 4100, True), (4000, 4101, False), (3999, 4100, False), (4099, 4100, True)]
)
def test_what_was_sent_and_acknowledged_is_confirmed(begin: int, end: int, is_confirmed: bool) -> None:
    link = MasterLink(SEGMENT, 1000)
    assert not link.confirms(begin, end)
    link.receive(REPORT.pack(4000), 0, 5000)
    link.header(200)
    assert not link.confirms(begin, end)
    link.receive(REPORT.pack(4100), 0, 5000)
    assert link.confirms(begin, end) == is_confirmed


def test_reports_may_repeat_and_come_in_any_pieces() -> None:
    link = master(1000, 0, 1200)
    link.header(100)
    data = b"".join(REPORT.pack(offset) for offset in (1000, 1050, 1050, 1100))
    grown = [link.receive(data[at : at + 1], 0, 1200) for at in range(len(data))]
    assert (link.acknowledged, sum(grown)) == (1100, 2)


@given(numbers(0, 5000), numbers(1, 300), st.data())
def test_a_slave_has_what_its_master_has(log_end: int, chunk: int, data: st.DataObject) -> None:
    log = bytes(n % 251 for n in range(log_end))
    at = data.draw(st.integers(0, log_end))
    sender, receiver = MasterLink(SEGMENT, 100), SlaveLink()
    sender.receive(REPORT.pack(at), 0, log_end)
    copy = bytearray(log[: max(at, sender.sent or 0)])
    stream = bytearray()
    while (piece := sender.next_piece(log_end)) is not None:
        stream += sender.header(piece[1]) + log[piece[0] : piece[0] + piece[1]]
    for first in range(0, len(stream), chunk):
        for offset, found in receiver.receive(bytes(stream[first : first + chunk])):
            assert offset == len(copy)
            copy += found
        sender.receive(REPORT.pack(len(copy)), 0, log_end)
    assert copy == log
    assert sender.acknowledged == (len(copy) if stream else at)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(1000, -1), (1000, PIECE_BYTES_MAX + 1), (1000, -(2**31)), (-1, 1), (-(2**63), 0)],
)
def test_a_slave_takes_nothing_that_is_no_piece(offset: int, size: int) -> None:
    with pytest.raises(BadPeer, match="the master announces"):
        list(SlaveLink().receive(HEADER.pack(offset, size)))


def test_a_heartbeat_is_an_empty_piece() -> None:
    assert list(SlaveLink().receive(HEADER.pack(7, 0) + HEADER.pack(2048, 3) + b"abc")) == [(7, b""), (2048, b"abc")]


@pytest.mark.skipif(not GOLDEN.exists(), reason="no recorded link here")
def test_the_recorded_link_of_java() -> None:
    """Its first bytes each way, as recorded: a slave reports where its log ends after each piece."""
    reports = [REPORT.pack(0)]
    stream = (GOLDEN / "ha-master-to-slave.bin").read_bytes()
    log = bytearray()
    link = SlaveLink()
    for offset, piece in link.receive(stream):
        if not piece:
            continue
        assert offset == len(log)
        log += piece
        reports.append(REPORT.pack(len(log)))
    if link._missing:  # of the last piece not all was recorded, and no report
        reports.pop()
    recorded = (GOLDEN / "ha-slave-to-master.bin").read_bytes()
    assert len(reports) > 2
    assert recorded.startswith(b"".join(reports))
    sender = MasterLink(2**30, 32 * 1024)
    sender.receive(recorded[:8], 0, 2**30)
    sent = bytearray()
    sender.sent = 0
    while len(sent) + 32 * 1024 < len(stream) and (found := sender.next_piece(len(log))) is not None:
        sent += sender.header(found[1]) + log[found[0] : found[0] + found[1]]
    begun = stream.index(HEADER.pack(0, 32 * 1024))
    assert stream[begun:].startswith(bytes(sent))


GROUP = Greeting(b"groupABC", 7, 2)
PROOF = bytes(range(PROOF_BYTES))
CONFIRMATION = encode_confirmation(PROOF)


@given(numbers(1, 150))
def test_a_replica_greets_is_answered_confirms_and_then_reports(step: int) -> None:
    near, far = MasterLink(SEGMENT, 100), SlaveLink()
    far.is_greeting = True
    data = GROUP.encode()
    for at in range(0, len(data), step):
        assert near.receive(data[at : at + step], 1024, 5000) is False
    assert near.greeting == GROUP
    assert near.next_piece(5000) is None
    answer = near.answer(b"history", PROOF)
    found = [piece for at in range(0, 19, step) for piece in far.receive(answer[at : min(19, at + step)])]
    assert found == [(GREETING, b"history")]
    data = CONFIRMATION + REPORT.pack(0)
    grown = [near.receive(data[at : at + step], 1024, 5000) for at in range(0, len(data), step)]
    assert near.is_proven
    assert grown == [False] * (len(grown) - 1) + [True]
    assert near.next_piece(5000) == (1024, 100)  # the whole log, not its last segment
    assert list(far.receive(near.header(3) + b"abc")) == [(1024, b"abc")]


def test_an_answer_that_comes_byte_by_byte_is_looked_at_once() -> None:
    link = SlaveLink()
    link.is_greeting = True
    answer = HEADER.pack(GREETING, 100_000) + bytes(100_000)
    assert [piece for byte in answer[:-1] for piece in link.receive(bytes([byte]))] == []
    assert link._wanted == len(answer)
    assert list(link.receive(answer[-1:] + HEADER.pack(7, 1)[:5])) == [(GREETING, bytes(100_000))]
    assert list(link.receive(HEADER.pack(7, 1)[5:] + b"x")) == [(7, b"x")]


def test_a_greeting_comes_first_and_once() -> None:
    link = master(0, 0, 5000)
    with pytest.raises(BadPeer, match="the offset -5"):
        link.receive(GROUP.encode(), 0, 5000)
    link = MasterLink(SEGMENT, 100)
    link.receive(GROUP.encode(), 0, 5000)
    with pytest.raises(BadPeer, match="before its greeting was answered"):
        link.receive(GROUP.encode(), 0, 5000)
    link, _ = answered()
    with pytest.raises(BadPeer, match="the offset -5"):
        link.receive(GROUP.encode(), 0, 5000)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode_confirmation(PROOF[::-1]), id="of another connection"),
        pytest.param(encode_confirmation(bytes(PROOF_BYTES)), id="none"),
        pytest.param(GROUP.encode(), id="the greeting again"),
        pytest.param(REPORT.pack(0), id="a report"),
        pytest.param(REPORT.pack(5000), id="all of the log"),
        pytest.param(b"\x00", id="a byte"),
        pytest.param(bytes(100_000), id="much"),
    ],
)
def test_a_replica_that_does_not_confirm_its_greeting_never_counts(data: bytes) -> None:
    link = MasterLink(SEGMENT, 100)
    link.receive(GROUP.encode(), 0, 5000)
    link.answer(b"history", PROOF)
    with pytest.raises(BadPeer, match="it says that it is broker 2, and its greeting was recorded on another"):
        link.receive(data, 0, 5000)
    assert (link.is_proven, link.sent, link.acknowledged, link.confirms(0, 0)) == (False, None, 0, False)


@pytest.mark.parametrize("size", [0, 1, 8, 9, 39])
def test_a_confirmation_that_is_cut_short_is_awaited(size: int) -> None:
    link = MasterLink(SEGMENT, 100)
    link.receive(GROUP.encode(), 0, 5000)
    link.answer(b"history", PROOF)
    assert not link.receive(CONFIRMATION[:size], 0, 5000)
    assert (link.is_proven, link.sent, link.commit_point(900)) == (False, None, b"")
    link.receive(CONFIRMATION[size:], 0, 5000)
    assert (link.is_proven, link.sent) == (True, None)


def test_a_greeting_of_an_older_version_is_refused_at_once() -> None:
    with pytest.raises(BadPeer, match="older version of mqbroker: all brokers of a group need the same"):
        MasterLink(SEGMENT, 100).receive(REPORT.pack(-2), 0, 5000)


@pytest.mark.parametrize("header", [HEADER.pack(GREETING, -1), HEADER.pack(0, 1), HEADER.pack(GREETING, 1 << 30)])
def test_what_is_no_answer_to_a_greeting(header: bytes) -> None:
    link = SlaveLink()
    link.is_greeting = True
    with pytest.raises(BadPeer):
        list(link.receive(header))
    plain = SlaveLink()
    with pytest.raises(BadPeer):
        list(plain.receive(HEADER.pack(GREETING, 0)))


def test_a_greeting_is_proven_by_the_nonce_of_its_member() -> None:
    greeting = GROUP.proven("nonce of 2")
    assert greeting.is_proven("nonce of 2")
    assert not greeting.is_proven("nonce of 3")
    assert not greeting.is_proven("")
    assert not GROUP.is_proven("nonce of 2")
    assert not attrs.evolve(greeting, replica_id=3).is_proven("nonce of 2")
    assert not attrs.evolve(greeting, epoch=8).is_proven("nonce of 2")
    assert not attrs.evolve(greeting, is_whole=False).is_proven("nonce of 2")
    assert not attrs.evolve(greeting, challenge=bytes([1]) + bytes(31)).is_proven("nonce of 2")


ANSWER = Answer(b"c" * 32, b"history").proven("nonce of 1", GROUP)


def test_an_answer_is_proven_by_the_masters_nonce_for_one_greeting() -> None:
    assert Answer.decode(ANSWER.encode()) == ANSWER
    assert ANSWER.is_proven("nonce of 1", GROUP)
    assert not ANSWER.is_proven("nonce of 2", GROUP)
    assert not ANSWER.is_proven("", GROUP)
    assert not Answer(b"c" * 32, b"history").proven("", GROUP).is_proven("", GROUP)
    assert not ANSWER.is_proven("nonce of 1", attrs.evolve(GROUP, challenge=bytes([1]) + bytes(31)))


@given(numbers(0, 70), numbers(1, 255))
def test_each_byte_of_an_answer_is_proven(at: int, change: int) -> None:
    data = bytearray(ANSWER.encode())
    data[at] ^= change
    assert not Answer.decode(bytes(data)).is_proven("nonce of 1", GROUP)


@given(numbers(0, 70))
def test_an_answer_that_is_cut_short_or_goes_on_proves_nothing(size: int) -> None:
    assert not Answer.decode(ANSWER.encode()[:size]).is_proven("nonce of 1", GROUP)
    assert not Answer.decode(ANSWER.encode() + bytes(size + 1)).is_proven("nonce of 1", GROUP)


def test_a_confirmation_is_for_one_connection_and_no_other_proof_of_it() -> None:
    greeting = GROUP.proven("nonce of 2")
    proof = ANSWER.confirmation("nonce of 2", greeting)
    again = attrs.evolve(ANSWER, challenge=b"d" * 32).proven("nonce of 1", GROUP)
    others = [
        again.confirmation("nonce of 2", greeting),
        ANSWER.confirmation("nonce of 2", attrs.evolve(greeting, challenge=b"d" * 32)),
        ANSWER.confirmation("nonce of 1", greeting),
        ANSWER.proven("nonce of 2", greeting).proof,
        greeting.proof,
    ]
    assert proof not in others


def answered() -> tuple[MasterLink, SlaveLink]:
    near, far = MasterLink(SEGMENT, 100), SlaveLink()
    far.is_greeting = True
    near.receive(GROUP.encode(), 0, 5000)
    assert list(far.receive(near.answer(b"history", PROOF))) == [(GREETING, b"history")]
    near.receive(CONFIRMATION, 0, 5000)
    return near, far


def test_the_commit_point_is_told_once_it_has_moved_and_after_the_first_report() -> None:
    near, far = answered()
    assert near.commit_point(900) == b""
    near.receive(REPORT.pack(1000), 0, 5000)
    told = near.commit_point(900)
    assert list(far.receive(told)) == [(COMMITTED, REPORT.pack(900))]
    assert near.commit_point(900) == b""
    assert near.commit_point(901)
    java = master(1000, 0, 5000)
    assert java.commit_point(900) == b"", "Java's slaves do not understand it"


@pytest.mark.parametrize("data", [HEADER.pack(COMMITTED, 8) + bytes(8), HEADER.pack(COMMITTED, 0)])
def test_a_commit_point_comes_after_a_greeting_and_has_its_size(data: bytes) -> None:
    with pytest.raises(BadPeer, match="announces"):
        list(SlaveLink().receive(data))
    _, far = answered()
    with pytest.raises(BadPeer, match="announces"):
        list(far.receive(HEADER.pack(COMMITTED, 9)))


@pytest.mark.parametrize("change", [{"is_whole": 2}, {"committed": -1}])
def test_a_greeting_of_no_version_that_is_known_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadPeer, match="another version"):
        MasterLink(SEGMENT, 100).receive(attrs.evolve(GROUP, **change).encode(), 0, 5000)
