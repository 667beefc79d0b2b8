"""Producer, push consumer and pull consumer: one core, and an API each for asyncio, threads and Twisted.

`mqbroker.client.deferred` (Twisted), `mqbroker.client.aio` (asyncio) and `mqbroker.client.blocking`
have the same names. Nothing imported from here touches Twisted, opens a file or configures logging.
"""

from mqbroker.client.errors import (
    BadListener,
    BadMessage,
    ClientClosed,
    NameServerUnreachable,
    NoBrokerForTopic,
    NoSubscription,
    RetryLater,
    SendFailed,
    TlsFailed,
    TopicNotFound,
)
from mqbroker.client.messages import (
    ConsumeResult,
    Message,
    PullResult,
    PullStatus,
    RawPull,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from mqbroker.client.options import ConsumeFrom, ProducerOptions, PullOptions, PushOptions
from mqbroker.client.tls import ClientTls
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.signature import Credentials

__all__ = [
    "BadListener",
    "BadMessage",
    "ClientClosed",
    "ClientTls",
    "ConsumeFrom",
    "ConsumeResult",
    "Credentials",
    "Message",
    "MessageQueue",
    "NameServerUnreachable",
    "NoBrokerForTopic",
    "NoSubscription",
    "ProducerOptions",
    "PullOptions",
    "PullResult",
    "PullStatus",
    "PushOptions",
    "RawPull",
    "ReceivedMessage",
    "RetryLater",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "TlsFailed",
    "TopicNotFound",
]
