"""A producer of transactions. Its half messages are ended by what it says itself, once or more often, and by its
answers when it is asked; each has one outcome from the start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

from mqbroker.wire.bodies import HeartbeatData, ProducerData
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import CheckTransactionStateRequestHeader, decode_header
from mqbroker.wire.record import Record, decode_record
from tests.broker.bench import send_command
from tests.broker.service.group import Client, Group, Replica
from tests.broker.transacting import COMMIT, HALF, ROLLBACK, UNKNOWN, Half, answered, end_command
from tests.store.simulation.model import require

#: The settings of the brokers: a producer is soon asked, and as often as is necessary.
SETTINGS = {
    "transaction_time_out_ms": 1_000,
    "transaction_check_interval_ms": 3_000,
    "transaction_check_max": 1_000_000,
}
#: Clients of 4.x do that every 30 seconds.
HEARTBEAT_S = 10.0


class Transactions:
    """The half messages of one producer, by their bodies."""

    def __init__(self, group: Group) -> None:
        self._group = group
        #: What each is to become.
        self.outcomes: dict[bytes, int] = {}
        #: Those whose sends were acknowledged.
        self.halves: dict[bytes, Half] = {}
        #: By host; with when it was told last which producer this is.
        self._clients: dict[str, tuple[Replica, Client, float]] = {}
        self.asked = 0

    @property
    def rolled_back(self) -> set[bytes]:
        return {body for body, outcome in self.outcomes.items() if outcome == ROLLBACK}

    def make(self, bodies: Iterable[bytes], rng: Random) -> list[RemotingCommand]:
        """The sends of half messages."""
        commands = []
        for body in bodies:
            self.outcomes[body] = COMMIT if rng.random() < 0.7 else ROLLBACK
            properties = f"UNIQ_KEY\x01{body[:8].decode()}\x02TRAN_MSG\x01true\x02PGROUP\x01PG"
            born = int(self._group.clock_s * 1000)
            commands.append(send_command("T", body, properties=properties, sys_flag=4, born_timestamp=born))
        return commands

    def was_stored(self, body: bytes, answer: RemotingCommand) -> None:
        msg_id = answer.ext_fields["msgId"]
        self.halves[body] = Half(int(answer.ext_fields["queueOffset"]), int(msg_id[-16:], 16), msg_id)

    def end(self, master: Replica, rng: Random) -> bool:
        """End some of them, whether they were ended before or not."""
        bodies = rng.sample(sorted(self.halves), min(len(self.halves), rng.randint(1, 8)))
        self._client(master).tell(*(end_command(self.halves[body], self.outcomes[body]) for body in bodies))
        return bool(bodies)

    def connect(self, master: Replica) -> None:
        self._client(master)

    def _client(self, master: Replica) -> Client:
        known, client, told_at = self._clients.get(master.host, (None, None, 0.0))
        if client is None or known is not master or client.link.lost or client.peer.lost:
            client, told_at = self._group.client(master), -HEARTBEAT_S
        now = self._group.now
        # After a planned change the connection is the same one, and the broker has begun anew.
        if now >= told_at + HEARTBEAT_S:
            client.tell(
                RemotingCommand.request(
                    RequestCode.HEART_BEAT, body=HeartbeatData("client@1", [ProducerData("PG")], []).to_json()
                )
            )
            self._clients[master.host] = master, client, now
        return client

    def look(self, rng: Random) -> None:
        """Answer what it is asked, sometimes that it does not know yet."""
        for _, client, _ in list(self._clients.values()):
            for question in client.heard():
                if question.code != RequestCode.CHECK_TRANSACTION_STATE or question.is_response:
                    continue
                header = decode_header(CheckTransactionStateRequestHeader, question.ext_fields)
                outcome = self.outcomes[decode_record(question.body).body]
                self.asked += 1
                said = UNKNOWN if rng.random() < 0.3 else outcome
                client.tell(end_command(answered(header), said, from_transaction_check=True))

    def is_settled(self, master: Replica) -> bool:
        """Whether all half messages that the master has are ended."""
        settled = master.parts.half_queue.settled
        return bool(settled.progress >= master.store.max_offset(HALF, 0))

    def check(self, records: Iterable[Record]) -> None:
        """Those that are to be committed were delivered once at most, and none of the others."""
        delivered = Counter(record.body for record in records if record.topic == "T" and record.body in self.outcomes)
        for body, count in delivered.items():
            what = f"{body[:8]!r}: {count} times"
            require(self.outcomes[body] == COMMIT, "what is rolled back is not delivered", what)
            require(count == 1, "a transaction is committed once", what)
