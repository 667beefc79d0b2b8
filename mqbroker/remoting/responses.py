"""Sending the responses to requests that were handled together: of one connection, or of several that were read in one
turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.python.failure import Failure

from mqbroker.kernel import compiled
from mqbroker.remoting.failures import failures
from mqbroker.remoting.handlers import Taken

if TYPE_CHECKING:
    from mqbroker.remoting.connection import RemotingProtocol


def settle(taken: Taken, connections: list[RemotingProtocol]) -> None:
    """Send the responses over the connections when they are there: until then the requests are in flight."""
    for connection, (_, count) in zip(connections, taken.reads, strict=True):
        connection.begin_requests(count)

    def finish(found: list[bytes]) -> None:
        try:
            write_each(connections, found)
        finally:
            for connection, (_, count) in zip(connections, taken.reads, strict=True):
                connection.end_requests(count)

    def fail(failure: Failure) -> None:
        requests = [taken.asked(number) for number in range(len(connections))]
        finish([failures(those, failure.value) if those else b"" for those in requests])

    taken.answers.addCallbacks(finish, fail)


def write_each(connections: list[RemotingProtocol], answers: list[bytes]) -> None:
    """Write to each connection its bytes, whole frames, without waiting for the reactor's next turn where the sockets
    take them."""
    if compiled is None:
        left = [(connection, data, False) for connection, data in zip(connections, answers, strict=True) if data]
    else:
        left = compiled.send_each(connections, answers)
    write_left(left)


def write_left(left: list[tuple[RemotingProtocol, bytes, bool]]) -> None:
    """Write what is left to be sent: connection, bytes, and whether its socket did not take them."""
    for connection, data, is_rest in left:
        if is_rest:
            connection.write_rest(data)
        else:
            connection.write(data)
