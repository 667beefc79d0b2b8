"""Asks a question and waits for its reply. Both sides are in one program here."""

import asyncio

from mqbroker.client import Message, ReceivedMessage, RequestTimedOut
from mqbroker.client.aio import Producer, PushConsumer

NAME_SERVERS = "127.0.0.1:9876"


async def main() -> None:
    async with Producer(NAME_SERVERS, "questions-app") as producer:

        async def answer(question: ReceivedMessage) -> None:
            await producer.send(Message.reply_to(question, question.body.upper()))

        await producer.create_topic("questions")
        responder = PushConsumer(NAME_SERVERS, "answers", answer)
        responder.subscribe("questions")
        async with responder:
            question = Message("questions", "is anybody there?")
            try:
                reply = await producer.request(question, timeout_s=5)
                print(reply.body.decode())
            except RequestTimedOut as error:
                print(error)


asyncio.run(main())
