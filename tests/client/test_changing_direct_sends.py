"""Sends of a thread on a socket of its own, and those on the loop, in a world that changes between any two of them: the
same outcomes, and the same messages on the broker.

Two producers run the same generated history, each against servers of its own. MQBROKER_TWIN_SEEDS chooses how many.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from mqbroker.client import Message, MessageQueue, ProducerOptions, direct_sends
from mqbroker.client.blocking import Producer
from mqbroker.client.connection import Connection
from mqbroker.client.faces import core, net_of
from mqbroker.client.thread_clients import parts
from mqbroker.errors import MQError, Refused
from mqbroker.kernel import compiled
from mqbroker.wire.command import RemotingCommand
from tests.client.changing_world import REFUSALS, SEND
from tests.client.faults import Passage
from tests.client.loopback import Loopback
from tests.seeds import seeds_of_push

pytestmark = pytest.mark.skipif(compiled is None, reason="plain sends are the compiled module's")

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60")) // 4


def refused(code: int) -> Callable[[Passage], None]:
    return lambda passage: passage.answer(RemotingCommand(code, {}, flag=1, remark="no"))


def rubbish(frame: bytes) -> Callable[[Passage], None]:
    return lambda passage: passage.connection.write(frame)


@attrs.define
class Twin:
    """One of the two producers, with its servers."""

    server: Loopback
    producer: Producer
    rng: Random
    number: int = 0

    def send(self) -> Any:
        """The outcome of a send: most are plain."""
        rng = self.rng
        self.number += 1
        body = b"%d" % self.number + b"x" * rng.choice([0, 0, 0, 35, 60])
        kind = rng.randrange(12)
        fields: dict[str, Any] = {"tags": rng.choice([None, "t"]), "keys": rng.choice([(), ("k", "l")])}
        chosen: dict[str, Any] = {}
        if kind == 0:
            fields["tags"] = "é"
        elif kind == 1:
            fields["delay_level"] = 2
        elif kind == 2:
            chosen["key"] = "k"
        elif kind == 3:
            chosen["queue"] = MessageQueue("T", "a", rng.choice([0, 1, 9]))
        elif kind == 4:
            fields["properties"] = {"p": "1"}
        try:
            result = self.producer.send(Message("T", body, **fields), **chosen)
        except MQError as error:
            return type(error), error.code if isinstance(error, Refused) else None
        return result.status, result.queue, result.queue_offset, result.offset_msg_id[-16:]

    def change(self) -> None:
        """Have the connection lost, or the next sends fail. The route stays as it is: when it is asked for again is a
        matter of time."""
        if self.rng.random() < 0.7:
            with self.server.lock:
                self._fail(self.rng.choice([1, 1, 2, 4]))
            return
        connection = net_of(parts(self.producer)[1]).free_connection(self.server.broker_addr)
        with self.server.lock:
            self.server.faults.cut(self.server.broker_addr)
            self.server.settle()
        if connection is not None:  # whether a send meets that is a matter of time, too
            parts(self.producer)[0].run(self._noticed(connection))

    async def _noticed(self, lost: Connection) -> None:
        """Return when the producer knows that it has lost a connection."""
        while net_of(parts(self.producer)[1]).free_connection(self.server.broker_addr) is lost:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def _fail(self, count: int) -> None:
        """Have the next sends fail, in one way each."""
        ways: list[Callable[[Passage], object]] = [refused(code) for code in REFUSALS]
        ways += [Passage.cut, Passage.cut, rubbish(b"\0\0\0\1rubbish"), rubbish(b"\x7f\xff\xff\xff\0\0\0\0")]
        rules = [self.rng.choice(ways) for _ in range(count)]

        def meet(passage: Passage) -> None:
            (rules.pop() if rules else Passage.pass_on)(passage)

        self.server.faults.refuse[None, SEND] = meet

    def stored(self) -> list[Any]:
        """What the broker has, and where the next message goes."""
        found = [
            [
                (record.body, record.properties.get("TAGS"))
                for record in self.server.stored(MessageQueue("T", "a", number))
            ]
            for number in range(4)
        ]
        return [found, core(parts(self.producer)[1])._attempts.rotation._turns]


def history(root: Path, seed: int) -> list[Any]:
    """What came of each step, and in the end what is stored."""
    rng = Random(seed)
    server = Loopback(root)
    server.add_topic("T", rng.choice([1, 2, 4]))
    options = ProducerOptions(compress_over_bytes=60, retries=rng.choice([0, 1, 3]), send_timeout_s=20)
    steps: list[Any] = []
    with Producer(server.addr, "pg", options=options) as producer:
        producer.send(Message("T", b"first"), queue=MessageQueue("T", "a", 0))  # asks for the route
        rotation = core(parts(producer)[1])._attempts.rotation
        # Where a producer begins is chosen by chance.
        rotation._turns["T"], rotation._rng = 0, Random(seed)
        twin = Twin(server, producer, rng)
        for _ in range(14):
            for _ in range(rng.choice([1, 2, 3])):
                steps.append(twin.send())
            for _ in range(rng.choice([0, 1, 1, 2])):
                twin.change()
        steps.append(twin.stored())
    server.close()
    return steps


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_both_ways_have_the_same_outcome_while_the_world_changes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0
    plain_send = direct_sends.DirectSends._send

    def counted(self: Any, *args: Any) -> Any:
        nonlocal sent
        sent += 1
        return plain_send(self, *args)

    monkeypatch.setattr(direct_sends.DirectSends, "_send", counted)
    monkeypatch.setattr(direct_sends, "FIRST", 0)
    direct = history(tmp_path / "direct", seed)
    assert sent or seed, "no send had a socket of its own: the comparison says nothing"
    monkeypatch.setattr(direct_sends, "FIRST", 10**9)
    on_the_loop = history(tmp_path / "loop", seed)
    for number, (one, other) in enumerate(zip(direct, on_the_loop, strict=True)):
        assert one == other, f"at step {number}"
