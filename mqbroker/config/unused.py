"""Tables of the Java system's keys that have no effect here, and of values that are not supported."""

from __future__ import annotations

import attrs

from mqbroker.config.fields import LONG_MAX, parse_boolean, whole_number

_parse_long = whole_number(-LONG_MAX - 1, LONG_MAX)


@attrs.frozen
class UnusedKey:
    """Why a key has no effect, and its default in the Java system as text; None if it has none."""

    why: str
    default: str | None

    def check(self, text: str) -> None:
        """Raises ValueError if the value is not of the type of the default."""
        if self.default in ("true", "false"):
            parse_boolean(text)
        elif self.default:
            _parse_long(text)


def _unused(why: str, text: str) -> dict[str, UnusedKey]:
    items = (item.partition("=") for item in text.split())
    return {key: UnusedKey(why, default if equals else None) for key, equals, default in items}


#: Keys that are accepted without effect. Those that are settings are checked, and shown as given.
UNUSED: dict[str, UnusedKey] = (
    _unused(
        "one thread handles all requests, in the order they arrive",
        """
        sendMessageThreadPoolNums=2 putMessageFutureThreadPoolNums=2 pullMessageThreadPoolNums=20
        processReplyMessageThreadPoolNums=20 queryMessageThreadPoolNums=10 adminBrokerThreadPoolNums=16
        clientManageThreadPoolNums=32 consumerManageThreadPoolNums=32 heartbeatThreadPoolNums=2
        endTransactionThreadPoolNums=12 sendThreadPoolQueueCapacity=10000 putThreadPoolQueueCapacity=10000
        pullThreadPoolQueueCapacity=100000 replyThreadPoolQueueCapacity=10000 queryThreadPoolQueueCapacity=20000
        clientManagerThreadPoolQueueCapacity=1000000 consumerManagerThreadPoolQueueCapacity=1000000
        heartbeatThreadPoolQueueCapacity=50000 endTransactionPoolQueueCapacity=100000 serverWorkerThreads=8
        serverCallbackExecutorThreads=0 serverSelectorThreads=3 clientWorkerThreads=4 clientCallbackExecutorThreads=2
        useReentrantLockWhenPutMessage=true enableScheduleAsyncDeliver=false scheduleAsyncDeliverMaxPendingLimit=2000
        scheduleAsyncDeliverMaxResendNum2Blocked=3
        """,
    )
    | _unused(
        "it is about the Java broker, Netty or the JVM, and has no counterpart here",
        """
        messageStorePlugIn= transferMsgByHeap=true serverPooledByteBufAllocatorEnable=true useEpollNativeSelector=false
        writeBufferHighWaterMark=0 writeBufferLowWaterMark=0 clientPooledByteBufAllocatorEnable=false
        clientCloseSocketIfTimeout=true clientSocketSndBufSize=0 clientSocketRcvBufSize=0 channelNotActiveInterval=60000
        destroyMapedFileIntervalForcibly=120000 flushLeastPagesWhenWarmMapedFile=4096 debugLockEnable=false
        bitMapLengthConsumeQueueExt=64 commercialEnable=true commercialTimerCount=1 commercialTransCount=1
        commercialBigCount=1 commercialBaseCount=1 isolateLogEnable=false highSpeedMode=false maxDelayTime=40
        putMsgIndexHightWater=600000 messageIndexSafe=false diskFallRecorded=true
        flushConsumerOffsetHistoryInterval=60000
        """,
    )
    | _unused(
        "DLedger replication is not supported",
        """
        storePathDLedgerCommitLog dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId isEnableBatchPush=false
        enableBatchPush
        """,
    )
    | _unused("a send waits for slaves for syncFlushTimeout", "slaveTimeout=3000")
    | _unused(
        "filter servers, and address servers that tell the addresses of name servers, are not supported",
        "filterServerNums=0 fetchNamesrvAddrByAddressServer=false rmqAddressServerDomain rmqAddressServerSubGroup",
    )
    | _unused(
        "it bounds requests that a daemon sends itself, of a kind of which there are few",
        "serverOnewaySemaphoreValue=256 serverAsyncSemaphoreValue=64 clientOnewaySemaphoreValue=65535",
    )
    | _unused(
        "records are always checked, and flushIntervalCommitLog and flushIntervalConsumeQueue are bounds by themselves",
        """
        flushCommitLogTimed=true flushCommitLogLeastPages=4 flushCommitLogThoroughInterval=10000
        flushConsumeQueueLeastPages=2 flushConsumeQueueThoroughInterval=60000 checkCRCOnRecover=true
        """,
    )
)

#: (key, value in lower case) -> why it is refused: the user would rely on a protection that does not exist here.
REFUSED = {
    ("enableDLegerCommitLog", "true"): (
        "DLedger replication is not supported; brokers of one name elect their master with brokerRole=SYNC_MASTER, "
        "brokerId=1 (2 and 3 on the others) and etcdEndpoints=http://HOST:2379"
    ),
    ("duplicationEnable", "true"): (
        "with it the Java broker gives consumers no new messages; leave it out, and set brokerRole=SYNC_MASTER if "
        "sends must wait for a slave"
    ),
}

#: The same for keys that must be empty.
REFUSED_VALUES = {
    "readOnlyCommitLogStorePaths": (
        "a log in several directories is not supported; move the segments (the files named by 20 digits) of all of "
        "them into storePathCommitLog, and leave this out"
    ),
}

#: Keys that are known only for their refused values.
REFUSED_KEYS = frozenset(key for key, _ in REFUSED) | frozenset(REFUSED_VALUES)
