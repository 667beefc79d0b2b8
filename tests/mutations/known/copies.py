"""Mistakes of what is stored again (delayed and half messages, damaged logs), and of what a failover is to clients."""

from tests.mutations.mutation import Mutation

_TRANSACTIONS = "tests/broker/test_transactions.py"
_DELAY = "tests/broker/test_delay.py"

_STORES = "tests/broker/service/test_group_stores.py"
_SCRUB = "tests/store/test_log_scrub.py"

MISTAKES = [
    Mutation(
        "not say of a delayed message's copy where it came from",
        "broker/delay.py",
        "prepared_offset=origin(record.physical_offset)",
        "prepared_offset=0",
        (_DELAY,),
    ),
    Mutation(
        "take the copy of the first message of the log for none",
        "broker/stored_copies.py",
        "    return -1 - physical_offset\n",
        "    return -physical_offset\n",
        (_DELAY,),
    ),
    Mutation(
        "expect that all brokers' clocks are the same",
        "broker/stored_copies.py",
        "SKEW_MS = 60_000",
        "SKEW_MS = 0",
        (_DELAY,),
    ),
    Mutation(
        "look for copies only for what is due at the start",
        "broker/former_deliveries.py",
        "since_ms > self._until_ms",
        "since_ms > self._until_ms - SKEW_MS",
        (_DELAY,),
    ),
    Mutation(
        "store a committed message again whose op message is missing",
        "broker/transactions/half_queue.py",
        "                await self._settle_copied()\n",
        "                pass\n",
        (_TRANSACTIONS,),
    ),
    Mutation(
        "keep sends waiting for a suspended replica until their clients give up",
        "config/settings.py",
        "ha_max_time_slave_not_catchup_ms: int = long(2000,",
        "ha_max_time_slave_not_catchup_ms: int = long(3000,",
        ("tests/ha/test_in_sync.py",),
    ),
    Mutation(
        "believe the flags of a message that a producer sent",
        "broker/transactions/half_queue.py",
        "return offset if is_committed and offset > 0 else -1",
        "return offset if is_committed else -1",
        (_TRANSACTIONS,),
    ),
    Mutation(
        "forget where a half message was before it was put back",
        "broker/transactions/half_message.py",
        "    former = origin(record.physical_offset)\n",
        "    former = 0\n",
        (_TRANSACTIONS,),
    ),
    Mutation(
        "fill up a store that has gaps",
        "broker/broker_group.py",
        "            if store.gaps and not has_gaps:\n",
        "            if False:\n",
        (_STORES,),
    ),
    Mutation(
        "put a damaged log aside where the master's is damaged, too",
        "broker/broker_group.py",
        "            if store.gaps and not has_gaps:\n",
        "            if store.gaps:\n",
        (_STORES,),
    ),
    Mutation(
        "serve on as the master with a damaged log",
        "broker/broker_group.py",
        "        able = [each for each in sorted(self.member.role.in_sync) if not in_sync.why_not_next(each)]\n",
        "        able: list[int] = []\n",
        (_STORES,),
    ),
    Mutation(
        "trust segments whose first record nobody has read",
        "store/log_scrub.py",
        "damaged | marked | {*range(begin, end, size)}",
        "damaged | marked",
        (_SCRUB,),
    ),
    Mutation(
        "trust records that were noted while they were written",
        "store/log_scrub.py",
        "damaged | marked | {*range(begin, end, size)}",
        "damaged | {*range(begin, end, size)}",
        (_SCRUB,),
    ),
    Mutation(
        "believe a reader that a record is damaged",
        "store/message_store.py",
        "self._files.on_damage = lambda damage: self._scrub.confirm(damage, on_damage)",
        "self._files.on_damage = on_damage",
        (_SCRUB,),
    ),
    Mutation(
        "go on reading within a record, where the log was cut off meanwhile",
        "store/log_scrub.py",
        "at - at % self._log.segment_bytes",
        "at",
        (_SCRUB,),
    ),
    Mutation(
        "read on behind a page that the disk cannot read without a word of it",
        "store/log_scrub.py",
        "            _read_one_by_one(segment, looked, end)\n",
        "            looked.at = end\n",
        (_SCRUB,),
    ),
    Mutation(
        "forget what was found damaged when the broker stops",
        "store/log_scrub.py",
        "return stopped.addCallback(lambda _: self._save())",
        "return stopped.addCallback(lambda _: None)",
        (_SCRUB,),
    ),
]
