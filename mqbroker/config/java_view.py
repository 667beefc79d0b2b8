"""A broker's settings as a Java peer expects them: all keys of the Java broker, as `key=value` lines.

Keys that have no effect here are shown with Java's default. What is secret is never shown.
"""

from __future__ import annotations

import re
from typing import Any

from mqbroker.config.load import show_settings

_WITHOUT_EFFECT = """
    messageStorePlugIn= sendMessageThreadPoolNums=2 putMessageFutureThreadPoolNums=2 pullMessageThreadPoolNums=20
    processReplyMessageThreadPoolNums=20 queryMessageThreadPoolNums=10 adminBrokerThreadPoolNums=16
    clientManageThreadPoolNums=32 consumerManageThreadPoolNums=32 heartbeatThreadPoolNums=2
    endTransactionThreadPoolNums=12 flushConsumerOffsetHistoryInterval=60000 fetchNamesrvAddrByAddressServer=false
    sendThreadPoolQueueCapacity=10000 putThreadPoolQueueCapacity=10000 pullThreadPoolQueueCapacity=100000
    replyThreadPoolQueueCapacity=10000 queryThreadPoolQueueCapacity=20000 clientManagerThreadPoolQueueCapacity=1000000
    consumerManagerThreadPoolQueueCapacity=1000000 heartbeatThreadPoolQueueCapacity=50000
    endTransactionPoolQueueCapacity=100000 filterServerNums=0 highSpeedMode=false commercialEnable=true
    commercialTimerCount=1 commercialTransCount=1 commercialBigCount=1 commercialBaseCount=1 transferMsgByHeap=true
    maxDelayTime=40 disableConsumeIfConsumerReadSlowly=false consumerFallbehindThreshold=17179869184
    brokerFastFailureEnable=true waitTimeMillsInSendQueue=200 waitTimeMillsInPullQueue=5000
    waitTimeMillsInHeartbeatQueue=31000 waitTimeMillsInTransactionQueue=3000 enableCalcFilterBitMap=false
    expectConsumerNumUseFilter=32 maxErrorRateOfBloomFilter=20 filterDataCleanTimeSpan=86400000
    filterSupportRetry=false enablePropertyFilter=false transactionTimeOut=6000 transactionCheckMax=15
    transactionCheckInterval=60000 aclEnable=false enableDetailStat=true autoDeleteUnusedStats=false
    isolateLogEnable=false bitMapLengthConsumeQueueExt=64 useReentrantLockWhenPutMessage=true
    destroyMapedFileIntervalForcibly=120000 putMsgIndexHightWater=600000 flushLeastPagesWhenWarmMapedFile=4096
    messageIndexSafe=false haSendHeartbeatInterval=5000 haHousekeepingInterval=20000 haTransferBatchSize=32768
    haSlaveFallbehindMax=268435456 slaveTimeout=3000 flushDelayOffsetInterval=10000 offsetCheckInSlave=false
    debugLockEnable=false diskFallRecorded=true osPageCacheBusyTimeOutMills=1000 enableDLegerCommitLog=false
    isEnableBatchPush=false enableScheduleMessageStats=true enableScheduleAsyncDeliver=false
    scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3 serverWorkerThreads=8
    serverCallbackExecutorThreads=0 serverSelectorThreads=3 writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
    serverPooledByteBufAllocatorEnable=true useEpollNativeSelector=false clientWorkerThreads=4
    clientCallbackExecutorThreads=2 channelNotActiveInterval=60000 clientSocketSndBufSize=0 clientSocketRcvBufSize=0
    clientPooledByteBufAllocatorEnable=false clientCloseSocketIfTimeout=true useTLS=false
"""
_DEFAULTS = dict(item.split("=", 1) for item in _WITHOUT_EFFECT.split())
_is_secret = re.compile("password|secret|credential|accesskey|token", re.IGNORECASE).search


def java_properties(settings: Any) -> str:
    """The lines of `settings`, sorted by key."""
    shown = dict(line.split("=", 1) for line in show_settings(settings))
    table = _DEFAULTS | shown
    return "".join(f"{key}={table[key]}\n" for key in sorted(table) if not _is_secret(key))
