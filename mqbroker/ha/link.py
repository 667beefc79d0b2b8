"""The replication link, without I/O: the bytes that master and slave exchange, and the state of each end.

    slave to master    offset  8   the end of the slave's log
    master to slave    offset  8 | size  4 | data      the log's bytes from the offset on; a heartbeat has size 0

Brokers of a group begin with a greeting, which Java's neither send nor understand:

    slave to master    -5  8 | digest of the group's name  8 | epoch  8 | brokerId  8 | commit point  8 | whole  8 |
                       challenge  32 | proof  32
    master to slave    -5  8 | size  4 | challenge  32 | proof  32 | the history of its log's epochs, and where the
                       log ends, as JSON
    slave to master    -5  8 | proof  32
    master to slave    -3  8 | size  4 | its commit point  8       when that has moved, to those that have greeted

Each proof shows that its sender is the member of its id in etcd: see `proof_of`. A challenge is random, and the proofs
that follow cover both, so that neither end's recorded messages are accepted on another connection.

A slave whose log is empty reports 0, and gets the log from the beginning of the master's last segment on; any other
gets it from the offset of its first report on. Source: HAConnection and HAClient of 4.9.7. Unlike there each report is
checked: an offset that was not sent to this slave confirms nothing, and ends the link.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from hmac import compare_digest
from struct import Struct

import attrs

from mqbroker.errors import MQError

REPORT = Struct(">q")
HEADER = Struct(">qi")
#: Largest piece that a slave accepts; a master sends haTransferBatchSize, 32 KiB by default.
PIECE_BYTES_MAX = 16 * 1024 * 1024
#: Sentinels in place of an offset.
GREETING = -5
COMMITTED = -3
#: An HMAC-SHA256.
PROOF_BYTES = 32
CHALLENGE_BYTES = 32
_GREETING = Struct(f">q8sqqqq{CHALLENGE_BYTES}s{PROOF_BYTES}s")
_SIGNED_BYTES = _GREETING.size - PROOF_BYTES
_MARK = REPORT.pack(GREETING)
#: Began the greeting of earlier versions, which had no challenge.
_FORMER_MARK = REPORT.pack(-2)
_CONFIRMATION_BYTES = len(_MARK) + PROOF_BYTES
_COMMIT = Struct(">qiq")


#: What to do with a slave that cannot follow: its store may have the only copy of something.
START_ANEW = "stop it, move its store's directory aside (keep it), and start it again"
NEVER_HAD = (
    f"it has what this master never had; compare the two stores, and if this master's is the right one, {START_ANEW}"
)


class BadPeer(MQError):
    """The peer violated the protocol, or has another log; the text says which and what to do."""


@attrs.frozen
class Greeting:
    """How a slave of a group begins: the group, the epoch whose master it takes the other end for, and its id;
    `committed`: its commit point; `is_whole`: whether its store has all that it ever acknowledged. `challenge`: random
    bytes, other ones on each connection. `proof`: see `proof_of`."""

    group: bytes
    epoch: int
    replica_id: int
    committed: int = 0
    is_whole: bool = True
    challenge: bytes = bytes(CHALLENGE_BYTES)
    proof: bytes = bytes(PROOF_BYTES)

    def encode(self) -> bytes:
        return _GREETING.pack(GREETING, *attrs.astuple(self))

    def proven(self, nonce: str) -> Greeting:
        """This greeting with its proof."""
        return attrs.evolve(self, proof=proof_of(nonce, b"greeting", self.encode()[:_SIGNED_BYTES]))

    def is_proven(self, nonce: str) -> bool:
        """Whether its sender knows the nonce."""
        return bool(nonce) and compare_digest(self.proven(nonce).proof, self.proof)


@attrs.frozen
class Answer:
    """A master's answer to a greeting. `history`: of its log's epochs, and where the log ends, as JSON. `challenge`:
    random bytes, other ones on each connection."""

    challenge: bytes
    history: bytes
    proof: bytes = bytes(PROOF_BYTES)

    def encode(self) -> bytes:
        return self.challenge + self.proof + self.history

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        """An answer that is too short has no proof that is right."""
        begin = CHALLENGE_BYTES + PROOF_BYTES
        return cls(data[:CHALLENGE_BYTES], data[begin:], data[CHALLENGE_BYTES:begin])

    def proven(self, nonce: str, greeting: Greeting) -> Answer:
        """This answer with its proof, by the master's nonce."""
        parts = greeting.encode(), self.challenge, self.history
        return attrs.evolve(self, proof=proof_of(nonce, b"answer", *parts))

    def is_proven(self, nonce: str, greeting: Greeting) -> bool:
        """Whether its sender knows the master's nonce, and has received this greeting."""
        return bool(nonce) and compare_digest(self.proven(nonce, greeting).proof, self.proof)

    def confirmation(self, nonce: str, greeting: Greeting) -> bytes:
        """The slave's proof that the greeting was made for this connection, by its nonce."""
        return proof_of(nonce, b"confirmation", greeting.encode(), self.encode())


