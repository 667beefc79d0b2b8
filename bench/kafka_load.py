"""How fast aiokafka sends; run by bench/kafka.py: python -m bench.kafka_load ADDRESS

Orders come by standard input, and are answered, as those of bench/client_load.py:

    send TOPIC COUNT IN_FLIGHT BYTES    each result awaited, from all in-sync replicas
"""

import asyncio
import importlib
import sys
from functools import partial
from typing import Any

from bench.client_load import repeat, serve


class Load:
    """Carries out the orders on one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._producer: Any = None

    async def send(self, topic: str, count: int, in_flight: int, size: int) -> None:
        if self._producer is None:
            aiokafka: Any = importlib.import_module("aiokafka")
            self._producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self._address, acks="all")
            await self._producer.start()
        body = bytes(size)
        await repeat(count, in_flight, lambda: self._producer.send_and_wait(topic, body))


if __name__ == "__main__":
    asyncio.run(serve(partial(asyncio.to_thread, sys.stdin.readline), {"send": Load(sys.argv[1]).send}))
