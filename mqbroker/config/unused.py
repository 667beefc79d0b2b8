"""Keys of the Java system that have no effect here, and values that ask for what is not here. Only tables."""

from __future__ import annotations


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Java spreads its work over thread pools; here one thread takes requests in the order they come.
_THREADS = _keys(
    """
    sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums
    processReplyMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
    consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums sendThreadPoolQueueCapacity
    putThreadPoolQueueCapacity pullThreadPoolQueueCapacity replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity
    clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
    endTransactionPoolQueueCapacity serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
    clientWorkerThreads clientCallbackExecutorThreads useReentrantLockWhenPutMessage
    """
)

#: Workings of the JVM, of Netty and of Java's memory-mapped files that have no counterpart.
_JAVA = _keys(
    """
    messageStorePlugIn transferMsgByHeap commercialEnable commercialTimerCount commercialTransCount
    commercialBigCount commercialBaseCount isolateLogEnable highSpeedMode filterServerNums maxDelayTime
    serverPooledByteBufAllocatorEnable useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark
    clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout clientSocketSndBufSize clientSocketRcvBufSize
    channelNotActiveInterval
    destroyMapedFileIntervalForcibly putMsgIndexHightWater
    flushLeastPagesWhenWarmMapedFile messageIndexSafe debugLockEnable diskFallRecorded
    bitMapLengthConsumeQueueExt isEnableBatchPush enableBatchPush storePathDLedgerCommitLog
    dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId
    """
)

#: What belongs to functions this version does not have.
_ABSENT = _keys(
    """
    flushConsumerOffsetHistoryInterval fetchNamesrvAddrByAddressServer
    haSendHeartbeatInterval haHousekeepingInterval
    haTransferBatchSize haMasterAddress haSlaveFallbehindMax slaveTimeout flushDelayOffsetInterval offsetCheckInSlave
    enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    rmqAddressServerDomain rmqAddressServerSubGroup
    """
)

#: Keys that are taken from a Java file without a word and change nothing.
NO_EFFECT = _THREADS | _JAVA | _ABSENT

#: (key, value in lower case) to why it is refused: who sets it counts on a protection that would not be there.
REFUSED = {
    ("enableDLegerCommitLog", "true"): "DLedger replication is not served; use brokerRole=ASYNC_MASTER without it",
    ("brokerRole", "slave"): "replication is not served by this version; use brokerRole=ASYNC_MASTER",
    ("brokerRole", "sync_master"): (
        "replication is not served by this version, so no slave could confirm a message; use brokerRole=ASYNC_MASTER"
    ),
}

#: The same of keys that may be there with no value only.
REFUSED_VALUES = {
    "readOnlyCommitLogStorePaths": (
        "a log in several directories is not served; move the segments (the files named by 20 digits) of all of them "
        "into storePathCommitLog, and leave this out"
    ),
}

#: Keys that are known only for what they refuse.
REFUSED_KEYS = frozenset(key for key, _ in REFUSED) | frozenset(REFUSED_VALUES)