def proof_of(nonce: str, what: bytes, *parts: bytes) -> bytes:
    """Proof that the sender of `parts` knows the nonce of a member's key in etcd: their HMAC-SHA256, 32 bytes.

    :param what: which message it is; no proof of one is good for another.
    """
    return hmac.digest(nonce.encode(), b"\0".join((what, *parts)), "sha256")


def encode_confirmation(proof: bytes) -> bytes:
    """The message with which a slave confirms its greeting."""
    return _MARK + proof


class MasterLink:
    """The master's end of the link to one slave.

    `start`, `sent`: the log was sent from and up to these offsets; None before the slave's first report.
    `acknowledged`: the slave says that it has the log up to here. Below `start` nothing shows that it is the same log.

    :param segment_bytes: size of a segment of the log.
    :param piece_bytes_max: most data in one piece.
    """

    def __init__(self, segment_bytes: int, piece_bytes_max: int) -> None:
        self.start: int | None = None
        self.sent: int | None = None
        self.acknowledged = 0
        #: How the slave began, if it is of a group; and whether it has confirmed that, after the answer.
        self.greeting: Greeting | None = None
        self.is_proven = False
        #: The proof that must follow the answer; None before the answer, until which the slave must wait.
        self._confirmation: bytes | None = None
        #: The commit point that was sent last.
        self.committed = 0
        self._segment_bytes = segment_bytes
        self._piece_bytes_max = piece_bytes_max
        self._unread = b""

    def receive(self, data: bytes, log_min: int, log_end: int) -> bool:
        """Read reports; returns whether `acknowledged` has grown, or the first report came. Raises BadPeer."""
        self._unread += data
        if self.sent is None and not self._may_report():
            return False
        data, whole = self._unread, len(self._unread) - len(self._unread) % REPORT.size
        self._unread = data[whole:]
        before = self.sent, self.acknowledged
        for (offset,) in REPORT.iter_unpack(data[:whole]):
            if self.sent is None:
                self._begin(offset, log_min, log_end)
            else:
                self._acknowledge(offset)
        return before != (self.sent, self.acknowledged)

    def _may_report(self) -> bool:
        """Parse a greeting and its confirmation from the unread bytes; returns whether reports follow. Raises
        BadPeer."""
        if self.greeting is None:
            if self._unread.startswith(_FORMER_MARK):
                raise BadPeer("its greeting is of an older version of mqbroker: all brokers of a group need the same")
            if not self._unread.startswith(_MARK):
                return True
            if len(self._unread) < _GREETING.size:
                return False
            _, group, epoch, replica_id, committed, is_whole, *proofs = _GREETING.unpack_from(self._unread)
            if not (is_whole in (0, 1) and committed >= 0):
                raise BadPeer("its greeting is of another version of mqbroker, or no greeting")
            self.greeting = Greeting(group, epoch, replica_id, committed, is_whole == 1, *proofs)
            self._unread = self._unread[_GREETING.size :]
        if self._unread and not self.is_proven:
            if self._confirmation is None:
                raise BadPeer("it continued before its greeting was answered")
            is_whole = len(self._unread) >= _CONFIRMATION_BYTES
            wanted = encode_confirmation(self._confirmation) if is_whole else _MARK[: len(self._unread)]
            if not compare_digest(self._unread[: len(wanted)], wanted):
                raise BadPeer(
                    f"it says that it is broker {self.greeting.replica_id}, and its greeting was recorded on another "
                    "connection: nothing of it counts"
                )
            if is_whole:
                self.is_proven, self._unread = True, self._unread[_CONFIRMATION_BYTES:]
        return self.is_proven

    def _begin(self, offset: int, log_min: int, log_end: int) -> None:
        if offset == 0:
            # A replica of a group may be elected one day, and has the whole log therefore.
            last = log_min if self.greeting is not None else log_end - log_end % self._segment_bytes
            self.start = self.sent = max(log_min, last)
            return
        if offset < 0:
            raise BadPeer(f"it reports the offset {offset}")
        if offset > log_end:
            raise BadPeer(f"its log ends at {offset} and this one at {log_end}: {NEVER_HAD}")
        if offset < log_min:
            raise BadPeer(
                f"its log ends at {offset} and this one begins at {log_min}: "
                f"what it lacks was deleted here: {START_ANEW}"
            )
        self.start = self.sent = self.acknowledged = offset

    def confirms(self, begin: int, end: int) -> bool:
        """Whether the slave has acknowledged begin..end of the log, all of which was sent over this link."""
        return self.start is not None and self.start <= begin and end <= self.acknowledged

    def answer(self, answer: bytes, confirmation: bytes) -> bytes:
        """What answers the greeting.

        :param confirmation: the proof with which the slave must go on.
        """
        self._confirmation = confirmation
        return HEADER.pack(GREETING, len(answer)) + answer

    def commit_point(self, committed: int) -> bytes:
        """The message with the commit point for a slave that has greeted; empty if it knows it, or is in no group."""
        if not self.is_proven or self.sent is None or committed <= self.committed:
            return b""
        self.committed = committed
        return _COMMIT.pack(COMMITTED, REPORT.size, committed)

    def _acknowledge(self, offset: int) -> None:
        assert self.sent is not None
        if not self.acknowledged <= offset <= self.sent:
            why = "was not sent to it" if offset > self.sent else f"is below {self.acknowledged}, which it had"
            raise BadPeer(f"it reports the offset {offset}, which {why}")
        self.acknowledged = offset

    def next_piece(self, log_end: int) -> tuple[int, int] | None:
        """Offset and size of the data to send next, all in one segment; None if the slave was sent everything."""
        if self.sent is None or self.sent >= log_end:
            return None
        in_segment = self._segment_bytes - self.sent % self._segment_bytes
        return self.sent, min(self._piece_bytes_max, log_end - self.sent, in_segment)

    def header(self, size: int) -> bytes:
        """The header of the next `size` bytes of the log, which count as sent; of a heartbeat for 0."""
        assert self.sent is not None
        header = HEADER.pack(self.sent, size)
        self.sent += size
        return header


