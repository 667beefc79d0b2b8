"""Reads of many sockets in one call, and writes to many: what comes, what is refused, and that nothing crashes."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from mqbroker.kernel import Peer, Socket, compiled
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


def socket_of(fd: Any, protocol: object = None, *, is_free: bool = True, is_reading: bool = True) -> Socket:
    made = Socket()
    made.descriptor, made.protocol, made.is_free, made.is_reading = fd, protocol, is_free, is_reading
    return made


def peer_of(socket: Socket | None = None, *, may_take_plain: bool = True, address: object = "here") -> Peer:
    made = Peer()
    made.socket, made.may_take_plain, made.from_address, made.last_active = socket, may_take_plain, address, 1.0
    return made


def receive_from(receiver: Any, fds: Any) -> list[bytes | int]:
    """What was read of each, or the number of its error, 0 at its end."""
    sockets = [socket_of(fd) for fd in fds]
    count, reads, readers, sizes, others = receiver.receive(sockets, 5.0)
    assert (reads, readers, sizes) == ([], [], {})
    assert [socket for socket, _ in others] == sockets[:count]
    return [data for _, data in others]


def receive(*sockets: socket.socket) -> list[bytes | int]:
    return receive_from(compiled.Receiver(), [each.fileno() for each in sockets])


def send_each(fds: Any, pieces: Any) -> list[int]:
    """How much each took."""
    peers = [peer_of(socket_of(fd)) for fd in fds]
    left = {id(peer): data for peer, data, is_rest in compiled.send_each(peers, pieces) if is_rest}
    rests = [left.get(id(peer), b"") for peer in peers]
    for data, rest in zip(pieces, rests, strict=True):
        assert data.endswith(rest)
    return [len(data) - len(rest) for data, rest in zip(pieces, rests, strict=True)]


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
    [first] = receive_from(receiver, [pair[0].fileno()])
    pair[1].send(b"other")
    assert receive_from(receiver, [pair[0].fileno()]) == [b"other"]
    assert first == b"first"


def test_a_socket_without_bytes_says_so(pair: Pair) -> None:
    pair[0].setblocking(True)  # it is not waited for all the same
    assert receive(pair[0]) == [errno.EAGAIN]


def test_of_a_peer_that_closed_the_last_bytes_come_and_then_no_more(pair: Pair) -> None:
    pair[1].send(b"last")
    pair[1].close()
    assert [receive(pair[0]) for _ in range(3)] == [[b"last"], [0], [0]]


def test_a_reset_connection_gives_its_error(pair: Pair) -> None:
    pair[0].send(b"unread")
    pair[1].close()
    assert receive(pair[0]) == [errno.ECONNRESET]


def test_a_bad_descriptor_gives_its_error_and_the_others_are_read(pair: Pair) -> None:
    pair[1].send(b"good")
    read_end, write_end = os.pipe()  # no socket
    fds = [-1, closed_fd(), read_end, 2**31 - 1, -(2**31), pair[0].fileno(), -1]
    bad = errno.EBADF
    assert receive_from(compiled.Receiver(), fds) == [bad, bad, errno.ENOTSOCK, bad, bad, b"good", bad]
    os.close(read_end)
    os.close(write_end)


def test_no_sockets_are_no_reads() -> None:
    assert compiled.Receiver().receive([], 5.0) == (0, [], [], {}, [])


def test_reads_of_peers_that_may_are_apart_and_counted_by_address(make_pair: Callable[[], Pair]) -> None:
    peers: list[Any] = [
        peer_of(),
        peer_of(may_take_plain=False),
        peer_of(address="there"),
        peer_of(),
        object(),
        None,
        peer_of(address="there"),
        peer_of(address=None),
    ]
    sockets = []
    for number, peer in enumerate(peers):
        ours, theirs = make_pair()
        theirs.send(b"x" * 10 * (number + 1))
        sockets.append(socket_of(ours.fileno(), peer))
    count, reads, readers, sizes, others = compiled.Receiver().receive(sockets, 5.0)
    assert count == 8
    assert reads == [(b"x" * 10 * (number + 1), 0, peers[number]) for number in (0, 2, 3, 6, 7)]
    assert readers == [sockets[number] for number in (0, 2, 3, 6, 7)]
    assert sizes == {"here": 50, "there": 100, None: 80}
    assert others == [(sockets[number], b"x" * 10 * (number + 1)) for number in (1, 4, 5)]
    assert [peer.last_active for peer in peers if isinstance(peer, Peer)] == [5.0, 1.0, 5.0, 5.0, 5.0, 5.0]


def test_one_that_is_not_to_be_read_keeps_its_bytes(make_pair: Callable[[], Pair]) -> None:
    (paused, paused_peer), (ours, theirs) = make_pair(), make_pair()
    paused_peer.send(b"kept")
    theirs.send(b"data")
    sockets = [socket_of(paused.fileno(), is_reading=False), socket_of(ours.fileno())]
    assert compiled.Receiver().receive(sockets, 5.0) == (2, [], [], {}, [(sockets[1], b"data")])
    assert read(paused) == b"kept"


def test_one_socket_does_not_use_up_the_buffer(pair: Pair) -> None:
    total = fill(pair[1])
    [first] = receive(pair[0])
    assert len(cast(bytes, first)) == min(total, READ_BYTES)


def test_it_stops_when_the_buffer_is_used_up(make_pair: Callable[[], Pair]) -> None:
    pairs = [make_pair() for _ in range(8)]
    left = [fill(theirs) for _, theirs in pairs]
    assert sum(left) > READS_BYTES
    receiver = compiled.Receiver()
    while pairs:
        found = receive_from(receiver, [ours.fileno() for ours, _ in pairs])
        sizes = [len(cast(bytes, data)) for data in found]
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
        receive_from(compiled.Receiver(), [wide])
    with pytest.raises(OverflowError):
        send_each([wide], [b"data"])
    assert receive(pair[0]) == [b"data"]


@pytest.mark.parametrize("wrong", [None, "1", b"1", [], object()], ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_number_is_no_descriptor(wrong: Any) -> None:
    with pytest.raises(TypeError):
        receive_from(compiled.Receiver(), [wrong])
    with pytest.raises(TypeError):
        send_each([wrong], [b"data"])


@pytest.mark.parametrize("wrong", [None, (), {}, 5, "ab", iter([])], ids=lambda wrong: type(wrong).__name__)
def test_sockets_come_in_a_list(wrong: Any) -> None:
    with pytest.raises(TypeError):
        compiled.Receiver().receive(wrong, 5.0)
    with pytest.raises(TypeError):
        compiled.send_each([], wrong)
    with pytest.raises(TypeError):
        compiled.send_each(wrong, [])
    with pytest.raises(TypeError):
        compiled.share_reads(wrong, {})


@pytest.mark.parametrize("wrong", [None, 5, object(), Peer()], ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_socket_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        compiled.Receiver().receive([wrong], 5.0)
    if wrong is not None:  # a peer without a socket
        with pytest.raises(TypeError):
            compiled.send_each([peer_of(wrong)], [b"data"])


@pytest.mark.parametrize("wrong", [None, 5, object(), Socket()], ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_peer_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        compiled.send_each([wrong], [b"data"])


# --- send_each


def test_each_socket_gets_its_bytes(make_pair: Callable[[], Pair]) -> None:
    pairs = [make_pair() for _ in range(5)]
    pieces = [b"0", b"11", b"", b"333", b"4" * 10_000]
    assert send_each([ours.fileno() for ours, _ in pairs], pieces) == [1, 2, 0, 3, 10_000]
    assert [read(theirs) for _, theirs in pairs] == pieces


def test_one_socket_may_be_there_twice(pair: Pair) -> None:
    assert send_each([pair[0].fileno()] * 2, [b"first ", b"second"]) == [6, 6]
    assert read(pair[1]) == b"first second"


def test_a_peer_that_never_reads_gets_what_its_socket_holds(make_pair: Callable[[], Pair]) -> None:
    (slow, slow_peer), (quick, quick_peer) = make_pair(), make_pair()
    slow.setblocking(True)  # it is not waited for all the same
    data = bytes(range(256)) * 100_000
    sent: list[int] = []
    while not sent or sent[-1]:
        rest = data[sum(sent) :]
        took, others = send_each([slow.fileno(), quick.fileno()], [rest, b"x"])
        assert (others, read(quick_peer)) == (1, b"x")
        sent.append(took)
    assert 0 < sum(sent) < len(data)
    assert read(slow_peer) == data[: sum(sent)]


def test_a_bad_descriptor_takes_nothing_and_the_others_are_sent_to(pair: Pair) -> None:
    read_end, write_end = os.pipe()  # no socket
    fds = [-1, closed_fd(), write_end, 2**31 - 1, pair[0].fileno(), -(2**31)]
    assert send_each(fds, [b"data"] * 6) == [0, 0, 0, 0, 4, 0]
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
        assert send_each([ours.fileno(), other.fileno()], [b"to nobody", b"data"]) == [0, 4]
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert signals == []
    assert read(other_peer) == b"data"


@pytest.mark.parametrize(("sockets", "pieces"), [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_unequal_lengths_are_refused_and_nothing_is_sent(pair: Pair, sockets: int, pieces: int) -> None:
    with pytest.raises(ValueError, match=f"{pieces} pieces for {sockets} peers"):
        send_each([pair[0].fileno()] * sockets, [b"data"] * pieces)
    assert read(pair[1]) == b""


@pytest.mark.parametrize(
    "wrong",
    [None, "data", 5, bytearray(b"data"), memoryview(b"data"), [b"data"]],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_is_not_bytes_is_refused_and_nothing_is_sent(pair: Pair, wrong: Any) -> None:
    with pytest.raises(TypeError):
        send_each([pair[0].fileno()] * 2, [b"data", wrong])
    assert read(pair[1]) == b""


def test_nothing_for_nobody_is_sent() -> None:
    assert send_each([], []) == []


def test_what_may_not_be_sent_directly_is_left_whole(pair: Pair) -> None:
    fd = pair[0].fileno()
    busy, closed, free = peer_of(socket_of(fd, is_free=False)), peer_of(None), peer_of(socket_of(fd))
    left = compiled.send_each([busy, closed, free, busy, closed], [b"1", b"2", b"3", b"", b""])
    assert left == [(busy, b"1", False), (closed, b"2", False)]
    assert read(pair[1]) == b"3"


# --- share_reads, unfinished


def test_those_that_are_only_to_be_read_are_found_by_what_reads_them() -> None:
    selectables: dict[int, Any] = {fd: socket_of(fd) for fd in range(1, 6)} | {6: object()}
    for fd, reads in ((1, "a"), (2, "b"), (3, "a"), (4, "a")):
        selectables[fd].shared_reads = reads
    ready = [(fd, select.EPOLLIN) for fd in (1, 2, 3, 5, 6, 7)] + [(4, select.EPOLLIN | select.EPOLLHUP)]
    together, others = compiled.share_reads(ready, selectables)
    assert together == {"a": [selectables[1], selectables[3]], "b": [selectables[2]]}
    assert others == ready[3:]
    assert compiled.share_reads([], selectables) == ({}, [])


@pytest.mark.parametrize("wrong", [None, [1, 1], (1,), (1, 1, 1), 5])
def test_what_is_no_event_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        compiled.share_reads([wrong], {})


def test_fields_are_those_of_python() -> None:
    """Of a `Socket` and a `Peer`, with the compiled module and without it."""
    code = """
