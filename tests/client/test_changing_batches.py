"""Automatic batches that the compiled module collects, those that Python does, and single sends, in a world that
changes between any two of them.

Producers on asyncio run the same generated history, each against servers of its own. Both kinds of batches have the
same outcomes, and the same requests and messages on the servers; batches of one message have the outcomes of single
sends. MQBROKER_TWIN_SEEDS chooses how many.
"""

from __future__ import annotations

import asyncio
import os
import re
import zlib
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from mqbroker.client import Message, ProducerOptions, SendResult, aio
from mqbroker.client.faces import core
from mqbroker.errors import Refused
from mqbroker.kernel import compiled
from mqbroker.wire.batch import decode_batch
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, SysFlag
from mqbroker.wire.ids import parse_offset_message_id
from tests.client.changing_world import BROKERS, ID, SEND, ChangingWorld, Unvarying, by_server, fields_of, outcome_of
from tests.client.own_cluster import NAME_SERVER, OwnCluster
from tests.client.simulated_loop import SimulatedLoop, SimulatedNet
from tests.client.world import World
from tests.seeds import seeds_of_push

SEEDS = int(os.environ.get("MQBROKER_TWIN_SEEDS", "60")) // 3
BATCH = RequestCode.SEND_BATCH_MESSAGE
CLIENT_ID = re.compile(rb'"clientID":"[^"]*"')


