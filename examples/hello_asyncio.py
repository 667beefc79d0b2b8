import asyncio

from mqbroker.client import Message
from mqbroker.client.aio import Producer, PushConsumer


async def main():
    received = asyncio.Queue()
    consumer = PushConsumer("127.0.0.1:9876", "readers", received.put)
    consumer.subscribe("greetings")
    async with Producer("127.0.0.1:9876", "writers") as producer:
        await producer.send(Message("greetings", "hello"))
        async with consumer:
            print((await received.get()).body.decode())


asyncio.run(main())
