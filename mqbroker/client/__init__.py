"""Producer, push consumer and pull consumer: one core, and an API each for asyncio, threads and Twisted.

`mqbroker.client.deferred` (Twisted), `mqbroker.client.aio` (asyncio) and `mqbroker.client.blocking`
have the same names. Nothing imported from here touches Twisted, opens a file or configures logging.
"""

from mqbroker.client.allocation import (
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateNearby,
    Allocation,
    RebalanceListener,
    allocate_averagely,
    allocate_by_circle,
)
from mqbroker.client.consume_service import Listener
from mqbroker.client.counters import Counters
from mqbroker.client.errors import (
    BadArgument,
    BadListener,
    BadMessage,
    BadOffsetFile,
    BatchFailed,
    ClientClosed,
    ClientError,
    Forbidden,
    HookFailed,
    NameServerUnreachable,
    NoBrokerForTopic,
    NoSubscription,
    OtherLoop,
    RetryLater,
    SendFailed,
    SuspendQueue,
    TlsFailed,
    TopicNotFound,
    UnexpectedResponse,
    WouldDeadlock,
)
from mqbroker.client.hooks import MessageFilter
from mqbroker.client.identity import CredentialsFile
from mqbroker.client.iteration import Delivery, by_iteration
from mqbroker.client.lag import Lag
from mqbroker.client.listeners import ConsumeResult, FirstConsumed, OrderlyResult
from mqbroker.client.lite_pull import Place
from mqbroker.client.messages import (
    Message,
    PullResult,
    PullStatus,
    RawPull,
    ReceivedMessage,
    SendResult,
    SendStatus,
    nearest_delay_level,
)
from mqbroker.client.observers import ConsumeObserver, Consumption, Send, SendKind, SendObserver
from mqbroker.client.offset_stores import LocalOffsets, MemoryOffsets, OffsetStore
from mqbroker.client.options import (
    ConsumeFrom,
    LitePullOptions,
    MessageModel,
    ProducerOptions,
    PullOptions,
    PushOptions,
)
from mqbroker.client.send import Selector
from mqbroker.client.subscription import Sql
from mqbroker.client.tls import ClientTls
from mqbroker.client.transactions import TransactionResult, TransactionState
from mqbroker.client.typed import Json, Serializer, Topic
from mqbroker.errors import BadTls, ConnectionClosed, MQError, Refused, RequestTimedOut, Unreachable
from mqbroker.remoting.hooks import ConnectionListener, RpcHook
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.signature import Credentials

__all__ = [
    "AllocateByConfig",
    "AllocateByConsistentHash",
    "AllocateByMachineRoom",
    "AllocateNearby",
    "Allocation",
    "BadArgument",
    "BadListener",
    "BadMessage",
    "BadOffsetFile",
    "BadTls",
    "BatchFailed",
    "ClientClosed",
    "ClientError",
    "ClientTls",
    "ConnectionClosed",
    "ConnectionListener",
    "ConsumeFrom",
    "ConsumeObserver",
    "ConsumeResult",
    "Consumption",
    "Counters",
    "Credentials",
    "CredentialsFile",
    "Delivery",
    "FirstConsumed",
    "Forbidden",
    "HookFailed",
    "Json",
    "Lag",
    "Listener",
    "LitePullOptions",
    "LocalOffsets",
    "MQError",
    "MemoryOffsets",
    "Message",
    "MessageFilter",
    "MessageModel",
    "MessageQueue",
    "NameServerUnreachable",
    "NoBrokerForTopic",
    "NoSubscription",
    "OffsetStore",
    "OrderlyResult",
    "OtherLoop",
    "Place",
    "ProducerOptions",
    "PullOptions",
    "PullResult",
    "PullStatus",
    "PushOptions",
    "RawPull",
    "RebalanceListener",
    "ReceivedMessage",
    "Refused",
    "RemotingCommand",
    "RequestTimedOut",
    "RetryLater",
    "RpcHook",
    "Selector",
    "Send",
    "SendFailed",
    "SendKind",
    "SendObserver",
    "SendResult",
    "SendStatus",
    "Serializer",
    "Sql",
    "SuspendQueue",
    "TlsFailed",
    "Topic",
    "TopicNotFound",
    "TransactionResult",
    "TransactionState",
    "UnexpectedResponse",
    "Unreachable",
    "WouldDeadlock",
    "allocate_averagely",
    "allocate_by_circle",
    "by_iteration",
    "nearest_delay_level",
]
