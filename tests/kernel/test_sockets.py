"""Reads of many sockets in one call, and writes to many: what comes, what is refused, and that nothing crashes."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqbroker.kernel import compiled
from tests.remoting.test_tcp import read

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

READ_BYTES = 1 << 18  # of one socket at a time
READS_BYTES = 1 << 19  # of all in one call

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def make_pair() -> Iterator[Callable[[], Pair]]:
    made: list[socket.socket] = []

    def make() -> Pair:
        pair = socket.socketpair()
        for each in pair:
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        made.extend(pair)
        return pair

    yield make
    for each in made:
        each.close()


@pytest.fixture
def pair(make_pair: Callable[[], Pair]) -> Pair:
    return make_pair()


def closed_fd() -> int:
    """The number of no open file, until the next is opened."""
    fd = os.dup(0)
    os.close(fd)
    return fd


def receive(*sockets: socket.socket) -> list[bytes | None]:
    return compiled.Receiver().receive([each.fileno() for each in sockets])


def fill(full: socket.socket) -> int:
    """Send until the socket takes no more."""
    sent = 0
    while True:
        try:
            sent += full.send(bytes(READ_BYTES))
        except BlockingIOError:
            return sent


# --- receive


def test_each_socket_is_read_once_and_in_order(make_pair: Callable[[], Pair]) -> None:
    pairs = [make_pair() for _ in range(5)]
    for number, (_, theirs) in enumerate(pairs):
        theirs.send(b"%d" % number * (number + 1))
    assert receive(*[ours for ours, _ in pairs]) == [b"0", b"11", b"222", b"3333", b"44444"]
    assert receive(*[ours for ours, _ in pairs]) == [errno.EAGAIN] * 5


def test_what_is_read_does_not_change_with_the_next_read(pair: Pair) -> None:
    receiver = compiled.Receiver()
    pair[1].send(b"first")
    [first] = receiver.receive([pair[0].fileno()])
    pair[1].send(b"other")
    assert receiver.receive([pair[0].fileno()]) == [b"other"]
    assert first == b"first"


def test_a_socket_without_bytes_says_so(pair: Pair) -> None:
    pair[0].setblocking(True)  # it is not waited for all the same
    assert receive(pair[0]) == [errno.EAGAIN]


def test_of_a_peer_that_closed_the_last_bytes_come_and_then_no_more(pair: Pair) -> None:
    pair[1].send(b"last")
    pair[1].close()
    assert [receive(pair[0]) for _ in range(3)] == [[b"last"], [b""], [b""]]


def test_a_reset_connection_gives_its_error(pair: Pair) -> None:
    pair[0].send(b"unread")
    pair[1].close()
    assert receive(pair[0]) == [errno.ECONNRESET]


def test_a_bad_descriptor_gives_its_error_and_the_others_are_read(pair: Pair) -> None:
    pair[1].send(b"good")
    read_end, write_end = os.pipe()  # no socket
    fds = [-1, closed_fd(), read_end, 2**31 - 1, -(2**31), pair[0].fileno(), -1]
    bad = errno.EBADF
    assert compiled.Receiver().receive(fds) == [bad, bad, errno.ENOTSOCK, bad, bad, b"good", bad]
    os.close(read_end)
    os.close(write_end)


def test_no_sockets_are_no_reads() -> None:
    assert compiled.Receiver().receive([]) == []


def test_one_socket_does_not_use_up_the_buffer(pair: Pair) -> None:
    total = fill(pair[1])
    [first] = receive(pair[0])
    assert len(first) == min(total, READ_BYTES)


def test_it_stops_when_the_buffer_is_used_up(make_pair: Callable[[], Pair]) -> None:
    pairs = [make_pair() for _ in range(8)]
    left = [fill(theirs) for _, theirs in pairs]
    assert sum(left) > READS_BYTES
    receiver = compiled.Receiver()
    while pairs:
        found = receiver.receive([ours.fileno() for ours, _ in pairs])
        sizes = [len(data or b"") for data in found]
        assert sizes == [min(size, READ_BYTES) for size in left[: len(found)]]
        assert sum(sizes[:-1]) <= READS_BYTES - READ_BYTES
        assert len(found) == len(pairs) or sum(sizes) > READS_BYTES - READ_BYTES
        left = [size - got for size, got in zip(left, sizes, strict=False)] + left[len(found) :]
        pairs = [pair for pair, size in zip(pairs, left, strict=True) if size]
        left = [size for size in left if size]


def test_sockets_with_few_bytes_are_read_behind_many(make_pair: Callable[[], Pair]) -> None:
    """The buffer is shared by bytes, not by sockets."""
    pairs = [make_pair() for _ in range(100)]
    for _, theirs in pairs:
        theirs.send(bytes(1000))
    assert receive(*[ours for ours, _ in pairs]) == [bytes(1000)] * 100


WIDE = [2**31, -(2**31) - 1, 2**32, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 2**64 - 1]


@pytest.mark.parametrize("wide", WIDE)
def test_a_number_too_large_for_a_descriptor_is_refused(wide: int, pair: Pair) -> None:
    pair[1].send(b"data")
    with pytest.raises(OverflowError):
        compiled.Receiver().receive([wide])
    with pytest.raises(OverflowError):
        compiled.send_each([wide], [b"data"])
    assert receive(pair[0]) == [b"data"]


@pytest.mark.parametrize("wrong", [None, "1", b"1", [], object()], ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_number_is_no_descriptor(wrong: Any) -> None:
    with pytest.raises(TypeError):
        compiled.Receiver().receive([wrong])
    with pytest.raises(TypeError):
        compiled.send_each([wrong], [b"data"])


@pytest.mark.parametrize("wrong", [None, (), {}, 5, "ab", iter([])], ids=lambda wrong: type(wrong).__name__)
def test_descriptors_come_in_a_list(wrong: Any) -> None:
    with pytest.raises(TypeError):
        compiled.Receiver().receive(wrong)
    with pytest.raises(TypeError):
        compiled.send_each(wrong, [])
    with pytest.raises(TypeError):
        compiled.send_each([], wrong)


# --- send_each


def test_each_socket_gets_its_bytes(make_pair: Callable[[], Pair]) -> None:
    pairs = [make_pair() for _ in range(5)]
    pieces = [b"0", b"11", b"", b"333", b"4" * 10_000]
    assert compiled.send_each([ours.fileno() for ours, _ in pairs], pieces) == [1, 2, 0, 3, 10_000]
    assert [read(theirs) for _, theirs in pairs] == pieces


def test_one_socket_may_be_there_twice(pair: Pair) -> None:
    assert compiled.send_each([pair[0].fileno()] * 2, [b"first ", b"second"]) == [6, 6]
    assert read(pair[1]) == b"first second"


def test_a_peer_that_never_reads_gets_what_its_socket_holds(make_pair: Callable[[], Pair]) -> None:
    (slow, slow_peer), (quick, quick_peer) = make_pair(), make_pair()
    slow.setblocking(True)  # it is not waited for all the same
    data = bytes(range(256)) * 100_000
    sent: list[int] = []
    while not sent or sent[-1]:
        rest = data[sum(sent) :]
        took, others = compiled.send_each([slow.fileno(), quick.fileno()], [rest, b"x"])
        assert (others, read(quick_peer)) == (1, b"x")
        sent.append(took)
    assert 0 < sum(sent) < len(data)
    assert read(slow_peer) == data[: sum(sent)]


def test_a_bad_descriptor_takes_nothing_and_the_others_are_sent_to(pair: Pair) -> None:
    read_end, write_end = os.pipe()  # no socket
    fds = [-1, closed_fd(), write_end, 2**31 - 1, pair[0].fileno(), -(2**31)]
    assert compiled.send_each(fds, [b"data"] * 6) == [0, 0, 0, 0, 4, 0]
    assert read(pair[1]) == b"data"
    os.close(write_end)
    assert os.read(read_end, 10) == b""
    os.close(read_end)


def test_a_peer_that_closed_takes_nothing_and_sends_no_signal(make_pair: Callable[[], Pair]) -> None:
    (ours, theirs), (other, other_peer) = make_pair(), make_pair()
    theirs.close()
    signals: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, _: signals.append(number))
    try:
        assert compiled.send_each([ours.fileno(), other.fileno()], [b"to nobody", b"data"]) == [0, 4]
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert signals == []
    assert read(other_peer) == b"data"


@pytest.mark.parametrize(("sockets", "pieces"), [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_unequal_lengths_are_refused_and_nothing_is_sent(pair: Pair, sockets: int, pieces: int) -> None:
    with pytest.raises(ValueError, match=f"{pieces} pieces for {sockets} sockets"):
        compiled.send_each([pair[0].fileno()] * sockets, [b"data"] * pieces)
    assert read(pair[1]) == b""


@pytest.mark.parametrize(
    "wrong",
    [None, "data", 5, bytearray(b"data"), memoryview(b"data"), [b"data"]],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_is_not_bytes_is_refused_and_nothing_is_sent(pair: Pair, wrong: Any) -> None:
    with pytest.raises(TypeError):
        compiled.send_each([pair[0].fileno()] * 2, [b"data", wrong])
    assert read(pair[1]) == b""


def test_nothing_for_nobody_is_sent() -> None:
    assert compiled.send_each([], []) == []
