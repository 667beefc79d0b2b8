"""Asks a question and waits for its reply. Both sides are in one program here."""

from mqbroker.client import Message, ReceivedMessage, RequestTimedOut
from mqbroker.client.deferred import Producer, PushConsumer
from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import react

NAME_SERVERS = "127.0.0.1:9876"


async def main(reactor: IReactorCore) -> None:
    async with Producer(reactor, NAME_SERVERS, "questions-app") as producer:

        async def answer(question: ReceivedMessage) -> None:
            await producer.send(Message.reply_to(question, question.body.upper()))

        await producer.create_topic("questions")
        responder = PushConsumer(reactor, NAME_SERVERS, "answers", answer)
        await responder.subscribe("questions")
        async with responder:
            question = Message("questions", "is anybody there?")
            try:
                reply = await producer.request(question, timeout_s=5)
                print(reply.body.decode())
            except RequestTimedOut as error:
                print(error)


react(lambda reactor: ensureDeferred(main(reactor)))
