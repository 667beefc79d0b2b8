"""A peer of a master's replication port that is no broker of the group, and says that it is one."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256

from twisted.internet.protocol import Protocol

from mqbroker.ha.election import GroupSettings
from mqbroker.ha.link import (
    GREETING,
    PROOF_BYTES,
    REPORT,
    Answer,
    BadPeer,
    Greeting,
    SlaveLink,
    encode_confirmation,
)
from tests.broker.service.group import HA_PORT, Group, Replica, Wire
from tests.remoting.link import CLIENT, Link, Peer
from tests.store.simulation.model import require

HOST = "10.0.0.66"
#: A lease that was not renewed for so long has expired, seconds.
EXPIRED_S = 6.0
GREETING_BYTES = len(Greeting(bytes(8), 1, 1).encode())
CONFIRMATION_BYTES = len(encode_confirmation(bytes(PROOF_BYTES)))


class Forger:
    """Greets, answers what it is answered with what follows the greeting in `said`, and reports that it has what it was
    sent."""

    def __init__(self, group: Group, master: Replica, said: bytes) -> None:
        self.peer, self._link = Peer(), SlaveLink()
        self._link.is_greeting = True
        self._end = 0
        self._confirmation = said[GREETING_BYTES:][:CONFIRMATION_BYTES]
        self._far = group.wires.servers[f"{master.host}:{HA_PORT}"].buildProtocol(CLIENT)
        self.link = Link(self.peer, self._far)
        group.wires.wires.append(Wire(HOST, master.host, self.link))
        self.peer.transport.write(said[:GREETING_BYTES])

    @property
    def is_gone(self) -> bool:
        return self.peer.lost

    def look(self) -> None:
        """Take what came, and acknowledge it."""
        require(not self._far.link.is_proven, "nobody counts who is no member", "its recorded greeting was confirmed")
        data = bytes(self.peer.received)
        self.peer.received.clear()
        before = self._end
        with suppress(BadPeer):
            for offset, piece in self._link.receive(data):
                require(offset == GREETING, "nobody is sent the log who is no member", f"{len(piece)} bytes")
                self._end = json.loads(Answer.decode(bytes(piece)).history).get("end", 0)
                self.peer.transport.write(self._confirmation)
        if self._end != before:
            self.peer.transport.write(REPORT.pack(self._end))

    def leave(self) -> None:
        self.peer.transport.abortConnection()


class Impostor(Protocol):
    """Answers like a master whose recorded messages it has."""

    def __init__(self, recorded: bytes) -> None:
        self._recorded, self.has_answered = recorded, False

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        if not self.has_answered:
            self.has_answered = True
            self.transport.write(self._recorded)


def made_up_greeting(epoch: int, replica_id: int, nonce: str = "") -> bytes:
    """A greeting of what anybody may know, with a proof by this nonce, if there is one."""
    prefix = GroupSettings(cluster="DefaultCluster", broker="broker-a", replica_id=replica_id, ttl_s=3).prefix
    greeting = Greeting(sha256(prefix.encode()).digest()[:8], epoch, replica_id)
    return (greeting.proven(nonce) if nonce else greeting).encode()


def recorded_sessions(group: Group, *, are_old: bool) -> list[bytes]:
    """What replicas have said to their masters; `are_old`: of processes that ended long ago only."""
    ended_by = group.now - EXPIRED_S
    return [each.sent for each in group.wires.recorded if each.ended_at < ended_by or not are_old]
