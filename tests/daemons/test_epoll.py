"""The reactor of the console scripts: what it does in its turns, on real sockets, in a process of its own."""

import select
import subprocess
import sys

import pytest

from mqbroker.kernel import compiled

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")

BEGIN = """
import socket
from twisted.internet.protocol import Factory, Protocol
from mqbroker.daemons.process import install_reactor
from mqbroker.kernel import Socket
install_reactor()
from twisted.internet import reactor


class Reader(Socket):
    '''Reads from one end of a socket pair, to whose other end `feed` writes.'''

    def __init__(self, read):
        self.near, self.far = socket.socketpair()
        self.read = read
        self.lost = None
        reactor.addReader(self)

    def feed(self):
        self.far.send(b"x")

    def fileno(self):
        return self.near.fileno()

    def doRead(self):
        self.near.recv(1)
        return self.read(self)

    def connectionLost(self, reason):
        self.lost = reason.type.__name__
        self.near.close()

    def logPrefix(self):
        return "reader"


"""


def run(code: str, complaint: str = "") -> list[str]:
    """What a script prints that begins with Reader; `complaint` is all that goes wrong."""
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert bool(done.stderr) == bool(complaint)
    assert complaint in done.stderr
    return done.stdout.splitlines()


def test_timed_calls_are_made_while_there_is_always_something_to_read() -> None:
    code = """
endless = Reader(lambda self: self.feed())
endless.feed()
reactor.callLater(0.01, print, "a timed call")
reactor.callLater(0.02, reactor.stop)
reactor.run()
"""
    assert run(code) == ["a timed call"]


@pytest.mark.parametrize("way", ["callLater(0, reactor.stop)", "callFromThread(reactor.stop)"])
def test_what_a_read_leaves_for_later_comes_before_the_next_wait(way: str) -> None:
    assert run(f"Reader(lambda self: reactor.{way} and None).feed()\nreactor.run()\nprint('ended')") == ["ended"]