from mqbroker.kernel import Peer, Socket
print(*[getattr(Socket(), name) for name in ("descriptor", "is_free", "is_reading", "shared_reads", "protocol")])
print(*[getattr(Peer(), name) for name in ("socket", "may_take_plain", "last_active", "from_address")])
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "MQBROKER_KERNEL": kernel}, capture_output=True, check=True
        ).stdout
        for kernel in ("", "off")
    ]
    assert outputs[0] == outputs[1] == b"-1 True False None None\nNone False 0.0 None\n"


def serve(pairs: Any, takes: Any, rounds: int = 9, *, are_free: bool = True) -> tuple[Any, Any, Any, Any]:
    """What is left, what `take` was given, what was left to be sent and what was settled; `takes`: what it returns."""
    peers = [peer_of(socket_of(ours.fileno(), is_free=are_free)) for ours, _ in pairs]
    reads: list[Any] = [(b"%d-request" % number, number, peer) for number, peer in enumerate(peers)]
    given: list[Any] = []
    unsent: list[Any] = []
    settled: list[Any] = []
    returned = iter(takes)

    def take(found: Any) -> Any:
        given.append([(data, at, peers.index(peer)) for data, at, peer in found])
        return next(returned, None)

    def settle(taken: Any, those: Any) -> None:
        settled.append((taken, [peers.index(peer) for peer in those]))

    left = compiled.serve_plain(reads, take, rounds, unsent.extend, settle)
    return (
        [(number, data, at, peers.index(peer)) for number, (data, at, peer) in left],
        given,
        [(peers.index(peer), data, is_rest) for peer, data, is_rest in unsent],
        settled,
    )


