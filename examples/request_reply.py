"""Asks a question and waits for its reply: a topic for replies, an id a question.

Both sides are in one program here.
"""

import asyncio
import uuid

from mqbroker.client import Message, ReceivedMessage
from mqbroker.client.aio import Producer, PushConsumer

NAME_SERVERS = "127.0.0.1:9876"


class Asker:
    """Sends questions to `topic`. Only this process reads its topic of replies."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.producer = producer
        self.topic = topic
        self.replies = f"replies-{uuid.uuid4().hex}"
        self.waiting: dict[str, asyncio.Future[bytes]] = {}
        self.consumer = PushConsumer(NAME_SERVERS, self.replies, self.take_reply)

    async def start(self) -> None:
        # The first message creates the topic: the consumer need not wait for it.
        await self.producer.send(Message(self.replies, "opened"))
        self.consumer.subscribe(self.replies)
        await self.consumer.start()

    async def ask(self, question: str, timeout_s: float = 5) -> bytes:
        """The reply. TimeoutError: none in time; but it may have been acted on."""
        number = uuid.uuid4().hex
        self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            properties = {"question": number, "replyTopic": self.replies}
            await self.producer.send(
                Message(self.topic, question, properties=properties)
            )
            return await asyncio.wait_for(self.waiting[number], timeout_s)
        finally:
            del self.waiting[number]

    def take_reply(self, message: ReceivedMessage) -> None:
        waiting = self.waiting.get(message.properties.get("question", ""))
        if waiting is not None and not waiting.done():  # it may come twice, or too late
            waiting.set_result(message.body)


async def main() -> None:
    async with Producer(NAME_SERVERS, "questions-app") as producer:

        async def answer(question: ReceivedMessage) -> None:
            properties = {"question": question.properties["question"]}
            reply = question.body.upper()
            await producer.send(
                Message(question.properties["replyTopic"], reply, properties=properties)
            )

        responder = PushConsumer(NAME_SERVERS, "answers", answer)
        responder.subscribe("questions")
        asker = Asker(producer, "questions")
        async with responder:
            await asker.start()
            print((await asker.ask("is anybody there?")).decode())
            await asker.consumer.close()


asyncio.run(main())
