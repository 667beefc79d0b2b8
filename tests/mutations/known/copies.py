"""Mistakes of what is stored again, delayed and half messages, and of what a failover is to its clients."""

from tests.mutations.mutation import Mutation

_TRANSACTIONS = "tests/broker/test_transactions.py"
_DELAY = "tests/broker/test_delay.py"

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
        "broker/delay.py",
        "since_ms > self._copied_until_ms",
        "since_ms > self._copied_until_ms - SKEW_MS",
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
]
