"""Consumers with offsets of their own: each pulls from whoever name servers call the master, goes on where the answer
says, and remembers what it has read and where."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import encode_header
from mqbroker.wire.record import decode_records
from tests.broker.bench import pull_header
from tests.broker.service.group import PORT, Client, Group
from tests.store.simulation.model import require

#: A consumer waits so long for an answer, seconds.
ANSWER_S = 5.0
#: Asks the broker to hold a pull that finds nothing, and that has a subscription.
HELD, NOT_HELD = 6, 4


class Readers:
    """All consumers of the group's queue. With `is_strict` what they read stays: as brokers promise that serve only
    what is confirmed."""

    def __init__(self, group: Group, count: int, *, is_strict: bool) -> None:
        self.is_strict = is_strict
        #: What stands at each offset of the queue, as readers have seen it.
        self.placed: dict[int, bytes] = {}
        self.readers = [Reader(group, f"R{number}", self) for number in range(count)]

    def read(self, rng: Random, flags: Sequence[int] = (HELD, NOT_HELD)) -> bool:
        """Let each of them ask once."""
        return sum(reader.ask(rng, rng.choice(flags)) for reader in self.readers) > 0

    def look(self) -> None:
        """Take answers."""
        for reader in self.readers:
            reader.hear()

    def note(self, offset: int, body: bytes, name: str) -> None:
        was = self.placed.setdefault(offset, body)
        if self.is_strict:
            what = f"{offset} was {was[:8]!r}, and is {body[:8]!r} for {name}"
            require(was == body, "what a consumer has read stays at its place", what)
        self.placed[offset] = body

    def forget(self) -> None:
        """Nothing is promised any more of what was read."""
        self.placed.clear()


class Reader:
    """One consumer, which begins at the beginning of the queue."""

    def __init__(self, group: Group, name: str, readers: Readers) -> None:
        self._group, self._name, self._readers = group, name, readers
        self.offset = 0
        #: All that it ever got.
        self.bodies: set[bytes] = set()
        self._address = ""
        self._clients: dict[str, Client] = {}
        #: Whom it has asked, with which opaque, and when.
        self._asked: tuple[Client, int, float] | None = None

    def ask(self, rng: Random, flags: int) -> bool:
        """Pull, unless an answer is awaited; returns whether that was done."""
        if self._asked is not None:
            client, _, at = self._asked
            if not client.link.lost and self._group.now - at < ANSWER_S:
                return False
        self._asked = None
        table = rng.choice(self._group.broker_tables())
        self._address = table["broker-a"].broker_addrs.get(0, self._address) if "broker-a" in table else self._address
        client_of = self._clients.get(self._address)
        if client_of is None or client_of.link.lost or client_of.peer.lost:
            host, _, port = self._address.partition(":")
            [replica] = [each for each in self._group.replicas.values() if each.host == host] or [None]
            if replica is None or port != str(PORT) or self._address not in self._group.wires.servers:
                return False
            client_of = self._clients[self._address] = self._group.client(replica)
        header = pull_header(
            consumer_group=self._name,
            queue_offset=self.offset,
            sys_flag=flags,
            suspend_timeout_millis=3_000,
        )
        command = RemotingCommand(RequestCode.PULL_MESSAGE, encode_header(header))
        client_of.tell(command)
        self._asked = client_of, command.opaque, self._group.now
        return True

    def hear(self) -> None:
        if self._asked is None:
            return
        client, opaque, _ = self._asked
        for answer in client.heard():
            if answer.opaque == opaque:
                self._asked = None
                self._take(answer)

    def _take(self, answer: RemotingCommand) -> None:
        known = {
            *(ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY),
            *(ResponseCode.PULL_OFFSET_MOVED,),
        }
        if answer.code not in known:
            return  # it asks again
        if answer.code == ResponseCode.SUCCESS:
            for record in decode_records(answer.body):
                self._readers.note(record.queue_offset, record.body, self._name)
                self.bodies.add(record.body)
        self.offset = int(answer.ext_fields["nextBeginOffset"])
