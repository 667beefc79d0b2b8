"""Asks a question and waits for its reply. Both sides are in one program here."""

from mqbroker.client import Message, ReceivedMessage, RequestTimedOut
from mqbroker.client.blocking import Producer, PushConsumer

NAME_SERVERS = "127.0.0.1:9876"

with Producer(NAME_SERVERS, "questions-app") as producer:

    def answer(question: ReceivedMessage) -> None:
        producer.send(Message.reply_to(question, question.body.upper()))

    producer.create_topic("questions")
    responder = PushConsumer(NAME_SERVERS, "answers", answer)
    responder.subscribe("questions")
    with responder:
        question = Message("questions", "is anybody there?")
        try:
            print(producer.request(question, timeout_s=5).body.decode())
        except RequestTimedOut as error:
            print(error)
