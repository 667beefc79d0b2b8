"""Proofs that both ends of a link know one secret: right ones, recorded ones, another's, and bytes that are none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from struct import unpack

import pytest
from hypothesis import given

from mqbroker.errors import MQError
from mqbroker.ha.link import GREETING, REPORT, BadPeer
from mqbroker.ha.link_secret import Keys, Last, LinkSecret, MasterProof, SlaveProof, read_secret
from tests.numbers import numbers

SECRET = b"of both ends, of 32 random bytes"
LAST = Last(7000, bytes(range(32)))
_seeds = count()


def random_bytes(size: int) -> bytes:
    return (b"%032d" % next(_seeds))[:size]


def keys(secret: bytes = SECRET, names: bytes = b"C\0B\0") -> Keys:
    return Keys(secret, names, random_bytes)


def master(made: Keys | None = None, *, is_needed: bool = True) -> MasterProof:
    made = made or keys()
    return MasterProof(lambda: made, is_needed=is_needed)


def meet(near: SlaveProof, far: MasterProof) -> tuple[bytes, bytes]:
    """Exchange the proofs; returns the master's answer and the slave's last message."""
    answer, _ = far.receive(near.hello(), 1000, 9000)
    last = near.receive(answer)
    assert far.receive(last, 1000, 9000) == (b"", b"")
    return answer, last


@pytest.mark.parametrize("last", [LAST, None])
def test_both_ends_prove_that_they_know_the_secret(last: Last | None) -> None:
    near, far = SlaveProof(keys(), last), master()
    meet(near, far)
    assert (far.is_proven, far.is_over, far.last, near.bounds) == (True, True, last, (1000, 9000))
    assert far.receive(REPORT.pack(7000), 0, 0) == (b"", REPORT.pack(7000))


def test_messages_may_come_byte_by_byte() -> None:
    near, far = SlaveProof(keys(), LAST), master()
    answer = b"".join(far.receive(bytes([byte]), 1000, 9000)[0] for byte in near.hello())
    last = b"".join(near.receive(bytes([byte])) for byte in answer)
    rest = b"".join(far.receive(bytes([byte]), 1000, 9000)[1] for byte in last + REPORT.pack(5))
    assert (far.is_proven, rest) == (True, REPORT.pack(5))


def test_recorded_messages_of_a_slave_are_worth_nothing() -> None:
    near, far = SlaveProof(keys(), LAST), master()
    _, last = meet(near, far)
    later = master()
    later.receive(near.hello(), 1000, 9000)
    with pytest.raises(BadPeer, match="it knows another secret, or repeats a proof of another link"):
        later.receive(last, 1000, 9000)
    assert not later.is_proven


def test_a_recorded_answer_of_a_master_is_worth_nothing() -> None:
    near, far = SlaveProof(keys(), LAST), master()
    answer, _ = meet(near, far)
    later = SlaveProof(keys(), LAST)
    with pytest.raises(BadPeer, match="the master knows another secret, or repeats a proof of another link"):
        later.receive(answer)


def test_a_master_cannot_be_answered_with_its_own_proof() -> None:
    near, far = SlaveProof(keys(), LAST), master()
    answer, _ = far.receive(near.hello(), 1000, 9000)
    with pytest.raises(BadPeer, match="it knows another secret, or repeats a proof of another link"):
        far.receive(near.hello()[:8] + REPORT.pack(1000) + answer[12:44] + answer[-32:], 1000, 9000)


@pytest.mark.parametrize("other", [keys(b"another secret of 32 random bytes"), keys(names=b"C\0other\0")])
def test_another_secret_or_another_brokers_is_refused_by_both_ends(other: Keys) -> None:
    near, far = SlaveProof(other, LAST), master()
    answer, _ = far.receive(near.hello(), 1000, 9000)
    with pytest.raises(BadPeer, match="brokerClusterName and brokerName"):
        near.receive(answer)
    with pytest.raises(BadPeer, match="brokerClusterName and brokerName"):
        far.receive(near.hello()[:8] + bytes(72), 1000, 9000)


@pytest.mark.parametrize(
    "first", [REPORT.pack(0), REPORT.pack(5000), REPORT.pack(GREETING) + bytes(32), REPORT.pack(-1), b"GET / HTTP/1.1"]
)
def test_a_slave_that_proves_nothing_is_refused_where_it_must(first: bytes) -> None:
    far = master()
    with pytest.raises(BadPeer, match="does not prove that it knows the secret of this broker"):
        far.receive(first, 0, 9000)
    assert not far.is_over
    exempt = master(is_needed=False)
    assert exempt.receive(first, 0, 9000) == (b"", first)
    assert not exempt.is_proven


def test_one_that_need_not_prove_it_cannot_stop_half_way() -> None:
    far = master(is_needed=False)
    far.receive(SlaveProof(keys(), LAST).hello(), 0, 9000)
    with pytest.raises(BadPeer, match="does not prove"):
        far.receive(REPORT.pack(9000), 0, 9000)


def test_a_slave_with_a_secret_is_told_that_its_master_has_none() -> None:
    with pytest.raises(BadPeer, match="this broker has none: set it here, too"):
        MasterProof(None, is_needed=False).receive(SlaveProof(keys(), LAST).hello(), 0, 9000)


def test_a_slave_does_not_go_on_before_it_was_answered() -> None:
    with pytest.raises(BadPeer, match="before it was answered"):
        master().receive(SlaveProof(keys(), LAST).hello() + bytes(8), 0, 9000)


@pytest.mark.parametrize("data", [REPORT.pack(0) + bytes(4), REPORT.pack(GREETING), b"\x00"])
def test_a_master_that_proves_nothing_is_left(data: bytes) -> None:
    with pytest.raises(BadPeer, match="the master does not prove that it knows the secret"):
        SlaveProof(keys(), LAST).receive(data)


def test_a_master_sends_nothing_behind_its_proof_before_it_has_the_slaves() -> None:
    near = SlaveProof(keys(), LAST)
    answer, _ = master().receive(near.hello(), 1000, 9000)
    with pytest.raises(BadPeer, match="continued before"):
        near.receive(answer + bytes(12))


@given(numbers(8, 79), numbers(1, 255))
def test_each_byte_of_a_slaves_message_is_checked(at: int, change: int) -> None:
    near, far = SlaveProof(keys(), LAST), master()
    answer, _ = far.receive(near.hello(), 1000, 9000)
    last = bytearray(near.receive(answer))
    last[at] ^= change
    with pytest.raises(BadPeer):
        far.receive(bytes(last), 1000, 9000)
    assert not far.is_proven


@given(numbers(0, 91), numbers(1, 255))
def test_each_byte_of_a_masters_answer_is_checked(at: int, change: int) -> None:
    near, far = SlaveProof(keys(), LAST), master()
    answer = bytearray(far.receive(near.hello(), 1000, 9000)[0])
    answer[at] ^= change
    with pytest.raises(BadPeer):
        near.receive(bytes(answer))
    assert near.bounds is None


@given(numbers(-(2**63), 2**63 - 1), numbers(-(2**63), 2**63 - 1))
def test_bounds_of_a_log_that_cannot_be_are_refused(begin: int, end: int) -> None:
    near, far = SlaveProof(keys(), LAST), master()
    answer, _ = far.receive(near.hello(), begin, end)
    if 0 <= begin <= end:
        assert near.receive(answer)
    else:
        with pytest.raises(BadPeer, match="continued before"):
            near.receive(answer)


@given(numbers(-(2**63), -2))
def test_an_offset_of_a_last_record_that_cannot_be_is_refused(offset: int) -> None:
    near, far = SlaveProof(keys(), Last(offset, bytes(32))), master()
    answer, _ = far.receive(near.hello(), 0, 9000)
    with pytest.raises(BadPeer, match="its last record is at"):
        far.receive(near.receive(answer), 0, 9000)


def test_to_a_java_master_it_begins_with_offsets_that_confirm_nothing() -> None:
    for _ in range(20):
        assert all(number < 0 for number in unpack(">5q", SlaveProof(keys(), LAST).hello()))


def test_the_secret_is_the_first_line_of_a_file_and_may_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789abcdef\r\nmore\n")
    assert read_secret(str(path)) == b"0123456789abcdef"
    path.write_bytes(b"fedcba9876543210")
    assert read_secret(str(path)) == b"fedcba9876543210"
    assert b"fedcba" not in repr(LinkSecret(str(path), "C", "B", random_bytes).keys()).encode()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"\nthe second line is long enough"), "16 bytes at least; `openssl rand"),
        (lambda path: path.write_bytes(b"  fifteen bytes.\n"), "16 bytes at least"),
    ],
)
def test_a_file_without_a_secret_is_refused(tmp_path: Path, make: Callable[[Path], object], says: str) -> None:
    path = tmp_path / "secret"
    make(path)
    with pytest.raises(MQError, match=f"^haSecretFile: {path}: .*{says}"):
        LinkSecret(str(path), "C", "B", random_bytes).keys()
