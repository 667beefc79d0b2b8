"""The runtime information of a broker: the table that GET_BROKER_RUNTIME_INFO returns.

Keys and the form of values are those of AdminBrokerProcessor.prepareRuntimeInfo, of StoreStatsService and of
DefaultMessageStore of 4.9.7, which dashboards and exporters parse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

import attrs

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.delay import DelayService
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.ha.master import Slaves
from mqbroker.ha.slave import SlaveService
from mqbroker.store.message_store import MessageStore
from mqbroker.store.statistics import CLASS_NAMES
from mqbroker.wire.codes import VERSION, VERSION_NAME

#: The periods over which rates are reported, in seconds.
RATE_SECONDS = (10, 60, 600)
#: The number of free buffers reported without a transient store pool.
_NO_POOL = 2**31 - 1
#: The queues of Java's thread pools, with their default capacities. They do not exist here, so they are empty.
_POOLS = {
    "sendThreadPoolQueueSize": "0",
    "sendThreadPoolQueueCapacity": "10000",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "pullThreadPoolQueueCapacity": "100000",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "20000",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    # Puts take no lock here.
    "pageCacheLockTimeMills": "0",
    # Java never sets it.
    "dispatchMaxBuffer": "0",
}


@attrs.frozen
class RuntimeInfo:
    """Builds the table. `now` returns seconds since the epoch.

    Keys that begin with "haSlave_" are not Java's: a slave's offset, the bytes and seconds that it is behind, the bytes
    that it gets a second, and why it does not count (empty if it does). "haRefused_" and an address: why a slave from
    there was refused in the last minutes. "haMaster_" is of slaves: the own offset, the bytes that it is behind (empty
    if unknown), and why it does not follow (empty if it does). Those that begin with "group" are of brokers that
    elect their master: the id in the group, the epoch, the ids of the in-sync replicas, and why it takes no part
    (empty if it does). `whyRefused` is there while messages are refused, with the reason. `shardOf`, `shard` and
    `shards` are of a broker with several: their common name, which one this is, and how many they are.
    """

    _store: MessageStore
    _stats: BrokerStats
    _delay: DelayService
    _live: LiveSettings
    _now: Callable[[], float]
    _slaves: Slaves
    _follower: SlaveService | None = None
    _group: Callable[[], dict[str, str]] = dict

    def table(self) -> dict[str, str]:
        self._stats.collect()
        return {
            **_POOLS,
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "startAcceptSendRequestTimeStamp": str(self._live.current.start_accept_send_request_timestamp_ms),
            **self._totals(),
            **self._times(),
            **self._rates(),
            **self._disk(),
            **self._replication(),
            **self._group(),
            **self._shard(),
            **{
                f"scheduleMessageOffset_{level}": f"{offset},{end}"
                for level, (offset, end) in self._delay.progress().items()
            },
        }

    def _totals(self) -> dict[str, str]:
        statistics, totals = self._store.statistics, self._stats.totals
        size = statistics.put_bytes
        return {
            "msgPutTotalYesterdayMorning": str(totals.put_yesterday),
            "msgPutTotalTodayMorning": str(totals.put_today),
            "msgPutTotalTodayNow": str(statistics.puts),
            "msgGetTotalYesterdayMorning": str(totals.got_yesterday),
            "msgGetTotalTodayMorning": str(totals.got_today),
            "msgGetTotalTodayNow": str(statistics.got),
            "putMessageTimesTotal": str(statistics.puts),
            "putMessageFailedTimes": str(statistics.failed_puts),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": java_double(size / (statistics.puts or 1)),
        }

    def _times(self) -> dict[str, str]:
        statistics = self._store.statistics
        seconds = max(0, int(self._now() - statistics.began))
        minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
        classes = zip(CLASS_NAMES, statistics.put_classes, strict=True)
        return {
            "bootTimestamp": str(int(statistics.began * 1000)),
            "runtime": f"[ {days:,} days, {hours % 24} hours, {minutes % 60} minutes, {seconds % 60} seconds ]",
            "earliestMessageTimeStamp": str(self._store.stats.earliest_ms),
            "putMessageEntireTimeMax": str(statistics.longest_put_ms),
            "getMessageEntireTimeMax": str(statistics.longest_get_ms),
            "putMessageDistributeTime": "".join(f"{name}:{count} " for name, count in classes),
            "putLatency99": f"{statistics.put_percentile_ms(0.99):.2f}",
            "putLatency999": f"{statistics.put_percentile_ms(0.999):.2f}",
        }

    def _rates(self) -> dict[str, str]:
        """Three numbers per rate; one is blank if the broker has not run that long."""
        rates = [self._store.statistics.rates(seconds) for seconds in RATE_SECONDS]

        def texts(name: str) -> str:
            return " ".join(java_double(getattr(rate, name)) if rate is not None else "" for rate in rates)

        return {
            "putTps": texts("puts"),
            "getFoundTps": texts("found"),
            "getMissTps": texts("missed"),
            "getTransferedTps": texts("got"),
            # Never a blank in Java either.
            "getTotalTps": " ".join(java_double(rate.found + rate.missed if rate else 0.0) for rate in rates),
        }

    def _replication(self) -> dict[str, str]:
        if self._follower is None:
            table = {f"haRefused_{host}": why for host, why in self._slaves.refused.items()}
            for slave in self._slaves.states():
                numbers = f"{slave.acknowledged},{slave.behind},{slave.behind_s:.0f},{slave.rate:.0f}"
                table[f"haSlave_{slave.peer}"] = f"{numbers},{slave.why_not_counted}"
            return table
        master = self._follower.status
        behind = "" if master.behind is None else str(master.behind)
        return {f"haMaster_{master.address}": f"{master.end},{behind},{master.why_not}"}

    def _shard(self) -> dict[str, str]:
        settings = self._live.current
        if settings.shards == 1:
            return {}
        return {"shardOf": settings.shard_of, "shard": str(settings.shard), "shards": str(settings.shards)}

    def _disk(self) -> dict[str, str]:
        stats, settings = self._store.stats, self._live.current.store
        log_ratio = java_double(stats.log_disk_percent / 100)
        table = {
            "commitLogMinOffset": str(stats.log_min_offset),
            "commitLogMaxOffset": str(stats.log_end),
            "dispatchBehindBytes": str(stats.log_end - stats.dispatched),
            "remainHowManyDataToFlush": byte_count(stats.log_end - stats.flushed),
            "remainTransientStoreBufferNumbs": str(_NO_POOL if stats.buffers_left is None else stats.buffers_left),
            "commitLogDiskRatio": log_ratio,
            f"commitLogDiskRatio_{settings.store_path_commit_log}": log_ratio,
            "consumeQueueDiskRatio": java_double(stats.queues_disk_percent / 100),
        }
        if stats.why_refused:
            table["whyRefused"] = stats.why_refused
        if stats.buffers_left is not None:
            table["remainHowManyDataToCommit"] = byte_count(stats.uncommitted)
        if (space := stats.log_space) is not None:
            size, free = byte_count(space.size_bytes), byte_count(space.available_bytes)
            table["commitLogDirCapacity"] = f"Total : {size}, Free : {free}."
        return table


def byte_count(size: int) -> str:
    """`1536` -> `1.5 KiB`."""
    unit = min(6, (max(size, 1).bit_length() - 1) // 10)
    return f"{size / 1024**unit:.1f} {'KMGTPE'[unit - 1]}iB" if unit else f"{size} B"


def java_double(value: float) -> str:
    """Format as Java's Double.toString: digits on both sides of the point, an exponent below 1e-3 and from 1e7."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{len(text) - 1 + int(exponent)}"