def test_requests_are_served_round_by_round(make_pair: Callable[[], Pair]) -> None:
    pairs = [make_pair() for _ in range(3)]
    takes = [([(4, 1), (9, 2), (2, 0)], [b"first", b"all", b""]), ([(9, 1), (3, 1)], [b"second", b"once"])]
    left, given, unsent, settled = serve(pairs, takes)
    assert left == [(2, b"2-request", 3, 2)]
    first = [(b"0-request", 0, 0), (b"1-request", 1, 1), (b"2-request", 2, 2)]
    assert given == [first, [(b"0-request", 4, 0), (b"2-request", 2, 2)], [(b"2-request", 3, 2)]]
    assert (unsent, settled) == ([], [])
    assert [read(theirs) for _, theirs in pairs] == [b"firstsecond", b"all", b"once"]


def test_requests_are_served_in_so_many_rounds(pair: Pair) -> None:
    takes = [([(at, 1)], [b"x"]) for at in range(1, 9)]
    assert serve([pair], takes, 2)[0] == [(0, b"0-request", 2, 0)]
    assert read(pair[1]) == b"xx"
    for rounds in (0, -1):
        left, given, *_ = serve([pair], takes, rounds)
        assert (left, given) == ([(0, b"0-request", 0, 0)], [])
    assert compiled.serve_plain([], None, 2, None, None) == []


