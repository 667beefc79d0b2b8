"""Clients from their start to their end: by a context, and by `run()`, which ends with SIGINT and SIGTERM."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import ClientClosed, Message, NameServerUnreachable, deferred
from mqbroker.client.faces import net_of
from mqbroker.wire.bodies import MessageQueue
from tests.client.called_faces import OnTwisted
from tests.client.loopback import Loopback
from tests.client.test_contract import FROM_FIRST

CLIENTS = ["Producer", "PullConsumer", "LitePullConsumer", "PushConsumer"]


def made(face: Any, name: str) -> Any:
    client = face.make(name, "g", *([print] if name == "PushConsumer" else []))
    if name == "PushConsumer":
        client.subscribe("T")
    return client


@pytest.mark.parametrize("name", CLIENTS)
def test_run_ends_when_the_client_is_closed_elsewhere(face: Any, name: str) -> None:
    client = made(face, name)
    ends: list[Any] = []
    if face.module.__name__ == "mqbroker.client.blocking":
        thread = threading.Thread(target=lambda: ends.append(client.run()))
        thread.start()
        while net_of(client._client._on_loop())._when_closed is bool:
            face.turn()
        client.close()
        thread.join(20)
    elif face.module is deferred:
        running = client._client.run().addBoth(ends.append)
        face.turn()
        assert ends == []
        client.close()
        face.wait(lambda: running)
        del ends[1:]
    else:
        task = face._loop.create_task(client._client.run())
        for _ in range(20):
            face.turn()
        assert not task.done()
        client.close()
        face.wait(lambda: task)
        ends.append(task.result())
    assert ends == [None]
    with pytest.raises(ClientClosed):
        client.run()


@pytest.mark.parametrize("name", CLIENTS)
def test_run_says_what_start_says(face: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face.cluster, "name_server", "127.0.0.1:1")
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(NameServerUnreachable):
        made(face, name).run()
    assert signal.getsignal(signal.SIGTERM) is former


def test_clients_on_twisted_are_contexts_of_coroutines(cluster: Loopback) -> None:
    face = OnTwisted(cluster)

    async def main() -> None:
        async with made(face, "Producer")._client as producer:
            await producer.send(Message("T", b"x"))
            for name in ("PullConsumer", "LitePullConsumer"):
                async with made(face, name)._client as consumer:
                    assert len(await consumer.queues("T")) == 4
            member = face.make("PushConsumer", "g", print, options=FROM_FIRST)._client
            await member.subscribe("T")
            async with member:
                assert len(member.assigned) > 0
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        face.wait(lambda: Deferred.fromCoroutine(main()))
    assert cluster.members("g") == []


PROGRAM = """
import os, sys
from mqbroker.client import ConsumeFrom, PushOptions
face, addr, path = sys.argv[1:]
journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(what, message):
    os.write(journal, b"%s %d %d\\n" % (what, message.queue.queue_id, message.queue_offset))

options = PushOptions(consume_from=ConsumeFrom.FIRST, concurrency=8, commit_s=0.01, takeover_pause_s=0)

if face == "blocking":
    import time
    from mqbroker.client.blocking import PushConsumer

    def listener(message):
        note(b"begin", message)
        time.sleep(0.005)
        note(b"end", message)

    consumer = PushConsumer(addr, "g", listener, options=options)
    consumer.subscribe("T")
    consumer.run()
elif face == "asyncio":
    import asyncio
    from mqbroker.client.aio import PushConsumer

    async def listener(message):
        note(b"begin", message)
        await asyncio.sleep(0.005)
        note(b"end", message)

    async def main():
        consumer = PushConsumer(addr, "g", listener, options=options)
        consumer.subscribe("T")
        await consumer.run()

    asyncio.run(main())
else:
    from mqbroker.client.deferred import PushConsumer
    from twisted.internet.task import deferLater, react

    def main(reactor):
        async def listener(message):
            note(b"begin", message)
            await deferLater(reactor, 0.005)
            note(b"end", message)

        consumer = PushConsumer(reactor, addr, "g", listener, options=options)
        consumer.subscribe("T")
        return consumer.run()

    react(main)
print("ended")
"""


@pytest.mark.parametrize("name", ["asyncio", "blocking", "twisted"])
@pytest.mark.parametrize("seed", range(3))
def test_a_signal_in_mid_message_acknowledges_nothing_that_no_listener_has_finished(
    cluster: Loopback, tmp_path: Path, name: str, seed: int
) -> None:
    rng = random.Random(f"{name} {seed}")
    cluster.add_topic("T", queues=4)
    cluster.add_topic("%RETRY%g", queues=1)
    for n in range(2000):
        cluster.store(MessageQueue("T", "a", n % 4), b"%d" % n)
    journal = tmp_path / "journal"
    journal.touch()
    command = [sys.executable, "-W", "error", "-c", PROGRAM, name, cluster.name_server, str(journal)]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        enough = rng.randrange(1, 150)
        while journal.read_bytes().count(b"begin") < enough and program.poll() is None:
            os.sched_yield()
        for _ in range(rng.choice((1, 1, 3))):
            program.send_signal(rng.choice((signal.SIGTERM, signal.SIGINT)))
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert (err, program.returncode) == ("", 0)
    assert out == ("" if name == "twisted" else "ended\n")  # react ends the program itself
    lines = [line.split() for line in journal.read_text().splitlines()]
    begun, ended = ({(int(q), int(at)) for what, q, at in lines if what == kind} for kind in ("begin", "end"))
    assert begun == ended, "listeners end"
    committed = {n: cluster.offsets.get(("g", MessageQueue("T", "a", n)), 0) for n in range(4)}
    acknowledged = {(n, at) for n, offset in committed.items() for at in range(offset)}
    assert acknowledged <= ended
    assert {(n, at) for n, at in ended if at < committed[n]} == acknowledged
    assert len(ended - acknowledged) <= 8, "all but what came after one that another thread had is committed"
    assert cluster.members("g") == []
    assert cluster.sent_back == []
