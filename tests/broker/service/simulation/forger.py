"""A peer of a master's replication port that is no broker of the group, and says that it is one."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256

from mqbroker.ha.election import GroupSettings
from mqbroker.ha.link import GREETING, REPORT, BadPeer, Greeting, SlaveLink
from tests.broker.service.group import HA_PORT, Group, Replica, Wire
from tests.remoting.link import CLIENT, Link, Peer

HOST = "10.0.0.66"
#: A lease that was not renewed for so long has expired, seconds.
EXPIRED_S = 6.0


class Forger:
    """Reports that it has what it was sent."""

    def __init__(self, group: Group, master: Replica, greeting: bytes) -> None:
        self.peer, self._link = Peer(), SlaveLink()
        self._link.is_greeting = True
        self._end = 0
        far = group.wires.servers[f"{master.host}:{HA_PORT}"].buildProtocol(CLIENT)
        self.link = Link(self.peer, far)
        group.wires.wires.append(Wire(HOST, master.host, self.link))
        self.peer.transport.write(greeting)

    @property
    def is_gone(self) -> bool:
        return self.peer.lost

    def look(self) -> None:
        """Take what came, and acknowledge it."""
        data = bytes(self.peer.received)
        self.peer.received.clear()
        before = self._end
        with suppress(BadPeer):
            for offset, piece in self._link.receive(data):
                if offset == GREETING:
                    self._end = json.loads(bytes(piece)[32:]).get("end", 0)
                else:
                    self._end = max(self._end, offset + len(piece))
        if self._end != before:
            self.peer.transport.write(REPORT.pack(self._end))

    def leave(self) -> None:
        self.peer.transport.abortConnection()


def made_up_greeting(epoch: int, replica_id: int) -> bytes:
    """A greeting of what anybody may know, without a proof."""
    prefix = GroupSettings(cluster="DefaultCluster", broker="broker-a", replica_id=replica_id, ttl_s=3).prefix
    return Greeting(sha256(prefix.encode()).digest()[:8], epoch, replica_id).encode()


def old_greetings(group: Group) -> list[bytes]:
    """What processes of brokers have said that ended long ago."""
    return [data for _, ended_at, data in group.wires.greetings if ended_at < group.now - EXPIRED_S]