def test_responses_that_cannot_be_sent_now_are_left_to_others(pair: Pair) -> None:
    later = ([(9, 1)], "a Deferred")
    assert serve([pair], [later])[1:] == ([[(b"0-request", 0, 0)]], [], [(later, [0])])
    assert serve([pair], [([(9, 1)], [b"wait"])], are_free=False)[2] == [(0, b"wait", False)]


@pytest.mark.parametrize(
    "taken", [(), ([],), ([], []), ([(9, 1)] * 2, [b""]), ([(9, 1)], []), ([9], [b""]), ([(9, 1)], ["text"]), 7]
)
def test_handlers_that_return_anything_else_are_noticed(pair: Pair, taken: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        serve([pair], [taken])


@pytest.mark.parametrize("wrong", [None, (), (b"data", 0), (b"data",), ("text", 0, None)])
def test_reads_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        compiled.serve_plain([wrong], lambda reads: ([(9, 1)], [b""]), 1, None, None)


@pytest.fixture
def epoll() -> Iterator[select.epoll]:
    with select.epoll() as made:
        yield made


def test_what_is_ready_is_found_by_a_poll_that_repeats(make_pair: Callable[[], Pair], epoll: select.epoll) -> None:
    pairs = [make_pair() for _ in range(100)]
    for near, _ in pairs:
        epoll.register(near, select.EPOLLIN | select.EPOLLOUT)
    pairs[7][1].send(b"x")
    found: dict[int, int] = {}
    for _ in range(2):  # those that were found go behind those that were not yet
        ready = compiled.poll_until(epoll.fileno(), time.monotonic() + 20, 1000)
        assert len(ready) == 64
        found.update(ready)
    is_writable = dict.fromkeys([near.fileno() for near, _ in pairs], select.EPOLLOUT)
    assert found == {**is_writable, pairs[7][0].fileno(): select.EPOLLIN | select.EPOLLOUT}
    assert len(compiled.poll_until(epoll.fileno(), time.monotonic() + 20, 3)) == 3


def test_a_poll_that_repeats_waits_for_what_comes_and_lets_other_threads_run(pair: Pair, epoll: select.epoll) -> None:
    epoll.register(pair[0], select.EPOLLIN)
    began = threading.Event()

    def send() -> None:
        began.wait()
        pair[1].send(b"x")

    sender = threading.Thread(target=send)
    sender.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # the other thread runs only where this one gives way
    try:
        began.set()
        assert compiled.poll_until(epoll.fileno(), time.monotonic() + 20, 10) == [(pair[0].fileno(), select.EPOLLIN)]
    finally:
        sys.setswitchinterval(interval)
        sender.join()


def test_a_poll_that_repeats_ends_in_time(pair: Pair, epoll: select.epoll) -> None:
    epoll.register(pair[0], select.EPOLLIN)
    for until in (time.monotonic() + 1e-4, 0.0, -1.0, -float("inf"), float("nan")):
        assert compiled.poll_until(epoll.fileno(), until, 10) == []


def test_a_poll_that_repeats_leaves_what_fails_to_the_next(pair: Pair, epoll: select.epoll) -> None:
    assert compiled.poll_until(closed_fd(), time.monotonic() + 20, 10) == []
    assert compiled.poll_until(pair[0].fileno(), time.monotonic() + 20, 10) == []
    for most in (0, -1, -(1 << 31)):
        assert compiled.poll_until(epoll.fileno(), time.monotonic() + 20, most) == []