def test_a_reader_that_stops_the_reactor_ends_it() -> None:
    assert run("Reader(lambda self: reactor.stop()).feed()\nreactor.run()\nprint('ended')") == ["ended"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_that_come_at_once_stop_it_once(name: str) -> None:
    code = f"""
import os, signal

def interrupt():
    for _ in range(3):
        os.kill(os.getpid(), signal.{name})

stopping = []
reactor.addSystemEventTrigger("before", "shutdown", stopping.append, True)
reactor.addSystemEventTrigger("before", "shutdown", interrupt)
reactor.callLater(0, interrupt)
reactor.run()
print(stopping, signal.Signals(reactor._exitSignal).name)
"""
    assert run(code) == [f"[True] {name}"]


def test_a_signal_that_comes_while_a_line_is_written_is_logged_after_it() -> None:
    code = """
import os, signal
from twisted.logger import Logger, globalLogPublisher

def observe(event):
    global is_writing
    if event.get("log_format") == "a line":
        is_writing = True
        os.kill(os.getpid(), signal.SIGTERM)
        is_writing = False
    elif "shutting down" in (event.get("log_format") or ""):
        print(event["name"], "within another" if is_writing else "after it")

is_writing = False
globalLogPublisher.addObserver(observe)
reactor.callLater(0, Logger().info, "a line")
reactor.run()
"""
    assert run(code) == ["SIGTERM after it"]


def test_a_reader_that_fails_is_closed_and_the_others_go_on() -> None:
    code = """
def fail(self):
    raise ValueError("a mistake")

bad = Reader(fail)
good = Reader(lambda self: (print(bad.lost, bad in reactor.getReaders()), reactor.stop()) and None)
bad.feed()
reactor.callLater(0.01, good.feed)
reactor.run()
"""
    assert run(code, "ValueError: a mistake") == ["ValueError False"]


def test_a_reader_that_says_why_it_ends_is_told_so() -> None:
    code = """
from twisted.internet.main import CONNECTION_DONE

def end(self):
    reactor.callLater(0, reactor.stop)
    return CONNECTION_DONE

reader = Reader(end)
reader.feed()
reactor.run()
print(reader.lost)
"""
    assert run(code) == ["ConnectionDone"]


def test_a_reader_closed_by_one_before_it_is_not_read() -> None:
    code = """
def read(self):
    for reader in readers:
        if reader is not self:
            reactor.removeReader(reader)
    print("read")
    reactor.callLater(0, reactor.stop)

readers = [Reader(read), Reader(read)]
for reader in readers:
    reader.feed()
reactor.run()
"""
    assert run(code) == ["read"]


def test_the_beginning_of_a_turn_is_known_where_one_waits_for_another() -> None:
    code = """
turns = []

def read(self):
    turns.append(reactor.turn_began <= reactor.seconds())
    if len(turns) == 2:
        reactor.callLater(0, alone.feed)
    if len(turns) == 3:
        reactor.stop()

readers = [Reader(read), Reader(read)]
alone = Reader(read)
for reader in readers:
    reader.feed()
reactor.run()
print(turns)
"""
    assert run(code) == ["[True, True, False]"]


SHARED = """
from mqbroker.daemons import epoll

calls = []


class Shared:
    '''Reads for the readers that are handed over.'''

    def read(self, ready):
        for reader in ready:
            reader.near.recv(1)
        note(sorted(readers.index(reader) for reader in ready))


def note(call):
    calls.append(call)
    if len(calls) == turns:
        reactor.stop()


def alone(self):
    note(readers.index(self))
"""


needs_compiled = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")


@needs_compiled
def test_what_is_expected_is_polled_for_by_the_compiled_module() -> None:
    code = """
import os
from mqbroker.daemons import epoll
from mqbroker.kernel import compiled

polled = []

class Recording:
    def poll_until(self, descriptor, until, most):
        polled.append(descriptor)
        reader.feed()
        return compiled.poll_until(descriptor, until, most)

epoll.compiled = Recording()
os.sched_getaffinity = lambda pid: {0, 1}
own = epoll.BusyPollReactor()
reader = Reader(None)
own.addReader(reader)
own.expect(20)
print(own._wait(None, 10) == [(reader.fileno(), 1)], polled == [own._poller.fileno()])
"""
    assert run(code) == ["True True"]


@needs_compiled
def test_those_that_share_reads_are_read_by_one_call() -> None:
    code = """
turns = 6
readers = [Reader(alone) for _ in range(7)]
for some in (readers[:3], readers[4:6]):
    shared = Shared()
    for reader in some:
        reader.shared_reads = shared
for reader in readers[:6]:
    reader.feed()

def feed_one():
    readers[0].feed()
    reactor.callLater(0.01, lambda: (readers[1].feed(), readers[6].feed()))

reactor.callLater(0.01, feed_one)
reactor.run()
print(sorted(calls[:2]), *calls[2:])
"""
    assert run(SHARED + code) == ["[[0, 1, 2], [4, 5]] 3 [0] [1] 6"]


@needs_compiled
def test_events_that_a_turn_does_not_handle_come_first_in_the_next() -> None:
    code = """
epoll.READY_MAX = 40
turns = 5
readers = [Reader(alone) for _ in range(100)]
shared = Shared()

def feed():
    for reader in readers:  # the first ones have more in each turn
        reader.feed()
    if len(calls) < turns:
        reactor.callLater(0, feed)

for reader in readers:
    reader.shared_reads = shared
feed()
reactor.run()
print([len(call) for call in calls])
print(all({*calls[n], *calls[n + 1], *calls[n + 2]} == set(range(100)) for n in (0, 2)))
"""
    assert run(SHARED + code) == ["[40, 40, 40, 40, 40]", "True"]


CONNECTIONS = """
from mqbroker.daemons.epoll import ENDS_MAX

COUNT = 4 * ENDS_MAX
events = []


class Ends(Protocol):
    '''Notes its end; once all are there, their peers close them together.'''

    def connectionMade(self):
        made.append(self)
        if len(made) == COUNT:
            reactor.callLater(0, close)

    def connectionLost(self, reason):
        events.append(self)
        ended(self)


def close():
    for peer in peers:
        peer.close()
    endless.feed()


def read(self):
    events.append("read")
    if len(events) - events.count("read") < COUNT:
        self.feed()
    elif reactor.running:
        reactor.stop()


def others_wait():
    '''Whether the first of the second turn was just told of its end.'''
    return len(set(events) - {"read"}) == ENDS_MAX + 1


def longest():
    '''How many ended in a row, with nothing read between.'''
    return max(map(len, "".join("r" if event == "read" else "e" for event in events).split("r")))


made = []
endless = Reader(read)
port = reactor.listenTCP(0, Factory.forProtocol(Ends), backlog=COUNT, interface="127.0.0.1")
peers = [socket.create_connection(port.socket.getsockname()) for _ in range(COUNT)]
"""


def test_connections_that_end_at_once_are_told_a_few_in_each_turn_and_once() -> None:
    code = """
def ended(one):
    if others_wait():
        for self in made:
            self.transport.write(b"x")  # nobody reads it

reactor.run()
print(longest() <= ENDS_MAX, len(set(events)) - 1 == len(events) - events.count("read") == COUNT)
"""
    assert run(CONNECTIONS + code) == ["True True"]


def test_what_is_done_with_connections_that_wait_to_be_told_of_their_end_does_not_end_them_twice() -> None:
    code = """
def ended(one):
    for number, self in enumerate(made if others_wait() else ()):
        transport = self.transport
        act = transport.abortConnection, transport.loseConnection, transport.resumeProducing
        if self not in events:
            act[number % 3]()

reactor.run()
print(len(set(events)) - 1 == len(events) - events.count("read") == COUNT)
"""
    assert run(CONNECTIONS + code) == ["True"]


def test_connections_that_wait_to_be_told_of_their_end_are_told_where_the_reactor_stops() -> None:
    code = """
def ended(one):
    if others_wait():
        reactor.callLater(0, reactor.stop)

reactor.run()
ends = [event for event in events if event != "read"]
print(len(ends) == len(set(ends)) == COUNT)
"""
    assert run(CONNECTIONS + code) == ["True"]


@needs_compiled
def test_peers_that_reset_while_their_responses_wait_cost_no_line() -> None:
    """The reactor finds the sockets ready for both: the read ends the connection, and nothing is written after it."""
    code = """
import struct
from mqbroker.remoting.tcp import listen

events = []


class Waits(Protocol):
    def connectionMade(self):
        made.append(self)
        self.transport.write(bytes(16 << 20))  # nobody reads it
        if len(made) == len(peers):
            reactor.callLater(0, reset)

    def connectionLost(self, reason):
        events.append(reason.type.__name__)
        if len(events) == len(peers):
            reactor.stop()


class Together(Factory):
    protocol = Waits

    def take_together(self, reads, sizes, now):
        return list(enumerate(reads))

    def in_time(self, protocols):
        return [True] * len(protocols)


def reset():
    for peer in peers:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()


made = []
port = listen(reactor, 0, Together(), interface="127.0.0.1")
peers = [socket.create_connection(port.socket.getsockname()) for _ in range(3)]
reactor.run()
print(*events)
"""
    assert run(code) == ["ConnectionLost ConnectionLost ConnectionLost"]
