"""A producer beside a broker that answers wrongly, in pieces, late, twice or not at all, and loses connections: from a
seed. Each send ends once, with a result or an error of ours; nothing is left behind."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mqbroker.client import Message, ProducerOptions, SendResult
from mqbroker.client.deferred import Producer
from mqbroker.errors import MQError
from mqbroker.wire.bodies import BrokerData, QueueData, TopicRouteData
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command

SEEDS = 25
STEPS = 60
ROUTE = TopicRouteData(None, [QueueData("a", 4, 4, 6)], [BrokerData("a", "c", {0: "10.0.0.2:10911"})]).to_json()
#: In so many of a thousand responses.
LEFT_OUT, REFUSED, SPOILT, CUT_SHORT, TWICE, REQUEST_BEFORE, GARBAGE_BEFORE = 20, 40, 10, 3, 20, 20, 2


class Line:
    """A connection, whose other end is the broker."""

    def __init__(self, rng: Random, clock: Any) -> None:
        self._rng, self._clock = rng, clock
        self._asked = FrameDecoder()
        self.protocol: Any = None
        self.producer: Any = None
        self.written = b""
        self.why_closed: Exception | None = None

    # the transport

    def write(self, data: bytes) -> None:
        self.written += data

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def loseConnection(self) -> None:
        self.why_closed = self.why_closed or ConnectionDone()

    def abortConnection(self) -> None:
        self.why_closed = self.why_closed or ConnectionLost()

    # the broker

    def turn(self) -> None:
        asked, self.written = self.written, b""
        answers = b"".join([self._answer(decode_command(*frame)) for frame in self._asked.feed(asked)])
        while answers and not self.why_closed:
            size = self._rng.choice((1, 7, 100, len(answers)))
            self.protocol.dataReceived(answers[:size])
            answers = answers[size:]
        chance = self._rng.randrange(1000)
        if chance < 15:
            self.abortConnection()
        elif chance < 50 and self.producer is not None:
            self.producer.pauseProducing()
            self._clock.callLater(self._rng.choice((0, 0.1)), self._read_on)
            self.producer, self._paused = None, self.producer

    def _read_on(self) -> None:
        if not self.why_closed:
            self.producer = self._paused
            self.producer.resumeProducing()

    def _answer(self, request: RemotingCommand) -> bytes:
        rng, response = self._rng, RemotingCommand.response(request)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            response = RemotingCommand.response(request, body=ROUTE)
        elif request.code == RequestCode.SEND_MESSAGE_V2:
            queue_id = rng.choice(("0", "3", "99", "-1", "x")) if self._may(SPOILT) else "0"
            response = attrs.evolve(response, ext_fields={"msgId": "0A", "queueId": queue_id, "queueOffset": "99"})
            if self._may(REFUSED):
                response = RemotingCommand.response(request, rng.choice((1, 2, 10, 11, 14, 99999, -1)), "no")
        frame = encode_command(response)
        if self._may(SPOILT):
            place = rng.randrange(len(frame))
            frame = frame[:place] + rng.randbytes(1) + frame[place + 1 :]
        if self._may(CUT_SHORT):
            frame = frame[: rng.randrange(len(frame))]
        if self._may(TWICE):
            frame += frame
        if self._may(REQUEST_BEFORE):
            frame = encode_command(RemotingCommand(rng.choice((40, 307, 220, 1)), {"group": "g"})) + frame
        if self._may(GARBAGE_BEFORE):
            frame = rng.randbytes(rng.randrange(200)) + frame
        return b"" if self._may(LEFT_OUT) else frame

    def _may(self, per_mille: int) -> bool:
        return self._rng.randrange(1000) < per_mille


class Brokers:
    """Makes endpoints; all addresses are the same broker."""

    def __init__(self, rng: Random, clock: Any) -> None:
        self._rng, self._clock = rng, clock
        self.lines: list[Line] = []

    def __call__(self, host: str, port: int) -> Any:
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        made: Deferred[Any] = Deferred()

        def connected() -> None:
            line = Line(self._rng, self._clock)
            line.protocol = factory.buildProtocol(None)
            self.lines.append(line)
            line.protocol.makeConnection(line)
            made.callback(line.protocol)

        self._clock.callLater(self._rng.choice((0, 0.001, 0.2)), connected)
        return made

    def close_what_is_closed(self) -> None:
        for line in [line for line in self.lines if line.why_closed]:
            self.lines.remove(line)
            line.protocol.connectionLost(Failure(line.why_closed))


def play(seed: int) -> int:
    """Check one run; returns how many sends had a result."""
    rng, clock = Random(seed), Clock()
    time: Any = clock
    brokers = Brokers(rng, time)
    options = ProducerOptions(send_timeout_s=0.5, sends_in_flight_max=rng.choice((2, 100, 1000)))
    producer = Producer(time, "10.0.0.1:9876", "g", options=options, connector=brokers, rng=rng)
    producer.start()
    found: list[Any] = []
    sent = 0
    for _ in range(STEPS):
        for _ in range(rng.choice((0, 0, 1, 3, 40))):
            message = Message("T", b"x" * rng.choice((1, 10, 5000)), tags=rng.choice((None, "a", "é")))
            sending = producer.send(message).addBoth(found.append)
            sent += 1
            if rng.random() < 0.05:
                time.callLater(rng.choice((0, 0.01)), sending.cancel)
        for line in list(brokers.lines):
            line.turn()
        brokers.close_what_is_closed()
        time.advance(rng.choice((0, 0.001, 0.02, 0.04)))
    closed: list[Any] = []
    producer.close().addBoth(closed.append)
    for _ in range(200):
        brokers.close_what_is_closed()
        time.advance(0.04)
    assert closed == [None]
    assert len(found) == sent
    errors = [each.value for each in found if isinstance(each, Failure)]
    assert all(isinstance(error, MQError | CancelledError) for error in errors), errors
    results = [each for each in found if not isinstance(each, Failure)]
    assert all(isinstance(result, SendResult) for result in results)
    in_flight = producer._core.sends._in_flight
    assert in_flight is not None
    assert (in_flight._count, in_flight._bytes) == (0, 0)
    assert not time.getDelayedCalls()
    return len(results)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_send_ends_once_and_nothing_is_left(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    play(seed)
    assert "of the client failed" not in caplog.text


def test_many_of_them_have_a_result() -> None:
    assert sum(play(seed) for seed in (0, 5, 11)) > 500
