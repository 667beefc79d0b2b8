"""A slave's continuous work: follows its master's log, copies its tables, and finds a master that moved.

The name servers tell which broker is the master in their responses to the slave's registration; haMasterAddress
overrides the address for the log.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.broker.slave_synchronize import SlaveSynchronize
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import MQError, Refused
from mqbroker.ha.divergence import LogComparison
from mqbroker.ha.slave import SlaveService
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.repeated_call import RepeatedCall
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.requests import codes_where

log = Logger()

FETCH_SECONDS = 10.0
#: Delay of a fetch after a message of a topic that the table does not have.
FETCH_SOON_SECONDS = 1.0
LOOK_SECONDS = 1.0
#: While no master is followed, name servers are asked after 1, 2, 4, 8 seconds and then so often: it is a registration.
FIND_SECONDS_MAX = 10.0
REPORT_SECONDS = 60.0
#: Topics that the master did not have either, remembered at most.
UNKNOWN_MAX = 10_000


@attrs.define(eq=False)
class BrokerSlave:
    """Runs a slave's link and tables.

    :param refresh: registers at the name servers again, to hear who the master is.
    """

    _clock: IReactorTime
    _service: SlaveService
    _comparison: LogComparison
    _tables: SlaveSynchronize
    _topics: TopicTable
    _ha_master_address: str
    _refresh: Callable[[], object]
    _fetching: Deferred[None] | None = attrs.field(init=False, default=None)
    _soon: IDelayedCall | None = attrs.field(init=False, default=None)
    _unknown: set[str] = attrs.field(init=False, factory=set)
    #: How many fetches in a row have failed, and whether that was logged.
    _failures: int = attrs.field(init=False, default=0)
    _is_told: bool = attrs.field(init=False, default=False)
    _find_at: float = attrs.field(init=False, default=0.0)
    _find_s: float = attrs.field(init=False, default=LOOK_SECONDS)
    _loops: list[RepeatedCall] = attrs.field(init=False, factory=list)

    def start(self) -> None:
        self._service.follow(self._ha_master_address)
        self._service.startService()
        for act, seconds in ((self._fetch, FETCH_SECONDS), (self._look, LOOK_SECONDS), (self._report, REPORT_SECONDS)):
            loop = RepeatedCall(act, clock=self._clock)
            loop.start(seconds, now=False)
            self._loops.append(loop)

    def stop(self) -> Deferred[None]:
        """Fires when the connection to the master is closed."""
        for loop in self._loops:
            loop.stop()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._fetching is not None:
            self._fetching.cancel()
        return self._service.stopService()

    def on_master(self, ha_address: str, address: str, *, is_elected: bool = False) -> None:
        """Called with the addresses of a master, for replication and for requests, as a name server knows them, or when
        it is elected."""
        is_new = bool(address) and address != self._comparison.master_addr
        if is_new:  # known before the logs are compared
            self._comparison.master_addr = address
        if not self._ha_master_address:
            self._service.follow(ha_address, at_once=is_elected)
        if is_new and self._fetching is not None:  # from the former master
            self._fetching.cancel()
        if is_new or is_elected:
            self._fetch()

    def arrived(self, topic: str) -> None:
        """Called when a topic has new messages: the table may lack it still."""
        if self._topics.get(topic) is not None:
            self._unknown.discard(topic)  # it may be deleted and created again
        elif self._soon is None and topic not in self._unknown:
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown.add(topic)
            self._soon = self._clock.callLater(FETCH_SOON_SECONDS, self._fetch_now)

    def _fetch_now(self) -> None:
        self._soon = None
        if self._fetching is not None:  # its result may be older than the topic
            self._soon = self._clock.callLater(FETCH_SOON_SECONDS, self._fetch_now)
        self._fetch()

    def _look(self) -> None:
        self._tables.look()
        now = self._clock.seconds()
        if not self._service.status.why_not:
            self._find_at, self._find_s = 0.0, LOOK_SECONDS
        elif now >= self._find_at:
            self._find_at, self._find_s = now + self._find_s, min(2 * self._find_s, FIND_SECONDS_MAX)
            self._refresh()

    def _fetch(self) -> None:
        if self._fetching is None and self._comparison.master_addr:
            self._fetching = Deferred.fromCoroutine(self._fetch_tables(self._comparison.master_addr))
            self._fetching.addBoth(self._fetched)

    def _fetched(self, result: Failure | None) -> None:
        self._fetching = None
        if result is not None and not result.check(CancelledError):  # type: ignore[no-untyped-call]
            log.failure("copying the tables of the master failed", result)

    async def _fetch_tables(self, address: str) -> None:
        try:
            self._service.master_end = await self._tables.fetch(address)
        except MQError as error:
            self._failures += 1
            # A master that has just started may fail once (Java's says NoSuchElementException), and one that is away is
            # reported as not followed.
            if self._failures > 1 and not self._is_told and not self._service.status.why_not:
                self._is_told = True
                log.warn("the tables of master {address} cannot be fetched: {why}", address=address, why=str(error))
        else:
            if self._is_told:
                log.info("the tables of master {address} are fetched again", address=address)
            self._failures, self._is_told = 0, False

    def _report(self) -> None:
        status = self._service.status
        if status.why_not:
            log.warn("not replicating from master {address}: {why}", address=status.address, why=status.why_not)
        elif status.behind is not None:
            log.info("master {address} is {n} bytes ahead", address=status.address, n=status.behind)


#: Why the master of a group does nothing for now.
NOT_CERTAIN = "this broker may not be the master any more: its lease in etcd has run out"
#: Why a replica of a group serves no consumers for now.
INCOMPLETE = "this broker's store is incomplete: its group's master has all messages"
#: Requests that change something which is the broker's own, or ends with the connection.
_OWN = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.SWITCH_GROUP_MASTER,
        RequestCode.REMOVE_GROUP_MEMBER,
    }
)
#: Requests whose responses tell consumers where to start.
_PLACES = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
)


def serve_only_while(table: HandlerTable, may_serve: Callable[[], bool], *, is_master: bool) -> None:
    """Refuse what would lead consumers of a group past messages that another of its brokers has: of a master while
    another may be elected, as after a pause of this process, all that it alone may do, too; of a replica while its
    store is incomplete. Pulls are held meanwhile (`PullRequests`). With this code producers send elsewhere, and
    consumers ask again."""
    codes: set[int] = set(_PLACES)
    if is_master:
        codes |= set(codes_where(lambda request: not request.read_only and not request.to_clients)) - _OWN
    why = Refused(
        ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now. {NOT_CERTAIN if is_master else INCOMPLETE}"
    )
    table.serve_only_while(may_serve, sorted(codes), why)


def refuse_changes(table: HandlerTable) -> None:
    """Refuse the requests that only a master serves, with the codes of Java's slave."""
    sends = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
    replies = {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
    stored = "service not available now. This broker is a slave: messages go to its master"
    table.refuse(sends | replies, Refused(ResponseCode.SERVICE_NOT_AVAILABLE, stored))
    table.refuse([RequestCode.CONSUMER_SEND_MSG_BACK], Refused(ResponseCode.SYSTEM_ERROR, stored))
    table.refuse([RequestCode.END_TRANSACTION], Refused(ResponseCode.SLAVE_NOT_AVAILABLE, stored))
    changes = {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }
    remark = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
    table.refuse(changes, Refused(ResponseCode.SYSTEM_ERROR, remark))
