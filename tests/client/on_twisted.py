"""Sends one message by a producer on Twisted, and prints what became of it: to be forked, for it needs a reactor.

Arguments: the address of the server, and what its ClientTls is made with, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from twisted.internet import task
from twisted.internet.defer import ensureDeferred

from mqbroker.client import ClientTls, Message, ProducerOptions
from mqbroker.client.deferred import Producer


async def send(reactor: Any, addr: str, tls: dict[str, Any]) -> None:
    producer = Producer(reactor, addr, "pg", options=ProducerOptions(tls=ClientTls(**tls), retries=0))
    try:
        await producer.start()
        print((await producer.send(Message("T", b"1"))).status.name)
    except Exception as error:
        print(type(error).__name__, error)
    await producer.close()


def main() -> None:
    addr, tls = sys.argv[1:]
    task.react(lambda reactor: ensureDeferred(send(reactor, addr, json.loads(tls))))


if __name__ == "__main__":
    main()
