from queue import Queue

from mqbroker.client import Message
from mqbroker.client.blocking import Producer, PushConsumer

received = Queue()
consumer = PushConsumer("127.0.0.1:9876", "readers", received.put)
consumer.subscribe("greetings")
with Producer("127.0.0.1:9876", "writers") as producer:
    producer.send(Message("greetings", "hello"))
    with consumer:
        print(received.get().body.decode())
