"""State that is right after the first time, and not reset for the second."""

from tests.mutations.mutation import Mutation

_BROKER = ("tests/broker/test_repeated_events.py",)
_STORE = ("tests/store/test_repeated_events.py",)
_HA = ("tests/ha/test_repeated_events.py",)
_CLIENT = ("tests/client/test_repeated_events.py",)

MISTAKES = [
    Mutation(
        "write the offsets of delayed messages once only",
        "broker/delay.py",
        "            self._candidate = None\n            self._file.is_dirty = True\n",
        "            self._file.is_dirty = True\n",
        _BROKER,
    ),
    Mutation(
        "report only once that delayed messages wait for the store",
        "broker/delay.py",
        "            return self._deliver_each(records, messages, level)\n        self._is_refused = False\n",
        "            return self._deliver_each(records, messages, level)\n",
        _BROKER,
    ),
    Mutation(
        "count consumers that have left among those that may be there",
        "broker/client_registry.py",
        "        self._count -= 1\n        _leave(self._joined, connection, group_name)\n        log.info(",
        "        _leave(self._joined, connection, group_name)\n        log.info(",
        _BROKER,
    ),
    Mutation(
        "count the subscriptions of groups that are gone",
        "broker/client_registry.py",
        "            self._subscriptions -= len(group.subscriptions)\n            self._text_bytes",
        "            self._text_bytes",
        _BROKER,
    ),
    Mutation(
        "leave no room for filters where others have expired",
        "broker/filter_table.py",
        "        self._count -= 1\n",
        "",
        _BROKER,
    ),
    Mutation(
        "report half messages of earlier rounds of checks again",
        "broker/transactions/transaction_checks.py",
        "        self._unasked.clear()\n",
        "",
        _BROKER,
    ),
    Mutation(
        "commit the first progress of transactions alone",
        "broker/transactions/half_queue.py",
        "        (half, op, _), self._candidate = self._candidate, None\n",
        "        half, op, _ = self._candidate\n",
        _BROKER,
    ),
    Mutation(
        "report only the first silence of a name server of another environment",
        "namesrv/route_requests.py",
        "                    self._silent.discard(address)\n",
        "",
        ("tests/namesrv/test_repeated_events.py",),
    ),
    Mutation(
        "serve clients the routes of before a broker came to another address",
        "namesrv/route_requests.py",
        "            self._kept.clear()\n            self._brokers_version = self._routes.brokers_version\n",
        "            self._brokers_version = self._routes.brokers_version\n",
        ("tests/namesrv/test_repeated_events.py",),
    ),
    Mutation(
        "close a connection on which one frame came in parts",
        "remoting/connection.py",
        "            else:\n                self._frame_begun = None\n",
        "",
        ("tests/remoting/test_set_clock.py",),
    ),
    Mutation(
        "take a segment that is made again for one that is full of zeros",
        "store/segment.py",
        "        self._filled.discard(path)  # a former segment of that name was\n",
        "",
        _STORE,
    ),
    Mutation(
        "sync the name of a table's directory the first time only",
        "store/jsonfile.py",
        "        if not (self._has_directory and self._disk.exists(directory)):",
        "        if not self._has_directory:",
        _STORE,
    ),
    Mutation(
        "report only the first shortage of descriptors",
        "store/flush.py",
        "        self._is_short = False\n        self.flushed = sync.end\n",
        "        self.flushed = sync.end\n",
        _STORE,
    ),
    Mutation(
        "report only the first lack of memory for the transient store pool",
        "store/transient.py",
        "        self._is_short = False\n        self._made += 1\n",
        "        self._made += 1\n",
        _STORE,
    ),
    Mutation(
        "report only once that nothing is old enough to delete",
        "store/retention.py",
        "        self._is_helpless = is_helpless\n",
        "        self._is_helpless |= is_helpless\n",
        _STORE,
    ),
    Mutation(
        "have only the first send that waits for slaves time out",
        "ha/acknowledgements.py",
        "        self._timeout_call = None\n        now = ",
        "        now = ",
        _HA,
    ),
    Mutation(
        "tell replicas of the first commit point alone",
        "ha/master.py",
        "        self._is_telling, self._told = False, self._slaves.committed\n",
        "        self._told = self._slaves.committed\n",
        _HA,
    ),
    Mutation(
        "read the first piece that a slave lacks from the disk, and no other",
        "ha/master.py",
        "        self._is_reading = False\n        if not self._is_closed:",
        "        if not self._is_closed:",
        _HA,
    ),
    Mutation(
        "name only the first message that keeps a queue from being pulled",
        "client/process_queue.py",
        "                self._warn_of_span_at = self._net.steady() + TELL_EVERY_S\n",
        '                self._warn_of_span_at = float("inf")\n',
        _CLIENT,
    ),
    Mutation(
        "have the balance wait as long at the next failure as at the end of the last ones",
        "client/push_consumer.py",
        "pause_s = _UNSETTLED_PAUSE_S if settled else min(pause_s * 2, self._options.rebalance_s)",
        "pause_s = min(pause_s * 2, self._options.rebalance_s)",
        _CLIENT,
    ),
    Mutation(
        "take a route for stale once it was",
        "client/routes.py",
        "            entry.is_stale = False\n",
        "            pass\n",
        _CLIENT,
    ),
    Mutation(
        "count the time of an overdue message for the next one",
        "client/consume_service.py",
        "run.message, run.looks, run.is_sent_back = None, 0, False\n",
        "run.message, run.is_sent_back = None, False\n",
        _CLIENT,
    ),
    Mutation(
        "send no message back that is overdue after the first",
        "client/consume_service.py",
        "run.message, run.looks, run.is_sent_back = None, 0, False\n",
        "run.message, run.looks = None, 0\n",
        _CLIENT,
    ),
    Mutation(
        "log a signal within its handler, which may interrupt another line",
        "daemons/epoll.py",
        "        self._exitSignal = number\n",
        '        self._exitSignal = number\n        log.info("received {name}, shutting down", name=number)\n',
        ("tests/daemons/test_epoll.py",),
    ),
]