class SlaveLink:
    """The slave's end of the link: parses the master's stream. The caller checks that the data continues its log."""

    def __init__(self) -> None:
        #: The beginning of a header, or of an answer to a greeting, and how many bytes of it make progress possible.
        self._unread, self._wanted = bytearray(), 0
        #: Where the next byte of the current piece belongs in the log, and how many of its bytes are missing.
        self._offset = self._missing = 0
        #: Whether the answer to a greeting comes next; and whether one came, so that commit points may.
        self.is_greeting = self.is_greeted = False

    def receive(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """What `data` brings: offset and bytes of the log, of a piece what is there of it, none in a heartbeat; the
        answer to a greeting, and a commit point, whole, with the offsets `GREETING` and `COMMITTED`. Raises
        BadPeer."""
        if self._unread:
            self._unread += data
            if len(self._unread) < self._wanted:
                return
            data = bytes(self._unread)
            self._unread.clear()
        view, at = memoryview(data), 0
        while at < len(data):
            if not self._missing:
                if len(data) - at < HEADER.size:
                    self._keep(data[at:], HEADER.size)
                    return
                offset, size = HEADER.unpack_from(data, at)
                is_whole = self._comes_whole(offset, size)
                if not 0 <= size <= PIECE_BYTES_MAX or not (is_whole or (offset >= 0 and not self.is_greeting)):
                    raise BadPeer(f"the master announces {size} bytes at {offset}")
                stop = at + HEADER.size + size
                if is_whole:
                    if len(data) < stop:
                        self._keep(data[at:], stop - at)
                        return
                    self.is_greeted, self.is_greeting = True, False
                    yield offset, view[at + HEADER.size : stop]
                    at = stop
                    continue
                self._offset, self._missing = offset, size
                at += HEADER.size
            part = view[at : at + self._missing]
            at += len(part)
            offset = self._offset
            self._offset += len(part)
            self._missing -= len(part)
            if part or not self._missing:
                yield offset, part

    def _comes_whole(self, offset: int, size: int) -> bool:
        if self.is_greeting:
            return offset == GREETING
        return offset == COMMITTED and self.is_greeted and size == REPORT.size

    def _keep(self, data: bytes, wanted: int) -> None:
        self._unread += data
        self._wanted = wanted