@attrs.define(kw_only=True)
class Twin(ChangingWorld):
    """One of the producers, with its servers."""

    loop: SimulatedLoop
    producer: aio.Producer
    #: Sends of all kinds begin together. Else those of one kind, which leave in the same order on both ways.
    is_mixed: bool
    #: One send after the other, of which each has the same turn on both ways.
    is_alone: bool
    number: int = 0
    #: Batches that were taken by the compiled module, and messages.
    batches: int = 0

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def advance(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def send(self) -> list[Any]:
        """The outcomes of some sends that begin together, and what servers were asked meanwhile."""
        rng, first = self.rng, len(self.world.faults.requests)
        kind = rng.choice([*range(9), *[9] * 12])
        kinds = [rng.randrange(14) if self.is_mixed else kind for _ in range(rng.choice([1, 1, 2, 3, 5, 8]))]
        wait_stored = rng.random() < 0.9
        sends = [self._begun(kind, wait_stored) for kind in (kinds[:1] if self.is_alone else kinds)]
        tasks = [self.loop.create_task(send) for _, send in sends]
        for task in tasks:
            if rng.random() < 0.1 and not self.is_alone:
                self.loop.call_later(rng.choice([0, 0.002, 0.008, 0.3]), task.cancel)
        _, left = self.run(asyncio.wait(tasks, timeout=20))
        assert not left, "a send has not ended"
        outcomes = [self._outcome(message, task) for (message, _), task in zip(sends, tasks, strict=True)]
        requests = [(addr, request.code, *asked(request)) for addr, request in self.world.faults.requests[first:]]
        return [outcomes, sorted(requests, key=repr) if self.is_mixed else by_server(requests)]

    def _begun(self, kind: int, wait_stored: bool) -> tuple[Message, Coroutine[Any, Any, Any]]:
        rng, producer = self.rng, self.producer
        self.number += 1
        message = Message(
            rng.choice("TTTTUV" if self.is_alone else "TTU" if self.is_mixed else "T"),
            b"%d" % self.number + b"x" * rng.choice([0, 0, 0, 20, 36, 37, 60, 96, 97]),
            tags=rng.choice([None, "t", "é"]),
            keys=rng.choice([(), ("k", "l")]),
            properties=rng.choice([{}, {"p": "1"}, {"q": "ü"}]),
            delay_level=rng.choice([0] * 9 + [2]),
            flag=rng.choice([0, 7]),
            # Where some wait and others do not, the two ways give the turns in another order.
            wait_stored=rng.random() < 0.8 if self.is_mixed and kind < 7 else wait_stored or self.is_mixed,
        )
        if kind == 0:
            return message, producer.send(message, timeout_s=0.7)
        if kind == 1:
            return message, producer.send_batch([Message(message.topic, message.body)], key="k")
        if kind == 2:
            return message, producer.send_oneway(message)
        if kind == 3:
            queue = MessageQueue(message.topic, rng.choice("abz"), rng.choice([0, 1, 9]))
            return message, producer.send(message, queue=queue)
        if kind == 4:
            return message, producer.send(message, selector=lambda queues, message: queues[len(message.body) % 2])
        if kind < 7:
            return message, producer.send(message, key=rng.choice("kl"))
        return message, producer.send(message)

    def _outcome(self, message: Message, task: asyncio.Task[Any]) -> Any:
        """What a send came to, after a look whether the broker has what it acknowledged."""
        if task.cancelled():
            return "cancelled"
        if error := task.exception():
            # What was asked is named in the text.
            return type(error), "" if self.is_alone else ID.sub("ID", str(error))
        results: list[SendResult] = task.result() or []
        if isinstance(results, SendResult):
            results = [results]
        for result in results:
            if not message.delay_level:
                record = self.world.cluster.stored(result.queue)[result.queue_offset]
                body = zlib.decompress(record.body) if record.sys_flag & SysFlag.COMPRESSED else record.body
                assert body == message.body, "the result is another message's"
                assert parse_offset_message_id(result.offset_msg_id)[1] == record.physical_offset
                assert record.properties["UNIQ_KEY"] == result.msg_id
        if self.is_mixed or self.is_alone:  # which of two batches leaves first differs, and what else is in the log
            return [(result.status, result.queue) for result in results]
        return outcome_of(results)

    def close(self) -> None:
        self.world.faults.down.clear()
        self.world.faults.refuse.clear()
        self.run(self.producer.close())
        assert not asyncio.all_tasks(self.loop)
        self.loop.close()
        self.world.cluster.close()


def asked(request: Any) -> tuple[Any, ...]:
    """What a request says, without ids."""
    if request.code != BATCH:
        return fields_of(request), CLIENT_ID.sub(b"", request.body)
    entries = decode_batch(request.body)
    return fields_of(request), [(each.flag, each.body, ID.sub("ID", each.properties.decode())) for each in entries]


def codes(requests: list[Any]) -> list[tuple[str, int]]:
    """What servers were asked, where a batch is a send; without heartbeats: a timer's may come a step later."""
    return [(addr, SEND if code == BATCH else code) for addr, code, *_ in requests if code != RequestCode.HEART_BEAT]


def start(root: Path, seed: int, monkeypatch: pytest.MonkeyPatch, way: str, *, is_alone: bool) -> Twin:
    rng = Random(seed)
    world = World(OwnCluster(root, brokers=BROKERS, is_eager=False))
    world.cluster.add_topic("T", queues=rng.choice([1, 2, 3]))
    is_mixed = not is_alone and seed % 3 == 1
    options = ProducerOptions(
        compress_over_bytes=60,
        message_bytes_max=100_000 if is_mixed else rng.choice([90, 100_000]),
        batch_bytes_max=100_000 if is_mixed else rng.choice([200, 700, 100_000]),
        retries=rng.choice([0, 1, 3]),
        sends_in_flight_max=rng.choice([1, 3, 1000]),
        # Not a multiple of what brokers do something after: what is due at one moment has no order.
        heartbeat_s=rng.choice([4.97, 29.97]),
        send_timeout_s=1,
        linger_s=0.0 if is_alone else rng.choice([0.0, 0.005]),
    )
    monkeypatch.setattr(aio, "net_for", lambda options, rng: SimulatedNet(world, Unvarying()))
    if way == "single":
        monkeypatch.setattr(aio, "sends_together", lambda net, options: None)
    loop = SimulatedLoop(world.cluster)
    producer = aio.Producer(NAME_SERVER, "pg", options=options)
    monkeypatch.undo()
    twin = Twin(
        world=world,
        loop=loop,
        producer=producer,
        rng=rng,
        is_calm=is_mixed or seed % 3 == 0,
        is_mixed=is_mixed,
        is_alone=is_alone,
        sends=(SEND, BATCH),
    )
    together: Any = core(producer).sends._plain
    if way == "python":
        together._joins = False
    elif way == "compiled":
        leave = together._leave_joined

        def counted(topic: str, batch: Any) -> None:
            twin.batches += 1
            leave(topic, batch)

        together._leave_joined = counted
    twin.run(producer.start())
    if is_mixed:  # what has no route yet leaves at once on one way, and with the others on the other
        world.cluster.add_topic("U")
        for topic in "TU":
            twin.run(producer.queues(topic))
    return twin


def history(
    root: Path, seed: int, monkeypatch: pytest.MonkeyPatch, way: str, *, is_alone: bool = False
) -> tuple[list[Any], int]:
    """What came of each step, and in the end what is stored; and the number of batches of the compiled module."""
    twin = start(root, seed, monkeypatch, way, is_alone=is_alone)
    producer = core(twin.producer)
    steps: list[Any] = []
    for step in range(12):
        for _ in range(twin.rng.choice([1, 2])):
            if is_alone:
                producer._attempts.rotation._turns.update(dict.fromkeys("TUV", step))
            steps.append(twin.send())
        for _ in range(twin.rng.choice([0, 1, 1, 2])):
            twin.change()
    twin.advance(20)
    in_flight: Any = producer.sends._in_flight
    assert (in_flight._count, in_flight._bytes) == (0, 0)
    found = twin.stored()
    steps.append([(*where, sorted(records)) for *where, records in found] if twin.is_mixed else found)
    steps.append(producer._attempts.rotation._turns)
    twin.close()
    return steps, twin.batches


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_the_compiled_module_collects_batches_as_python_does(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, batches = history(tmp_path / "compiled", seed, monkeypatch, "compiled")
    other, _ = history(tmp_path / "python", seed, monkeypatch, "python")
    for number, (each, same) in enumerate(zip(one, other, strict=True)):
        assert each == same, f"at step {number}"
    assert batches or seed, "the compiled module had no batch: the comparison says nothing"


@pytest.mark.parametrize("seed", seeds_of_push(SEEDS))
def test_a_batch_of_one_message_has_the_outcome_of_a_single_send(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, _ = history(tmp_path / "batches", seed, monkeypatch, "batches", is_alone=True)
    single, _ = history(tmp_path / "single", seed, monkeypatch, "single", is_alone=True)
    for number, (each, other) in enumerate(zip(batches[:-2], single[:-2], strict=True)):
        # A batch that is refused is sent again, each message alone, perhaps to another broker.
        if other[0][0][:1] != (Refused,):
            assert each[0] == other[0], f"at step {number}"
            assert codes(each[1]) == codes(other[1]), f"at step {number}"
