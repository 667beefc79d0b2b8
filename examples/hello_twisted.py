from mqbroker.client import Message
from mqbroker.client.deferred import Producer, PushConsumer
from twisted.internet import defer, task


async def main(reactor):
    received = defer.DeferredQueue()
    consumer = PushConsumer(reactor, "127.0.0.1:9876", "readers", received.put)
    consumer.subscribe("greetings")
    producer = Producer(reactor, "127.0.0.1:9876", "writers")
    await producer.start()
    await producer.send(Message("greetings", "hello"))
    await consumer.start()
    print((await received.get()).body.decode())
    await consumer.close()
    await producer.close()


task.react(lambda reactor: defer.ensureDeferred(main(reactor)))
